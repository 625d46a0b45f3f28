"""``roost plan -i``: every host of an inventory, as its variables say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.deployments import write_lock

from roost import catalog
from roost.errors import UsageError
from roost.hub import HubUnavailableError
from roost.inventory import Connection, Host, Inventory
from roost.launch.pinning import Weights
from roost.plan import fleet
from roost.plan.finding import Finding
from roost.plan.fleet import HostPlan
from roost.plan_cli import plan

FP8 = "ornith-1.0-35b-fp8"
SMALL = {"kv_cache_bytes": 4 * 2**30}


def inventory(**hosts: dict[str, Any]) -> Inventory:
    """An inventory with these ``roost_*`` variables, without their prefix."""
    return Inventory(
        path=Path("inventory/test"),
        hosts={
            name: Host(
                name=name,
                variables={f"roost_{key}": value for key, value in variables.items()},
                connection=Connection(address=name),
            )
            for name, variables in hosts.items()
        },
    )


def spark(**variables: Any) -> dict[str, Any]:
    return {"hardware": "gb10", "recipe": FP8, **variables}


def planned(root: Path, given: Inventory, **options: Any) -> dict[str, HostPlan]:
    made = fleet.plans(given, root, catalog=catalog.builtin(), **options)
    return {one.host: one for one in made}


def errors(one: HostPlan) -> set[str]:
    assert one.plan is not None
    return {finding.id for finding in one.plan.refused}


def test_each_host_is_planned_for_what_its_variables_say(tmp_path: Path) -> None:
    made = planned(
        tmp_path,
        inventory(
            a=spark(),
            b=spark(settings=SMALL),
            c={"hardware": "rtx5070ti-x2", "recipe": "ornith-1.0-35b-heretic-nvfp4-dflash"},
            d={
                "hardware": "rtx5070ti-x2",
                "recipe": "ornith-1.0-35b-heretic-nvfp4-dflash",
                "speculation": "none",
            },
        ),
    )
    assert [one.plan.memory.kv_pool_tokens for one in made.values() if one.plan] == [
        412_980,
        205_970,
        347_124,
        591_809,
    ]
    assert [errors(one) for one in made.values()] == [
        set(),
        {"kv-too-small", "max-num-seqs"},
        set(),
        set(),
    ]


def test_findings_are_accepted_by_a_host_or_for_all_of_them(tmp_path: Path) -> None:
    given = inventory(
        a=spark(settings=SMALL, accept_findings=["kv-too-small"]), b=spark(settings=SMALL)
    )
    made = planned(tmp_path, given, accept=["max-num-seqs"])
    assert errors(made["a"]) == set()
    assert errors(made["b"]) == {"kv-too-small"}


def test_a_lock_of_the_host_s_own_is_heeded(tmp_path: Path) -> None:
    write_lock(tmp_path / "other.yml")
    (tmp_path / "empty.yml").touch()
    cpu = {"hardware": "cpu", "recipe": "smollm2-135m"}
    given = inventory(
        a=cpu,
        b={**cpu, "lock_file": "other.yml"},
        c={**cpu, "lock_file": "empty.yml"},
        d={**cpu, "lock_file": "ohter.yml"},
    )
    made = planned(tmp_path, given)

    def unpinned(host: str) -> Finding | None:
        found = made[host].plan
        assert found is not None
        return next((one for one in found.findings if one.id == "not-pinned"), None)

    default, other, empty, misspelt = map(unpinned, "abcd")
    assert other is None
    assert default
    assert empty
    assert misspelt
    missing = f"there is no lock {tmp_path}/"
    assert (default.source, empty.source) == (f"{tmp_path}/roost.lock.yml", f"{tmp_path}/empty.yml")
    assert default.why.startswith(f"{missing}roost.lock.yml; a branch")
    assert misspelt.why.startswith(f"{missing}ohter.yml; a branch")
    assert missing not in empty.why
    assert empty.fix.endswith(f"roost lock smollm2-135m --lock-file {tmp_path}/empty.yml")


def test_a_wrong_variable_costs_one_host_its_plan(tmp_path: Path) -> None:
    made = planned(
        tmp_path,
        inventory(
            a=spark(),
            b=spark(recipe="ornith"),
            c=spark(settings={"max_seqs": 1}),
            d=spark(accept_findings=["kv-to-small"]),
        ),
    )
    assert made["a"].plan is not None
    assert "'ornith' is not in the catalogue" in str(made["b"].error)
    assert "c: roost_settings: max_seqs" in str(made["c"].error)
    assert "d: roost_accept_findings: no finding has the name 'kv-to-small'" in str(made["d"].error)


def test_a_repository_that_cannot_be_had_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that is down must not cost its timeout for each host."""
    asked = []

    def read(weights: Weights) -> Any:
        asked.append(weights.repo)
        raise HubUnavailableError("the hub did not answer")

    monkeypatch.setattr("roost.plan.planner.reader", lambda hub, **_: read if hub else None)
    there = spark(hub_endpoint="http://hub:1")
    made = planned(tmp_path, inventory(a=there, b=there, c=spark()))
    assert asked == ["deepreinforce-ai/Ornith-1.0-35B-FP8"]
    for host in ("a", "b"):
        found = made[host].plan
        assert found is not None
        assert "the hub did not answer" in {one.why for one in found.findings}


@pytest.mark.parametrize("hub", [None, "http://hub:1"])
def test_each_host_is_read_of_with_its_own_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: str | None
) -> None:
    asked = []

    def reader(token: str | None, **_: Any) -> Any:
        def read(weights: Weights) -> Any:
            asked.append((weights.repo.partition("/")[0], token))
            raise HubUnavailableError("the hub did not answer")

        return read

    monkeypatch.setattr("roost.plan.planner.reader", reader)
    planned(
        tmp_path,
        inventory(
            a=spark(hub_endpoint="http://hub:1", hub_token="hf_a"),
            b=spark(hub_endpoint="http://hub:1", hub_token="hf_a"),
            c=spark(hub_endpoint="http://hub:1"),
        ),
        hub=hub,
    )
    assert asked == [("deepreinforce-ai", "hf_a"), ("deepreinforce-ai", None)]


def run(monkeypatch: pytest.MonkeyPatch, given: Inventory, *words: str) -> Result:
    monkeypatch.setattr("roost.inventory.load", lambda *_: given)
    return CliRunner().invoke(plan, ["-i", "inventory/test", *words], env={"COLUMNS": "120"})


@pytest.mark.parametrize("columns", ["40", "70", "80"])
@pytest.mark.parametrize("terminal", [True, False])
def test_no_width_cuts_a_figure_or_a_name(
    columns: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = "spark-01.lab.example.internal"
    given = inventory(**{host: spark(settings=SMALL)})
    monkeypatch.setattr("roost.terminal.present", lambda: terminal)
    monkeypatch.setattr("roost.inventory.load", lambda *_: given)
    words = ["-i", "inventory/test"]
    found = json.loads(CliRunner().invoke(plan, [*words, "--json"]).output)[0]["plan"]
    shown = CliRunner().invoke(plan, words, env={"COLUMNS": columns}).output
    table = shown.partition("\n\n")[0]
    assert "…" not in table
    for said in (
        host,
        found["recipe"],
        f"{found['memory']['kv_pool_tokens']:,}",
        f"{found['memory']['max_concurrency']:.2f}",
        *(one["id"] for one in found["findings"] if one["severity"] == "error"),
    ):
        assert said in table.replace(",", " ").split() or said in table.split(), table
    assert len(table.splitlines()) == (8 if terminal else 2)


def test_the_table_has_a_line_a_host_and_each_finding_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = {f"spark-{n:02}": spark(settings=SMALL) for n in range(8)}
    done = run(monkeypatch, inventory(**hosts, last=spark()))
    assert done.exit_code == 3
    lines = done.output.splitlines()
    assert lines[1].split() == [
        "spark-00",
        FP8,
        "none",
        "refuse",
        "205,970",
        "0.79",
        "66.09",
        "GiB",
        "kv-too-small,",
        "max-num-seqs",
    ]
    assert done.output.count("error kv-too-small") == 1
    assert "  hosts: spark-00, spark-01, spark-02, spark-03, spark-04, spark-05 and 2 more" in lines


def test_json_is_a_list_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, inventory(a=spark(), b=spark(recipe="ornith")), "--json")
    good, bad = json.loads(done.stdout)
    assert (good["host"], good["error"]) == ("a", None)
    assert good["plan"]["memory"]["kv_pool_tokens"] == 412_980
    assert (bad["host"], bad["plan"]) == ("b", None)
    assert "'ornith' is not in the catalogue" in bad["error"]
    assert isinstance(done.exception, UsageError)


def test_hosts_that_run_are_exit_code_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, inventory(a=spark())).exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-i", "inventory/spark", FP8], "RECIPE does not go with an inventory"),
        (["-i", "inventory/spark", "--on", "gb10"], "--on does not go with an inventory"),
        (["-i", "inventory/spark", "--set", "max_num_seqs=1"], "--set does not go with"),
        (["-i", "inventory/spark", "--frontier"], "--frontier does not go with"),
        ([FP8], "nothing to plan"),
        ([], "nothing to plan"),
        ([FP8, "--on", "gb10", "--limit", "x"], "--limit needs an inventory"),
    ],
)
def test_a_recipe_or_an_inventory(words: list[str], message: str) -> None:
    done = CliRunner().invoke(plan, words)
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)


def test_what_is_refused_before_there_is_a_plan_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An untrusted image is told no key."""
    untrusted = {
        "hardware": "gb10",
        "recipe": "ornith-1.0-35b-aeon-nvfp4-dflash",
        "api_key": "secret-key",
    }
    done = run(monkeypatch, inventory(a=untrusted, b=spark()))
    assert done.exit_code == 3
    assert "its image is not trusted" in done.output
    assert "secret-key" not in done.output

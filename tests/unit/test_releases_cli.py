"""`roost status` and `roost rollback` on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.test_releases import facts, failure

from roost import fleet, releases
from roost.cli import cli
from roost.errors import RoostError
from roost.fleet import PlayResult

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("healthy", "failed", "code"),
    [(True, {}, 0), (False, {}, 1), (True, {"spark-02": "No route to host"}, 1)],
)
def test_status_tells_every_host_and_exits_by_what_it_saw(
    monkeypatch: pytest.MonkeyPatch, healthy: bool, failed: dict[str, str], code: int
) -> None:
    found = facts()
    found["engine"]["healthy"] = healthy
    # What Ansible adds to a task's result.
    found |= {"changed": False, "_ansible_no_log": False, "invocation": {"module_args": {}}}
    monkeypatch.setattr(fleet, "ask", lambda *_, **__: ({"spark-01": found}, failed))
    done = CliRunner().invoke(cli, ["status", "-i", "inventory/spark"])
    assert done.exit_code == code
    assert done.output.startswith("spark-01  r-0123456789ab: ")
    assert ("spark-02  No route to host" in done.output) is bool(failed)
    as_json = CliRunner().invoke(cli, ["status", "-i", "inventory/spark", "--json"])
    assert as_json.exit_code == code
    said = json.loads(as_json.output)
    assert (set(said), said["failed"]) == ({"hosts", "failed"}, failed)
    told = said["hosts"]["spark-01"]
    assert told == {name: found[name] for name in releases.TOLD}
    # A script that reads it can look each up; the page is the promise.
    page = (ROOT / "docs" / "reliability.md").read_text()
    names = re.findall(r"^\| `(\w+)` \|", page.partition("roost status --json")[2], re.MULTILINE)
    assert names[: len(told)] == list(told)


def test_status_names_causes_and_its_json_holds_no_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    died = failure(log="vllm: error: unrecognized arguments: --x\n")
    found = facts(
        last_failed={"at": "then", "release": "x-1", "kind": "not kept", "diagnosis": None, **died}
    )
    found["engine"] |= {"running": False, "healthy": False, "unit": "failed", "failure": died}
    lost = "Failed to connect to the host via ssh: Host key verification failed."
    monkeypatch.setattr(fleet, "ask", lambda *_, **__: ({"a": found}, {"b": lost}))
    shown = CliRunner().invoke(cli, ["status", "-i", "inventory/spark"]).output
    assert shown.count("cause: --x is no flag of this engine (unknown-flag)") == 2
    assert f"b  {lost}\n      cause: the host's SSH key is not known here\n" in shown
    as_json = CliRunner().invoke(cli, ["status", "-i", "inventory/spark", "--json"]).output
    told = json.loads(as_json)["hosts"]["a"]
    for one in (told["engine"]["failure"], told["last_failed"]):
        assert "log" not in one
        assert one["diagnosis"][0]["id"] == "unknown-flag"


def test_rollback_hands_the_release_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def run(name: str, inventory: Path, **options: Any) -> PlayResult:
        asked.append({"name": name, "inventory": inventory, **options})
        return PlayResult("successful", hosts=["spark-01"])

    monkeypatch.setattr(fleet, "run_playbook", run)
    words = ["rollback", "-i", "inventory/spark", "--to", "r-1", "--limit", "spark-01"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0
    assert done.output == "rolled back: spark-01\n"
    assert asked[0]["name"] == "rollback"
    assert asked[0]["extra_vars"] == {"rollback_to": "r-1"}
    assert asked[0]["limit"] == "spark-01"
    CliRunner().invoke(cli, ["rollback", "-i", "inventory/spark", "--despite-lease"])
    assert asked.pop()["extra_vars"] == {"despite_lease": True}
    CliRunner().invoke(cli, ["rollback", "-i", "inventory/spark"])
    assert asked[1]["extra_vars"] is None


@pytest.mark.parametrize(("verb", "done"), [("stop", "stopped"), ("start", "started")])
def test_engines_are_stopped_and_started(
    monkeypatch: pytest.MonkeyPatch, verb: str, done: str
) -> None:
    asked: list[Any] = []

    def run(name: str, _: Path, **options: Any) -> PlayResult:
        asked.append((name, options["limit"], options["extra_vars"]))
        return PlayResult("successful", hosts=["a", "b"])

    monkeypatch.setattr(fleet, "run_playbook", run)
    words = [verb, "-i", "inventory/spark", "--limit", "a,b", "--despite-lease"]
    said = CliRunner().invoke(cli, words)
    assert (said.exit_code, said.output) == (0, f"{done}: a, b\n")
    assert asked == [(verb, "a,b", {"despite_lease": True})]
    assert (ROOT / "playbooks" / f"{verb}.yml").is_file()


def test_a_deploy_of_hosts_that_a_rollout_has_must_be_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def run(name: str, _: Path, **options: Any) -> PlayResult:
        asked.append((name, options["extra_vars"]))
        return PlayResult("successful", hosts=["spark-01"])

    monkeypatch.setattr(fleet, "run_playbook", run)
    CliRunner().invoke(cli, ["deploy", "-i", "inventory/spark"])
    CliRunner().invoke(cli, ["deploy", "-i", "inventory/spark", "--despite-lease"])
    assert asked == [("deploy", None), ("deploy", {"despite_lease": True})]


def test_a_rollback_that_failed_names_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = PlayResult("failed", failed=["spark-01"], unreachable=["spark-02"], hosts=["spark-01"])
    monkeypatch.setattr(fleet, "run_playbook", lambda *_, **__: bad)
    done = CliRunner().invoke(cli, ["rollback", "-i", "inventory/spark"])
    assert isinstance(done.exception, RoostError)
    assert "rollback failed on: spark-01; did not reach: spark-02" in str(done.exception)

"""The search for settings: what is tried, within which limits, and what ends it."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.unit import trials
from tests.unit.trials import HOST, Trials

from roost import experiment, fleet, notebooks, runs
from roost.cli import cli
from roost.errors import RefusedError, UsageError
from roost.tuning import concluding, searching
from roost.tuning.searching import Search

EXECUTE = notebooks.execute


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    return trials.install(tmp_path, monkeypatch)


def tune(host: Trials, *options: str, vary: tuple[str, ...] = ("max_num_seqs=2,8",)) -> Result:
    words = ["tune", "-i", str(host.inventory), "--host", HOST, "--suite", "matrix"]
    words += ["--runs", str(host.runs), *options]
    for one in vary:
        words += ["--vary", one]
    return CliRunner().invoke(cli, words)


def search(host: Trials, **given: Any) -> Search:
    options = {"suite": "matrix", "vary": {"max_num_seqs": [2, 8]}, **given}
    return searching.start(
        inventory=host.inventory,
        host=HOST,
        runs_dir=str(host.runs),
        say=host.said.append,
        **options,
    )


def test_refused_points_are_never_tried_and_listed_with_the_reason(host: Trials) -> None:
    host.refuses = lambda settings: (
        "the pool holds no request" if settings.get("max_num_seqs") == 8 else None
    )
    done = tune(host, vary=("max_num_seqs=2,8", "max_num_batched_tokens=2048,4096"))
    assert done.exit_code == 0, done.output
    assert "sequences 8: refused: kv-too-small: the pool holds no request" in done.stderr
    tried = [call for call in host.calls if call.startswith("benchmark")]
    assert [call for call in tried if "max_num_seqs=8" in call] == []
    found = search(host, run_dir=newest(host), vary=host.parameters["vary"])
    reasons = {row["point"]: row["outcome"] for row in concluding.rows(found)}
    assert reasons["sequences 8"] == "refused: kv-too-small: the pool holds no request"
    checks = {check.id: check for check in concluding.evidence(found).checks}
    assert "refused by the planner and not tried" in checks["points"].observed
    assert "sequences 8: kv-too-small: the pool holds no request" in checks["points"].why


@pytest.mark.parametrize("refused", ["present", "others"])
def test_where_the_planner_leaves_nothing_to_compare_nothing_is_tried(
    host: Trials, refused: str
) -> None:
    host.refuses = lambda settings: "no" if bool(settings) == (refused == "others") else None
    done = tune(host)
    assert isinstance(done.exception, RefusedError)
    assert "nothing to tune; nothing was tried" in str(done.exception)
    assert host.calls == []
    assert list(host.runs.iterdir()) == []


def newest(host: Trials) -> Path:
    return max(host.runs.glob(f"*/{experiment.FILE}")).parent


def test_from_the_command_to_a_snippet_that_is_that_very_release(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebooks, "execute", EXECUTE)
    host.write(roost_settings={"enforce_eager": False, "max_num_seqs": 4})
    before = host.links["current"]
    host.speeds = {"enforce_eager=False max_num_seqs=8": (140.0, 2.0)}
    done = tune(host, "--json")
    assert done.exit_code == 0, done.output
    assert host.links == {"current": before}
    (outcome,) = json.loads(done.stdout)
    folder = Path(outcome["run"])
    checks = {check["id"]: check for check in outcome["result"]["checks"]}
    assert checks["chosen"]["observed"] == "sequences 8"
    assert checks["chosen"]["why"].startswith("1.4")
    written = yaml.safe_load((folder / concluding.SNIPPET).read_text())
    assert written == {"roost_settings": {"enforce_eager": False, "max_num_seqs": 8}}
    (chosen,) = [
        one
        for one in experiment.Notes.model_validate_json(
            (folder / experiment.FILE).read_text()
        ).tried
        if one.name == "sequences 8"
    ]
    # As the deploy takes it: with -e, or in place of what the inventory says.
    assert host.release(written) == chosen.release
    host.write(**written)
    assert host.links["current"] == chosen.release
    shown = (folder / runs.EXECUTED).read_text()
    assert "on the Pareto front: " in shown
    assert "sequences 8, 8 at a time" in shown


def test_a_point_that_does_not_run_is_noted_and_the_search_goes_on(host: Trials) -> None:
    before = host.links["current"]
    host.failing = {"deploy max_num_seqs=2": "it ran out of memory"}
    done = tune(host)
    assert done.exit_code == 0, done.output
    assert host.calls[-3:] == ["benchmark max_num_seqs=8", f"rollback {before}", "notebook tune"]
    found = search(host, run_dir=newest(host))
    assert {
        row["point"]: row["outcome"] for row in concluding.rows(found) if "users" not in row
    } == {"sequences 2": "failed: it ran out of memory"}
    # Nor is it tried again by who only reads what was found.
    host.calls.clear()
    found.run()
    assert host.calls == []


def test_without_the_present_settings_there_is_nothing_to_compare_with(host: Trials) -> None:
    before = host.links["current"]
    host.failing = {"benchmark present": "no"}
    done = tune(host)
    assert "the benchmark of present cannot be believed" in str(done.exception)
    assert host.links == {"current": before}


def test_a_host_that_is_lost_ends_the_search(host: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(playbook: str, *words: Any, **options: Any) -> Any:
        if host.name(options["extra_vars"]) == "max_num_seqs=2":
            host.reachable = False
            return {}, {HOST: "unreachable"}
        return host.ask(playbook, *words, **options)

    monkeypatch.setattr(fleet, "ask", ask)
    done = tune(host)
    assert "was not brought back" in str(done.exception)
    assert "max_num_seqs=8" not in " ".join(host.calls)


def test_limits_and_going_on_beyond_them(host: Trials) -> None:
    assert tune(host, "--points", "2").exit_code == 0
    measured = [call for call in host.calls if call.startswith("benchmark")]
    assert measured == ["benchmark present", "benchmark max_num_seqs=2"]
    outcomes = {
        row["point"]: row["outcome"]
        for row in concluding.rows(search(host, points=2, run_dir=newest(host)))
    }
    assert outcomes["sequences 8"] == "left out by the limit"
    host.calls.clear()
    assert tune(host, "--resume", str(newest(host))).exit_code == 0
    measured = [call for call in host.calls if call.startswith("benchmark")]
    assert measured == ["benchmark max_num_seqs=8"]
    host.calls.clear()
    # Without any time nothing is begun.
    assert tune(host, "--anew", "--hours", "0").exit_code == 0
    assert [call for call in host.calls if call.startswith("benchmark")] == []


def test_a_point_that_a_rollout_kept_from_being_tried_is_tried_later(host: Trials) -> None:
    host.taken_at = "deploy max_num_seqs=2"
    done = tune(host)
    assert "takes part in a rollout" in str(done.exception)
    assert "is left as it is" in done.stderr
    (path,) = host.runs.glob(f"*/{experiment.FILE}")
    kept = experiment.Notes.model_validate_json(path.read_text())
    assert [(one.name, one.open) for one in kept.tried] == [
        ("present", False),
        ("sequences 2", True),
        ("sequences 8", True),
    ]


def test_a_search_ends_where_somebody_else_has_deployed(host: Trials) -> None:
    """A benchmark that somebody's deploy came into says nothing of the point."""
    present = host.links["current"]
    assert tune(host, "--points", "2").exit_code == 0
    host.intruder = "theirs-0123"
    done = tune(host, "--resume", str(newest(host)))
    assert "somebody else deployed theirs-0123 meanwhile" in str(done.exception)
    assert host.links == {"current": "theirs-0123"}
    assert f"rollback {present}" not in host.calls[host.calls.index("notebook tune") :]
    kept = experiment.Notes.model_validate_json((newest(host) / experiment.FILE).read_text())
    assert [one.open for one in kept.tried] == [False, False, True]


@pytest.mark.parametrize("last", [False, True])
def test_a_point_that_somebody_s_deploy_stopped_is_tried_later(
    host: Trials, monkeypatch: pytest.MonkeyPatch, *, last: bool
) -> None:
    """Their trial stops its engine, and passes only while the next deploy waits for its end."""
    stopped = "max_num_seqs=8" if last else "max_num_seqs=2"
    waits = f"rollback {host.links['current']}" if last else "deploy max_num_seqs=8"
    host.failing = {f"benchmark {stopped}": "its engine was stopped"}

    def ask(*words: Any, **options: Any) -> Any:
        calls = len(host.calls)
        found = host.ask(*words, **options)
        if host.calls[calls:] == [waits]:
            host.deployed("theirs-0123")
            return {}, {HOST: "somebody else has deployed there since"}
        return found

    monkeypatch.setattr(fleet, "ask", ask)
    tune(host)
    kept = experiment.Notes.model_validate_json((newest(host) / experiment.FILE).read_text())
    assert [one.open for one in kept.tried] == [False, not last, True]


def test_after_a_kill_a_search_with_nothing_to_tune_brings_the_host_back(host: Trials) -> None:
    before = host.links["current"]
    host.killed_at = "benchmark max_num_seqs=2"
    with pytest.raises(trials.Killed):
        tune(host)
    host.killed_at, host.killed = "", False
    host.refuses = lambda settings: "no" if settings else None
    done = tune(host)
    assert "nothing to tune; nothing was tried" in str(done.exception)
    assert f"{before} serves again" in done.stderr
    assert host.links == {"current": before}


def test_a_search_that_was_killed_at_its_end_brings_the_host_back(host: Trials) -> None:
    before = host.links["current"]
    host.killed_at = f"rollback {before}"
    with pytest.raises(trials.Killed):
        tune(host)
    host.killed_at, host.killed = "", False
    assert host.links["held"] == before
    host.calls.clear()
    assert tune(host).exit_code == 0
    assert host.calls == [f"rollback {before}", "notebook tune"]
    assert host.links == {"current": before}


def test_an_interrupted_search_goes_on_where_it_was(host: Trials) -> None:
    before = host.links["current"]
    host.failing = {"benchmark max_num_seqs=8": KeyboardInterrupt()}
    assert tune(host).exit_code != 0
    assert host.links == {"current": before}
    host.failing = {}
    host.calls.clear()
    assert tune(host).exit_code == 0
    assert host.calls[:2] == ["deploy max_num_seqs=8", "benchmark max_num_seqs=8"]
    assert len(list(host.runs.glob(f"*/{experiment.FILE}"))) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"vary": {"kv_cache_dtype": ["fp8"]}}, "kv_cache_dtype is not varied"),
        ({"vary": {"max_num_seqs": "four"}}, "are no whole numbers"),
        ({"vary": 7}, "parameter vary is no map"),
        ({"vary": []}, "parameter vary is no map"),
        *(
            ({"vary": {"max_num_seqs": values}}, f"max_num_seqs: {re.escape(repr(values))} are no")
            for values in (
                [],
                "",
                "4,",
                None,
                [0],
                -1,
                "-1",
                [2, True],
                False,
                2.5,
                [8.0],
                math.nan,
                math.inf,
                [[2, 4], [8]],
                {"a": 2},
                "4_0",
                10**12,
                "9" * 13,
                ["²"],
            )
        ),
        ({"vary": {"max_num_seqs": ["x"] * 5000}}, r"max_num_seqs: \['x', .{60,80}… are no whole"),
        ({"vary": {"max_num_seqs": list(range(1, 5001))}}, "vary: 5,000 combinations are more"),
        (
            {"vary": {key: [*range(1, 41)] for key in ("max_num_seqs", "max_model_len")}},
            "vary: 1,640 combinations are more than the 1,000",
        ),
        *(
            ({"points": value}, f"parameter points is {re.escape(repr(value))}, not a whole number")
            for value in (0, -1, True, 2.5, 2.0, math.inf, math.nan, "12", [12], None)
        ),
        *(
            ({"hours": value}, f"parameter hours is {re.escape(repr(value))}, not a number from 0")
            for value in ("x", -1, False, math.inf, math.nan, [1])
        ),
        ({"hours": 10**400}, f"parameter hours is 1{'0' * 78}…, not a number"),
        *(
            ({"users": value}, f"users is {re.escape(repr(value))}, which the suite does not")
            for value in (0, -1, True, 1.0, math.nan, "1", [1])
        ),
        ({"tolerance": 5}, "tolerance is a fraction"),
        ({"users": 3}, "users is 3, which the suite does not measure"),
        ({"suite": "none"}, "no suite 'none'"),
    ],
)
def test_parameters_that_make_no_sense(host: Trials, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        search(host, **given)
    assert not host.runs.exists()


def test_going_on_with_something_else_is_refused(host: Trials) -> None:
    assert tune(host).exit_code == 0
    done = tune(host, "--resume", str(newest(host)), "--prompts", __file__)
    assert isinstance(done.exception, UsageError)
    words = ["tune", "-i", str(host.inventory), "--host", HOST, "--suite", "smoke"]
    words += ["--runs", str(host.runs), "--resume", str(newest(host))]
    done = CliRunner().invoke(cli, words)
    assert "nothing to go on with" in str(done.exception)


@pytest.mark.parametrize("file", ["result.json", "experiment.json"])
def test_a_folder_of_another_run_is_left_as_it_is(host: Trials, file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(UsageError, match="has another run in it"):
        search(host, run_dir=str(tmp_path))
    assert (tmp_path / file).read_text() == "{}"


def test_vary_needs_values(host: Trials) -> None:
    done = tune(host, vary=("max_num_seqs",))
    assert "must be SETTING=A,B" in str(done.exception)


def test_a_setting_is_varied_once(host: Trials) -> None:
    done = tune(host, vary=("max_num_seqs=4,8", "max_num_seqs=3"))
    assert isinstance(done.exception, UsageError)
    assert done.exception.fix == "--vary max_num_seqs=4,8,3"

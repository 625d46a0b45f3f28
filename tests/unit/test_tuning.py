"""The search for settings: what is tried in which order, the front, the choice, the snippet."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.unit import trials
from tests.unit.test_measure_choices import cell
from tests.unit.trials import HOST, Trials

from roost import experiment, fleet, notebooks, runs, tuning
from roost.cli import cli
from roost.errors import RefusedError, RoostError, UsageError
from roost.experiment import Tried
from roost.measure import choices
from roost.measure.points import Benchmark
from roost.measure.statistics import Estimate
from roost.tuning import Dot

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


def search(host: Trials, **given: Any) -> tuning.Search:
    options = {"suite": "matrix", "vary": {"max_num_seqs": [2, 8]}, **given}
    return tuning.start(
        inventory=host.inventory,
        host=HOST,
        runs_dir=str(host.runs),
        say=host.said.append,
        **options,
    )


def test_the_present_settings_come_first_then_the_fewest_changes(host: Trials) -> None:
    found = search(host, vary="{num_speculative_tokens: '2,4,8', max_num_seqs: [4, 8]}")
    assert [one.name for one in found.experiment.notes.tried] == [
        "present",
        "K 2",
        "sequences 8",
        "K 8",
        "K 2, sequences 8",
        "K 8, sequences 8",
    ]
    settings = found.experiment.notes.tried[4].settings
    assert (settings["num_speculative_tokens"], settings["max_num_seqs"]) == (2, 8)
    assert settings["max_model_len"] == 2048


def test_every_setting_is_also_varied_by_itself(host: Trials) -> None:
    found = search(host, vary={"num_speculative_tokens": [8], "max_num_seqs": [8]})
    names = [one.name for one in found.experiment.notes.tried]
    assert names == ["present", "sequences 8", "K 8", "K 8, sequences 8"]


def test_without_a_word_halves_and_doubles_are_tried(host: Trials) -> None:
    names = [one.name for one in search(host, vary=None).experiment.notes.tried]
    assert names[0] == "present"
    assert {"K 2", "K 8", "sequences 2", "sequences 8", "K 8, sequences 2"} <= set(names)


def test_a_point_keeps_what_the_inventory_sets(host: Trials) -> None:
    host.write(roost_settings={"extra_args": ["--x"], "max_num_seqs": 2})
    found = search(host, vary={"max_num_seqs": [2, 8]}).experiment
    assert list(found.variants) == ["present", "sequences 8"]
    assert found.variants["present"].variables == {}
    assert found.variants["sequences 8"].variables == {
        "roost_settings": {"extra_args": ["--x"], "max_num_seqs": 8}
    }


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
    reasons = {row["point"]: row["outcome"] for row in tuning.rows(found)}
    assert reasons["sequences 8"] == "refused: kv-too-small: the pool holds no request"
    checks = {check.id: check for check in tuning.evidence(found).checks}
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
    written = yaml.safe_load((folder / tuning.SNIPPET).read_text())
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
    assert {row["point"]: row["outcome"] for row in tuning.rows(found) if "users" not in row} == {
        "sequences 2": "failed: it ran out of memory"
    }
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
        for row in tuning.rows(search(host, points=2, run_dir=newest(host)))
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


def measured(points: Mapping[str, tuple[float, float]]) -> dict[str, Benchmark]:
    """By name: tokens/s of one user and of eight."""
    return {
        name: Benchmark(
            suite="matrix",
            protocol="p",
            prompts="own",
            complete=True,
            cells=[
                cell(at, one, 2.0, kind="mixed"),
                cell(100 + at, eight, 2.0, kind="mixed", users=8),
            ],
        )
        for at, (name, (one, eight)) in enumerate(points.items())
    }


def tried(*settings: Mapping[str, int]) -> list[Tried]:
    names = ["present", *"abcdef"]
    return [
        Tried(name=name, settings=dict(one)) for name, one in zip(names, settings, strict=False)
    ]


@pytest.mark.parametrize(
    ("speeds", "chosen", "rivals"),
    [
        ({"present": (100, 500), "a": (100, 505)}, "present", ("a",)),
        ({"present": (100, 500), "a": (100, 650)}, "a", ()),
        ({"present": (100, 500), "a": (140, 400)}, "present", ()),
        # Alike, and b changes one setting only.
        ({"present": (100, 500), "a": (100, 655), "b": (100, 650)}, "b", ("a",)),
    ],
)
def test_the_choice_is_beyond_noise_and_changes_little(
    speeds: dict[str, tuple[float, float]], chosen: str, rivals: tuple[str, ...]
) -> None:
    known = tried({"k": 4, "s": 4}, {"k": 8, "s": 8}, {"k": 4, "s": 8})
    found = tuning.choose(measured(speeds), known, 8)
    assert (found.point, found.rivals) == (chosen, rivals)
    assert (found.gain is None) is (chosen == "present")


def test_what_only_its_noise_protects_is_not_chosen() -> None:
    """b is not beaten by a, for it is too noisy; but it does not beat the present settings."""
    known = tried({"k": 4, "s": 4}, {"k": 8, "s": 8}, {"k": 4, "s": 8})
    found = measured({"present": (100, 500), "a": (100, 560), "b": (100, 520)})
    noisy = cell(7, 520, 2.0, kind="mixed", users=8, noise=0.1)
    found["b"] = found["b"].model_copy(update={"cells": [found["b"].cells[0], noisy]})
    by_users = {name: [one.cells[1]] for name, one in found.items()}
    assert set(choices.unbeaten(by_users)) >= {"a", "b"}
    assert (tuning.choose(found, known, 8).point, tuning.choose(found, known, 8).rivals) == (
        "a",
        (),
    )


def test_of_many_points_one_is_faster_by_chance() -> None:
    """12 % more with 5 % of noise: enough for one point, and not for the luckiest of six."""
    found = measured({"present": (100, 500), "a": (100, 560)})
    noisy = cell(1, 560, 2.0, kind="mixed", users=8, noise=0.05)
    found["a"] = found["a"].model_copy(update={"cells": [found["a"].cells[0], noisy]})
    known = tried(*({"k": at} for at in range(7)))
    assert tuning.choose(found, known, 8).point == "a"
    others = measured(dict.fromkeys("bcdef", (100, 500)))
    assert tuning.choose(found | others, known, 8).point == "present"


def test_a_single_point_is_no_choice() -> None:
    with pytest.raises(RoostError, match="nothing to choose from for 8 users: 1 points"):
        tuning.choose(measured({"present": (100, 500)}), tried({}), 8)


def dot(point: str, tpot: float, throughput: float) -> Dot:
    return Dot(point, 1, ("code-c1",), Estimate(throughput, None, None, 1), tpot, 1.0)


def test_the_front_is_what_nothing_dominates() -> None:
    found = [dot("a", 10, 100), dot("b", 20, 90), dot("c", 20, 300), dot("d", 30, 300)]
    found += [dot("e", 25, 250), dot("f", 40, 400)]
    best = tuning.front(found)
    assert [one.point for one in best] == ["a", "c", "f"]
    for one, other in itertools.product(best, found):
        assert (
            one is other or one.tpot < other.tpot or one.throughput.value > other.throughput.value
        )


def test_dots_are_the_mean_over_kinds_of_prompts() -> None:
    cells = [cell(1, 90.0, 2.0, noise=0.0), cell(1, 160.0, 2.0, kind="prose", noise=0.0)]
    benchmark = Benchmark(suite="s", protocol="p", prompts="own", complete=True, cells=cells)
    (found,) = tuning.dots({"present": benchmark})
    # Geometric: 90 and 160 are as far from it.
    assert found.throughput.value == pytest.approx(120.0)
    assert found.ttft == pytest.approx(100.0)
    per_token = [(400 / speed - 0.1) / 399 for speed in (90, 160)]
    assert found.tpot == pytest.approx(1000 * (per_token[0] * per_token[1]) ** 0.5)


def lengths(*speeds: float) -> Benchmark:
    """A suite whose longer prompts are slower, as far as a context has room for them."""
    kinds = zip(("0.5K", "32K", "131K"), speeds, strict=False)
    cells = [cell(1, speed, 2.0, kind=kind, noise=0.0) for kind, speed in kinds]
    return Benchmark(suite="s", protocol="p", prompts="own", complete=True, cells=cells)


def test_dots_are_over_what_all_points_measured() -> None:
    """A short context leaves out the slow, long prompts, and is no faster for it."""
    measured = {"present": lengths(100, 50, 25), "context 8192": lengths(90)}
    found = tuning.dots(measured)
    assert [(one.point, one.cells, round(one.throughput.value)) for one in found] == [
        ("present", ("0.5K-c1",), 100),
        ("context 8192", ("0.5K-c1",), 90),
    ]
    assert [one.point for one in tuning.front(found)] == ["present"]
    assert tuning.left_out(measured) == {
        "32K-c1": ["context 8192"],
        "131K-c1": ["context 8192"],
    }
    # Where all measured all, as where a point has nothing to be compared by at all.
    nothing = measured["present"].model_copy(update={"cells": []})
    measured = {"present": lengths(100, 50), "K 8": lengths(80, 60), "K 2": nothing}
    assert tuning.left_out(measured) == {}
    assert [one.cells for one in tuning.dots(measured)] == [("0.5K-c1", "32K-c1")] * 2


def test_what_the_front_leaves_out_is_said(host: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune(host).exit_code == 0
    begun = search(host, run_dir=newest(host))
    everything = tuning.evidence(begun)
    checks = {check.id: check for check in everything.checks}
    assert (checks["front"].verdict, checks["front"].why) == ("pass", "")
    first, *_, last = next(iter(tuning.benchmarks(begun).values())).cells
    measured = tuning.benchmarks(begun)
    short = measured["sequences 2"]
    cells = [cell for cell in short.cells if cell.id != first.id]
    measured["sequences 2"] = short.model_copy(update={"cells": cells})
    monkeypatch.setattr(tuning, "benchmarks", lambda _: measured)
    evidence = tuning.evidence(begun)
    check = next(one for one in evidence.checks if one.id == "front")
    assert check.why == f"left out: {first.id} (not measured by sequences 2)"
    assert last.id in check.observed
    assert first.id not in check.observed
    assert not any(first.id in one.source for one in evidence.figures.values())
    assert "the mean of code-c8, prose-c8" in evidence.figures["present.c8.tpot"].source
    assert {row["over"] for row in tuning.rows(begun)} == {"prose-c1", "code-c8, prose-c8"}


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


def test_a_depth_is_not_varied_where_nothing_speculates(host: Trials) -> None:
    host.write(roost_speculation="none")
    with pytest.raises(UsageError, match="without speculation"):
        search(host, vary={"num_speculative_tokens": [2]})
    assert "K 2" not in [one.name for one in search(host, vary=None).experiment.notes.tried]


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

"""Comparisons of synthetic runs: what is flagged, what is noise, and what a gap points to."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import random
from pathlib import Path
from typing import Any

import pytest

from roost import runs
from roost.errors import RoostError, UsageError
from roost.measure import charts, choices, compare, points, questions
from roost.measure.compare import Compared, Comparison
from roost.measure.points import Benchmark, CellPoints, Published, Repetition, RequestPoint
from roost.measure.statistics import Estimate
from roost.runs import Pins, Result

NOW = dt.datetime(2026, 11, 29, 16, 0, 5, tzinfo=dt.UTC)
PROMPTS = 8
#: Deviation of the logarithm from repetition to repetition: 1.5 % for a speed, less for an accept
#: length, which greedy decoding leaves little room for.
SPEED_NOISE, LENGTH_NOISE = 0.015, 0.005


def repetition(
    draw: random.Random, speed: float, length: float, marks: list[str] | None = None
) -> Repetition:
    drift = draw.lognormvariate(0, SPEED_NOISE)
    requests = [
        RequestPoint(
            prompt=f"p{at}",
            prompt_tokens=20,
            output_tokens=101,
            ttft=0.1 * (1 + at) / drift * draw.lognormvariate(0, SPEED_NOISE),
            latency=0.1 * (1 + at) / drift + 100 / (speed * drift) * (1 + at / 10),
        )
        for at in range(PROMPTS)
    ]
    return Repetition(
        duration=10.0,
        output_throughput=speed * drift,
        requests=requests,
        speculation=None,
        accept_length=length * draw.lognormvariate(0, LENGTH_NOISE),
        clock=None,
        raw="harness.json",
        marks=marks or [],
    )


def measured(
    seed: int, *, speed: float = 100.0, length: float = 3.4, repetitions: int = 3, **changes: Any
) -> Benchmark:
    draw = random.Random(seed)  # noqa: S311
    cell = CellPoints(
        id="coding-c1",
        category="coding",
        concurrency=1,
        repetitions=[repetition(draw, speed, length) for _ in range(repetitions)],
        published=[
            Published(metric="output_throughput", value=93.41, source="source 000", table="gb10")
        ],
    )
    values: dict[str, Any] = {
        "suite": "spec-bench", "protocol": "p", "prompts": "own", "complete": True, "cells": [cell],
    }  # fmt: skip
    return Benchmark(**{**values, **changes})


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "ok": True,
        "notebook": "benchmark",
        "recipe": "r",
        "host": "spark-01",
        "hardware": "gb10",
        "speculation": "dflash",
        "lock": Pins(file="roost.lock.yml", image="i@sha256:1", model="m@1"),
        "started": NOW,
        "finished": NOW,
        "checks": [],
    }
    return Result(**{**values, **changes})


def compared(*benchmarks: Benchmark) -> list[Compared]:
    return [
        Compared(Path(f"/runs/run-{at}"), result(), benchmark)
        for at, benchmark in enumerate(benchmarks)
    ]


def comparison(*benchmarks: Benchmark, folder: Path = Path("/runs/c")) -> Comparison:
    return Comparison(compared(*benchmarks), folder, compare.TOLERANCE, NOW)


def worse(baseline: Benchmark, other: Benchmark) -> set[str]:
    return {
        gap.metric.key
        for gap in compare.gaps(compared(baseline, other))
        if gap.verdict == "worse" and gap.metric.key in compare.DECISIVE
    }


#: 15 % slower; an accept length of 2.9 instead of 3.4; 2 % of each; nothing at all.
CHANGES: dict[str, tuple[dict[str, float], str | None]] = {
    "speed -15 %": ({"speed": 85.0}, "output_throughput"),
    "accept length 2.9": ({"length": 2.9}, "accept_length"),
    "speed -2 %": ({"speed": 98.0}, None),
    "accept length -2 %": ({"length": 3.332}, None),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_seeded_regression_is_flagged_and_a_small_one_is_not(name: str) -> None:
    change, key = CHANGES[name]
    flagged = [
        worse(measured(seed), measured(1000 + seed, **change))  # type: ignore[arg-type]
        for seed in range(20)
    ]
    if key is None:
        assert flagged == [set()] * 20
    else:
        assert [key in found for found in flagged] == [True] * 20


def test_a_gap_within_noise_is_no_alarm_however_large_nor_a_sign_of_none() -> None:
    draw = random.Random(3)  # noqa: S311
    noisy = [
        measured(1)
        .cells[0]
        .model_copy(update={"repetitions": [repetition(draw, speed, 3.4) for speed in speeds]})
        for speeds in ((60.0, 140.0), (50.0, 120.0))
    ]
    gaps = compare.gaps(compared(*(measured(1, cells=[cell]) for cell in noisy)))
    gap = next(gap for gap in gaps if gap.metric.key == "output_throughput")
    assert gap.value.value < 0.95
    assert gap.verdict == "unclear"


def test_what_would_not_be_seen_is_not_said_to_be_absent() -> None:
    """Two repetitions, 15 % slower: in about half of the pairs the interval reaches 1."""
    said = []
    for seed in range(20):
        pair = (measured(seed, repetitions=2), measured(99 + seed, speed=85.0, repetitions=2))
        (check,) = [
            one for one in compare.compare(comparison(*pair)).checks if one.id == "coding-c1"
        ]
        (gap,) = [
            gap for gap in compare.gaps(compared(*pair)) if gap.metric.key == "output_throughput"
        ]
        said.append(gap.verdict)
        assert check.verdict == ("fail" if not check.ok else "not seen"), check
    assert set(said) == {"worse", "unclear"}


@pytest.mark.parametrize(
    ("ratio", "better", "verdict"),
    [
        (Estimate(0.85, 0.8, 0.9, 3), "higher", "worse"),
        (Estimate(0.85, 0.8, 0.9, 3), "lower", "better"),
        (Estimate(1.2, 1.1, 1.3, 3), "higher", "better"),
        (Estimate(1.2, 1.1, 1.3, 3), "lower", "worse"),
        (Estimate(0.85, 0.7, 1.01, 3), "higher", "unclear"),
        (Estimate(0.99, 0.94, 1.04, 3), "higher", "unclear"),
        (Estimate(0.99, 0.96, 1.02, 3), "higher", "no difference"),
        (Estimate(0.97, 0.96, 0.98, 3), "higher", "within tolerance"),
        (Estimate(1.045, 1.001, 1.09, 3), "higher", "unclear"),
        (Estimate(0.5, None, None, 1), "higher", "unclear"),
    ],
)
def test_verdicts(ratio: Estimate, better: str, verdict: str) -> None:
    metric = next(one for one in points.METRICS if one.better == better)
    assert compare.judge(ratio, metric) == verdict


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "no gap beyond noise and tolerance"),
        ({"speed": 80.0}, "the machine or the engine's settings: drafts are accepted as before"),
        ({"length": 2.8}, "the accept length moved, the speed did not follow"),
        ({"length": 2.8, "speed": 85.0}, "the model or its drafter: the accept length moved by -1"),
        # No drafter makes an engine slower by accepting more, nor by more than it accepts less.
        ({"length": 3.8, "speed": 85.0}, "the machine or the engine's settings as well as"),
        ({"length": 3.2, "speed": 60.0}, "which is more than that explains"),
    ],
)
def test_what_a_gap_points_to(change: dict[str, float], says: str) -> None:
    gaps = compare.gaps(compared(measured(1), measured(2, **change)))  # type: ignore[arg-type]
    said = compare.points_to(gaps)
    assert says in said


def test_an_accept_length_that_is_lost_in_noise_clears_no_drafter() -> None:
    gaps = [
        dataclasses.replace(gap, verdict="unclear") if gap.metric.key == "accept_length" else gap
        for gap in compare.gaps(compared(measured(1), measured(2, speed=80.0)))
    ]
    said = compare.points_to(gaps)
    assert "the accept length is lost in noise" in said
    assert said.endswith("too noisy to tell: accept length")


def test_better_perhaps_and_worse_not_is_not_worse() -> None:
    """An interval from -1 to +20 %: whether it is faster is not known, but it is not slower."""

    def at(*speeds: float) -> Benchmark:
        (cell,) = measured(1).cells
        again = [
            one.model_copy(update={"output_throughput": speed, "requests": []})
            for one, speed in zip(cell.repetitions, speeds, strict=True)
        ]
        return measured(1, cells=[cell.model_copy(update={"repetitions": again})])

    begun = comparison(at(97, 100, 103), at(105, 109, 113))
    (gap, *_) = compare.gaps(begun.compared)
    assert (gap.metric.key, gap.verdict) == ("output_throughput", "unclear")
    check = {one.id: one for one in compare.compare(begun).checks}["coding-c1"]
    assert check.verdict == "pass"
    assert check.why.endswith("too noisy to tell: throughput of all users")


def test_times_that_stand_still_do_not_show_that_the_throughput_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A time to the first token can hardly be worse, and says nothing of the users' tokens."""
    ratios = {
        "output_throughput": Estimate(0.97, 0.86, 1.09, 3),
        "tpot": Estimate(1.02, 0.92, 1.12, 3),
        "ttft": Estimate(1.00, 0.97, 1.03, 3),
    }

    def verdict(*left_out: str) -> str:
        found = [
            compare.Gap("coding-c1", metric, "run-0", "run-1", ratios[metric.key],
                        compare.judge(ratios[metric.key], metric))
            for metric in points.METRICS
            if metric.key in ratios and metric.key not in left_out
        ]  # fmt: skip
        monkeypatch.setattr(compare, "gaps", lambda *_: found)
        evidence = compare.compare(comparison(measured(1), measured(2)))
        return {one.id: one.verdict for one in evidence.checks}["coding-c1"]

    assert verdict() == "not seen"
    assert verdict("output_throughput") == "not seen"
    assert verdict("output_throughput", "tpot") == "pass"
    ratios["output_throughput"] = Estimate(1.0, 0.98, 1.02, 3)
    assert verdict() == "pass"


def test_what_else_differs_between_the_runs_is_told(tmp_path: Path) -> None:
    """Another K accepts more: neither the model nor its drafter is another one."""
    command = ["vllm", "serve", "--speculative-config", '{"num_speculative_tokens": 4}']
    other = [*command[:3], '{"num_speculative_tokens": 8}']
    a = kept(tmp_path / "a", measured(0), command=command)
    b = kept(tmp_path / "b", measured(1, length=4.2), command=other, host="spark-02")
    begun = compare.start([str(a), str(b)], runs_dir=str(tmp_path))
    checks = {check.id: check for check in compare.compare(begun).checks}
    assert checks["coding-c1"].why.endswith("; the runs differ in host, command")
    said = """host (spark-01 -> spark-02), command ({"num_speculative_tokens": 4} -> """
    assert f"differs from a in {said}" in checks["run b"].why
    assert checks["run a"].why == ""
    with pytest.raises(UsageError, match="of different hosts: spark-01, spark-02"):
        compare.start([str(a), str(b)], choose=True, runs_dir=str(tmp_path))


def test_settings_of_an_environment_are_told_as_those_of_a_command(tmp_path: Path) -> None:
    """An image that writes its own command has them nowhere else."""
    env = {"MODEL_PATH": "/model", "MAX_NUM_SEQS": "16", "DFLASH_NUM_SPEC_TOKENS": "15"}
    same = {"command": ["sh", "-c", "entry"]}
    a = kept(tmp_path / "a", measured(0), **same, env=env)
    other = {"DFLASH_NUM_SPEC_TOKENS": "8", "MODEL_PATH": "/model", "MAX_NUM_SEQS": "16"}
    b = kept(tmp_path / "b", measured(1, length=4.2), **same, env=other)
    begun = compare.start([str(a), str(b)], runs_dir=str(tmp_path))
    checks = {check.id: check for check in compare.compare(begun).checks}
    said = "env (DFLASH_NUM_SPEC_TOKENS=15 -> DFLASH_NUM_SPEC_TOKENS=8)"
    assert checks["run b"].why == f"differs from a in {said}"
    assert checks["coding-c1"].why.endswith("; the runs differ in env")
    # In another order they are the same, and of a run from before they were kept nothing is known.
    for at, unlike in enumerate((dict(reversed(env.items())), {})):
        c = kept(tmp_path / f"c{at}", measured(2), **same, env=unlike)
        begun = compare.start([str(a), str(c)], runs_dir=str(tmp_path))
        assert compare.differences(*begun.compared) == {}


def test_a_slower_clock_is_told() -> None:
    def at(seed: int, clock: float) -> Benchmark:
        (cell,) = measured(seed).cells
        again = [one.model_copy(update={"clock": clock}) for one in cell.repetitions]
        return measured(seed, cells=[cell.model_copy(update={"repetitions": again})])

    runs_of = compared(at(1, 2400.0), at(2, 1900.0))
    assert compare.differences(*runs_of) == {"GPU clock": "2400 MHz -> 1900 MHz"}
    assert compare.differences(*compared(at(1, 2400.0), at(2, 2300.0))) == {}


def test_a_point_of_which_nothing_counts_is_not_passed_over() -> None:
    """Every repetition of it was throttled: the other point alone says nothing of it."""
    (cell,) = measured(1).cells
    prose = cell.model_copy(update={"id": "prose-c1"})
    marks = ["the GPU was slowed down (sw thermal slowdown, 97 °C)"]
    slow = [one.model_copy(update={"marks": marks}) for one in prose.repetitions]
    hot = prose.model_copy(update={"repetitions": slow})
    pair = comparison(measured(1, cells=[cell, prose]), measured(1, cells=[cell, hot]))
    for evidence, check_id in (
        (compare.compare(pair), "prose-c1"),
        (choices.evidence(pair), "recommend prose-c1"),
    ):
        (check,) = [one for one in evidence.checks if one.id == check_id]
        assert check.verdict == "not seen"
        assert check.why == f"run-1 has no repetition that counts: {marks[0]}"


def test_without_an_accept_length_nothing_is_said_of_the_model() -> None:
    gaps = [
        gap
        for gap in compare.gaps(compared(measured(1), measured(2, speed=80.0)))
        if gap.metric.key != "accept_length"
    ]
    assert "no accept length to tell" in compare.points_to(gaps)


def test_prompts_are_compared_with_themselves() -> None:
    """Eight prompts of very different length: the ratio is as exact as the repetitions are."""
    (gap,) = [
        gap
        for gap in compare.gaps(
            compared(measured(1, repetitions=8), measured(2, speed=90.0, repetitions=8))
        )
        if gap.metric.key == "tpot"
    ]
    assert gap.value.value == pytest.approx(1 / 0.9, rel=0.03)
    assert gap.value.half_width is not None
    assert gap.value.half_width < 0.03


def test_prompts_are_no_evidence_of_what_a_repetition_shares() -> None:
    """Of 100 intervals of 95 % between equal machines, about five miss the truth."""
    missed = dict.fromkeys(compare.DECISIVE, 0)
    for seed in range(100):
        for gap in compare.gaps(compared(measured(seed), measured(1000 + seed))):
            if gap.metric.key in missed:
                missed[gap.metric.key] += gap.value.excludes(1.0)
    assert max(missed.values()) <= 10, missed


def test_a_comparison_is_a_run_that_fails_where_something_is_worse(tmp_path: Path) -> None:
    begun = comparison(measured(1), measured(2, speed=80.0), folder=tmp_path)
    evidence = compare.compare(begun, published=True)
    finished = begun.finish(evidence)
    assert runs.read(tmp_path) == finished
    assert (finished.ok, finished.notebook, finished.host) == (False, "compare", "spark-01")
    (failed,) = finished.failed
    assert failed.id == "coding-c1"
    assert failed.expected == "nothing worse than run-0 by more than 5%"
    assert failed.observed.startswith("coding-c1 throughput of all users -")
    assert failed.why.startswith("the machine or the engine's settings")
    # Published figures stand beside it and fail nothing.
    key = "run-0.coding-c1.output_throughput/source 000, gb10"
    assert finished.figures[key].value == pytest.approx(100 / 93.41, rel=0.03)
    assert (tmp_path / "report.html").is_file()


def test_each_run_keeps_its_own_pins_and_settings(tmp_path: Path) -> None:
    """What the baseline ran is nothing that the comparison ran, nor the other run."""
    other = Pins(file="roost.lock.yml", image="i@sha256:2", model="m@1", drafter="d@2")
    with_drafts = {"lock": other, "command": ["vllm", "serve", "--k=4"], "env": {"VLLM_X": "1"}}
    a = kept(tmp_path / "a", measured(0), speculation="none", command=["vllm", "serve"])
    b = kept(tmp_path / "b", measured(1), host="spark-02", **with_drafts)
    begun = compare.start([str(a), str(b)], runs_dir=str(tmp_path))
    done = begun.finish(compare.compare(begun))
    assert (done.host, done.recipe) == ("spark-01, spark-02", "r")
    assert done.speculation == "none, dflash"
    assert (done.lock.image, done.lock.model) == ("i@sha256:1, i@sha256:2", "m@1")
    assert (done.command, done.env) == ([], {})
    said = {one.run: (one.speculation, one.lock, one.command, one.env) for one in done.compared}
    assert said == {
        "a": ("none", result().lock, ["vllm", "serve"], {}),
        "b": ("dflash", other, ["vllm", "serve", "--k=4"], {"VLLM_X": "1"}),
    }
    assert runs.read(begun.folder) == done
    # For people, each beside its run's name.
    page = (begun.folder / "report.html").read_text()
    for name, image in (("a", "i@sha256:1"), ("b", "i@sha256:2")):
        own = page.partition(f"<h3>{name}</h3>")[2].partition("</dl>")[0]
        assert f">{image}</dd>" in own


def test_a_baselines_own_trouble_is_not_the_comparisons(tmp_path: Path) -> None:
    begun = comparison(measured(1), measured(2, speed=80.0), folder=tmp_path)
    cause = {"id": "oom", "title": "out of memory", "evidence": "x", "why": "y", "fix": "z"}
    begun.compared[0] = dataclasses.replace(
        begun.compared[0], result=result(ok=False, diagnosis=[cause])
    )
    done = begun.finish(compare.compare(begun))
    assert not done.ok
    assert "cause:" not in done.summary()
    assert "out of memory" not in (tmp_path / "report.html").read_text()


def test_more_than_two_runs_are_each_compared_with_the_first() -> None:
    evidence = compare.compare(comparison(measured(1), measured(2), measured(3, speed=80.0)))
    assert [check.id for check in evidence.failed] == ["coding-c1 run-2"]


def test_one_repetition_flags_nothing_and_says_why() -> None:
    evidence = compare.compare(
        comparison(
            *(
                measured(at, repetitions=1, speed=speed, cells=[one])
                for at, speed in ((1, 100.0), (2, 50.0))
                for one in measured(at, repetitions=1, speed=speed).cells
            )
        )
    )
    (check,) = [check for check in evidence.checks if check.id == "coding-c1"]
    # Not of times either: eight prompts share what the machine did in that repetition.
    assert (check.ok, check.why) == (True, "too few repetitions to know the noise")


def test_marked_repetitions_count_for_nothing_and_are_told() -> None:
    draw = random.Random(9)  # noqa: S311
    slow = repetition(draw, 10.0, 3.4, marks=["another client was served"])
    cell = measured(1).cells[0]
    with_mark = cell.model_copy(update={"repetitions": [*cell.repetitions, slow]})
    evidence = compare.compare(comparison(measured(2), measured(1, cells=[with_mark])))
    assert evidence.ok
    assert [check.why for check in evidence.checks][1] == "another client was served"


def test_a_run_that_was_not_measured_to_its_end_fails_the_comparison() -> None:
    evidence = compare.compare(comparison(measured(1), measured(2, complete=False)))
    assert [check.id for check in evidence.failed] == ["run run-1"]


def test_runs_without_a_common_point_are_no_comparison() -> None:
    other = measured(2).cells[0].model_copy(update={"id": "qa-c1"})
    with pytest.raises(RoostError, match="share no point"):
        compare.compare(comparison(measured(1), measured(2, cells=[other])))


def kept(folder: Path, benchmark: Benchmark | None, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    artefacts = {} if benchmark is None else {points.FILE: benchmark.model_dump_json()}
    runs.write(folder, result(**changes), artefacts)
    return folder


def test_kept_runs_are_found_by_path_or_name_and_read_back(tmp_path: Path) -> None:
    a, b = (kept(tmp_path / name, measured(at)) for at, name in enumerate("ab"))
    for given in ([str(a), str(b)], f"{a}, {b}", "a,b"):
        begun = compare.start(given, runs_dir=str(tmp_path))
        assert [run.name for run in begun.compared] == ["a", "b"]
        assert begun.compared[0].benchmark == measured(0)
        assert begun.folder.parent == tmp_path
        assert "spark-01-compare-r" in begun.folder.name


def test_runs_in_folders_of_one_name_are_two(tmp_path: Path) -> None:
    """Every rollout keeps what it measured of a host in a folder of the host's name."""
    rounds = [tmp_path / at / "spark-01" for at in ("rollout-1", "rollout-2")]
    a, b = (kept(folder, measured(at)) for at, folder in enumerate(rounds))
    c = kept(tmp_path / "later", measured(2, speed=80.0))
    begun = compare.start([str(a), str(b), str(c)], runs_dir=str(tmp_path))
    assert [run.name for run in begun.compared] == [
        "rollout-1/spark-01",
        "rollout-2/spark-01",
        "later",
    ]
    assert {"rollout-1/spark-01", "rollout-2/spark-01"} <= {
        name for gap in compare.gaps(begun.compared) for name in (gap.baseline, gap.other)
    }
    evidence = compare.compare(begun)
    assert [check.id for check in evidence.failed] == ["coding-c1 later"]
    assert not begun.finish(evidence).ok
    # One folder is one run, whatever it is called.
    (tmp_path / "link").symlink_to(a)
    for other in (tmp_path / "link", a / ".." / "spark-01"):
        with pytest.raises(UsageError, match=r"rollout-1/spark-01: this run is given twice"):
            compare.start([str(a), str(other)], runs_dir=str(tmp_path))


def noisy_suite(seed: int, *, slower: float = 1.0) -> Benchmark:
    """Sixteen points of four prompts, whose times to the first token deviate by 15 %."""
    draw = random.Random(seed)  # noqa: S311

    def one(speed: float) -> Repetition:
        made = repetition(draw, speed, 3.4)
        noisy = [
            request.model_copy(update={"ttft": request.ttft * draw.lognormvariate(0, 0.15)})
            for request in made.requests[:4]
        ]
        return made.model_copy(update={"requests": noisy})

    cell = measured(1).cells[0]
    cells = [
        cell.model_copy(
            update={"id": f"p{at}-c1", "repetitions": [one(100.0 * slower) for _ in range(3)]}
        )
        for at in range(16)
    ]
    return measured(1, cells=cells)


def test_many_points_are_no_reason_for_an_alarm_and_hide_none() -> None:
    alarms = [worse(noisy_suite(seed), noisy_suite(1000 + seed)) for seed in range(40)]
    assert sum(map(bool, alarms)) <= 3
    # Too little to be seen at each point, and seen in all of them together.
    gaps = compare.gaps(compared(noisy_suite(1), noisy_suite(2, slower=0.93)))
    speeds = {gap.cell: gap.verdict for gap in gaps if gap.metric.key == "output_throughput"}
    assert speeds.pop(compare.ALL) == "worse"
    assert "unclear" in speeds.values()


def test_what_is_no_comparison_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    a = kept(tmp_path / "a", measured(0))
    other = kept(tmp_path / "other", measured(1, suite="matrix"))
    asked = kept(tmp_path / "asked", measured(0, question="spec-bench-1"))
    other_prompts = kept(tmp_path / "prompts", measured(0, question="spec-bench-2"))
    kept(tmp_path / "before", measured(0, prompts="mine.jsonl"))
    verified = kept(tmp_path / "verified", None, notebook="verify")
    broken = kept(tmp_path / "broken", measured(1))
    (broken / points.FILE).write_text('{"suite": 1}')
    (tmp_path / "empty").mkdir()
    before = set(tmp_path.iterdir())
    cases: list[tuple[Any, str]] = [
        ([str(a)], "needs two runs"),
        ([str(a), str(a)], "given twice"),
        ([str(a), str(other)], "different suites: spec-bench, matrix"),
        ([str(asked), str(other_prompts)], "prompts asked something else than asked"),
        # From before a question was kept, by what was said of it.
        ([str(a), str(tmp_path / "before")], "before asked something else than a"),
        ([str(a), "nowhere"], "nowhere: no such run"),
        ([str(a), str(tmp_path / "empty")], "empty: no finished run"),
        ([str(a), str(verified)], "verified: no benchmark[\\s\\S]*a run of verify"),
        ([str(a), str(broken)], "benchmark.json: suite"),
        (None, "parameter runs is not set"),
        ([str(a), 7], "parameter runs is 7"),
    ]
    for given, message in cases:
        with pytest.raises(RoostError, match=message) as caught:
            compare.start(given, runs_dir=str(tmp_path))
        # A run that is damaged, or not finished, is no slip of whoever asks.
        assert caught.value.exit_code == (1 if "finished" in message or "json" in message else 2)
    for tolerance in ("x", True, -0.1, 1.0, math.nan):
        with pytest.raises(UsageError, match="tolerance"):
            compare.start([str(a), str(other)], tolerance=tolerance, runs_dir=str(tmp_path))
    for name in ("published", "choose"):
        # As `-p published false` comes from papermill.
        with pytest.raises(UsageError, match=f"parameter {name} is 'false'"):
            compare.start([str(a), str(a)], runs_dir=str(tmp_path), **{name: "false"})
    assert set(tmp_path.iterdir()) == before


def test_thinking_on_and_off_are_two_questions(tmp_path: Path) -> None:
    """Runs from before the arguments of the template were kept are compared as they were."""
    asked = {"question": "spec-bench-1"}
    off = measured(0, **asked, chat_template_kwargs={"enable_thinking": False})
    on = measured(1, **asked, chat_template_kwargs={"enable_thinking": True})
    before = measured(2, **asked)
    assert points.parse(points.document(off)).chat_template_kwargs == {"enable_thinking": False}
    assert points.parse(points.document(before)).chat_template_kwargs is None
    named = {"off": off, "on": on, "before": before}
    folders = {name: str(kept(tmp_path / name, one)) for name, one in named.items()}
    with pytest.raises(UsageError, match="on asked something else than off") as refused:
        compare.start([folders["off"], folders["on"]], runs_dir=str(tmp_path))
    assert '{"enable_thinking": true} and {"enable_thinking": false}' in refused.value.why
    assert "chat_template_kwargs" in refused.value.fix
    for name in ("off", "on"):
        compare.start([folders["before"], folders[name]], runs_dir=str(tmp_path))


def test_prompts_of_one_name_whose_texts_have_changed_are_told_apart(tmp_path: Path) -> None:
    """Those made to length are no file, so no other file of prompts mends it."""
    texts = {"old": "prompt-length:0", "new": "prompt-length:1", "mine": "prompt-length:2"}
    for at, (name, question) in enumerate(texts.items()):
        prompts = "mine.jsonl" if name == "mine" else "roost's own: filler"
        kept(tmp_path / name, measured(at, question=question, prompts=prompts))
    with pytest.raises(UsageError, match="new asked something else than old") as refused:
        compare.start("old,new", runs_dir=str(tmp_path))
    assert "texts have changed between the two" in refused.value.why
    assert "--prompts" not in refused.value.fix
    with pytest.raises(UsageError) as refused:
        compare.start("old,mine", runs_dir=str(tmp_path))
    assert "--prompts" in refused.value.fix


def test_runs_with_the_former_kind_of_hash_stay_comparable_where_it_is_known() -> None:
    """It was of the whole suite; what roost's own suites asked then is known."""

    def asks(question: str, prompts: str = "own") -> Benchmark:
        return measured(0, question=question).model_copy(update={"prompts": prompts})

    former, now = next(iter(questions.FORMER.items()))
    assert asks(former).asks_as(asks(now, "elsewhere"))
    assert not asks(former).asks_as(asks("smoke:000000000000"))
    # Of a user's file nobody knows: then it is the file's name that tells, as without a hash.
    assert asks("smoke-000000000000").asks_as(asks(now))
    assert not asks("smoke-000000000000", "mine").asks_as(asks(now, "yours"))
    assert not asks("smoke-000000000000").asks_as(asks("smoke-111111111111"))
    assert not asks("smoke:000000000000").asks_as(asks(now))


def test_names_are_no_formulas() -> None:
    """A dollar sign begins one for matplotlib, and a folder may have any name."""
    odd = [
        dataclasses.replace(run, folder=Path(f"/runs/$\\frac{at}$"))
        for at, run in enumerate(compared(measured(1), measured(2), measured(3)))
    ]
    drawn = charts.ratios(compare.gaps(odd), compare.TOLERANCE)
    assert "<svg" in str(drawn.data)


@pytest.mark.parametrize(
    ("metric", "speed", "length", "verdict"),
    [
        ("output_throughput", 70.0, 3.4, "below published (spread unknown)"),
        ("output_throughput", 130.0, 3.4, "above published (spread unknown)"),
        ("accept_length", 100.0, 3.42, "near published (spread unknown)"),
        # Each token took us twice as long, which is no regression either.
        ("tpot", 100.0, 3.4, "above published (spread unknown)"),
    ],
)
def test_a_published_figure_says_where_ours_lies_and_not_that_it_is_worse(
    metric: str, speed: float, length: float, verdict: str
) -> None:
    values = {"output_throughput": 100.0, "accept_length": 3.4, "tpot": 6.5}
    (cell,) = measured(1, speed=speed, length=length).cells
    theirs = Published(metric=metric, value=values[metric], source="source 000", table="gb10")
    cells = [cell.model_copy(update={"published": [theirs]})]
    begun = comparison(measured(1, cells=cells), measured(1, cells=cells))
    assert {gap.verdict for gap in compare.against_published(begun.compared)} == {verdict}
    evidence = compare.compare(begun, published=True)
    assert evidence.ok
    told = [one.source for key, one in evidence.figures.items() if key.endswith("source 000, gb10")]
    assert [source.partition("; ")[0] for source in told] == [verdict] * 2


def test_one_repetition_is_unclear_beside_a_published_figure() -> None:
    (cell,) = measured(1, repetitions=1).cells
    (gap,) = compare.against_published(compared(measured(1, cells=[cell])))
    assert gap.verdict == "unclear"


def test_published_figures_are_drawn_beside_the_baseline() -> None:
    begun = compared(measured(1, speed=120.0), measured(2, speed=120.0))
    theirs = compare.against_published(begun)
    drawn = str(charts.ratios(compare.gaps(begun) + theirs, 0.05).data)
    assert len(theirs) == 2
    assert all(f"{gap} {gap.verdict}" in drawn for gap in theirs)
    assert "<!-- coding-c1  run-1 / source 000, gb10 -->" in drawn

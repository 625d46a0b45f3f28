"""What a benchmark after the swap says beside the one before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.unit.deployments import deployment

from roost.measure import points
from roost.measure.points import Benchmark, CellPoints, Repetition
from roost.notebooks import Outcome
from roost.rollout import judging
from roost.rollout.judging import Judge


def benchmark(speeds: dict[str, float], length: float | None) -> Benchmark:
    """One with two repetitions at each point."""

    def repetition(speed: float) -> Repetition:
        return Repetition(
            duration=1,
            output_throughput=speed,
            requests=[],
            speculation=None,
            accept_length=length,
            clock=None,
            raw="raw.json",
            marks=[],
        )

    cells = [
        CellPoints(
            id=name,
            category=name,
            concurrency=1,
            repetitions=[repetition(speed), repetition(speed)],
            published=[],
        )
        for name, speed in speeds.items()
    ]
    return Benchmark(suite="gate", protocol="", prompts="own", complete=True, cells=cells)


@pytest.mark.parametrize(
    ("speeds", "length", "against", "remark"),
    [
        (
            {"code": 100, "prose": 100},
            3.0,
            "",
            "throughput of all users 1.00 of what it was; accept length 1.00 of what it was",
        ),
        # One point may be slow where the other is not: 0.4 and 0.9 are 0.6.
        ({"code": 40, "prose": 90}, 3.0, "", "throughput of all users 0.60 of what it was; "),
        (
            {"code": 40, "prose": 40},
            3.0,
            "throughput of all users 0.40 of what it was, which must be 0.5",
            "",
        ),
        (
            {"code": 100, "prose": 100},
            2.3,
            "accept length 0.77 of what it was, which must be 0.8",
            "",
        ),
        ({"code": 100, "other": 1}, None, "", "throughput of all users 1.00 of what it was"),
    ],
)
def test_floors_are_those_of_a_deploy_s_gate(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    speeds: dict[str, float],
    length: float | None,
    against: str,
    remark: str,
) -> None:
    known = {
        Path("before"): benchmark({"code": 100, "prose": 100}, 3.0),
        Path("after"): benchmark(speeds, length),
    }
    monkeypatch.setattr(points, "read", known.__getitem__)
    gate = deployment(tmp_path).gate
    assert (gate.speed_floor, gate.accept_length_floor) == (0.5, 0.8)
    found = judging.compared(Path("before"), Path("after"), gate)
    assert found[0] == against
    assert remark in found[1]


def test_a_baseline_that_is_gone_speaks_against_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has cleared old runs away while the rollout was interrupted."""
    there, gone = tmp_path / "there", tmp_path / "gone"
    read = points.read
    monkeypatch.setattr(
        points, "read", lambda of: benchmark({"code": 1}, None) if of == there else read(of)
    )
    gate = deployment(tmp_path).gate
    assert judging.compared(gone, there, gate) == ("", f"not compared: {gone}: no such run")
    # What was measured a moment ago must be there.
    assert judging.compared(there, gone, gate)[0].startswith(f"{gone}: no such run")


def thinking(on: bool | None, question: str = "gate:0123456789ab") -> Benchmark:
    """A benchmark whose prompts were rendered so, ten times as slow with it; none: not known."""
    arguments = None if on is None else {"enable_thinking": on}
    return benchmark({"code": 10 if on else 100}, 1.5 if on else 3.0).model_copy(
        update={"chat_template_kwargs": arguments, "question": question}
    )


@pytest.mark.parametrize(
    ("before", "after", "against", "remark"),
    [
        (
            thinking(False),
            thinking(True),
            "",
            "not compared with its baseline: their prompts went through the chat template with "
            'other arguments: {"enable_thinking": false} and {"enable_thinking": true}',
        ),
        (
            thinking(False),
            thinking(False, "gate:ba9876543210"),
            "",
            "not compared with its baseline: both are of gate and of its prompts 'own', but the "
            "suite or their texts have changed between the two",
        ),
        # In one from before this was kept.
        (
            thinking(None),
            thinking(True),
            "throughput of all users 0.10 of what it was, which must be 0.5; accept length 0.50 of "
            "what it was, which must be 0.8",
            "throughput of all users 0.10 of what it was; accept length 0.50 of what it was",
        ),
    ],
)
def test_what_was_asked_otherwise_is_not_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: Benchmark,
    after: Benchmark,
    against: str,
    remark: str,
) -> None:
    monkeypatch.setattr(points, "read", {Path("before"): before, Path("after"): after}.get)
    gate = deployment(tmp_path).gate
    assert judging.compared(Path("before"), Path("after"), gate) == (against, remark)


def test_what_falls_short_is_measured_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def run(_: Judge, notebook: str, hosts: Iterable[str]) -> list[Outcome]:
        asked.append((notebook, list(hosts)))
        return [Outcome(host, Path(f"{host}-{len(asked)}")) for host in hosts]

    against = iter(["", "it is wrong", "", "too slow", "", ""])
    monkeypatch.setattr(Judge, "_run", run)
    monkeypatch.setattr(judging, "_against", lambda _: next(against))
    judge = Judge(tmp_path, tmp_path, "gate", {})
    found = judge.judge(dict.fromkeys(["a", "b", "c"]))
    assert asked == [
        ("verify", ["a", "b", "c"]),
        ("benchmark", ["a", "c"]),
        ("benchmark", ["a"]),
    ]
    assert {host: one.why for host, one in found.items()} == {"a": "", "b": "it is wrong", "c": ""}
    assert found["a"].runs == {"verify": Path("a-1"), "benchmark": Path("a-3")}
    assert found["b"].runs == {"verify": Path("b-1")}

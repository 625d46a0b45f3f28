"""Which choice is recommended, and whether its speed agrees with the counters."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.unit.test_measure_compare import NOW, result

from roost.measure import choices, compare
from roost.measure.compare import Compared, Comparison
from roost.measure.points import Benchmark, CellPoints, Repetition, RequestPoint, Speculation
from roost.measure.statistics import Estimate

TOKENS = 400


def cell(
    seed: int,
    speed: float,
    steps: float | None,
    *,
    kind: str = "code",
    users: int = 1,
    repetitions: int = 3,
    noise: float = 0.015,
    salt: str = "",
) -> CellPoints:
    """A point of some speed; ``steps`` are tokens that each step brings, none without drafts."""
    draw = random.Random(f"{seed}{kind}{users}{speed}{salt}")  # noqa: S311
    return CellPoints(
        id=f"{kind}-c{users}",
        category=kind,
        concurrency=users,
        repetitions=[
            _repetition(speed * draw.lognormvariate(0, noise), steps) for _ in range(repetitions)
        ],
        published=[],
    )


def _repetition(speed: float, steps: float | None) -> Repetition:
    request = RequestPoint(
        prompt="p", prompt_tokens=9, output_tokens=TOKENS, ttft=0.1, latency=TOKENS / speed
    )
    drafts = None
    if steps is not None:
        accepted = TOKENS * (1 - 1 / steps)
        # Half the steps had a draft, so the accept length says more than a step brings.
        made = TOKENS / steps / 2
        drafts = Speculation(drafts=made, draft_tokens=4 * made, accepted=accepted, per_position=[])
    return Repetition(
        duration=TOKENS / speed,
        output_throughput=speed,
        requests=[request],
        speculation=drafts,
        accept_length=None if drafts is None else drafts.counters.accept_length,
        clock=None,
        raw="harness.json",
        marks=[],
    )


def comparison(runs: Mapping[str, list[CellPoints]]) -> Comparison:
    compared = [
        Compared(
            Path(f"/runs/{name}"),
            result(speculation=name),
            Benchmark(suite="s", protocol="p", prompts="own", complete=True, cells=cells),
        )
        for name, cells in runs.items()
    ]
    return Comparison(compared, Path("/runs/c"), compare.TOLERANCE, NOW)


def recommended(runs: Mapping[str, list[CellPoints]]) -> dict[str, choices.Recommendation]:
    cells = choices.shared(comparison(runs).compared)
    return {one.point: one for one in choices.recommend(cells)}


def test_the_fastest_is_recommended_for_each_kind_and_each_number_of_users() -> None:
    speeds = {
        ("code", 1): {"dflash": 180.0, "mtp": 150.0, "none": 100.0},
        ("prose", 1): {"dflash": 90.0, "mtp": 110.0, "none": 100.0},
        ("code", 8): {"dflash": 400.0, "mtp": 480.0, "none": 600.0},
        ("prose", 8): {"dflash": 300.0, "mtp": 380.0, "none": 600.0},
    }
    found = recommended(
        {
            name: [
                cell(
                    1,
                    by[name],
                    None if name == "none" else 3.0,
                    kind=kind,
                    users=users,
                    repetitions=5,
                )
                for (kind, users), by in speeds.items()
            ]
            for name in ("dflash", "mtp", "none")
        }
    )
    assert {point: one.choice for point, one in found.items()} == {
        "code-c1": "dflash",
        "prose-c1": "mtp",
        "all-c1": None,
        "code-c8": "none",
        "prose-c8": "none",
        "all-c8": "none",
    }
    # 127.3 and 128.5: the geometric means over both kinds.
    assert found["all-c1"].best == ("mtp", "dflash")
    assert found["all-c1"].why == "by kind: code-c1 dflash, prose-c1 mtp"
    said = str(found["code-c1"])
    assert said.startswith("dflash: 1.")
    ratio = found["code-c1"].ratios["none"]
    assert ratio.value == pytest.approx(1.8, rel=0.03)
    assert ratio.low is not None
    assert ratio.low < 1.8 < (ratio.high or 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_difference_within_noise_or_tolerance_is_no_recommendation(seed: int) -> None:
    found = recommended(
        {
            "dflash": [cell(seed, 102, 2.0, noise=0.003)],
            "none": [cell(99 + seed, 100, None, noise=0.003)],
        }
    )
    assert found["code-c1"].choice is None
    assert set(found["code-c1"].best) == {"dflash", "none"}
    assert str(found["code-c1"]).startswith("no difference between ")


def test_of_many_points_none_is_faster_by_chance() -> None:
    """Equal runs of sixteen points: with 95 % at each, sixteen of these forty name a winner."""
    kinds, wrong = ("code", "reasoning", "dialogue", "prose"), 0
    for seed in range(40):
        points = {
            name: [
                cell(seed, 100, None, kind=kind, users=users, noise=0.05, salt=name)
                for users in (1, 4, 8, 16)
                for kind in kinds
            ]
            for name in ("dflash", "none")
        }
        wrong += any(one.choice for one in recommended(points).values())
    assert wrong <= 2


def test_what_noise_hides_is_not_said_to_be_alike() -> None:
    runs = {
        "dflash": [cell(1, 130, 2.0, noise=0.15)],
        "none": [cell(2, 100, None, noise=0.15)],
    }
    (one,) = recommended(runs).values()
    assert one.choice is None
    assert str(one).startswith("lost in noise: dflash and none (1.")
    (check,) = [
        check
        for check in choices.evidence(comparison(runs)).checks
        if check.id == "recommend code-c1"
    ]
    assert check.verdict == "not seen"


def test_what_may_be_beyond_the_tolerance_is_not_said_to_be_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Faster beyond noise, by no more than the tolerance as measured, and perhaps by 9 %."""
    runs = {"dflash": [cell(1, 104.5, 2.0)], "none": [cell(2, 100, None)]}
    high = Estimate(1.045, 1.001, 1.09, 3)

    def ratio(_: object, other: list[CellPoints], *__: object) -> Estimate:
        one = other[0].repetitions[0].speculation
        return high if one else Estimate(1 / 1.045, 1 / 1.09, 1 / 1.001, 3)

    monkeypatch.setattr(choices, "speed_ratio", ratio)
    (one,) = recommended(runs).values()
    assert (one.choice, one.best, one.alike) == (None, ("dflash", "none"), False)


def test_choices_that_share_nothing_with_each_other_are_not_said_to_be_alike() -> None:
    cells = {"a": [cell(1, 100, None, kind="8K")], "b": [cell(2, 100, None, kind="131K")]}
    made = choices._recommend("all-c1", cells, compare.TOLERANCE, "", 0.95)
    assert (made.choice, made.alike) == (None, False)


def test_a_circle_of_choices_beats_none_of_them() -> None:
    """Each pair shares another point, at which each is faster than the next one."""
    cells = {
        "a": [cell(1, 150, None, kind="x"), cell(1, 100, None, kind="z")],
        "b": [cell(2, 100, None, kind="x"), cell(2, 150, None, kind="y")],
        "c": [cell(3, 100, None, kind="y"), cell(3, 150, None, kind="z")],
    }
    assert set(choices.unbeaten(cells)) == set(cells)


def test_points_that_one_of_them_left_out_are_not_taken_for_others() -> None:
    """A shorter context leaves out the long prompts, which are slow."""
    present = [cell(1, 100, None, kind="8K"), cell(1, 20, None, kind="131K")]
    shorter = [cell(2, 100, None, kind="8K")]
    ratio = choices.speed_ratio(present, shorter)
    assert ratio is not None
    assert ratio.value == pytest.approx(1, abs=0.05)
    assert choices.speed_ratio(present[1:], shorter) is None


def test_two_that_are_alike_are_named_together_and_the_beaten_one_is_not() -> None:
    found = recommended(
        {
            "none": [cell(1, 100, None)],
            "dflash": [cell(2, 150, 2.0)],
            "mtp": [cell(3, 151, 2.0)],
        }
    )
    assert set(found["code-c1"].best) == {"dflash", "mtp"}


def test_one_repetition_recommends_nothing_and_says_why() -> None:
    found = recommended(
        {
            "dflash": [cell(1, 300, 3.0, repetitions=1)],
            "none": [cell(2, 100, None, repetitions=1)],
        }
    )
    assert found["code-c1"].choice is None
    assert found["code-c1"].why == "too few repetitions to know the noise"


def test_steps_are_counted_from_tokens_and_not_from_drafts() -> None:
    found = choices.tokens_per_step(cell(1, 100, 2.5))
    assert found is not None
    assert found.value == pytest.approx(2.5)
    # By steps that had a draft alone, as the accept length counts, it would be 4.
    assert cell(1, 100, 2.5).repetitions[0].accept_length == pytest.approx(4.0)
    assert choices.tokens_per_step(cell(1, 100, None)) is None


def test_a_speed_that_drafts_cannot_explain_is_a_failed_check() -> None:
    runs = {
        "dflash": [cell(1, 180, 2.5), cell(1, 180, 1.02, kind="prose")],
        "none": [cell(2, 100, None), cell(2, 100, None, kind="prose")],
    }
    found = choices.evidence(comparison(runs))
    assert [check.id for check in found.failed] == ["counters prose-c1 dflash"]
    assert "the host was faster in one of the two runs" in found.failed[0].why
    passed = {check.id: check for check in found.checks}
    assert passed["counters code-c1 dflash"].expected.startswith("at most 2.50 times the speed")
    why = passed["recommend code-c1"].why
    assert why.startswith("dflash brings 2.50 tokens a step, each in 1.")
    assert why.endswith("times the time of none's")
    assert "recommend.code-c1/none" in found.figures
    assert "none.code-c1.output_throughput/dflash" in found.figures


def test_a_recommendation_names_the_runs_that_it_is_of() -> None:
    """A choice may have been measured many times."""
    begun = comparison({"none": [cell(1, 100, None)], "dflash": [cell(2, 180, 2.5)]})
    dated = [
        dataclasses.replace(run, folder=Path(f"/runs/20261129-{at}"))
        for at, run in enumerate(begun.compared)
    ]
    found = choices.evidence(dataclasses.replace(begun, compared=dated))
    source = found.figures["recommend.code-c1/none"].source
    assert source == "recommended; the speed in run 20261129-1 divided by that in 20261129-0"


def test_being_slower_fails_no_choice() -> None:
    runs = {"none": [cell(1, 100, None)], "dflash": [cell(2, 60, 1.2)]}
    found = choices.evidence(comparison(runs))
    assert found.ok
    assert not compare.compare(comparison(runs)).ok


def test_runs_with_the_same_choice_go_by_their_own_names() -> None:
    compared = comparison({"a": [], "b": []}).compared
    same = [Compared(run.folder, result(), run.benchmark) for run in compared]
    assert choices.names(compared) == ["a", "b"]
    assert choices.names(same) == ["a", "b"]
    assert choices.names(same[:1]) == ["dflash"]

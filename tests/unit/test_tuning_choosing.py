"""The settings that a search recommends."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.unit.test_measure_choices import cell

from roost.errors import RoostError
from roost.experiment import Tried
from roost.measure import choices
from roost.measure.points import Benchmark
from roost.tuning import choosing


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
    found = choosing.choose(measured(speeds), known, 8)
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
    assert (choosing.choose(found, known, 8).point, choosing.choose(found, known, 8).rivals) == (
        "a",
        (),
    )


def test_of_many_points_one_is_faster_by_chance() -> None:
    """12 % more with 5 % of noise: enough for one point, and not for the luckiest of six."""
    found = measured({"present": (100, 500), "a": (100, 560)})
    noisy = cell(1, 560, 2.0, kind="mixed", users=8, noise=0.05)
    found["a"] = found["a"].model_copy(update={"cells": [found["a"].cells[0], noisy]})
    known = tried(*({"k": at} for at in range(7)))
    assert choosing.choose(found, known, 8).point == "a"
    others = measured(dict.fromkeys("bcdef", (100, 500)))
    assert choosing.choose(found | others, known, 8).point == "present"


def test_a_single_point_is_no_choice() -> None:
    with pytest.raises(RoostError, match="nothing to choose from for 8 users: 1 points"):
        choosing.choose(measured({"present": (100, 500)}), tried({}), 8)

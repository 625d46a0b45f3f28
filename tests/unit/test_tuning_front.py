"""Throughput and times of measured points, and the front of them."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.test_measure_choices import cell

from roost.measure.points import Benchmark
from roost.measure.statistics import Estimate
from roost.tuning import front
from roost.tuning.front import Dot


def dot(point: str, tpot: float, throughput: float) -> Dot:
    return Dot(point, 1, ("code-c1",), Estimate(throughput, None, None, 1), tpot, 1.0)


def test_the_front_is_what_nothing_dominates() -> None:
    found = [dot("a", 10, 100), dot("b", 20, 90), dot("c", 20, 300), dot("d", 30, 300)]
    found += [dot("e", 25, 250), dot("f", 40, 400)]
    best = front.pareto(found)
    assert [one.point for one in best] == ["a", "c", "f"]
    for one, other in itertools.product(best, found):
        assert (
            one is other or one.tpot < other.tpot or one.throughput.value > other.throughput.value
        )


def test_dots_are_the_mean_over_kinds_of_prompts() -> None:
    cells = [cell(1, 90.0, 2.0, noise=0.0), cell(1, 160.0, 2.0, kind="prose", noise=0.0)]
    benchmark = Benchmark(suite="s", protocol="p", prompts="own", complete=True, cells=cells)
    (found,) = front.dots({"present": benchmark})
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
    found = front.dots(measured)
    assert [(one.point, one.cells, round(one.throughput.value)) for one in found] == [
        ("present", ("0.5K-c1",), 100),
        ("context 8192", ("0.5K-c1",), 90),
    ]
    assert [one.point for one in front.pareto(found)] == ["present"]
    assert front.left_out(measured) == {
        "32K-c1": ["context 8192"],
        "131K-c1": ["context 8192"],
    }
    # Where all measured all, as where a point has nothing to be compared by at all.
    nothing = measured["present"].model_copy(update={"cells": []})
    measured = {"present": lengths(100, 50), "K 8": lengths(80, 60), "K 2": nothing}
    assert front.left_out(measured) == {}
    assert [one.cells for one in front.dots(measured)] == [("0.5K-c1", "32K-c1")] * 2

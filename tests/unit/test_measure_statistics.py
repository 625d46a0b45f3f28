"""Medians and ratios with intervals, against printed tables and by hand."""

from __future__ import annotations

import math
import random
import statistics as plain

import pytest

from roost.measure import statistics
from roost.measure.statistics import Estimate, estimate, mean_ratio, paired_ratio, t_quantile

#: Ranks, counted from one, that enclose a median at 95 % or a little more: the table that textbooks
#: of distribution-free methods print, from the binomial distribution with p = 1/2.
RANKS = {6: (1, 6), 8: (1, 8), 9: (2, 8), 10: (2, 9), 15: (4, 12), 20: (6, 15), 30: (10, 21)}


@pytest.mark.parametrize(("n", "ranks"), RANKS.items())
def test_from_six_values_on_the_interval_is_read_off_the_values(
    n: int, ranks: tuple[int, int]
) -> None:
    values = list(range(1, n + 1))
    random.Random(1).shuffle(values)  # noqa: S311
    found = estimate(values)
    assert (found.low, found.high) == ranks
    assert found.value == plain.median(values)


def test_fewer_values_take_students_t_on_the_logarithms() -> None:
    # Logarithms 1, 2, 3: mean 2, deviation 1; t for two degrees of freedom is 4.303.
    found = estimate([math.exp(2), math.exp(1), math.exp(3)])
    reach = 4.30265273 / math.sqrt(3)
    assert found == Estimate(
        pytest.approx(math.exp(2)),
        pytest.approx(math.exp(2 - reach)),
        pytest.approx(math.exp(2 + reach)),
        3,
    )


def test_one_or_two_values_have_no_interval_and_none_no_median() -> None:
    assert estimate([3.0]) == Estimate(3.0, None, None, 1)
    assert estimate([3.0, 4.0]) == Estimate(3.5, None, None, 2)
    assert estimate([3.0]).half_width is None
    assert not estimate([3.0]).excludes(1.0)
    for values in ([], [1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match="finite"):
            estimate(values)


def test_values_that_have_no_logarithm_get_their_range() -> None:
    assert estimate([0.0, 2.0, 4.0]) == Estimate(2.0, 0.0, 4.0, 3)


def test_a_ratio_of_groups_is_welchs() -> None:
    # Both logarithms deviate by 0.01 around 0 and 1: variance 0.0002 each, two degrees of freedom.
    low, high = ([math.exp(centre - 0.01), math.exp(centre + 0.01)] for centre in (0.0, 1.0))
    found = mean_ratio([(low, high)])
    reach = 4.30265273 * math.sqrt(0.0002)
    assert found.value == pytest.approx(math.e)
    assert found.low == pytest.approx(math.exp(1 - reach))
    assert found.high == pytest.approx(math.exp(1 + reach))


def test_a_ratio_needs_two_values_for_an_interval_and_positive_ones() -> None:
    assert mean_ratio([([2.0], [3.0, 3.0])]) == Estimate(pytest.approx(1.5), None, None, 1)
    same = pytest.approx(1.5)
    assert mean_ratio([([2.0] * 3, [3.0] * 3)]) == Estimate(same, same, same, 3)
    # Two repetitions of twenty steps, and two of nineteen: a step is 5 %, and was chance.
    assert mean_ratio([([2.0, 2.0], [3.0, 3.0])]) == Estimate(same, None, None, 2)
    for groups in (([], [1.0]), ([1.0], [0.0])):
        with pytest.raises(ValueError, match="positive"):
            mean_ratio([groups])


def test_a_paired_ratio_is_over_what_both_measured() -> None:
    baseline = {str(at): 10.0 * at for at in range(1, 9)}
    other = {key: value * 1.1 for key, value in baseline.items() if key != "3"}
    found = paired_ratio({**baseline, "zero": 0.0}, {**other, "zero": 1.0, "new": 1.0})
    assert found is not None
    assert (found.n, found.value) == (7, pytest.approx(1.1))
    assert paired_ratio({"a": 1.0}, {"b": 1.0}) is None


def test_quantiles_of_t() -> None:
    assert [t_quantile(freedom) for freedom in (1, 2.9, 10, 30)] == [
        pytest.approx(printed, abs=0.0005) for printed in (12.706, 4.303, 2.228, 2.042)
    ]
    for freedom, printed in ((31, 2.040), (40, 2.021), (60, 2.000), (120, 1.980), (1000, 1.962)):
        assert t_quantile(freedom) == pytest.approx(printed, abs=0.0005)
    for freedom, printed in ((1, 63.657), (3, 5.841), (10, 3.169), (60, 2.660)):
        assert t_quantile(freedom, 0.99) == pytest.approx(printed, abs=0.0005)


@pytest.mark.parametrize("n", [3, 5, 8, 20])
def test_intervals_hold_the_true_median_as_often_as_they_say(n: int) -> None:
    draw = random.Random(n)  # noqa: S311
    held = 0
    for _ in range(1000):
        found = estimate([100 * draw.lognormvariate(0, 0.03) for _ in range(n)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 100 <= found.high
    # 95 %, less three standard errors of a thousand draws.
    assert held >= 929


def test_a_mean_of_ratios_is_narrower_than_each_of_them() -> None:
    one, two = ([10.0, 10.4, 9.8], [12.0, 12.3, 11.9]), ([50.0, 51.0, 49.5], [55.0, 56.1, 54.2])
    singles = [mean_ratio([pair]) for pair in (one, two)]
    both = mean_ratio([one, two])
    assert both.value == pytest.approx(math.sqrt(singles[0].value * singles[1].value))
    assert both.half_width is not None
    assert both.half_width < min(single.half_width or 0 for single in singles)
    with pytest.raises(ValueError, match="positive values"):
        mean_ratio([])


def test_a_geometric_mean_is_its_ratio_to_one() -> None:
    groups = [[80.0, 90.0, 100.0], [150.0, 160.0, 175.0, 170.0]]
    found = statistics.geometric_mean(groups)
    as_ratio = statistics.mean_ratio([([1.0, 1.0], group) for group in groups])
    assert (found.value, found.low, found.high) == (as_ratio.value, as_ratio.low, as_ratio.high)
    assert found.value == pytest.approx((720_000 ** (1 / 3) * 714_000_000 ** (1 / 4)) ** 0.5)
    with pytest.raises(ValueError, match="positive"):
        statistics.geometric_mean([[1.0], []])


@pytest.mark.parametrize("noise", [0.005, 0.015, 0.02, 0.03])
def test_stopping_at_the_first_tight_interval_costs_little(noise: float) -> None:
    """A benchmark repeats until its interval is tight; the docs say what that costs."""
    draw = random.Random(1)  # noqa: S311
    hits = 0
    for _ in range(1500):
        values: list[float] = []
        while len(values) < 8:
            values.append(100 * draw.lognormvariate(0, noise))
            if len(values) >= 3:
                half = statistics.estimate(values).half_width
                if half is not None and half <= 0.02:
                    break
        found = statistics.estimate(values)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 100 <= found.high
    assert hits / 1500 > 0.915

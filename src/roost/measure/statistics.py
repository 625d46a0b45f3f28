"""Medians with intervals, and ratios with intervals, for few and many values.

Nothing is drawn at random here, so the same values always give the same interval. From six values
on, the interval of a median is read off the sorted values: no assumption about their distribution.
Fewer than six have no such interval at 95 %; there it comes from Student's t on the logarithms,
which takes the noise to be a factor, as it is for speeds and times. One or two values get none:
with a single degree of freedom it would span orders of magnitude.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

_Key = TypeVar("_Key")

CONFIDENCE = 0.95
#: Values that a median needs for an interval.
FEWEST = 3


@dataclass(frozen=True)
class Estimate:
    """A median, or a ratio, with its interval (of 95 %, unless another confidence was asked for).

    Attributes:
        low, high: The interval's ends; ``None`` where there are too few values for one.
        n: How many independent values it rests on.
    """

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def half_width(self) -> float | None:
        """Half the interval as a fraction of the value."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)

    def excludes(self, value: float) -> bool:
        """Whether there is an interval and ``value`` lies outside of it."""
        return self.low is not None and self.high is not None and not self.low <= value <= self.high

    def widened(self, other: Estimate) -> Estimate:
        """With an interval that encloses the other's as well; none where one has none."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return Estimate(self.value, None, None, min(self.n, other.n))
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Estimate(self.value, low, high, min(self.n, other.n))


def shown(found: Estimate) -> str:
    """A median with its interval, or without one where there is none."""
    if found.low is None or found.high is None:
        return f"{found.value:.4g}"
    return f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})"


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The median of independent values and its interval.

    Raises:
        ValueError: There is no value, or one that is not finite.
    """
    if not values or not all(math.isfinite(value) for value in values):
        raise ValueError("a median needs finite values")
    ordered = sorted(values)
    middle = statistics.median(ordered)
    rank = _rank(len(ordered), confidence)
    if rank is not None:
        return Estimate(middle, ordered[rank], ordered[-1 - rank], len(ordered))
    if len(ordered) < FEWEST:
        return Estimate(middle, None, None, len(ordered))
    if ordered[0] <= 0:
        # No logarithm: the range is all that can be said.
        return Estimate(middle, ordered[0], ordered[-1], len(ordered))
    logs = [math.log(value) for value in ordered]
    centre = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = t_quantile(len(logs) - 1, confidence) * spread
    low, high = math.exp(centre - reach), math.exp(centre + reach)
    # The median of up to five values may lie a little off their mean.
    return Estimate(middle, min(low, middle), max(high, middle), len(logs))


def mean_ratio(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float = CONFIDENCE
) -> Estimate:
    """The geometric mean of ratios, each of two independent groups of positive values.

    A pair is a baseline and what is divided by it. Welch's interval on the logarithms: groups may
    differ in size and in spread. Two values each are enough, because all groups together
    determine the spread.

    Raises:
        ValueError: There is no pair, a group is empty, or a value is not positive.
    """
    of_each = [((baseline, -1 / len(pairs)), (other, 1 / len(pairs))) for baseline, other in pairs]
    return _combined([group for both in of_each for group in both], confidence)


def geometric_mean(groups: Sequence[Sequence[float]]) -> Estimate:
    """The geometric mean of several groups' geometric means; the groups are independent.

    Raises:
        ValueError: There is no group, one is empty, or a value is not positive.
    """
    return _combined([(group, 1 / len(groups)) for group in groups], CONFIDENCE)


def _combined(groups: Sequence[tuple[Sequence[float], float]], confidence: float) -> Estimate:
    """Groups' mean logarithms, weighted and added, with Welch's interval."""
    if not groups or not all(group and min(group) > 0 for group, _ in groups):
        raise ValueError("ratios and geometric means need positive values, and some in each group")
    logs = [([math.log(value) for value in group], weight) for group, weight in groups]
    middle = sum(statistics.fmean(group) * weight for group, weight in logs)
    n = min(len(group) for group, _ in logs)
    if n < 2:
        return Estimate(math.exp(middle), None, None, n)
    shares = [statistics.variance(group) / len(group) * weight**2 for group, weight in logs]
    spread = sum(shares)
    if spread == 0 and n < FEWEST:
        # Counts are whole numbers: the same one twice does not show that there is no noise.
        return Estimate(math.exp(middle), None, None, n)
    if spread == 0:
        return Estimate(math.exp(middle), math.exp(middle), math.exp(middle), n)
    freedom = spread**2 / sum(
        share**2 / (len(group) - 1) for share, (group, _) in zip(shares, logs, strict=True)
    )
    reach = t_quantile(freedom, confidence) * math.sqrt(spread)
    return Estimate(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), n)


def paired_ratio(
    baseline: Mapping[_Key, float], other: Mapping[_Key, float], confidence: float = CONFIDENCE
) -> Estimate | None:
    """The median of ``other / baseline`` over what both measured, such as the same prompts.

    ``None`` where they share nothing. What differs from prompt to prompt cancels out.
    """
    shared = [other[key] / value for key, value in baseline.items() if key in other and value > 0]
    return estimate(shared, confidence) if shared else None


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t; fractions of a degree are rounded down."""
    return _t_quantile(max(1, math.floor(freedom + 1e-9)), confidence)


@cache
def _t_quantile(freedom: int, confidence: float) -> float:
    low, high = 0.0, 1e9
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """The probability of a t between -t and t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def _rank(n: int, confidence: float) -> int | None:
    """The largest r for which the r-th values from both ends enclose the median.

    The number of values below the true median is binomial with probability one half, whatever the
    distribution; counted from zero. ``None`` where even the extremes do not (n < 6 at 95 %).
    """
    outside = 0.0
    best = None
    for r in range(n // 2):
        outside += 2 * math.comb(n, r) * 0.5**n
        if 1 - outside < confidence:
            break
        best = r
    return best

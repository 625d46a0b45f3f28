"""A host against its own earlier runs: trends, and steps since the run before.

A trend is over the order of the runs, not over the time between them: three runs in an hour and one
a month later say nothing of what a month of such hours would do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from roost.measure import compare, points
from roost.measure.compare import DECISIVE, TOLERANCE
from roost.measure.fleet.looking import Measured
from roost.measure.points import Metric
from roost.measure.statistics import CONFIDENCE

#: Runs of a host that a trend needs: of four, no order at all is significant at 5 %.
FEWEST_RUNS = 5
_SIGNIFICANT = 0.05
#: Values up to which all orders are counted; beyond, the normal distribution is as good.
_COUNTED = 40


@dataclass(frozen=True)
class Trend:
    """One metric of one host over its runs.

    Attributes:
        change: From the first runs to the last, as a factor; none with too few runs.
        p: The probability of so clear an order without a trend (Mann-Kendall, exact, two-sided).
    """

    metric: Metric
    runs: int
    change: float | None
    p: float | None

    def drifts(self, tolerance: float) -> bool:
        """It goes one way, and far enough to care."""
        if self.change is None or self.p is None or self.p >= _SIGNIFICANT:
            return False
        return abs(self.change - 1) > tolerance


def trends(series: Sequence[Measured]) -> list[Trend]:
    """Every decisive metric of a host over its runs of one suite, the oldest first."""
    found = []
    for key in DECISIVE:
        measured = [one.values(key) for one in series]
        kept = [now for now in measured if now]
        shared = set.intersection(*map(set, kept)) if kept else set()
        if not shared:
            continue
        logs = [
            statistics.median(math.log(now[point] / kept[0][point]) for point in shared)
            for now in kept
        ]
        found.append(trend(points.metric(key), logs))
    return found


def trend(metric: Metric, logs: Sequence[float]) -> Trend:
    """What a metric does over a host's runs, by its logarithms, the oldest first.

    The change is the smaller of two, and none where they disagree: a single odd run moves the
    median of all slopes little, but a step carried on at the slope of its runs is larger than it
    was; and what the last runs are beside the first was seen, but two of them may be odd.
    """
    n = len(logs)
    if n < FEWEST_RUNS:
        return Trend(metric, n, None, None)
    # Theil and Sen's slope from run to run: the median of all pairs'.
    slope = statistics.median((logs[b] - logs[a]) / (b - a) for a, b in combinations(range(n), 2))
    part = max(2, n // 3)
    seen = statistics.median(logs[-part:]) - statistics.median(logs[:part])
    along = slope * (n - 1)
    change = min(along, seen, key=abs) if along * seen > 0 else 0.0
    return Trend(metric, n, math.exp(change), mann_kendall(logs))


def mann_kendall(series: Sequence[float]) -> float:
    """The two-sided probability of so ordered a series if every order were as likely."""
    n = len(series)
    score = sum(
        (series[b] > series[a]) - (series[b] < series[a]) for a, b in combinations(range(n), 2)
    )
    if n > _COUNTED:
        deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return math.erfc(max(0, abs(score) - 1) / deviation / math.sqrt(2))
    total = n * (n - 1) // 2
    extreme = sum(
        count for pairs, count in enumerate(_orders(n)) if abs(2 * pairs - total) >= abs(score)
    )
    return min(1.0, extreme / math.factorial(n))


@cache
def _orders(n: int) -> tuple[int, ...]:
    """How many of the n! orders have how many pairs in order, built up one value at a time."""
    ways = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(ways) + size - 1)
        for pairs, count in enumerate(ways):
            for more in range(size):
                longer[pairs + more] += count
        ways = longer
    return tuple(ways)


def step(series: Sequence[Measured], tolerance: float = TOLERANCE) -> list[str]:
    """Metrics in which most points of the newest run are worse than in the run before."""
    measured = [whole for one in series[-2:] if (whole := one.kept.whole()) is not None]
    if len(measured) < 2:
        return []
    # Each interval holds by itself: chance does not make most points agree.
    each = compare.between(measured[0], measured[1], tolerance, CONFIDENCE)
    found = [one for one in each if one[0] != compare.ALL]
    said = []
    for key in DECISIVE:
        here = [(ratio.value, verdict) for _, one, ratio, verdict in found if one.key == key]
        worse = sum(verdict == "worse" for _, verdict in here)
        if 2 * worse > len(here):
            ratio = statistics.median(value for value, _ in here)
            said.append(
                f"{points.metric(key).title.lower()} {(ratio - 1) * 100:+.0f} %, worse at "
                f"{worse} of {len(here)} points"
            )
    return said

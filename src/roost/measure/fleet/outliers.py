"""Hosts against their class, and which of them stand out.

A host's standing in a metric is the median, over a suite's points, of its newest run's value
divided by the class's median there; one point's noise moves it little.

A host is an outlier by the modified z-score of Iglewicz and Hoaglin (How to Detect and Handle
Outliers, ASQC 1993), taken of the logarithms: 0.6745 times its distance from the median, divided by
the median absolute deviation (MAD), is above 3.5. It must be beyond the tolerance as well. Outliers
hardly move median and MAD as long as they are fewer than half. Five hosts are the fewest that are
judged: with a spread of 1.5 %, a host that is 15 % slower is found in 97 of 100 classes of five,
and fewer than one class in a hundred raises a false alarm (tests/unit/test_measure_fleet.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from roost.measure import points
from roost.measure.compare import DECISIVE, TOLERANCE
from roost.measure.fleet.looking import Class, Fleet, Measured, benchmarked
from roost.measure.points import Metric

#: Hosts of a class that an outlier needs.
FEWEST_HOSTS = 5
_Z = 3.5

Verdict = Literal["worse", "better", "as its class", "too few hosts"]


@dataclass(frozen=True)
class Standing:
    """How one host stands in its class by one metric of a suite.

    Attributes:
        ratio: To the class's median, over the points of the suite.
        hosts: How many hosts the class has that measured this.
        run: The run it is of.
    """

    belongs: Class
    suite: str
    metric: Metric
    host: str
    ratio: float
    hosts: int
    verdict: Verdict
    run: str


def standings(fleet: Fleet) -> list[Standing]:
    """Every host's newest benchmark of each suite against its class."""
    newest: dict[tuple[Class, str], dict[str, Measured]] = {}
    for (host, belongs, suite), runs_of in benchmarked(fleet).items():
        newest.setdefault((belongs, suite), {})[host] = runs_of[-1]
    found = []
    for (belongs, suite), by_host in newest.items():
        for key in DECISIVE:
            metric = points.metric(key)
            ratios = to_median({host: one.values(key) for host, one in by_host.items()})
            judged = judge(ratios, metric, fleet.tolerance)
            found += [
                Standing(
                    belongs, suite, metric, host, ratio, len(ratios), judged[host],
                    by_host[host].kept.name,
                )
                for host, ratio in ratios.items()
            ]  # fmt: skip
    return found


def to_median(by_host: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each host's ratio to the median of all, over the points that it measured.

    Points that only one host measured are left out, and so is a host that has no others.
    """
    at: dict[str, list[float]] = {}
    for measured in by_host.values():
        for point, value in measured.items():
            at.setdefault(point, []).append(value)
    medians = {point: statistics.median(found) for point, found in at.items() if len(found) > 1}
    found = {}
    for host, measured in by_host.items():
        ratios = [value / medians[point] for point, value in measured.items() if point in medians]
        if ratios:
            found[host] = statistics.median(ratios)
    return found


def judge(
    ratios: Mapping[str, float], metric: Metric, tolerance: float = TOLERANCE
) -> dict[str, Verdict]:
    """What each host's ratio says beside the others'; see the module for the rule."""
    if len(ratios) < FEWEST_HOSTS:
        return dict.fromkeys(ratios, "too few hosts")
    logs = {host: math.log(ratio) for host, ratio in ratios.items()}
    middle = statistics.median(logs.values())
    spread = statistics.median(abs(value - middle) for value in logs.values())
    found: dict[str, Verdict] = {}
    for host, value in logs.items():
        far = 0.6745 * abs(value - middle) > _Z * spread
        if not far or abs(math.exp(value - middle) - 1) <= tolerance:
            found[host] = "as its class"
        else:
            found[host] = "better" if (value > middle) == (metric.better == "higher") else "worse"
    return found

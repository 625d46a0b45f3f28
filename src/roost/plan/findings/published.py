"""What the published figures say about this choice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from roost.figures import Figure
from roost.plan.finding import Finding
from roost.plan.subject import Subject

#: Figures that are compared: more is better.
_SPEED = "output_throughput"

#: Not worth a word above it: runs of one and the same server differ by as much.
_LOSES_BELOW = 0.95


def loses(s: Subject) -> Iterator[Finding]:
    """Speculation costs compute; under load, or with a poor drafter, it can cost speed.

    Compared are figures of one table under the same conditions, in the geometric mean over its
    kinds of prompt, at each concurrency that the server allows.
    """
    choice, recipe, hardware = (
        s.resolved.speculation_name,
        s.resolved.recipe,
        s.resolved.hardware.id,
    )
    if s.resolved.speculation.method is None:
        return
    most = s.settings.max_num_seqs or 1
    ratios: dict[tuple[str, int, str], list[tuple[float, Figure]]] = defaultdict(list)
    for mine, rival in _pairs(s.figures(), choice):
        at = mine.conditions["concurrency"]
        other = rival.speculation
        if other is None or recipe.support_on(hardware, other) == "unsupported":
            continue
        if isinstance(at, int) and at <= most:
            ratios[mine.table, at, other].append((_number(mine) / _number(rival), mine))
    means = {
        key: math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
        for key, found in ratios.items()
    }
    if not means or min(means.values()) >= _LOSES_BELOW:
        return
    key = min(means, key=lambda one: means[one])
    table, concurrency, other = key
    figure = ratios[key][0][1]
    yield Finding(
        id="speculation-loses",
        severity="warning",
        summary=f"at concurrency {concurrency}, {choice} was published {1 - means[key]:.0%} slower "
        f"than {other}",
        why=f"geometric mean of {len(ratios[key])} figure(s) of {table}",
        fix=f"roost_speculation: {other}",
        source=figure.source,
        date=figure.date,
    )


def _pairs(figures: list[Figure], choice: str) -> Iterator[tuple[Figure, Figure]]:
    """Figures of a choice, each with those of others under the same conditions."""
    speeds = [one for one in figures if one.what == _SPEED and "concurrency" in one.conditions]
    for figure in speeds:
        for other in speeds:
            same = (other.table, other.conditions) == (figure.table, figure.conditions)
            if figure.speculation == choice != other.speculation and same:
                yield figure, other


def _number(figure: Figure) -> float:
    value = figure.value
    return float(value) if isinstance(value, int | float) else math.nan


CHECKS = (loses,)

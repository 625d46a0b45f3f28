"""Throughput against the times that users wait, of every point that was measured."""

from __future__ import annotations

import statistics as plain
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roost.measure import choices, points, statistics
from roost.measure.points import Benchmark, CellPoints
from roost.measure.statistics import Estimate

_TIMES = ("tpot", "ttft")


@dataclass(frozen=True)
class Dot:
    """One point at one number of users; over several kinds of prompts, their geometric mean.

    Attributes:
        cells: Of the suite, what it is the mean of: the same for all points.
        throughput: Generated tokens per second of all users.
        tpot: Milliseconds that one of them waits for a token after the first.
        ttft: Milliseconds that one of them waits for the first.
    """

    point: str
    users: int
    cells: tuple[str, ...]
    throughput: Estimate
    tpot: float
    ttft: float


def dots(measured: Mapping[str, Benchmark]) -> list[Dot]:
    """Throughput and times of every point, by number of users, over what all points measured.

    A setting may leave out cells, prompts that are longer than its context; the mean over the short
    ones alone would put it before all others. A cell's times are the benchmark's own figures of it;
    a point that has none of any cell has no place here, and takes none from the others.
    """
    found = []
    for users, points_of in _complete(measured).items():
        shared = _shared(points_of)
        for name, cells in points_of.items():
            here = [cells[cell_id] for cell_id in shared]
            if here:
                speed = statistics.geometric_mean([choices.SPEED.by_repetition(c) for c in here])
                means = {key: plain.geometric_mean(_time(c, key) for c in here) for key in _TIMES}
                found.append(Dot(name, users, shared, speed, **means))
    order = list(measured)
    return sorted(found, key=lambda dot: (order.index(dot.point), dot.users))


def left_out(measured: Mapping[str, Benchmark]) -> dict[str, list[str]]:
    """Cells that no dot is of, and by cell the points that did not measure it."""
    found = {}
    for points_of in _complete(measured).values():
        shared = _shared(points_of)
        for cell_id in dict.fromkeys(one for cells in points_of.values() for one in cells):
            if cell_id not in shared:
                found[cell_id] = [name for name, of in points_of.items() if cell_id not in of]
    return found


def pareto(found: Sequence[Dot]) -> list[Dot]:
    """The dots than which no other one has more throughput at no more time per token (Pareto)."""
    ordered = sorted(found, key=lambda dot: (dot.tpot, -dot.throughput.value))
    best: list[Dot] = []
    for dot in ordered:
        if not best or dot.throughput.value > best[-1].throughput.value:
            best.append(dot)
    return best


def by_users(benchmark: Benchmark) -> dict[int, list[CellPoints]]:
    """The cells that count, by how many users they have."""
    found: dict[int, list[CellPoints]] = {}
    for cell in benchmark.cells:
        if cell.clean:
            found.setdefault(cell.concurrency, []).append(cell)
    return found


def _complete(measured: Mapping[str, Benchmark]) -> dict[int, dict[str, dict[str, CellPoints]]]:
    """By number of users and point, its cells that have all that a dot needs."""
    found: dict[int, dict[str, dict[str, CellPoints]]] = {}
    for name, benchmark in measured.items():
        for users, cells in by_users(benchmark).items():
            whole = {cell.id: cell for cell in cells if all(_time(cell, key) for key in _TIMES)}
            if whole:
                found.setdefault(users, {})[name] = whole
    return dict(sorted(found.items()))


def _shared(points_of: Mapping[str, Mapping[str, CellPoints]]) -> tuple[str, ...]:
    first, *others = points_of.values()
    return tuple(cell_id for cell_id in first if all(cell_id in one for one in others))


def _time(cell: CellPoints, key: str) -> float:
    """Milliseconds; 0 where there is none."""
    found = points.metric(key).estimate(cell)
    return found.value if found else 0.0

"""The settings that a search recommends, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roost.errors import RoostError
from roost.experiment import Tried
from roost.measure import choices, compare, statistics
from roost.measure.compare import TOLERANCE
from roost.measure.points import Benchmark
from roost.measure.statistics import Estimate
from roost.tuning import front
from roost.tuning.grid import PRESENT


@dataclass(frozen=True)
class Choice:
    """The settings that were chosen.

    Attributes:
        point: Their name; ``present`` where nothing is faster beyond noise.
        users: How many they were chosen for.
        rivals: Others that it does not beat.
        gain: Throughput over that of the present settings; none where they were chosen.
    """

    point: str
    users: int
    rivals: tuple[str, ...]
    gain: Estimate | None


def choose(
    measured: Mapping[str, Benchmark],
    tried: Sequence[Tried],
    users: int,
    tolerance: float = TOLERANCE,
) -> Choice:
    """The settings with the most throughput for so many users, if beyond noise and tolerance.

    Of several that nothing beats, those that change the least.

    Raises:
        RoostError: Nothing but the present settings was measured, or not even those.
    """
    cells = {name: front.by_users(benchmark).get(users, []) for name, benchmark in measured.items()}
    if PRESENT not in cells or len(cells) < 2 or not all(cells.values()):
        raise RoostError(
            f"nothing to choose from for {users} users: {len(cells)} points were measured",
            fix="a higher limit, or other values to vary; the table says what was refused",
        )
    # Of many points some are faster by chance: the intervals hold all together (Bonferroni).
    confidence = 1 - (1 - statistics.CONFIDENCE) / (len(cells) - 1)
    gains = {
        name: choices.speed_ratio(cells[PRESENT], here, confidence)
        for name, here in cells.items()
        if name != PRESENT
    }
    # What nothing beats may be so for its noise alone: first it has to beat what is there now.
    better = {
        name: cells[name]
        for name, gain in gains.items()
        if gain is not None and compare.judge(gain, choices.SPEED, tolerance) == "better"
    }
    best = list(choices.unbeaten(better or cells, tolerance))
    present = next(one.settings for one in tried if one.name == PRESENT)
    changes = {
        one.name: sum(present.get(key) != value for key, value in one.settings.items())
        for one in tried
    }
    point = min(best, key=lambda name: changes[name]) if better else PRESENT
    rivals = tuple(name for name in best if name != point)
    return Choice(point, users, rivals, gains.get(point))


def said(choice: Choice) -> str:
    """Why it was chosen."""
    if choice.gain is None:
        return "Nothing is faster than the present settings beyond noise and tolerance."
    rivals = f"; not told apart from: {', '.join(choice.rivals)}" if choice.rivals else ""
    return f"{choices.times(choice.gain)} the throughput of the present settings{rivals}."

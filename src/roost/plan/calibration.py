"""Memory that has no closed form: what was measured of it, and the constants fitted to that.

The data is ``catalog/calibration.yml``. A :class:`Point` is one figure that somebody's engine
printed; a :class:`Fit` is a constant of a formula, the points it was taken from, and how far it
may be off. :func:`distance` says how far a planned server is from those points.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from roost import yamlfile
from roost.settings import Count, Strict
from roost.units import GIB, MIB

PATH = Path(__file__).parents[1] / "catalog" / "calibration.yml"


Scalar = int | float | str | bool


class Point(Strict):
    """One measured figure. Exactly one of ``bytes``, ``mib`` and ``gib`` is given."""

    id: str
    term: str = Field(description="what was measured")
    bytes: Count | None = None
    mib: Count | None = None
    gib: Annotated[float, Field(gt=0, strict=False)] | None = None
    engine: str | None = Field(None, description="and its version")
    hardware: str = Field(description="id in the catalogue, or in words")
    gpus: Count = 1
    date: dt.date | None = None
    model: str | None = None
    setting: dict[str, Scalar] = Field(description="what the figure depends on")
    source: str

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        if sum(value is not None for value in (self.bytes, self.mib, self.gib)) != 1:
            raise ValueError("must have exactly one of `bytes`, `mib` and `gib`")
        return self

    @property
    def amount(self) -> int:
        """The figure in bytes, on each GPU."""
        if self.bytes is not None:
            return self.bytes
        if self.mib is not None:
            return self.mib * MIB
        return round((self.gib or 0) * GIB)


class Fit(Strict):
    """A constant that stands in for what has no closed form."""

    bytes: Count
    each: Annotated[int, Field(ge=0)] = Field(0, description="bytes more for each CUDA graph")
    turn: Annotated[int, Field(ge=1)] | None = Field(
        None, description="graphs after which each takes `each_after`"
    )
    each_after: Annotated[int, Field(ge=0)] = 0
    points: Annotated[list[str], Field(min_length=1)]
    tolerance: Annotated[float, Field(ge=0, le=1, strict=False)] = Field(
        description="share of the term by which it may be off"
    )
    note: str | None = None

    def at(self, graphs: int) -> int:
        """Bytes that so many CUDA graphs take."""
        first = graphs if self.turn is None else min(graphs, self.turn)
        return self.bytes + self.each * first + self.each_after * (graphs - first)


class Fits(Strict):
    """The constants that the budget needs."""

    context_one_gpu: Fit
    context_several_gpus: Fit
    non_torch: Fit
    activation_fixed: Fit
    graphs_one_gpu: Fit
    graphs_several_gpus: Fit
    host_processes: Fit
    unified_in_use: Fit


class Calibration(Strict):
    """All points and fits."""

    points: list[Point]
    fits: Fits

    @model_validator(mode="after")
    def _known_points(self) -> Self:
        ids = [point.id for point in self.points]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"two points are called {', '.join(twice)}")
        for name, fit in self.fits:
            if strangers := sorted(set(fit.points) - set(ids)):
                raise ValueError(f"{name} was fitted to no point called {', '.join(strangers)}")
        return self

    def point(self, name: str) -> Point:
        """The point of that id.

        Raises:
            KeyError: There is none.
        """
        return {point.id: point for point in self.points}[name]

    def of(self, fit: Fit) -> list[Point]:
        """The points that a fit was taken from."""
        return [self.point(name) for name in fit.points]

    def driver_reserve(self, memory_mib: int) -> int:
        """Bytes of a card that the driver keeps: nvidia-smi's total less CUDA's.

        Interpolated linearly between measured cards; beyond them it is the nearest one's.
        """
        known = sorted(
            (int(point.setting["memory_mib"]), point.amount)
            for point in self.points
            if point.term == "driver reserve"
        )
        size, amount = known[0]
        for next_size, next_amount in known:
            if memory_mib <= next_size:
                if next_size == size:
                    return next_amount
                share = (max(memory_mib, size) - size) / (next_size - size)
                return round(amount + share * (next_amount - amount))
            size, amount = next_size, next_amount
        return amount


def distance(
    points: Iterable[Point], *, hardware: str, quantities: Mapping[str, int]
) -> str | None:
    """How a plan differs from what was measured, in words; none: it lies among the points.

    Args:
        points: Of the fit.
        hardware: Id of the planned machine.
        quantities: What the term depends on, by the name the points' settings use.
    """
    points = list(points)
    words = []
    places = sorted({point.hardware for point in points})
    if hardware not in places:
        words.append(f"measured on {' and '.join(places)}, not on {hardware}")
    for name, value in quantities.items():
        known = [int(point.setting[name]) for point in points if name in point.setting]
        if not known or min(known) <= value <= max(known):
            continue
        edge = max(known) if value > max(known) else min(known)
        side = "above the largest" if value > max(known) else "below the smallest"
        words.append(f"{name} {value:,} is {side} measured, {edge:,}")
    return "; ".join(words) or None


@cache
def builtin() -> Calibration:
    """The calibration that ships with roost, read once per process."""
    return yamlfile.validate(yamlfile.read(PATH), Calibration)

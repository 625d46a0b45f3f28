"""Published figures as data: tables as their authors printed them, cell by cell.

A table is kept in the shape it was published in, so that a reader can lay the two side by side;
:meth:`Table.figures` takes it apart into single figures with everything that belongs to each.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from roost.settings import Strict

#: A cell: a number, a range as published (low, high), or ``None`` for what the author left out.
Value = float | int | list[float | int] | None
Condition = str | int | float | bool


class Column(Strict):
    """What one column of a table measures."""

    what: str = Field(description="e.g. output_throughput, accept_length, ttft")
    unit: str
    speculation: str | None = Field(None, description="choice of the recipe; none: see the row")
    conditions: dict[str, Condition] = Field({}, description="that hold for this column only")


class Row(Strict):
    """One row: what tells it from the others, and its cells in column order."""

    at: dict[str, Condition]
    values: list[Value]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure, on its own."""

    table: str
    what: str
    unit: str
    value: Value
    hardware: str | None
    speculation: str | None
    conditions: dict[str, Condition]
    kind: Literal["measured", "claimed", "derived"]
    source: str
    date: dt.date | None


class Table(Strict):
    """A table of figures that were published together."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9\-]*$")
    title: str
    hardware: str | None = Field(None, description="hardware id; none: see the rows")
    kind: Literal["measured", "claimed", "derived"] = "measured"
    date: dt.date | None = None
    source: str
    conditions: dict[str, Condition] = Field({}, description="that hold for every cell")
    columns: list[Column] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)
    note: str | None = None

    @model_validator(mode="after")
    def _rectangular(self) -> Table:
        for number, row in enumerate(self.rows, 1):
            if len(row.values) != len(self.columns):
                raise ValueError(
                    f"row {number} has {len(row.values)} values for {len(self.columns)} columns"
                )
        return self

    def figures(self) -> list[Figure]:
        """Every cell that holds a value; a row's ``speculation`` or ``hardware`` wins."""
        found = []
        for row in self.rows:
            at = dict(row.at)
            hardware = at.pop("hardware", self.hardware)
            speculation = at.pop("speculation", None)
            for column, value in zip(self.columns, row.values, strict=True):
                if value is None:
                    continue
                found.append(
                    Figure(
                        table=self.id,
                        what=column.what,
                        unit=column.unit,
                        value=value,
                        hardware=None if hardware is None else str(hardware),
                        speculation=column.speculation
                        or (None if speculation is None else str(speculation)),
                        conditions={**self.conditions, **column.conditions, **at},
                        kind=self.kind,
                        source=self.source,
                        date=self.date,
                    )
                )
        return found

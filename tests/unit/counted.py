"""What the modules figures_*.py write down about a source: sizes of its tables, and some cells."""

from __future__ import annotations

from typing import Any, NamedTuple


class Size(NamedTuple):
    """Of a published table: rows, columns of values, and cells that the author left empty."""

    rows: int
    columns: int
    empty: int = 0


class Cell:
    """One published value and what identifies it."""

    def __init__(
        self,
        recipe: str,
        table: str,
        what: str,
        value: float | list[float],
        unit: str,
        speculation: str | None,
        **conditions: Any,
    ) -> None:
        self.recipe, self.table, self.what = recipe, table, what
        self.value, self.unit, self.speculation = value, unit, speculation
        self.conditions = conditions

    def __repr__(self) -> str:
        return f"{self.recipe}-{self.table}-{self.what}-{self.value}"

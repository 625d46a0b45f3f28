"""One published number, as a test wants it, and where the catalogue has it."""

from __future__ import annotations

from typing import Any, NamedTuple

from roost.catalog_schema import Recipe
from roost.figures import Figure


class Wanted(NamedTuple):
    """A published number and what tells it from the others of its table."""

    table: str
    what: str
    at: dict[str, Any]
    value: Any
    kind: str = "measured"


def figure(recipe: Recipe, wanted: Wanted) -> Figure:
    """The one figure of a recipe that is meant, whatever its value."""
    (found,) = [
        one
        for one in recipe.published()
        if (one.table, one.what, one.kind) == (wanted.table, wanted.what, wanted.kind)
        and wanted.at.items() <= {**one.conditions, "speculation": one.speculation}.items()
    ]
    return found

"""Published figures: counted per table against the source, and looked up by hand.

Each source has its module ``figures_NNN.py``. ``SIZES`` there is recipe → table → size as counted
in the source's text, and ``CELLS`` are values copied from it by hand. Sources of one recipe count
in ``TABLES`` (table → cells) and have a test of their own. A table that none of them counts fails.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from tests.unit.counted import Cell, Size

from roost import catalog
from roost.figures import Table

MODULES: list[ModuleType] = [
    importlib.import_module(f"tests.unit.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("figures_*.py"))
]
COUNTED: dict[str, dict[str, Size]] = {}
#: Recipes whose one source counts in ``TABLES``.
OWN_TEST = {
    "figures_002": "ornith-1.5-35b-nvfp4-dflash2",
    "figures_003": "ornith-1.0-35b-aeon-nvfp4-dflash",
    "figures_004": "qwen3.5-27b-aeon-nvfp4-dflash",
}
TABLES: dict[str, set[str]] = {}
CELLS: list[Cell] = []
for module in MODULES:
    for recipe, sizes in getattr(module, "SIZES", {}).items():
        COUNTED.setdefault(recipe, {}).update(sizes)
    name = module.__name__.rpartition(".")[2]
    if name in OWN_TEST:
        TABLES[OWN_TEST[name]] = set(module.TABLES)
    CELLS += getattr(module, "CELLS", [])


def size(table: Table) -> Size:
    empty = sum(value is None for row in table.rows for value in row.values)
    assert len(table.figures()) == len(table.rows) * len(table.columns) - empty
    return Size(len(table.rows), len(table.columns), empty)


def test_every_table_has_the_size_of_its_source() -> None:
    recipes = catalog.builtin().recipes
    found = {name: {table.id: size(table) for table in recipes[name].figures} for name in COUNTED}
    assert found == COUNTED


def test_every_table_is_counted() -> None:
    for recipe in catalog.builtin().recipes.values():
        counted = TABLES.get(recipe.id, set()) | COUNTED.get(recipe.id, {}).keys()
        assert {table.id for table in recipe.figures} <= counted, recipe.id


@pytest.mark.parametrize("cell", CELLS, ids=repr)
def test_a_cell_says_what_the_source_says(cell: Cell) -> None:
    found = [
        figure
        for figure in catalog.builtin().recipes[cell.recipe].published()
        if figure.table == cell.table
        and figure.what == cell.what
        and figure.speculation == cell.speculation
        and cell.conditions.items() <= figure.conditions.items()
        and figure.value == cell.value
    ]
    assert [figure.unit for figure in found] == [cell.unit]


def test_a_table_is_of_a_source_that_docs_name() -> None:
    docs = Path(catalog.__file__).parents[2] / "docs" / "sources.md"
    named = {line.split("|")[1].strip() for line in docs.read_text().splitlines() if "|" in line}
    for recipe in catalog.builtin().recipes.values():
        # A source may quote another: "source 003, quoting …".
        assert {table.source.partition(",")[0] for table in recipe.figures} <= named, recipe.id

"""Tables and charts of notebooks: what a reader sees of them."""

from __future__ import annotations

import re

from tests.unit.test_measure_compare import compared, measured

from roost.measure import charts, compare, tables
from roost.measure.checks import Check
from roost.measure.compare import DECISIVE


def test_why_nothing_could_be_asked_is_told_once() -> None:
    reason = "spark-01 (10.0.0.1:22): cannot connect"
    alike = [
        Check(id=name, ok=False, expected="x", why=reason) for name in ("health", "mounts", "image")
    ]
    other = Check(id="sum", ok=False, expected="4", observed="5", why=reason)
    shown = tables.checks([*alike, other]).data
    assert shown.count(reason) == 2
    assert shown.count("as above") == 2
    mended = [Check(id=fix, ok=False, expected="x", why="w", fix=fix) for fix in ("one", "two")]
    assert "To mend: two" in tables.checks(mended).data


def test_names_of_columns_are_not_broken() -> None:
    shown = tables.rows([{"hardware": "gb10", "image": "sha256:" + "5" * 64}]).data
    head, body = shown.split("</thead>")
    assert head.count("white-space: nowrap") == 2
    assert body.count("overflow-wrap: anywhere") == 2


def test_every_panel_has_its_scale() -> None:
    drawn = charts.ratios(compare.gaps(compared(measured(1), measured(2))), 0.05).data
    # A comment stands before each drawn label.
    assert drawn.count("<!-- 1.00 -->") == len(DECISIVE)


def test_categories_in_any_script_are_left_to_the_readers_fonts() -> None:
    """matplotlib's own has no Chinese or Japanese, and drew boxes (with a warning)."""
    (cell,) = measured(1).cells
    cells = [cell.model_copy(update={"id": f"{name}-c1"}) for name in ("代码", "日本語", "한국어")]
    wide = [measured(seed, cells=cells) for seed in (1, 2)]
    for drawn in (
        charts.points(wide[0]).data,
        charts.ratios(compare.gaps(compared(*wide)), 0.05).data,
    ):
        for name in ("代码-c1", "日本語-c1", "한국어-c1"):
            assert re.search(rf"<text [^>]*>\s*{name}</text>", drawn)
    # Where the font has all of them, they are drawn, and look the same everywhere.
    assert "<text" not in charts.points(measured(1)).data


def test_a_fleet_without_benchmarks_has_no_empty_frame() -> None:
    assert charts.fleet([], 0.05).data.startswith("<p>No two hosts")

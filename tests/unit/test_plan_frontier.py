"""What a pool buys: figures of the sources, what must hold for any pool, and the figure itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan_cases import GIB, H200, case, source_000

from roost.errors import UsageError
from roost.plan.case import Load
from roost.plan.frontier import CONTEXTS, DEPTHS, Frontier, frontier, plot
from roost.plan.rules import rules_for

NIGHTLY = rules_for("0.23.1rc1.dev968+g2c17d33f4")
V24 = rules_for("0.24.0")


def requests(table: Frontier, depth: int, context: int) -> int:
    row = next(row for row in table.rows if row.depth == depth)
    return next(cell.requests for cell in row.cells if cell.context == context)


def test_source_000_serves_two_of_131072_or_one_of_its_whole_context() -> None:
    table = frontier(source_000(), NIGHTLY)
    # Its log: 347,124 tokens at 131,072 each, 2.65 requests.
    assert requests(table, 4, 131_072) == 2
    assert requests(table, 4, 262_144) == 1
    row = next(row for row in table.rows if row.depth == 4)
    assert row.attention_block_size == 2160
    assert row.longest == 262_144


def test_source_001_serves_one_whole_context_and_half_the_pool_does_not() -> None:
    whole = frontier(case(kv_cache_bytes=8 * GIB), V24)
    assert [row.depth for row in whole.rows] == [0], "a recipe that does not speculate has no K"
    assert requests(whole, 0, 262_144) == 1
    half = frontier(case(kv_cache_bytes=4 * GIB), V24)
    # The engine's own estimate for that pool.
    assert half.rows[0].longest == 205_920
    cell = half.rows[0].cells[-1]
    assert (cell.requests, cell.reason) == (
        0,
        "the pool holds one request of 205,920 tokens at most",
    )


def test_a_depth_that_does_not_run_says_why() -> None:
    table = frontier(source_000().model_copy(update={"machine": H200}), V24)
    none, *speculating = table.rows
    assert none.refused is None
    assert all("larger than the target's" in (row.refused or "") for row in speculating)
    assert all(cell.reason for row in speculating for cell in row.cells)


def test_what_does_not_fit_in_memory_says_so() -> None:
    table = frontier(case(H200, load=Load(disk_bytes=200 * GIB, source="large")), V24)
    assert "missing" in (table.rows[0].refused or "")


def test_longer_than_the_model_is_not_asked() -> None:
    table = frontier(case(kv_cache_bytes=50 * GIB), V24, contexts=(524_288,))
    assert table.rows[0].cells[0].reason == "longer than the model's own context"


def test_a_models_own_drafter_needs_no_second() -> None:
    table = frontier(case(method="mtp", num_speculative_tokens=3, kv_cache_bytes=8 * GIB), NIGHTLY)
    # Source 003: block 1072 with three speculative tokens.
    blocks = {row.depth: row.attention_block_size for row in table.rows}
    assert blocks[0] == 1056
    assert requests(table, 4, 8192) > 0
    three = frontier(
        case(method="mtp", num_speculative_tokens=3, kv_cache_bytes=8 * GIB), NIGHTLY, depths=(3,)
    )
    assert three.rows[0].attention_block_size == 1072


@settings(max_examples=25)
@given(st.integers(300_000_000, 20 * GIB))
def test_longer_or_deeper_never_buys_more(size: int) -> None:
    table = frontier(source_000(kv_cache_bytes=size).model_copy(update={"machine": H200}), NIGHTLY)
    for row in table.rows:
        counts = [cell.requests for cell in row.cells]
        assert counts == sorted(counts, reverse=True)
    for context in CONTEXTS:
        counts = [requests(table, depth, context) for depth in DEPTHS]
        assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_drawn(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"frontier.{suffix}"
    refused = frontier(source_000().model_copy(update={"machine": H200}), V24, contexts=CONTEXTS)
    plot(refused, path, title="K does not run")
    drawn = path.read_bytes()
    plot(frontier(source_000(), NIGHTLY), path)
    assert path.read_bytes() != drawn
    if suffix == "png":
        assert path.read_bytes()[16:20] == (1000).to_bytes(4), "pixels wide"


def test_planning_imports_nothing_that_draws() -> None:
    code = (
        "import sys, roost.plan.frontier, roost.plan.sglang; "
        "sys.exit(any(name in sys.modules for name in ('matplotlib', 'pandas', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 0


def test_an_unused_drafter_is_left_out_without_speculation() -> None:
    """Depth 0 has neither the drafter's weights nor its pages."""
    table = frontier(source_000(kv_cache_bytes=None), NIGHTLY)
    none, two = table.rows[:2]
    assert none.kv_cache_bytes > two.kv_cache_bytes


def test_the_page_shows_this_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
    for row in frontier(source_000(), NIGHTLY).rows:
        counts = " | ".join(str(cell.requests) for cell in row.cells)
        assert f"| {row.depth} | {row.attention_block_size} | {counts} |" in page


@pytest.mark.parametrize("name", ["x.gif", "x.pdf", "x"])
def test_only_what_the_help_names_is_drawn(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no kind of figure") as caught:
        plot(frontier(source_000(), NIGHTLY), tmp_path / name)
    assert caught.value.fix == "end it in .png or .svg"
    assert not list(tmp_path.iterdir())

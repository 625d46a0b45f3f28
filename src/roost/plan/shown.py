"""A plan as a person reads it in a terminal."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from roost.plan.finding import Verdict
from roost.plan.frontier import Frontier
from roost.plan.planner import Memory, Plan

_VERDICTS: dict[Verdict, str] = {
    "ok": "nothing speaks against it",
    "warn": "runs, with what is said below",
    "refuse": "refused",
}


def plan(made: Plan) -> None:
    """Verdict, memory and findings."""
    variant = f", variant {made.variant}" if made.variant else ""
    click.echo(
        f"{made.recipe} on {made.hardware}, speculation {made.speculation}{variant}: "
        f"{_VERDICTS[made.verdict]}"
    )
    _memory(made.memory)
    for finding in made.findings:
        severity = f"{finding.severity}, accepted" if finding.accepted else finding.severity
        click.echo(f"\n{severity} {finding.text()}")


def _memory(memory: Memory) -> None:
    if memory.machine is not None and memory.terms:
        place = {
            "discrete": "of each GPU",
            "unified": "shared by CPU and GPU",
            "host": "of the host",
        }[memory.machine.kind]
        click.echo(f"\nmemory {place} ({memory.machine.source})")
        table = _table()
        for term in memory.terms:
            table.add_row(f"  {term.name}", size(term.bytes), term.kind, term.extrapolation or "")
        if memory.free_bytes is not None:
            off = memory.uncertainty_bytes or 0
            table.add_row("  free", size(memory.free_bytes), "", f"± {size(off)}" if off else "")
        Console(soft_wrap=False).print(table)
    if memory.kv_pool_tokens is None:
        return
    click.echo(f"\nKV pool: {memory.kv_pool_tokens:,} tokens", nl=False)
    if memory.max_concurrency is not None:
        click.echo(
            f", {memory.max_concurrency:.2f} requests of {memory.max_model_len:,}\n"
            f"  block {memory.attention_block_size:,} tokens, "
            f"page {memory.page_size_bytes:,} bytes, {memory.kv_groups} groups, "
            f"{memory.num_blocks:,} blocks, "
            f"{memory.blocks_per_request:,} per request"
        )
    else:
        click.echo("")


def frontier(table: Frontier) -> None:
    """Requests at a time, by their length and by speculation depth."""
    click.echo("\nrequests at a time, by length (columns) and drafted tokens K (rows)")
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    contexts = [cell.context for cell in table.rows[0].cells]
    for title in ("  K", "pool", *(f"{context:,}" for context in contexts), "longest"):
        shown.add_column(title, justify="right")
    for row in table.rows:
        shown.add_row(
            f"  {row.depth}",
            size(row.kv_cache_bytes),
            *(f"{cell.requests:,}" if cell.requests else "-" for cell in row.cells),
            f"{row.longest:,}" if row.longest else "-",
        )
    Console(soft_wrap=False).print(shown)
    for row in table.rows:
        if row.refused:
            click.echo(f"  K={row.depth}: {row.refused}")


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)


def size(amount: int) -> str:
    """Bytes for people; a deficit keeps its sign."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if abs(amount) >= factor:
            return f"{amount / factor:,.2f} {unit}"
    return f"{amount:,} bytes"

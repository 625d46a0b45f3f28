"""Plans as a person reads them in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from roost import terminal
from roost.plan.finding import Finding, Verdict
from roost.plan.frontier import Frontier
from roost.plan.planner import Memory, Plan
from roost.units import GIB, MIB

if TYPE_CHECKING:
    from roost.plan.fleet import HostPlan

_VERDICTS: dict[Verdict, str] = {
    "ok": "nothing speaks against it",
    "warn": "runs, with what is said below",
    "refuse": "refused",
}
#: Hosts that are named with a finding before they are only counted.
_NAMED = 6


def plan(made: Plan) -> None:
    """Verdict, memory and findings."""
    variant = f", variant {made.variant}" if made.variant else ""
    unknown = "; its memory is not known" if made.memory.kv_pool_tokens is None else ""
    click.echo(
        f"{made.recipe} on {made.hardware}, speculation {made.speculation}{variant}: "
        f"{_VERDICTS[made.verdict]}{'' if made.verdict == 'refuse' else unknown}"
    )
    _memory(made.memory)
    for finding in made.findings:
        click.echo(f"\n{_fitted(_severity(finding) + ' ' + finding.text())}")


def fleet(planned: Sequence[HostPlan]) -> None:
    """A line for each host, and each finding once with the hosts that it is about.

    Where a line does not fit, a host has several of its own: a figure is never cut or folded.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in _COLUMNS:
        right = title in {"pool", "requests", "free"}
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for one in planned:
        table.add_row(*_cells(one))
    lines = terminal.lines(table)
    if not terminal.fits(lines):
        lines = [line for one in planned for line in _block(_cells(one))]
    for line in lines:
        click.echo(line)
    about: dict[tuple[str, str], list[str]] = {}
    for one in planned:
        for finding in one.plan.findings if one.plan else ():
            about.setdefault((_severity(finding), finding.text()), []).append(one.host)
    # As each plan has them: errors first.
    for severity in ("error", "error, accepted", "warning", "info"):
        for (kind, text), hosts in about.items():
            if kind == severity:
                click.echo(f"\n{_fitted(f'{severity} {text}')}\n  hosts: {_names(hosts)}")
    for one in planned:
        if one.error is not None:
            click.echo(f"\n{_fitted(f'error {one.error}')}")


_COLUMNS = ("host", "recipe", "speculation", "verdict", "pool", "requests", "free", "errors")


def _block(cells: Sequence[str]) -> Iterator[str]:
    """A host's line of the table as lines of its own."""
    yield cells[0]
    for title, cell in zip(_COLUMNS[1:], cells[1:], strict=True):
        if cell:
            yield f"  {title:<11} {cell}"


def _cells(one: HostPlan) -> list[str]:
    """What the columns have for a host."""
    if one.plan is None:
        return [one.host, *["-"] * 6, "not planned, see below"]
    made, memory = one.plan, one.plan.memory
    return [
        one.host,
        made.recipe,
        made.speculation,
        made.verdict,
        "-" if memory.kv_pool_tokens is None else f"{memory.kv_pool_tokens:,}",
        "-" if memory.max_concurrency is None else f"{memory.max_concurrency:.2f}",
        "-" if memory.free_bytes is None else size(memory.free_bytes),
        ", ".join(dict.fromkeys(finding.id for finding in made.refused)),
    ]


def _names(hosts: Sequence[str]) -> str:
    more = f" and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else ""
    return ", ".join(hosts[:_NAMED]) + more


def _severity(finding: Finding) -> str:
    return f"{finding.severity}, accepted" if finding.accepted else finding.severity


def _memory(memory: Memory) -> None:
    if memory.machine is not None and memory.terms:
        place = {
            "discrete": "of each GPU",
            "unified": "shared by CPU and GPU",
            "host": "of the host",
        }[memory.machine.kind]
        click.echo(f"\nmemory {place} ({memory.machine.source})")
        beside = terminal.lines(_terms(memory, remarks=True))
        if terminal.fits(beside):
            click.echo("\n".join(beside))
        else:
            terminal.show(_terms(memory, remarks=False))
            for term in memory.terms:
                if term.extrapolation:
                    click.echo(_fitted(f"  {term.name}: {term.extrapolation}"))
    if memory.kv_pool_tokens is None:
        return
    estimated = " by estimate" if memory.estimated else ""
    requests = ""
    if memory.max_concurrency is not None and memory.max_model_len is not None:
        requests = f", {memory.max_concurrency:.2f} requests of {memory.max_model_len:,}"
    click.echo(f"\nKV pool: {memory.kv_pool_tokens:,} tokens{requests}{estimated}")
    if memory.num_blocks is not None:
        groups = "1 group" if memory.kv_groups == 1 else f"{memory.kv_groups} groups"
        click.echo(
            f"  block {memory.attention_block_size:,} tokens, "
            f"page {memory.page_size_bytes:,} bytes, {groups}, "
            f"{memory.num_blocks:,} blocks, {memory.blocks_per_request:,} per request"
        )


def _terms(memory: Memory, *, remarks: bool) -> Table:
    """What memory goes to, with or without what is to be said of each term."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for term in memory.terms:
        said = [term.extrapolation or ""] if remarks else []
        table.add_row(f"  {term.name}", size(term.bytes), term.kind, *said)
    # SGLang's pools take what there is.
    if memory.free_bytes is not None and not memory.estimated:
        off = memory.uncertainty_bytes or 0
        said = [f"± {size(off)}" if off else ""]
        table.add_row("  free", size(memory.free_bytes), *([""] if remarks else []), *said)
    return table


def frontier(table: Frontier) -> None:
    """Requests at a time, by their length and by speculation depth."""
    click.echo("\nrequests at a time, by length (columns) and drafted tokens K (rows)")
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    contexts = [cell.context for cell in table.rows[0].cells]
    for title in ("  K", "pool", *(f"{context:,}" for context in contexts), "longest"):
        shown.add_column(title, justify="right", no_wrap=True)
    for row in table.rows:
        shown.add_row(
            f"  {row.depth}",
            size(row.kv_cache_bytes),
            *(f"{cell.requests:,}" if cell.requests else "-" for cell in row.cells),
            f"{row.longest:,}" if row.longest else "-",
        )
    terminal.show(shown)
    for row in table.rows:
        if row.refused:
            click.echo(f"  K={row.depth}: {row.refused}")


def _fitted(text: str) -> str:
    """Text that a terminal does not break inside words; what goes into a file has whole lines."""
    if not terminal.present():
        return text
    return "\n".join(wrapped(text.splitlines(), terminal.columns()))


def wrapped(lines: Iterable[str], width: int) -> Iterator[str]:
    """A finding's lines in so many columns; what is to be pasted stays in one piece."""
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("fix:"):
            yield line
        else:
            yield textwrap.fill(
                line,
                width,
                subsequent_indent=" " * (indent + 2),
                break_long_words=False,
                break_on_hyphens=False,
            )


def size(amount: int) -> str:
    """Bytes for people; a deficit keeps its sign."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB)):
        if abs(amount) >= factor:
            return f"{amount / factor:,.2f} {unit}"
    return f"{amount:,} bytes"

"""Plans as a person reads them in a terminal."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

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
#: Columns of a terminal in which a recipe's id fits on one line.
_WIDE = 110
#: Columns of a terminal below which remarks on terms stand under the table.
_NARROW = 80
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
    """A line for each host, and each finding once with the hosts that it is about."""
    columns = ("host", "recipe", "speculation", "verdict", "pool", "requests", "free", "errors")
    wide = Console().width >= _WIDE
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0))
    for title in columns:
        right = title in {"pool", "requests", "free"}
        table.add_column(
            title,
            justify="right" if right else "left",
            no_wrap=title not in ({"errors"} if wide else {"recipe", "errors"}),
            overflow="fold",
            min_width={"recipe": 12, "errors": 12}.get(title),
        )
    for one in planned:
        table.add_row(one.host, *_cells(one))
    _print(table)
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


def _cells(one: HostPlan) -> list[str]:
    if one.plan is None:
        return ["-", "-", "-", "-", "-", "-", "not planned, see below"]
    made, memory = one.plan, one.plan.memory
    return [
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
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        narrow = Console().width < _NARROW
        for term in memory.terms:
            said = [] if narrow else [term.extrapolation or ""]
            table.add_row(f"  {term.name}", size(term.bytes), term.kind, *said)
        # SGLang's pools take what there is.
        if memory.free_bytes is not None and not memory.estimated:
            off = memory.uncertainty_bytes or 0
            said = [f"± {size(off)}" if off else ""]
            table.add_row("  free", size(memory.free_bytes), *([] if narrow else [""]), *said)
        _print(table)
        for term in memory.terms if narrow else ():
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
    _print(shown)
    for row in table.rows:
        if row.refused:
            click.echo(f"  K={row.depth}: {row.refused}")


def _print(table: Table) -> None:
    """A table without the blanks that fill its last column."""
    console = Console(soft_wrap=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _fitted(text: str) -> str:
    """Text that a terminal does not break inside words; what goes into a file has whole lines."""
    if not sys.stdout.isatty():
        return text
    return "\n".join(wrapped(text.splitlines(), Console().width))


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

"""``roost verify``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from roost.notebooks import Outcome


@click.command()
@click.option(
    "-i", "--inventory", required=True, type=click.Path(path_type=Path), help="Inventory path."
)
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Only this host; repeatable.")
@click.option("--limit", metavar="PATTERN", help="Only hosts that match, as Ansible's --limit.")
@click.option(
    "--runs",
    "runs_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where runs are kept (default: runs/ in the repository).",
)
@click.option("--jobs", type=click.IntRange(min=1), default=4, show_default=True, help="At a time.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def verify(
    inventory: Path,
    hosts: tuple[str, ...],
    limit: str | None,
    runs_dir: Path | None,
    jobs: int,
    as_json: bool,
) -> None:
    """Prove that each host runs what was pinned and answers right.

    Runs notebooks/verify.ipynb for every host and exits 1 if a check failed anywhere.
    """
    from roost import notebooks

    if hosts and limit:
        raise click.UsageError("give --host or --limit, not both")
    outcomes = []
    for outcome in notebooks.verify_all(
        inventory, hosts, limit=limit, runs_dir=runs_dir, jobs=jobs
    ):
        outcomes.append(outcome)
        if not as_json:
            _show(outcome)
    if as_json:
        click.echo(json.dumps([_plain(outcome) for outcome in outcomes], indent=2))
    else:
        _close(outcomes)
    if not all(outcome.ok for outcome in outcomes):
        sys.exit(1)


def _plain(outcome: Outcome) -> dict[str, object]:
    result = outcome.result.model_dump(mode="json") if outcome.result else None
    return {
        "host": outcome.host,
        "ok": outcome.ok,
        "run": str(outcome.folder),
        "error": str(outcome.error) if outcome.error else None,
        "result": result,
    }


def _show(outcome: Outcome) -> None:
    """The table of one host."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if outcome.result is None:
        # Text, because an error's words are no markup.
        console.print(Text(f"\n{outcome.host}: not verified\n  {outcome.error}", style="red"))
        return
    result = outcome.result
    console.print()
    console.print(
        Text(f"{result.host}: {result.recipe} on {result.hardware}, {result.speculation}", "bold")
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("check", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("observed", overflow="fold")
    for check in result.checks:
        mark = Text("ok", style="green") if check.ok else Text("FAILED", style="bold red")
        # A line each for what is well; what is not is told in full.
        shown = Text(" ".join(check.observed.split()), no_wrap=check.ok, overflow="ellipsis")
        if not check.ok:
            shown = Text(f"expected: {check.expected}\n", style="dim")
            shown.append(f"observed: {check.observed}\n" if check.observed else "", style="not dim")
            shown.append(check.why, style="not dim red")
        table.add_row(Text(check.id), mark, shown)
    console.print(table)


def _close(outcomes: list[Outcome]) -> None:
    """The last lines: one a host, with the report."""
    from roost.runs import EXECUTED, REPORT

    click.echo()
    for outcome in sorted(outcomes, key=lambda item: item.host):
        said = "passed" if outcome.ok else "FAILED" if outcome.result else "not verified"
        path = outcome.folder / (REPORT if outcome.result else EXECUTED)
        click.echo(f"{outcome.host:<20} {said:<13} {path if path.exists() else ''}".rstrip())

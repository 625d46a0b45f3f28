"""``roost rollout``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from roost import options


@click.command()
@options.inventory
@options.limit
@click.option(
    "--batches", "sizes", metavar="SIZES", help="Hosts of each batch (default: 1,25%,100%)."
)
@click.option("--suite", metavar="NAME", help="What the benchmark measures (default: gate).")
@click.option("--brief", is_flag=True, help="Verify without the long prompt and the bad requests.")
@click.option(
    "--resume", is_flag=True, help="Only go on with one that was interrupted, begin none."
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Also hosts of a rollout or an experiment whose controller is no more.",
)
@options.runs_dir
@options.ask_become_pass
@options.as_json
def rollout(
    inventory: Path,
    limit: str | None,
    sizes: str | None,
    suite: str | None,
    brief: bool,
    resume: bool,
    take_over: bool,
    runs_dir: Path | None,
    ask_become_pass: bool,
    as_json: bool,
) -> None:
    """Bring a fleet to what its inventory says: a canary of each kind, then batches.

    Each batch is judged by the verify notebook and a benchmark before the next one begins. One that
    does not pass stops the rollout and is taken back. Run again, an interrupted rollout goes on.
    """
    from roost.rollout import run

    folder, found = run.run(
        inventory,
        limit=limit,
        sizes=sizes,
        suite=suite,
        brief=brief,
        resume=resume,
        take_over=take_over,
        runs_dir=runs_dir,
        become_password=options.password(ask_become_pass),
        say=lambda line: click.echo(line, err=as_json),
    )
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        click.echo(f"{found.verdict}: {folder / 'report.html'}")
        if found.reason:
            click.echo(found.reason, err=True)
    if not found.ok:
        sys.exit(1)

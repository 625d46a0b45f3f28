"""``roost report``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from roost import options


@click.command()
@click.argument("runs", required=False, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="The site's folder (default: site/ in the repository).",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    help="Processes that make pages, where there are many (default: one a processor, at most 8).",
)
@options.as_json
def report(runs: Path | None, out: Path | None, jobs: int | None, as_json: bool) -> None:
    """Build a static site of kept runs (RUNS, by default runs/ in the repository).

    An index with tables that sort and figures over time, and a page a run with its notebook, charts
    and raw files. Open site/index.html as it lies there: nothing is fetched. A site that was there
    is replaced in one step; a folder that holds anything else is left alone.
    """
    from roost import progress as progressing
    from roost import reportsite
    from roost.interruptions import terminable
    from roost.measure import store
    from roost.reportsite import making
    from roost.root import repository_root

    place = out or repository_root() / "site"
    root = store.locate(runs or "runs")
    usable = os.cpu_count() or 1
    with terminable(), progressing.shown() as lines:

        def say(problem: str) -> None:
            with lines.aside("report"):
                click.echo(f"roost: {problem}", err=True)

        built = reportsite.build(
            root,
            place,
            say=say,
            progress=lambda done, of: lines.pass_by("report", f"{done:,} of {of:,} runs"),
            jobs=jobs or min(usable, making.MOST),
        )
    if as_json:
        pages = {name: str(page) for name, page in built.pages.items()}
        document = {"index": str(built.index), "pages": pages, "problems": built.problems}
        click.echo(json.dumps(document, indent=2))
    else:
        plural = "" if len(built.pages) == 1 else "s"
        click.echo(f"{len(built.pages)} run{plural}: {built.index}")

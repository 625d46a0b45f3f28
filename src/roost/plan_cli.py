"""``roost plan``: what would happen, before a byte is fetched."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from roost.errors import RefusedError, RoostError
from roost.hosts import HostFacts


@click.command()
@click.argument("recipe")
@click.option("--on", "hardware", required=True, metavar="HARDWARE", help="Hardware id.")
@click.option("--speculation", metavar="CHOICE", help="One of the recipe's choices.")
@click.option("--variant", metavar="VARIANT", help="One of the recipe's variants.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting.")
@click.option(
    "--host-facts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Plan for a probed host (`roost probe --json`) instead of its profile.",
)
@click.option("--hub", metavar="URL", help="Read configs and headers from this hub.")
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Read them from this directory of snapshots.",
)
@click.option("--accept", multiple=True, metavar="ID", help="Go on with this error finding.")
@click.option("--frontier", is_flag=True, help="What the pool buys: context, requests, depth.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the frontier into this file (.png or .svg).",
)
@click.option(
    "--lock",
    "lock_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where resolved revisions stand (default: the checkout's roost.lock.yml).",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def plan(
    recipe: str,
    hardware: str,
    speculation: str | None,
    variant: str | None,
    assignments: tuple[str, ...],
    host_facts: Path | None,
    hub: str | None,
    models: Path | None,
    accept: tuple[str, ...],
    frontier: bool,
    plot: Path | None,
    lock_file: Path | None,
    as_json: bool,
) -> None:
    """Whether it fits, how many tokens the pool holds, and what it would die of."""
    from roost import catalog, launch, lock, settings
    from roost.plan import planner
    from roost.root import default_lock_file

    known = catalog.current()
    resolved = launch.build(
        known,
        recipe,
        hardware,
        speculation=speculation,
        variant=variant,
        overrides=settings.parse_assignments(assignments),
        lock=lock.read(lock_file or default_lock_file()),
        refuse=False,
    )
    subject = planner.examine(
        resolved,
        catalog=known,
        facts=_host_facts(host_facts) if host_facts else None,
        read=planner.reader(hub=hub, models=models),
    )
    made = planner.judge(subject, accept=accept)
    table = planner.frontier(subject) if frontier or plot else None
    if plot and table is not None:
        from roost.plan.frontier import plot as draw

        draw(table, plot, title=f"{recipe} on {hardware}")
    if as_json:
        data = made.model_dump(mode="json")
        if table is not None:
            data["frontier"] = table.model_dump(mode="json")
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        from roost.plan import shown

        shown.plan(made)
        if table is not None:
            shown.frontier(table)
    if made.verdict == "refuse":
        sys.exit(RefusedError.exit_code)


def _host_facts(path: Path) -> HostFacts:
    """Facts of one host, as ``roost probe --json`` prints them.

    Raises:
        RoostError: The file is no such thing, or has several hosts or none that was probed.
    """
    from pydantic import ValidationError

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RoostError(f"{path}: cannot be read as JSON", why=str(error)) from None
    if isinstance(data, list):
        if len(data) != 1:
            raise RoostError(
                f"{path}: holds {len(data)} hosts", fix="probe one: roost probe HOST --json"
            )
        data = data[0]
    if isinstance(data, dict) and "facts" in data:
        if data["facts"] is None:
            raise RoostError(f"{path}: the host was not probed", why=str(data.get("error") or ""))
        data = data["facts"]
    try:
        return HostFacts.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "(the whole file)"
        raise RoostError(
            f"{path}: is not what `roost probe HOST --json` prints",
            why=f"{key}: {first['msg']}",
        ) from None

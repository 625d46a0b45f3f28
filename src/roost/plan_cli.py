"""``roost plan``: what would happen, before a byte is fetched."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from roost import options, printing
from roost.errors import RefusedError, UsageError
from roost.hosts import HostFacts


@click.command()
@click.argument("recipe", required=False)
@click.option("--on", "hardware", metavar="HARDWARE", help="Hardware id.")
@click.option("--speculation", metavar="CHOICE", help="One of the recipe's choices.")
@click.option("--variant", metavar="VARIANT", help="One of the recipe's variants.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting; repeatable."
)
@click.option(
    "--host-facts",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Plan for a probed host (`roost probe --json`) instead of its profile.",
)
@click.option(
    "-i",
    "--inventory",
    type=options.inventory_path,
    help="Plan every host of this inventory, as its variables say, instead of a RECIPE.",
)
@options.limit
@options.hub("Read configs and headers from this hub.")
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Read them from this directory of snapshots.",
)
@click.option(
    "--accept", multiple=True, metavar="ID", help="Go on with this error finding; repeatable."
)
@click.option("--frontier", is_flag=True, help="What the pool buys: context, requests, depth.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw the frontier into this file (.png or .svg).",
)
@options.lock_file
@options.as_json
@click.pass_context
def plan(
    context: click.Context,
    /,
    recipe: str | None,
    hardware: str | None,
    inventory: Path | None,
    limit: str | None,
    hub: str | None,
    models: Path | None,
    accept: tuple[str, ...],
    as_json: bool,
    **one: Any,
) -> None:
    """Whether it fits, how many tokens the pool holds, and what it would die of.

    Of a RECIPE on one kind of machine, or with -i of all hosts of an inventory. Exits 3 where an
    error finding stands that nobody accepted.
    """
    from roost import catalog
    from roost.plan import names

    names.require(accept, catalog.current(), "--accept")
    if inventory is not None:
        _only_with_recipe(context)
        refused = _hosts(inventory, limit, hub, models, accept, as_json)
    elif recipe is None or hardware is None or limit is not None:
        if limit is not None:
            raise UsageError("--limit needs an inventory", fix="add -i INVENTORY")
        raise UsageError(
            "nothing to plan: "
            + ("no hardware is named" if recipe else "neither a recipe nor an inventory is named"),
            fix=f"roost plan {recipe or 'RECIPE'} --on HARDWARE, or roost plan -i INVENTORY; "
            "`roost recipes` lists both ids",
        )
    else:
        refused = _recipe(recipe, hardware, hub, models, accept, as_json, **one)
    if refused:
        sys.exit(RefusedError.exit_code)


def _only_with_recipe(context: click.Context) -> None:
    """Refuse what an inventory's variables say for each host."""
    for parameter in context.command.params:
        given = context.params.get(parameter.name or "")
        if given and parameter.name not in _WITH_INVENTORY:
            said = "RECIPE" if parameter.name == "recipe" else parameter.opts[0]
            raise UsageError(
                f"{said} does not go with an inventory",
                why="each host's variables say what runs there",
                fix="plan a RECIPE --on HARDWARE, or set the host's roost_* variables",
            )


_WITH_INVENTORY = {"inventory", "limit", "hub", "models", "accept", "as_json"}


def _recipe(
    recipe: str,
    hardware: str,
    hub: str | None,
    models: Path | None,
    accept: tuple[str, ...],
    as_json: bool,
    *,
    speculation: str | None,
    variant: str | None,
    assignments: tuple[str, ...],
    host_facts: Path | None,
    frontier: bool,
    plot: Path | None,
    lock_file: Path | None,
) -> bool:
    """Plan one container; whether it is refused."""
    from roost import catalog, lock, settings
    from roost.launch import resolving
    from roost.plan import planner
    from roost.root import default_lock_file

    known = catalog.current()
    resolved = resolving.resolve(
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
        printing.as_json(data)
    else:
        from roost.plan import shown

        shown.plan(made)
        if table is not None:
            shown.frontier(table)
    return made.verdict == "refuse"


def _hosts(
    inventory: Path,
    limit: str | None,
    hub: str | None,
    models: Path | None,
    accept: tuple[str, ...],
    as_json: bool,
) -> bool:
    """Plan an inventory; whether a host is refused.

    Raises:
        UsageError: None is refused, and some could not be planned.
    """
    from roost import catalog
    from roost import inventory as inventories
    from roost.plan import fleet
    from roost.root import repository_root

    planned = list(
        fleet.plans(
            inventories.load(inventory, limit),
            repository_root(),
            catalog=catalog.current(),
            hub=hub,
            models=models,
            accept=accept,
        )
    )
    if as_json:
        printing.as_json([one.as_json() for one in planned])
    else:
        from roost.plan import shown

        shown.fleet(planned)
    if any(one.refused for one in planned):
        return True
    if failed := [one for one in planned if one.error]:
        raise UsageError(f"not planned: {', '.join(one.host for one in failed)}")
    return False


def _host_facts(path: Path) -> HostFacts:
    """Facts of one host, as ``roost probe --json`` prints them.

    Raises:
        UsageError: The file is no such thing, or has several hosts or none that was probed.
    """
    from pydantic import ValidationError

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON", why=str(error)) from None
    if isinstance(data, list):
        if len(data) != 1:
            raise UsageError(
                f"{path}: holds {len(data)} hosts", fix="probe one: roost probe HOST --json"
            )
        data = data[0]
    if isinstance(data, dict) and "facts" in data:
        if data["facts"] is None:
            raise UsageError(f"{path}: the host was not probed", why=str(data.get("error") or ""))
        data = data["facts"]
    try:
        return HostFacts.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "(the whole file)"
        raise UsageError(
            f"{path}: is not what `roost probe HOST --json` prints",
            why=f"{key}: {first['msg']}",
        ) from None

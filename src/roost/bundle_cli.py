"""``roost bundle``."""

from __future__ import annotations

from pathlib import Path

import click

from roost import options
from roost.errors import RoostError, UsageError


@click.command()
@click.argument("recipe", nargs=-1)
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory of the bundle; one that was begun is continued.",
)
@click.option(
    "--on", "hardware", multiple=True, metavar="HARDWARE", help="Hardware id; repeatable."
)
@click.option(
    "-i",
    "--inventory",
    type=options.inventory_path,
    help="Pack what this inventory deploys, instead of recipes.",
)
@options.hub("Hub to fetch from (default: the public one).")
@options.registry("Registry that serves every image (default: theirs).")
@options.lock_file
@click.option("--check", is_flag=True, help="Fetch nothing; read what is there and compare.")
def bundle(
    recipe: tuple[str, ...],
    folder: Path,
    hardware: tuple[str, ...],
    inventory: Path | None,
    hub: str | None,
    registry: str | None,
    lock_file: Path | None,
    check: bool,
) -> None:
    """Pack weights, images and lock for hosts without internet; a mirror serves them.

    What is there already is kept; the same command continues an interrupted run.
    """
    from roost import bundle as bundles
    from roost.root import default_lock_file

    if check:
        if recipe or hardware or inventory:
            raise UsageError("--check reads what is there", fix="name only the directory (--to)")
        wrong = bundles.check(folder, click.echo)
        if wrong:
            raise RoostError(
                f"{folder}: {len(wrong)} files are not as they were packed",
                why="; ".join(wrong[:5]),
                fix="copy them again (rsync -a --checksum moves only what differs), or remove them "
                "and run `roost bundle` again",
            )
        click.echo(f"{folder}: whole")
        return
    if bool(recipe) == bool(inventory) or bool(recipe) != bool(hardware):
        raise UsageError(
            "name recipes and hardware, or an inventory",
            fix="roost bundle RECIPE… --on HARDWARE --to DIR, or roost bundle -i INVENTORY "
            "--to DIR",
        )
    if inventory is not None:
        contents = bundles.of_inventory(inventory, hub=hub, registry=registry, lock_file=lock_file)
    else:
        contents = bundles.of_recipes(
            recipe, hardware, lock_file or default_lock_file(), hub=hub, registry=registry
        )
    bundles.pack(contents, folder, click.echo)

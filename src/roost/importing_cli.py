"""``roost import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from roost.errors import UsageError

if TYPE_CHECKING:
    from roost.importing import Format


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--format",
    "form",
    type=click.Choice(["sparkrun", "spark-vllm-docker"]),
    help="Whose recipe it is (default: as its recipe_version says).",
)
@click.option("--id", "recipe_id", metavar="ID", help="Of the draft (default: from its name).")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write the draft there, never over a file (default: print it).",
)
def import_(file: Path, form: Format | None, recipe_id: str | None, output: Path | None) -> None:
    """Make a draft of a recipe from one of sparkrun or spark-vllm-docker.

    What could not be carried over is listed; nothing of FILE is executed or fetched.
    """
    from roost import atomic, catalog, importing

    if output is not None and output.suffix != ".yml":
        raise UsageError(
            f"{output}: a catalogue reads only .yml", fix=f"-o {output.with_suffix('.yml')}"
        )
    # A recipe's file is named after it.
    recipe_id = recipe_id or (output.stem if output else None)
    if output is not None and recipe_id != output.stem:
        raise UsageError(f"{output}: a recipe {recipe_id!r} must be in {recipe_id}.yml")
    draft = importing.draft(importing.read(file), catalog.current(), form, recipe_id)
    if output is None:
        click.echo(draft.text, nl=False)
    else:
        atomic.create(output, draft.text)
        click.echo(f"roost: wrote {output}", err=True)
    if draft.lost:
        click.echo("roost: not carried over:", err=True)
    for item in draft.lost:
        click.echo(f"  - {item}", err=True)

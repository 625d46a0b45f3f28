"""``roost build``: have hosts build the images that nobody publishes."""

from __future__ import annotations

from pathlib import Path

import click

from roost.errors import RoostError


@click.command()
@click.option(
    "-i", "--inventory", required=True, type=click.Path(path_type=Path), help="Inventory path."
)
@click.option("--limit", metavar="PATTERN", help="Only these hosts.")
@click.option("-K", "--ask-become-pass", is_flag=True, help="Ask for the hosts' sudo password.")
def build(inventory: Path, limit: str | None, ask_become_pass: bool) -> None:
    """Build images that no registry has, on the hosts that are to run them (takes hours)."""
    from roost import fleet

    password = click.prompt("sudo password", hide_input=True) if ask_become_pass else None
    result = fleet.run_playbook("build", inventory, limit=limit, become_password=password)
    if not result.ok:
        bad = ", ".join([*result.failed, *result.unreachable])
        raise RoostError(f"build failed on: {bad or 'no host in particular'} ({result.status})")
    click.echo("ready to deploy: " + ", ".join(result.hosts))

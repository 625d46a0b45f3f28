"""``roost build``: have hosts build the images that nobody publishes."""

from __future__ import annotations

from pathlib import Path

import click

from roost import options


@click.command()
@options.inventory
@options.limit
@options.ask_become_pass
def build(inventory: Path, limit: str | None, ask_become_pass: bool) -> None:
    """Build images that no registry has, on the hosts that are to run them (takes hours)."""
    from roost import fleet

    password = options.password(ask_become_pass)
    result = fleet.run_playbook("build", inventory, limit=limit, become_password=password)
    result.require("build")
    click.echo("ready to deploy: " + ", ".join(result.hosts))

"""``roost logs``."""

from __future__ import annotations

import dataclasses
import os
from datetime import UTC, datetime
from pathlib import Path

import click

from roost import options, printing


@click.command()
@options.inventory
@click.option("--host", required=True, metavar="HOST", help="Host of the inventory.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The archive (default: roost-logs-HOST-TIME.tar.gz here).",
)
@options.as_json
def logs(inventory: Path, host: str, output: Path | None, as_json: bool) -> None:
    """Collect what explains a host's failure into one archive, and say what it is.

    Engine log, container, Docker's events, kernel log, host facts, releases, plan and diagnosis;
    keys, tokens and passwords are taken out. Nothing is changed on the host.
    """
    from roost import collecting, ssh
    from roost import inventory as inventories
    from roost.diagnose_cli import describe
    from roost.doctor_cli import deployment_of
    from roost.errors import RoostError
    from roost.site import api_key

    wanted = inventories.load(inventory).host(host)
    moment = datetime.now(UTC)
    path = output or Path(f"roost-logs-{host}-{moment:%Y%m%dT%H%M%SZ}.tar.gz")
    if path.exists():
        # Said before minutes are spent on collecting.
        raise RoostError(f"{path}: exists already", fix="name another: -o FILE")
    known = (api_key(wanted.variables), wanted.connection.password, os.environ.get("HF_TOKEN"))
    with ssh.connect(wanted) as remote:
        found = collecting.collect(
            wanted,
            remote,
            deployment_of(wanted),
            secrets=[secret for secret in known if secret],
        )
    collecting.write(found, path, moment)
    if as_json:
        rows = [dataclasses.asdict(item) for item in found.diagnosis]
        printing.as_json({"archive": str(path), "missing": found.missing, "diagnosis": rows})
        return
    click.echo(describe(found.diagnosis), nl=False)
    for what, why in found.missing.items():
        click.echo(f"roost: not collected: {what}: {why}", err=True)
    click.echo(f"\n{path}: {len(found.files)} files, without keys, tokens and passwords")

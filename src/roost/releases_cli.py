"""``roost status`` and ``roost rollback``: what serves on hosts, and back to what served before."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from roost import options
from roost.errors import RoostError


@click.command()
@options.inventory
@options.limit
@options.ask_become_pass
@options.as_json
def status(inventory: Path, limit: str | None, ask_become_pass: bool, as_json: bool) -> None:
    """What serves on each host, and which releases it could go back to.

    Exit status 1 if anything is not healthy or not reached.
    """
    from roost import failures, fleet, releases

    found, failed = fleet.ask(
        "status",
        "Read the releases",
        inventory,
        limit=limit,
        become_password=options.password(ask_become_pass),
    )
    if as_json:
        told = {"hosts": {name: releases.told(it) for name, it in found.items()}, "failed": failed}
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        for host in sorted([*found, *failed]):
            lines = (
                releases.status(found[host])
                if host in found
                else failures.explained(failed[host]).splitlines()
            )
            click.echo("\n    ".join([f"{host}  {lines[0]}", *lines[1:]]))
    if failed or not all(facts["engine"]["healthy"] for facts in found.values()):
        sys.exit(1)


@click.command()
@options.inventory
@click.option("--to", "release", metavar="ID", help="A kept release (default: the previous one).")
@options.limit
@options.despite_rollout
@options.ask_become_pass
def rollback(
    inventory: Path,
    release: str | None,
    limit: str | None,
    despite_rollout: bool,
    ask_become_pass: bool,
) -> None:
    """Go back to a release that the hosts keep; fetches nothing."""
    from roost import fleet

    told = {"rollback_to": release, "despite_rollout": despite_rollout}
    result = fleet.run_playbook(
        "rollback",
        inventory,
        limit=limit,
        become_password=options.password(ask_become_pass),
        extra_vars={name: value for name, value in told.items() if value} or None,
    )
    if not result.ok:
        bad = ", ".join([*result.failed, *result.unreachable])
        raise RoostError(f"rollback failed on: {bad or 'no host in particular'} ({result.status})")
    click.echo("rolled back: " + ", ".join(result.hosts))

"""``roost status``, ``rollback``, ``stop`` and ``start``: what serves on hosts, and what is to."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from roost import options
from roost.printable import printable


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
            click.echo(printable("\n    ".join([f"{host}  {lines[0]}", *lines[1:]])))
    if failed or not all(facts["engine"]["healthy"] for facts in found.values()):
        sys.exit(1)


@click.command()
@options.inventory
@click.option("--to", "release", metavar="ID", help="A kept release (default: what served before).")
@options.limit
@options.despite_lease
@options.ask_become_pass
def rollback(
    inventory: Path,
    release: str | None,
    limit: str | None,
    despite_lease: bool,
    ask_become_pass: bool,
) -> None:
    """Go back to a release that the hosts keep; fetches nothing."""
    told = {"rollback_to": release, "despite_lease": despite_lease}
    _play("rollback", "rolled back", inventory, limit, ask_become_pass, told)


@click.command()
@options.inventory
@options.limit
@options.despite_lease
@options.ask_become_pass
def stop(inventory: Path, limit: str | None, despite_lease: bool, ask_become_pass: bool) -> None:
    """Stop the engines and keep their releases: GPU and memory are free, also over a reboot.

    A gateway sends them no more requests first. `roost start`, or a deploy, has them serve again.
    """
    told = {"despite_lease": despite_lease}
    _play("stop", "stopped", inventory, limit, ask_become_pass, told)


@click.command()
@options.inventory
@options.limit
@options.despite_lease
@options.ask_become_pass
def start(inventory: Path, limit: str | None, despite_lease: bool, ask_become_pass: bool) -> None:
    """Have the releases in place serve again after `roost stop`, proved; fetches nothing.

    Where an experiment was never ended, that is not what it has tried, but what served before it.
    """
    told = {"despite_lease": despite_lease}
    _play("start", "started", inventory, limit, ask_become_pass, told)


def _play(
    playbook: str,
    done: str,
    inventory: Path,
    limit: str | None,
    ask_become_pass: bool,
    told: Mapping[str, Any],
) -> None:
    """Run a playbook; what is told to it and says nothing is left out."""
    from roost import fleet

    result = fleet.run_playbook(
        playbook,
        inventory,
        limit=limit,
        become_password=options.password(ask_become_pass),
        extra_vars={name: value for name, value in told.items() if value} or None,
    )
    result.require(playbook)
    click.echo(f"{done}: " + ", ".join(result.hosts))

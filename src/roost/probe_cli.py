"""``roost probe``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roost import options, printing
from roost.errors import RoostError, UsageError
from roost.printable import printable

if TYPE_CHECKING:
    from roost.inventory import Host
    from roost.probing import Probed

#: Hosts at a time: a thread and a connection each.
JOBS = 8


@click.command()
@options.asked_hosts
@options.asked_inventory
@options.limit
@options.as_json
def probe(hosts: tuple[str, ...], inventory: Path | None, limit: str | None, as_json: bool) -> None:
    """Say what hosts are, and print an inventory to start from.

    HOST is an ssh destination (host, user@host, user@host:port, or a name of ~/.ssh/config), or,
    with -i, a host of the inventory. Nothing is changed there and root is not needed. What a host
    is goes to standard error, so `> inventory/NAME/hosts.yml` keeps the inventory. Exits 1 if a
    host could not be probed.
    """
    from roost import catalog, probing

    known = catalog.current()
    probed = []
    for item in _probe_all(targets(hosts, inventory, limit)):
        probed.append(item)
        if not as_json:
            # Beside the inventory, so that `> inventory/mine/hosts.yml` keeps just that.
            click.echo(printable(probing.describe(item, known)) + "\n", err=True)
    failed = [item.asked for item in probed if item.error]
    if as_json:
        printing.as_json([probing.as_json(item, known) for item in probed])
    elif len(failed) < len(probed):
        source = str(inventory) if inventory else None
        click.echo(probing.inventory(probed, known, source), nl=False)
    if failed:
        raise RoostError(f"{len(failed)} of {len(probed)} not probed: {', '.join(failed)}")


def targets(names: tuple[str, ...], path: Path | None, limit: str | None) -> Mapping[str, Host]:
    """The hosts to ask, by the name they were asked for under.

    Args:
        names: ssh destinations, or hosts of the inventory.
        path: Of an inventory.
        limit: An Ansible host pattern, for an inventory.

    Raises:
        UsageError: No host, no such host, no such inventory, or a pattern without one.
    """
    from roost import inventory, probing

    if path is not None:
        loaded = inventory.load(path, limit)
        return {name: loaded.host(name) for name in names} if names else loaded.hosts
    if limit:
        raise UsageError("--limit needs an inventory", fix="add -i INVENTORY")
    if not names:
        raise UsageError(
            "no host to ask",
            fix="name one (user@address), or -i INVENTORY for all of its hosts",
        )
    return probing.destinations(names)


def _probe_all(targets: Mapping[str, Host]) -> Iterator[Probed]:
    """Probe several at a time; yields in the order asked for, each as soon as it is its turn."""
    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        yield from pool.map(_probe, targets, targets.values())


def _probe(asked: str, host: Host) -> Probed:
    from roost import asking, ssh
    from roost.probing import Probed

    try:
        with ssh.connect(host) as remote:
            facts = asking.facts(remote, host)
            user = host.connection.user or remote.run(["id", "-un"]).out.strip() or None
    except RoostError as error:
        return Probed(asked, host, error=error)
    return Probed(asked, host, facts, user)

"""The plans of all hosts of an inventory, each as its own variables say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roost import lock, site
from roost.catalog import Catalog
from roost.errors import RefusedError, RoostError
from roost.inventory import Host, Inventory
from roost.launch import resolving
from roost.launch.pinning import Weights
from roost.plan import names, planner
from roost.plan.checkpoint import Checkpoint
from roost.plan.planner import Plan, Reader


@dataclass(frozen=True)
class HostPlan:
    """A host's plan, or what is wrong with its variables. Exactly one of the two is there."""

    host: str
    plan: Plan | None
    error: RoostError | None

    @property
    def refused(self) -> bool:
        """Whether it would not be deployed, by its plan or before there is one."""
        if self.plan is None:
            return isinstance(self.error, RefusedError)
        return self.plan.verdict == "refuse"

    def as_json(self) -> dict[str, Any]:
        """``{host, plan, error}``; the plan as ``roost plan --json`` has it."""
        return {
            "host": self.host,
            "plan": self.plan.model_dump(mode="json") if self.plan else None,
            "error": str(self.error) if self.error else None,
        }


def plans(
    inventory: Inventory,
    root: Path,
    *,
    catalog: Catalog,
    hub: str | None = None,
    models: Path | None = None,
    accept: Iterable[str] = (),
) -> Iterator[HostPlan]:
    """Plan every host for what its variables say, from its hardware profile.

    Args:
        inventory: Loaded.
        root: The repository root, where locks live.
        catalog: What is known of models and engines.
        hub: Read checkpoints from this one; none: from the one that a host's variables name. The
            host's token opens either.
        models: Read them from a directory of snapshots instead.
        accept: Ids of error findings to go on with, beside each host's own.
    """

    @cache
    def reader(endpoint: str | None, token: str | None) -> Reader | None:
        read = planner.reader(hub=endpoint, models=models, token=token)
        return once(read) if read else None

    accept = tuple(accept)
    for host in inventory.hosts.values():
        try:
            yield HostPlan(host.name, _plan(host, root, catalog, hub, reader, accept), None)
        except RoostError as error:
            yield HostPlan(host.name, None, error)


def _plan(
    host: Host,
    root: Path,
    catalog: Catalog,
    hub: str | None,
    reader: Callable[[str | None, str | None], Reader | None],
    accept: tuple[str, ...],
) -> Plan:
    given = site.from_variables(host.name, host.variables)
    names.require(given.accept_findings, catalog, f"{host.name}: roost_accept_findings")
    locked = lock.read(given.lock_path(root))
    resolved = resolving.resolve_host(catalog, host.name, given, locked, refuse=False)
    return planner.make(
        resolved,
        catalog=catalog,
        read=reader(hub or given.hub_endpoint, given.token(hub)),
        accept=(*accept, *given.accept_findings),
    )


def once(read: Reader) -> Reader:
    """A reader that asks for each repository once, also for one that cannot be read.

    Hosts of an inventory mostly have the same ones.
    """
    seen: dict[tuple[str, str], Checkpoint | RoostError] = {}

    def again(weights: Weights) -> Checkpoint:
        key = weights.repo, weights.revision
        if key not in seen:
            try:
                seen[key] = read(weights)
            except RoostError as error:
                seen[key] = error
        found = seen[key]
        if isinstance(found, RoostError):
            raise found
        return found

    return again

"""What stands behind a gateway: hosts that serve one model under one name, and how to reach them.

A gateway is a host of the inventory's group ``gateways``; those behind it name it with
``roost_gateway``.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from roost import deployment, site
from roost.deployment import Deployment
from roost.errors import RefusedError, UsageError

#: Addresses that stand for every interface of a host.
_ALL = {"0.0.0.0", "::"}  # noqa: S104  # compared with, not bound to


class Server(BaseModel):
    """One engine behind a gateway."""

    model_config = ConfigDict(frozen=True)

    name: str
    address: str
    port: int


class Behind(BaseModel):
    """The engines behind one gateway, and what they have in common.

    Attributes:
        served_name: The one name that all of them serve.
        health_path: Of their engines.
        listed: A regular expression for what ``/v1/models`` has to show.
        key_from: A host whose ``roost_api_key`` opens all of them; none where they ask for none.
        servers: By name.
    """

    model_config = ConfigDict(frozen=True)

    served_name: str
    health_path: str
    listed: str
    key_from: str | None
    servers: list[Server]


def behind(
    gateway: str, hosts: Mapping[str, Mapping[str, Any]], engines: Sequence[str], root: Path
) -> Behind:
    """The engines behind a gateway.

    Args:
        gateway: Its inventory name.
        hosts: Variables by host. Read are ``ansible_host`` of any host, and of engines those that
            begin with ``roost_``.
        engines: Names of all hosts that are no gateways.
        root: The repository root, where the lock lives unless a variable says otherwise.

    Raises:
        UsageError: No host names this gateway, or a variable is wrong.
        RefusedError: They do not serve one thing, or cannot be reached from the gateway.
    """
    names = sorted(name for name in engines if hosts[name].get("roost_gateway") == gateway)
    if not names:
        raise UsageError(
            f"{gateway}: no host stands behind this gateway",
            why="none has it as its roost_gateway",
            fix=f"set roost_gateway: {gateway} for a group of hosts that serve the same model",
        )
    found = {name: _deployment(name, hosts[name], root) for name in names}
    served = {name: one.served_name for name, one in found.items()}
    health = {name: one.health_path for name, one in found.items()}
    keys = {name: site.api_key(hosts[name]) for name in names}
    _same(gateway, served, "serve different names", "give them one roost_served_name")
    _same(gateway, health, "run engines whose health is asked for differently", "use one engine")
    if len(set(keys.values())) > 1:
        without = ", ".join(name for name, key in keys.items() if key is None)
        raise RefusedError(
            f"{gateway}: the hosts behind it ask for different keys",
            why=f"without one: {without}" if without else "each has one of its own",
            fix="set one roost_api_key for their group; which of them gets a request, HAProxy "
            f"decides. {_OTHERWISE}",
        )
    name = served[names[0]]
    if not re.fullmatch(r"[ -~]+", name) or "'" in name:
        raise UsageError(
            f"{gateway}: the name {name!r} cannot stand in HAProxy's configuration",
            fix="choose a roost_served_name of visible ASCII without quotes",
        )
    return Behind(
        served_name=name,
        health_path=health[names[0]],
        listed=rf'"id": ?{re.escape(json.dumps(name))}',
        key_from=names[0] if keys[names[0]] else None,
        servers=[_server(gateway, hosts, one) for one in found.values()],
    )


_OTHERWISE = "Or put them behind gateways of their own."


def _deployment(name: str, variables: Mapping[str, Any], root: Path) -> Deployment:
    given = {key: variables[key] for key in variables if key.startswith(site.PREFIX)}
    return deployment.from_variables(name, given, root)


def _same(gateway: str, values: Mapping[str, str], what: str, fix: str) -> None:
    if len(set(values.values())) > 1:
        raise RefusedError(
            f"{gateway}: the hosts behind it {what}",
            why="; ".join(f"{name}: {value}" for name, value in values.items()),
            fix=f"{fix}. {_OTHERWISE}",
        )


def _server(gateway: str, hosts: Mapping[str, Mapping[str, Any]], one: Deployment) -> Server:
    variables = hosts[one.host]
    given = site.from_variables(
        one.host, {key: variables[key] for key in variables if key.startswith(site.PREFIX)}
    )
    itself = str(variables.get("ansible_host") or one.host)
    here = itself == str(hosts[gateway].get("ansible_host") or gateway)
    address = given.address or given.listen
    if given.address is None and given.listen in _ALL:
        address = itself
        if not _is_address(itself):
            raise UsageError(
                f"{gateway}: the address of {one.host} is not known",
                why=f"it listens on {given.listen}, and {itself} is a name, whose lookup may fail",
                fix="set its roost_address to its IP address",
            )
    if ipaddress.ip_address(address).is_loopback and not here:
        raise RefusedError(
            f"{gateway}: {one.host} cannot be reached from this gateway",
            why=f"its endpoint is on {address}, for the host itself only",
            fix="set its roost_listen to its address in the network that it shares with the "
            "gateway, and a roost_api_key, for others can reach it there too; then deploy it",
        )
    return Server(name=one.host, address=address, port=one.port)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True

"""The lab's network: one bridge on the controller, one namespace and one veth pair a host.

Everything on the controller is named after the lab (``rl-<lab>``, ``rl-<lab>.<octet>``), so that
it can be found again without any record. A host's network namespace is bound to a file in the
lab's state directory, not in ``/run/netns``: what is mounted there is the lab's and goes with it.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roost.errors import RoostError

#: Name of a host's interface, inside the host.
INSIDE = "host0"

# The kernel's limit is 15 characters: "rl-" + name + "." + up to three digits.
MAX_LAB_NAME = 8


def run(argv: Sequence[str], *, text_in: str | None = None) -> str:
    """Run a tool of the controller and return its output.

    Raises:
        RoostError: It failed (with its own last words), or it is not installed.
    """
    try:
        done = subprocess.run(argv, input=text_in, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise RoostError(f"{argv[0]} is not installed on this machine") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise RoostError(
            f"`{' '.join(argv)}` failed", why=words[-1] if words else f"exit {done.returncode}"
        )
    return done.stdout


def bridge_name(lab: str) -> str:
    """The bridge of a lab."""
    return f"rl-{lab}"


def link_name(lab: str, address: ipaddress.IPv4Address) -> str:
    """The controller's end of a host's link: the bridge's name and the address's last octet."""
    return f"rl-{lab}.{int(address) & 0xFF}"


def _ip(*arguments: str) -> list[dict[str, Any]]:
    output = run(["ip", "-json", *arguments])
    found: list[dict[str, Any]] = json.loads(output or "[]")
    return [entry for entry in found if entry]


def links(lab: str) -> list[str]:
    """All interfaces of a lab that exist now, the bridge last."""
    bridge = bridge_name(lab)
    names = [entry["ifname"] for entry in _ip("link", "show")]
    return [name for name in names if name.startswith(f"{bridge}.")] + (
        [bridge] if bridge in names else []
    )


def owner(lab: str) -> str | None:
    """The state directory that the lab's bridge was made for; None if there is no bridge."""
    for entry in _ip("link", "show"):
        if entry["ifname"] == bridge_name(lab):
            return str(entry.get("ifalias", ""))
    return None


def conflict(subnet: ipaddress.IPv4Network, lab: str) -> str | None:
    """Who else on this machine uses addresses of ``subnet``, in words; None if nobody does."""
    own = bridge_name(lab)
    for entry in _ip("-4", "address", "show"):
        for address in entry.get("addr_info", []):
            used = ipaddress.ip_interface(f"{address['local']}/{address['prefixlen']}")
            if entry["ifname"] != own and used.network.overlaps(subnet):
                return f"interface {entry['ifname']} has {used}"
    for route in _ip("-4", "route", "show", "table", "all"):
        if route["dst"] == "default" or route.get("dev") in (own, "lo", None):
            continue
        if ipaddress.ip_network(route["dst"], strict=False).overlaps(subnet):
            return f"a route to {route['dst']} goes through {route['dev']}"
    return None


# <linux/in.h>; lets a socket bind an address that no interface has yet.
_IP_FREEBIND = 15


def port_user(address: ipaddress.IPv4Address, port: int) -> str | None:
    """What listens on an address and port already, in words; None if they are free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        try:
            probe.bind((str(address), port))
            probe.listen()
        except OSError:
            pass
        else:
            return None
    for line in run(["ss", "-Hltnp", f"sport = :{port}"]).splitlines():
        fields = line.split(maxsplit=5)
        return fields[5] if len(fields) > 5 else f"a listener on {fields[3]}"
    return "another process"


def ensure_bridge(lab: str, gateway: ipaddress.IPv4Interface, state: Path) -> bool:
    """Make the lab's bridge; False if it was there already."""
    bridge = bridge_name(lab)
    present = bridge in links(lab)
    if not present:
        run(["ip", "link", "add", bridge, "type", "bridge"])
    # Each of these is idempotent, and an interrupted run may have come only this far.
    run(["ip", "link", "set", bridge, "alias", str(state)])
    run(["ip", "address", "replace", str(gateway), "dev", bridge])
    run(["ip", "link", "set", bridge, "up"])
    return not present


def make_namespace(namespace: Path) -> None:
    """A new network namespace, bound to the file ``namespace``; forwarding on, for Docker."""
    namespace.touch()
    run(["unshare", f"--net={namespace}", "true"])
    inside(namespace, ["ip", "link", "set", "lo", "up"])
    inside(namespace, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])


def inside(namespace: Path, argv: Sequence[str]) -> str:
    """Run one of the controller's tools in a network namespace."""
    return run(["nsenter", f"--net={namespace}", *argv])


def connect(
    lab: str,
    namespace: Path,
    address: ipaddress.IPv4Interface,
    gateway: ipaddress.IPv4Address,
) -> None:
    """Link a namespace to the lab's bridge, with the controller as its default route.

    The controller forwards nothing: a lab is closed.
    """
    outside = link_name(lab, address.ip)
    pair = ["type", "veth", "peer", "name", INSIDE, "netns", str(namespace)]
    run(["ip", "link", "add", outside, *pair])
    run(["ip", "link", "set", outside, "master", bridge_name(lab), "up"])
    inside(namespace, ["ip", "address", "add", str(address), "dev", INSIDE])
    inside(namespace, ["ip", "link", "set", INSIDE, "up"])
    inside(namespace, ["ip", "route", "add", "default", "via", str(gateway)])


def set_link(lab: str, address: ipaddress.IPv4Address, *, up: bool) -> None:
    """Plug a host's cable in, or pull it."""
    run(["ip", "link", "set", link_name(lab, address), "up" if up else "down"])


def link_is_up(lab: str, address: ipaddress.IPv4Address) -> bool:
    """Whether the cable is plugged in."""
    name = link_name(lab, address)
    return any(
        entry["ifname"] == name and "UP" in entry.get("flags", []) for entry in _ip("link", "show")
    )


def delete_link(name: str) -> None:
    """Remove an interface; none of that name is fine (a dying namespace takes its end along).

    Raises:
        RoostError: It cannot be removed.
    """
    if any(entry["ifname"] == name for entry in _ip("link", "show")):
        done = subprocess.run(
            ["ip", "link", "delete", name], capture_output=True, text=True, check=False
        )
        if done.returncode and "Cannot find device" not in done.stderr:
            raise RoostError(f"interface {name} cannot be removed", why=done.stderr.strip())

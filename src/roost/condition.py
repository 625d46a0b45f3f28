"""Facts of a host's condition: what makes a machine slow or fail that could run an engine.

Read by the same probe as :mod:`roost.hosts`, for the doctor alone. What was not asked, not
answered or not understood is ``None``: old facts, cut output, a user without rights.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from roost import smi

#: Name, exit status and output of what the probe asked.
Sections = Mapping[str, tuple[int, str]]


class Facts(BaseModel):
    """Base of what is known of a host: immutable."""

    model_config = ConfigDict(frozen=True)


class GpuState(Facts):
    """What a GPU does right now. ``reasons`` is NVML's mask of what holds its clocks down."""

    index: int
    pstate: str | None
    sm_mhz: int | None
    sm_max_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    busy_percent: int | None
    reasons: int | None


class CdiSpec(Facts):
    """A specification of NVIDIA devices; ``driver`` is the one whose libraries it names."""

    path: str
    driver: str | None


class Space(Facts):
    """A file system."""

    mount: str
    total_bytes: int
    free_bytes: int


class Interface(Facts):
    """A network interface."""

    name: str
    up: bool
    mtu: int


class Watchdog(Facts):
    """The watchdog's state. ``held`` is why it keeps an engine stopped; none: it does not."""

    active: bool
    floor_mib: int
    held: str | None
    events: list[dict[str, Any]]


class Condition(Facts):
    """A host's condition, as far as the probe saw it.

    ``peer_access`` is whether each GPU reads the others' memory, ``hook`` whether NVIDIA's is where
    dockerd finds it, ``uplink`` the interface of the default route; ``groups`` are those of the
    session, ``docker_members`` who is written down.
    """

    gpus: list[GpuState] | None = None
    peer_access: bool | None = None
    driver_module: str | None = None
    toolkit: str | None = None
    hook: bool | None = None
    cdi: list[CdiSpec] | None = None
    user: str | None = None
    groups: list[str] | None = None
    docker_members: list[str] | None = None
    open_files: int | None = None
    root: Space | None = None
    shared_memory: Space | None = None
    shared_memory_owners: list[int] | None = None
    remove_ipc: bool | None = None
    time_synchronised: bool | None = None
    interfaces: list[Interface] | None = None
    uplink: str | None = None
    memory_free_bytes: int | None = None
    page_cache_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    watchdog: Watchdog | None = None


def read(sections: Sections, memory: Mapping[str, int]) -> Condition:
    """The condition of a host.

    Args:
        sections: Of the probe's output; any may be missing.
        memory: ``/proc/meminfo`` in bytes.
    """

    def said(name: str) -> str | None:
        code, output = sections.get(name, (1, ""))
        return output.strip() if code == 0 else None

    # Its last command fails where there is no group docker; the first two have answered then.
    user, groups, members = _docker_group(sections.get("docker_group", (1, ""))[1])
    return Condition(
        gpus=_gpus(said("gpu_state")),
        peer_access=_peer_access(said("gpu_peers")),
        driver_module=said("driver_module"),
        toolkit=_version(said("toolkit")),
        # The probe's question succeeds by a CDI specification, too, where there is no hook.
        hook=(said("runtime_hook") or "").endswith("-hook"),
        cdi=_cdi(said("cdi")),
        user=user,
        groups=groups,
        docker_members=members,
        open_files=_hard_limit(said("daemon_limits")),
        root=space(said("disk_root")),
        shared_memory=space(said("shared_memory")),
        shared_memory_owners=_integers(said("shared_memory_owners")),
        remove_ipc={"b true": True, "b false": False}.get(said("remove_ipc") or ""),
        time_synchronised=True if said("time_sync") is not None else None,
        interfaces=_interfaces(said("interfaces")),
        uplink=_uplink(said("routes")),
        memory_free_bytes=memory.get("MemFree"),
        page_cache_bytes=memory.get("Cached"),
        swap_total_bytes=memory.get("SwapTotal"),
        swap_free_bytes=memory.get("SwapFree"),
        watchdog=_watchdog(said("watchdog"), said("watchdog_unit")),
    )


def _watchdog(state: str | None, unit: str | None) -> Watchdog | None:
    try:
        found = json.loads(state or "")
        return Watchdog(
            active=unit == "active",
            floor_mib=found["floor_mib"],
            held=found["held"] and found["held"]["said"],
            events=found["events"],
        )
    except (ValueError, KeyError, TypeError):
        return None


def _gpus(output: str | None) -> list[GpuState] | None:
    states = []
    for row in csv.reader((output or "").splitlines(), skipinitialspace=True):
        if len(row) != 9 or not row[0].strip().isdigit():
            return None
        states.append(
            GpuState(
                index=int(row[0]),
                pstate=smi.word(row[1]),
                sm_mhz=smi.number(row[2]),
                sm_max_mhz=smi.number(row[3]),
                power_w=smi.figure(row[4]),
                power_limit_w=smi.figure(row[5]),
                temperature_c=smi.number(row[6]),
                busy_percent=smi.number(row[7]),
                reasons=_mask(row[8]),
            )
        )
    return states or None


def _mask(cell: str) -> int | None:
    match = re.fullmatch(r"0x([0-9A-Fa-f]+)", cell.strip())
    return int(match[1], 16) if match else None


def _peer_access(output: str | None) -> bool | None:
    """From the matrix of ``nvidia-smi topo -p2p r``: X is a card itself, OK is yes."""
    # The line above the matrix begins with the name of a card, too.
    rows = [line for line in (output or "").splitlines() if re.match(r"\s*GPU\d+\s+(?!GPU)", line)]
    cells = [cell for line in rows for cell in line.split()[1:]]
    others = [cell for cell in cells if cell != "X"]
    return all(cell == "OK" for cell in others) if others else None


def _version(output: str | None) -> str | None:
    match = re.search(r"\d+(\.\d+)+[\w.~-]*", output or "")
    return match[0] if match else None


def _cdi(output: str | None) -> list[CdiSpec] | None:
    if output is None:
        return None
    rows = [re.fullmatch(r"(/\S+)(?: (\d[\d.]*)?)?", line) for line in output.splitlines()]
    known = [CdiSpec(path=row[1], driver=row[2]) for row in rows if row]
    return known if len(known) == len(rows) else None


def _docker_group(output: str) -> tuple[str | None, list[str] | None, list[str] | None]:
    lines = [*output.splitlines(), "", "", ""]
    members = re.fullmatch(r"docker:[^:]*:\d+:(.*)", lines[2].strip())
    return (
        lines[0].strip() or None,
        lines[1].split() or None,
        [name for name in members[1].split(",") if name] if members else None,
    )


def _hard_limit(output: str | None) -> int | None:
    match = re.match(r"Max open files\s+\S+\s+(\d+)", output or "")
    return int(match[1]) if match else None


def space(output: str | None) -> Space | None:
    """The file system in the last line of ``df -Pk``; none where it gave no figures."""
    fields = output.splitlines()[-1].split() if output else []
    if len(fields) < 6 or not (fields[1].isdigit() and fields[3].isdigit()):
        return None
    total, free = (int(fields[at]) * 1024 for at in (1, 3))
    return Space(mount=fields[5], total_bytes=total, free_bytes=free)


def _integers(output: str | None) -> list[int] | None:
    if output is None:
        return None
    return [int(word) for word in output.split() if word.isdigit()]


def _interfaces(output: str | None) -> list[Interface] | None:
    rows = (line.split() for line in (output or "").splitlines())
    found = [
        Interface(name=row[0], up=row[1] == "up", mtu=int(row[2]))
        for row in rows
        if len(row) == 3 and row[2].isdigit()
    ]
    return found or None


def _uplink(routes: str | None) -> str | None:
    rows = [line.split() for line in (routes or "").splitlines()[1:]]
    defaults = [row for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"]
    best = min(defaults, key=lambda row: int(row[6]), default=None)
    return best[0] if best else None

"""One control group a host, where no systemd manages the controller's.

systemd-nspawn puts a container's processes into the groups ``payload`` and ``supervisor`` below
its own, so two of them must not start in one group; and what a host's Docker makes in the other
hierarchies stays behind when a host is killed. A group of its own for each host, below our own
in every hierarchy, solves both: it is found by name and removed whole. No limit is set on any.

On a controller booted with systemd none of this happens: there nspawn asks for a scope.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from roost.errors import RoostError

_ROOT = Path("/sys/fs/cgroup")

# The shell joins each group, then becomes the program.
_JOIN = """
while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 71; shift; done
shift
exec "$@"
"""


def managed_by_systemd() -> bool:
    """Whether this machine was booted with systemd (the test of sd_booted(3))."""
    return Path("/run/systemd/system").is_dir()


def _prefix(lab: str) -> str:
    return f"roost-lab.{lab}."


def _hierarchies() -> list[Path]:
    """Our own group in every hierarchy, as folders."""
    mounted: dict[str, tuple[Path, str]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, point = fields.split()[3:5]
        if kind == "cgroup2":
            mounted[""] = (Path(point), root)
        elif kind == "cgroup":
            for option in options.split(","):
                mounted[option] = (Path(point), root)
    own = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        place = mounted.get(controllers.split(",")[0])
        if place:
            own.append(place[0] / os.path.relpath(path, place[1]))
    return own


def make(lab: str, host: str) -> list[Path]:
    """A group for one host in every hierarchy; those that exist are taken as they are."""
    groups = []
    for parent in _hierarchies():
        group = parent / f"{_prefix(lab)}{host}"
        group.mkdir(exist_ok=True)
        # A version 1 cpuset takes no process before it has CPUs and memory nodes.
        for name in ("cpuset.cpus", "cpuset.mems"):
            setting = group / name
            if setting.exists() and not (group / "cgroup.controllers").exists():
                setting.write_text((parent / name).read_text())
        groups.append(group)
    return groups


def joining(groups: Sequence[Path], argv: Sequence[str]) -> list[str]:
    """A command that joins these groups and becomes ``argv``."""
    return ["/bin/sh", "-c", _JOIN, "join", *map(str, groups), "--", *argv]


def find(lab: str, host: str | None = None) -> list[Path]:
    """The groups of one host, or of all hosts of a lab, wherever they were made.

    Those that systemd made for nspawn are named alike, with the ending of a scope.
    """
    name = _prefix(lab) + ("*" if host is None else host)
    found = []
    # Groups come and go meanwhile; unlike Path.rglob, os.walk bears that.
    for folder, inner, _ in os.walk(_ROOT):
        ours = {one for one in inner if fnmatch(one, name) or fnmatch(one, f"{name}.scope")}
        found += [Path(folder, one) for one in ours]
        inner[:] = [one for one in inner if one not in ours]  # nothing of ours is within ours
    return sorted(found)


def members(lab: str, host: str) -> set[int]:
    """PIDs of everything that runs in a host's groups, its nspawn included."""
    pids: set[int] = set()
    for top in find(lab, host):
        for folder, _, _ in os.walk(top):
            with contextlib.suppress(OSError):
                listed = Path(folder, "cgroup.procs").read_text().split()
                # 0 is a process that this PID namespace does not show.
                pids |= {int(pid) for pid in listed if pid != "0"}
    return pids


def cpu_seconds(lab: str) -> float:
    """Processor time that all hosts of a lab have used since they were started."""
    used = 0.0
    for top in find(lab):
        if (file := top / "cpuacct.usage").is_file():
            used += int(file.read_text()) / 1e9
        elif (file := top / "cpu.stat").is_file():
            said = dict(line.split() for line in file.read_text().splitlines())
            used += int(said.get("usage_usec", 0)) / 1e6
    return used


def hosts(lab: str) -> set[str]:
    """Names of the hosts of a lab that have groups."""
    names = (path.name.removeprefix(_prefix(lab)) for path in find(lab))
    return {name.removesuffix(".scope") for name in names}


def remove(lab: str, host: str | None = None, *, seconds: float = 60.0) -> None:
    """Remove the groups of a host (or lab) whose processes have ended.

    Raises:
        RoostError: A group still holds processes after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while remaining := find(lab, host):
        for top in remaining:
            for folder, _, _ in os.walk(top, topdown=False):
                # Busy for a moment while the kernel buries the last process.
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        if time.monotonic() > deadline:
            raise RoostError(
                f"control group {remaining[0]} cannot be removed",
                why="processes are still in it",
                fix=f"look at {remaining[0]}/cgroup.procs, then try again",
            )
        time.sleep(0.02)

"""Stopping an engine before the host dies for want of memory.

Where the GPU shares the host's memory nothing else does that. What a driver allocates is in no
process's resident size and in no control group's count, so the kernel's killer, earlyoom,
systemd-oomd and ``docker run --memory`` cannot tell whose it is (docs/decisions/0010-watchdog.md).
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from . import NAME, atomic, evidence
from .chronicle import Chronicle
from .docker_api import DockerApi
from .machine import RELIEVED, Machine, MachineError
from .store import Store

#: MiB by which available memory may fall in a second; half of it was seen on a GB10
#: (vllm-project/vllm#54200: from 29 to 2.5 GiB in 9 s).
FALL = 6000.0
#: Seconds between two looks, the nearer the floor the sooner.
SOONEST, LATEST = 0.1, 1.0
#: Memory is short until so many times the floor is available again.
ENOUGH = 1.5


class MemoryGuard:
    """Keeps the host's available memory above a floor.

    Args:
        floor_mib: MemAvailable below which engines are stopped; 0: never.
        machine: This host.
        docker: Its daemon.
        store: Its releases.
        chronicle: Where events are told and evidence is kept.
        meminfo: Where the kernel tells of memory.
    """

    def __init__(
        self,
        floor_mib: int,
        machine: Machine,
        docker: DockerApi,
        store: Store,
        chronicle: Chronicle,
        meminfo: Path = Path("/proc/meminfo"),
    ) -> None:
        self._floor = floor_mib
        self._machine = machine
        self._docker = docker
        self._store = store
        self._chronicle = chronicle
        self._meminfo = meminfo
        self._short = False

    def look(self) -> float:
        """Look once, and stop what runs if memory is short.

        Returns:
            Seconds until the next look.
        """
        if not self._floor:
            return 3600.0
        available = self._available()
        if available >= self._floor:
            self._short = self._short and available < self._floor * ENOUGH
        elif self._short:
            # Memory comes back slowly; only an engine that was started meanwhile is stopped.
            if running := self._running():
                self._relieve(available, running)
        else:
            self._machine.sleep(SOONEST)
            if self._available() < self._floor:  # else it was the dip of a moment
                self._short = True
                self._relieve(available, self._running())
        return min(LATEST, max(SOONEST, (available - self._floor) / FALL))

    def _available(self) -> float:
        """MemAvailable in MiB; without limit where the kernel does not say."""
        for line in self._meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 1024
        return float("inf")

    def _running(self) -> dict[str, str]:
        with contextlib.suppress(MachineError):
            return self._docker.running(NAME)
        return {}

    def _relieve(self, available: float, running: dict[str, str]) -> None:
        """Kill engines at once: one that serves stays stopped, one on trial has failed."""
        said = f"{available:.0f} MiB of memory were available, the floor is {self._floor} MiB"
        current = self._store.pointed("current")
        if not running:
            self._chronicle.tell("none", "memory", f"{said}; no engine runs", release=current)
            return
        before = {
            "meminfo.txt": self._meminfo.read_text(),
            "processes.txt": evidence.processes(),
        }
        note = {"containers": list(running.values()), "said": said}
        # A deploy sees an engine end, and wants to know why; but where memory is short, /run may
        # take nothing, and the engine must be stopped all the same.
        with contextlib.suppress(OSError):
            self._store.runtime.mkdir(mode=0o755, exist_ok=True)
            atomic.write(self._store.runtime / RELIEVED, json.dumps(note))
        for name in running:
            with contextlib.suppress(MachineError):
                self._docker.kill(name)
        by_deploy = self._store.holder() is not None
        if not by_deploy:
            # A deploy brings back what served before; without one, nobody may. What its unit starts
            # all the same is stopped at the next look.
            with contextlib.suppress(MachineError):
                self._machine.unit_stop(NAME)
        case = self._chronicle.keep("memory", said, *running, before=before)
        self._chronicle.tell(
            "stopped", "memory", said, case=case, release=current, held=not by_deploy
        )

"""The host's Docker and systemd, as far as a transaction and the watchdog need them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Sequence

from . import RUNTIME
from .logs import LONGEST, Log

#: Seconds for one command; the longest is a stop, in which Docker waits ten before it kills.
_COMMAND = 120.0

#: File in the runtime directory: what the watchdog has stopped for want of memory.
RELIEVED = "relieved.json"


class MachineError(Exception):
    """Docker or systemd did not do what was asked; the message is theirs."""


class Machine:
    """This host's containers and units.

    Methods raise :class:`MachineError` where Docker or systemd does not do what was asked.
    """

    def inspect(self, container: str) -> dict[str, Any] | None:
        """All that Docker knows of a container; none if there is no such container."""
        try:
            found = self._run("docker", "inspect", "--type=container", container)
        except MachineError as error:
            if "no such container" in str(error).lower():
                return None
            raise
        everything: dict[str, Any] = json.loads(found)[0]
        return everything

    def containers(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Containers whose name begins so, running or not, by name."""
        listed = self._run(
            "docker", "ps", "--all", f"--filter=name=^/?{prefix}", "--format={{.Names}}"
        )
        found = {name: self.inspect(name) for name in listed.split()}
        return {name: data for name, data in found.items() if data is not None}

    def has_image(self, reference: str) -> bool:
        """Whether an image is on this host."""
        try:
            self._run("docker", "image", "inspect", "--format={{.Id}}", reference)
        except MachineError as error:
            if "no such image" in str(error).lower():
                return False
            raise
        return True

    def start(self, container: str) -> None:
        """Start a container; does nothing if it runs."""
        self._run("docker", "start", container)

    def stop(self, container: str) -> None:
        """Stop a container; does nothing if it does not run."""
        self._run("docker", "stop", container)

    def remove(self, container: str) -> None:
        """Remove a container, running or not; does nothing if there is none of that name."""
        if self.inspect(container) is not None:
            self._run("docker", "rm", "--force", container)

    def rename(self, container: str, name: str) -> None:
        """Give a container another name, without touching what runs in it."""
        self._run("docker", "rename", container, name)

    def log(self, container: str) -> str:
        """A container's log so far, both streams in order, over all its starts."""
        log = Log()
        with _logs("--tail=all", container) as child:
            _read(child, log)
        return log.text()

    def kernel(self, container: dict[str, Any], since: float | None = None) -> list[str]:
        """What the kernel's log says of a container's death: processes killed for memory, and
        what the GPU's driver reported.

        Args:
            container: As :meth:`inspect` gives it.
            since: Seconds of the monotonic clock from which on the driver's reports count; none:
                they may be of any time, and are left out.
        """
        # Lines are told apart by the container's group: neither clock nor other containers matter.
        try:
            lines = self._run("dmesg", check=False).splitlines()
        except MachineError:
            return []
        group = re.compile(rf"task_memcg=\S*{container['Id']}.*[,=]pid=(\d+)")
        killed = {found[1] for found in map(group.search, lines) if found}
        said = []
        for line in lines:
            victim = re.search(r"[Oo]ut of memory: Killed process (\d+) ", line)
            xid = re.match(r"\[ *(\d+\.\d+)\] NVRM: Xid", line)
            if (victim and victim[1] in killed) or (
                xid and since is not None and float(xid[1]) >= since
            ):
                said.append(line)
        return said

    def follow(self, container: str, *, whole: bool) -> Follower:
        """A container's log as it grows; use it in a ``with``.

        Args:
            container: Its name.
            whole: From its last start on; else only the last lines of that, and what follows.
        """
        return Follower(container, whole=whole)

    def age(self, inspected: dict[str, Any]) -> float:
        """Seconds since a running container was started, whatever was done to the clock since."""
        fields = Path("/proc", str(inspected["State"]["Pid"]), "stat").read_text().rsplit(")", 1)
        started = int(fields[1].split()[19]) / os.sysconf("SC_CLK_TCK")
        return float(Path("/proc/uptime").read_text().split()[0]) - started

    def relieved(self, inspected: dict[str, Any], runtime: str = RUNTIME) -> str:
        """Why the watchdog has stopped a container for want of memory; empty if it has not."""
        try:
            note = json.loads(Path(runtime, RELIEVED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return ""
        return str(note["said"]) if inspected["Id"] in note["containers"] else ""

    def start_docker(self) -> None:
        """Start Docker, if systemd can."""
        self._run("systemctl", "start", "docker", check=False)

    def unit(self, name: str) -> dict[str, str]:
        """State of a unit: ActiveState, UnitFileState and NRestarts."""
        wanted = "ActiveState,UnitFileState,NRestarts"
        shown = self._run("systemctl", "show", f"--property={wanted}", name)
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def unit_start(self, name: str) -> None:
        """Start a unit now and at every boot; none of its attempts to start is used up."""
        if self.unit(name)["ActiveState"] == "activating":
            # It is in the pause before a further attempt.
            self._run("systemctl", "stop", name)
        self._run("systemctl", "reset-failed", name, check=False)
        self._run("systemctl", "enable", "--quiet", name)
        self._run("systemctl", "start", name)

    def unit_disable(self, name: str) -> None:
        """Start it at no boot any more; what runs goes on."""
        self._run("systemctl", "disable", "--quiet", name)

    def unit_stop(self, name: str) -> None:
        """Stop a unit now; it stays enabled, so that a reboot brings back what it runs."""
        self._run("systemctl", "stop", name, check=False)
        self._run("systemctl", "reset-failed", name, check=False)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def _run(self, *argv: str, check: bool = True) -> str:
        try:
            done = subprocess.run(argv, capture_output=True, timeout=_COMMAND, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MachineError(f"{' '.join(argv)}: {error}") from None
        if check and done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()
            raise MachineError(f"{' '.join(argv)}: {said or f'exit code {done.returncode}'}")
        return done.stdout.decode(errors="replace")


class Follower(Log):
    """A container's log, read while it is written.

    Args:
        container: Its name.
        whole: Begin with all lines since its last start, else with the last hundred of them.

    Attributes:
        begun: Monotonic seconds at which reading began.
    """

    def __init__(self, container: str, *, whole: bool) -> None:
        super().__init__()
        self._container = container
        self._whole = whole
        self.begun = time.monotonic()

    def __enter__(self) -> Follower:
        self._child = _logs("--follow", *self._begin(), self._container)
        self._reader = threading.Thread(target=_read, args=(self._child, self), daemon=True)
        self._reader.start()
        return self

    def _begin(self) -> list[str]:
        lines = "--tail=all" if self._whole else "--tail=100"
        shown = subprocess.run(
            [
                *("docker", "inspect", self._container),
                "--format={{.State.StartedAt}} {{.State.FinishedAt}}",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        started, _, finished = shown.stdout.strip().partition(" ")
        # A container that is started again keeps its older log, with the lines that its last life
        # ended on. One that never was started before has none, and then a clock that is set back
        # loses no lines.
        return [lines] if finished.startswith("0001-") else [lines, f"--since={started}"]

    def settle(self, seconds: float) -> None:
        """Wait for the end of the log, which comes when its container has ended."""
        self._reader.join(seconds)

    def __exit__(self, *_: Sequence[Any]) -> None:
        self._child.kill()
        self._child.wait()
        self._reader.join()
        assert self._child.stdout is not None  # noqa: S101  # it was asked for
        self._child.stdout.close()


def _logs(*options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["docker", "logs", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _read(child: subprocess.Popen[bytes], log: Log) -> None:
    assert child.stdout is not None  # noqa: S101  # it was asked for
    while line := child.stdout.readline(LONGEST):
        log.add(line.decode(errors="replace").rstrip("\r\n"))

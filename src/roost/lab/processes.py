"""Long-running processes of a lab, started and ended by identity, never by pattern.

A process is known by its PID *and* its start time (field 22 of ``/proc/PID/stat``), which the
kernel does not give to a second process; it is signalled through a pidfd, so that a PID used
anew between the check and the signal cannot be hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roost import servers
from roost.errors import RoostError

# The launched shell writes its own identity and then *becomes* the program (exec keeps PID and
# start time): there is no moment at which the program runs unrecorded. "(sh)" has no blank in
# it, so that cut finds field 22; start times begin anew with each boot, so the boot is noted too.
# The rename makes a torn pid file impossible.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LAUNCHER = f"""
{{ cut -d' ' -f1,22 "/proc/$$/stat" && cat {_BOOT_ID}; }} > "$0.new" && mv "$0.new" "$0" || exit 70
exec "$@"
"""

_MARKER_VARIABLE = "ROOST_LAB_PROCESS"
_LAUNCH_SECONDS = 60.0


@dataclass(frozen=True)
class Process:
    """One process: its PID and its start time in clock ticks since boot."""

    pid: int
    start: int

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        stat = _stat(self.pid)
        return stat is not None and stat == (self.start, True)

    def end(self, *, grace: float = 5.0, first: int = signal.SIGTERM) -> None:
        """End it: ``first``, then SIGKILL after ``grace`` seconds. Returns when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # Only now that the handle pins the process does the check mean anything.
            if not self.alive():
                return
            for sent, wait in ((first, grace), (signal.SIGKILL, 10.0)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, sent)
                if select.select([handle], [], [], wait)[0]:
                    return
        finally:
            os.close(handle)


def _stat(pid: int) -> tuple[int, bool] | None:
    """Start time and "is running" of a PID; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, so count from the last one: state is field 3.
    fields = text.rpartition(")")[2].split()
    return int(fields[19]), fields[0] not in "ZX"


def identify(pid: int) -> Process | None:
    """The process that has this PID now, if there is one."""
    stat = _stat(pid)
    return Process(pid, stat[0]) if stat and stat[1] else None


def spawn(
    argv: Sequence[str],
    *,
    pid_file: Path,
    log: Path,
    marker: str,
    env: Mapping[str, str] | None = None,
) -> Process:
    """Start a program that outlives us: own session, no terminal, output to ``log``.

    Args:
        argv: The program and its arguments.
        pid_file: Where the process records its own identity before it becomes the program.
        log: Receives stdout and stderr, from the start.
        marker: Names lab and role; :func:`marked` finds it when the pid file is lost.
        env: The whole environment besides the marker; ours if left out.

    Raises:
        RoostError: It was not started in time, or ended at once; with the end of its log.
    """
    pid_file.unlink(missing_ok=True)
    environment = {**(os.environ if env is None else env), _MARKER_VARIABLE: marker}
    with log.open("wb") as output:
        # --fork: init becomes the parent, so that nobody here has to wait for it.
        subprocess.run(
            ["setsid", "--fork", "/bin/sh", "-c", _LAUNCHER, str(pid_file), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            check=True,
        )
    deadline = time.monotonic() + _LAUNCH_SECONDS
    while not pid_file.exists():
        if time.monotonic() > deadline:
            raise RoostError(f"{argv[0]} could not be started", why=servers.tail(log))
        time.sleep(0.01)
    started = recorded(pid_file)
    if started is None:
        raise RoostError(f"{argv[0]} ended as soon as it was started", why=servers.tail(log))
    return started


def recorded(pid_file: Path) -> Process | None:
    """The running process that a pid file names, or None if it has ended (or never was)."""
    try:
        pid, start, boot = pid_file.read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    if boot != _BOOT_ID.read_text().strip():
        return None
    process = Process(int(pid), int(start))
    return process if process.alive() else None


def _pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def marked(prefix: str) -> list[Process]:
    """Running processes whose marker is ``prefix`` or begins with ``prefix`` and a slash."""
    found = []
    for pid in _pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        for entry in environment.split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name.decode(errors="replace") != _MARKER_VARIABLE:
                continue
            marker = value.decode(errors="replace")
            if marker == prefix or marker.startswith(f"{prefix}/"):
                process = identify(pid)
                if process:
                    found.append(process)
    return found


def in_network_namespace(namespace: Path) -> list[Process]:
    """Processes whose network namespace is the one bound to this file."""
    try:
        wanted = namespace.stat()
    except FileNotFoundError:
        return []
    found = []
    for pid in _pids():
        try:
            actual = Path(f"/proc/{pid}/ns/net").stat()
        except OSError:
            continue
        if (actual.st_dev, actual.st_ino) == (wanted.st_dev, wanted.st_ino):
            process = identify(pid)
            if process:
                found.append(process)
    return found


def is_init_of_container(process: Process) -> bool:
    """Whether it is PID 1 of a PID namespace directly below ours."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) == 2 and numbers[1] == "1"
    return False

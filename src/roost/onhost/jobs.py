"""Background jobs that Ansible has started on this host: the result of one, and stopping it.

A job is known by its record, ``~/.ansible_async/<id>.<number>``. Ansible's wrapper is two
processes, both with the id among their arguments: one runs the module, in a process group of its
own; the other watches it, and removes what the module was given within 5 s of its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

GONE = "its process on the host is gone: killed, or the host was restarted"


def result(job: Path) -> dict[str, Any] | None:
    """What a job's module has returned; none while it works."""
    if (ended := _recorded(job)) is not None or _processes(job):
        return ended
    # It may have ended between the two looks.
    return _recorded(job) or {"failed": True, "msg": GONE}


def stop(job: Path) -> bool:
    """Kill a job with everything that it has started, and remove its record.

    All its processes are in one session. They need not be in one process group: the wrapper gives
    the job a group of its own only after it was begun, and what it has started by then keeps the
    group that it was started in.

    Returns:
        Whether anything had to be killed.
    """
    wrapper = _processes(job)
    watcher = {pid for pid in wrapper if _is_watcher(pid, wrapper)}
    sessions = {_session(pid) for pid in wrapper} - {None}
    killed: set[int] = set()
    # A process that was started between listing and killing is in the next list.
    while found := {pid for pid in _pids() if _session(pid) in sessions} - watcher - killed:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    with contextlib.suppress(FileNotFoundError):
        job.unlink()
    return bool(killed)


def _recorded(job: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(job.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # As long as it works, its record says only that it was begun.
    if not isinstance(found, dict) or not {"changed", "failed"} & set(found):
        return None
    # What the wrapper makes of a module that ended without a word: a traceback of its own.
    if found.get("failed") and found.get("data") == "" and not found.get("stderr"):
        return {"failed": True, "msg": GONE}
    return found


def _processes(job: Path) -> set[int]:
    """PIDs of a job's wrapper.

    Of the record's name only the part before the dot is among their arguments. The number after it
    is the PID of a process that has long ended.
    """
    begun_as = job.name.rsplit(".", 1)[0].encode()
    found = set()
    for pid in _pids():
        with contextlib.suppress(OSError):  # it has ended
            if begun_as in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def _is_watcher(pid: int, wrapper: set[int]) -> bool:
    """Whether a process of the wrapper is the one that watches the other."""
    try:
        # Fields 4 and 5 of proc(5), counted behind the name, which may hold any character.
        parent, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:3]
    except OSError:
        return False
    return int(parent) not in wrapper and int(group) != pid


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]

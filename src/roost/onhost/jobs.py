"""Background jobs of Ansible's on this host: what came of one, and its end before its time.

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
    """What a job has returned; none while it works."""
    if (ended := _recorded(job)) is not None or _processes(job):
        return ended
    # It may have ended between the two looks.
    return _recorded(job) or {"failed": True, "msg": GONE}


def stop(job: Path) -> bool:
    """Kill a job with everything that it has started, and forget it.

    Returns:
        Whether it was at work.
    """
    working = [pid for pid in _processes(job) if _group(pid) == pid]
    for pid in working:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(FileNotFoundError):
        job.unlink()
    return bool(working)


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


def _processes(job: Path) -> list[int]:
    """Those of the wrapper.

    The number after the dot is no argument: it is that of a process that has long ended.
    """
    begun_as = job.name.rsplit(".", 1)[0].encode()
    found = []
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if begun_as in arguments.read_bytes().split(b"\0"):
                found.append(int(arguments.parent.name))
    return found


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None

"""Processes: whether one runs, and some that are taken for Ansible's background jobs."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def until(true: Callable[[], object], seconds: float = 120) -> None:
    """Wait for something that comes by itself, on a busy machine late."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended may be there until somebody asks for its end."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def job_name() -> str:
    """One as Ansible makes them: jobs are known by it on the whole host, so each has its own."""
    return f"j{uuid.uuid4().int}.1234"


@contextmanager
def working(job: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is taken for this job's."""
    argv = [sys.executable, "-c", "import time; time.sleep(600)", job.partition(".")[0]]
    with subprocess.Popen(argv, start_new_session=True) as process:
        yield process
        process.kill()

"""Processes that are taken for those of Ansible's background jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def working(job: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is taken for this job's."""
    argv = [sys.executable, "-c", "import time; time.sleep(120)", job.partition(".")[0]]
    with subprocess.Popen(argv, start_new_session=True) as process:
        yield process
        process.kill()

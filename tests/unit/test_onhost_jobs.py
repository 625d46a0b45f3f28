"""Ansible's background jobs: how one is ended, and what is left of one that was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.modules import async_wrapper
from tests.unit.processes import alive, job_name, until

from roost.onhost import jobs

#: The arguments are the file that shows that it works.
WORK = """#!{python}
import subprocess, sys, time
# In the group that Ansible has not made yet, where the module is quicker than its wrapper.
child = subprocess.Popen(["sleep", "600"], process_group={group})
print(child.pid, file=open({shown!r}, "w"), flush=True)
time.sleep(600)
"""


@pytest.fixture(params=[None, 0], ids=["in-its-group", "in-another"])
def begun(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Path, int]]:
    """The record of a real job, and a process that its module has started."""
    given = tmp_path / "ansible-tmp-1"
    given.mkdir()
    work, shown = given / "work.py", tmp_path / "shown"
    work.write_text(WORK.format(python=sys.executable, shown=str(shown), group=request.param))
    work.chmod(0o755)
    wrapper = str(async_wrapper.__file__)
    name = job_name().partition(".")[0]
    done = subprocess.run(
        [sys.executable, "-P", wrapper, name, "600", str(work), "_"],
        env={**os.environ, "ANSIBLE_ASYNC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    job = Path(json.loads(done.stdout)["results_file"])
    until(lambda: shown.exists() and shown.read_text())
    yield job, int(shown.read_text())
    jobs.stop(job)


def test_a_job_is_ended_with_what_it_started(begun: tuple[Path, int], tmp_path: Path) -> None:
    job, child = begun
    assert jobs.result(job) is None
    assert jobs.stop(job)
    until(lambda: not alive(child))
    assert not job.exists()
    # A token may be among what the module was given: Ansible's own watcher still sees to that.
    until(lambda: not (tmp_path / "ansible-tmp-1").exists())
    assert not jobs.stop(job)


def test_a_module_that_is_killed_is_no_traceback(begun: tuple[Path, int]) -> None:
    job, child = begun
    status = Path(f"/proc/{child}/status").read_text()
    (parent,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid"))
    os.kill(parent, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)  # it holds the pipe that the wrapper reads
    until(lambda: jobs.result(job))
    assert jobs.result(job) == {"failed": True, "msg": jobs.GONE}

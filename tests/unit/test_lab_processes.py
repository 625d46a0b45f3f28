"""Processes are known by PID and start time, and found again without a record."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.processes import until

from roost.lab import processes
from roost.lab.processes import Process


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[str]:
    """A marker of this test; whatever still carries it is ended."""
    yield str(tmp_path / "marked")
    for left in processes.marked(str(tmp_path / "marked")):
        left.end(first=signal.SIGKILL)


def spawn(tmp_path: Path, marker: str, *argv: str) -> Process:
    words = argv or ("sleep", "600")
    process = processes.spawn(words, pid_file=tmp_path / "pid", log=tmp_path / "log", marker=marker)
    # It is recorded a moment before it becomes the program, and the kernel shows its arguments and
    # its environment a moment after that.
    shown = "\0".join([*words, ""]).encode()
    until(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() == shown)
    return process


def test_a_process_is_recorded_and_ended(tmp_path: Path, marker: str) -> None:
    process = spawn(tmp_path, marker)
    assert processes.recorded(tmp_path / "pid") == process
    assert processes.marked(marker) == [process]
    assert Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n"
    assert os.getsid(process.pid) != os.getsid(0)
    process.end()
    assert not process.alive()
    assert processes.recorded(tmp_path / "pid") is None


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path, marker: str) -> None:
    process = spawn(tmp_path, marker, "sh", "-c", "trap '' TERM; echo ready; sleep 600; :")
    until(lambda: (tmp_path / "log").read_text() == "ready\n")
    process.end(grace=0.1)
    assert not process.alive()


def test_a_pid_of_somebody_else_is_never_signalled(tmp_path: Path, marker: str) -> None:
    process = spawn(tmp_path, marker)
    reused = Process(process.pid, process.start - 1)
    assert not reused.alive()
    reused.end(first=signal.SIGKILL)
    assert process.alive()


def test_a_record_of_another_boot_counts_for_nothing(tmp_path: Path, marker: str) -> None:
    spawn(tmp_path, marker)
    record = tmp_path / "pid"
    pid, start, _ = record.read_text().split()
    record.write_text(f"{pid} {start} 00000000-0000-0000-0000-000000000000\n")
    assert processes.recorded(record) is None


@pytest.mark.parametrize("content", ["", "12", "12 13 14 15"])
def test_a_torn_record_counts_for_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    assert processes.recorded(tmp_path / "pid") is None


def test_a_marker_is_matched_whole(tmp_path: Path, marker: str) -> None:
    process = spawn(tmp_path, f"{marker}/hosts/one")
    assert processes.marked(f"{marker}/hosts") == [process]
    assert processes.marked(f"{marker}/hosts/on") == []

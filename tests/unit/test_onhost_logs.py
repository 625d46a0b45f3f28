"""A log in bounded memory, and on its way to the controller."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.onhost.logs import Log, packed, unpacked
from roost.onhost.machine import Machine


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=9), max_size=40))
def test_a_short_log_is_kept_whole(lines: list[str]) -> None:
    log = Log(head=20, tail=1000)
    for line in lines:
        log.add(line)
    assert log.text() == "".join(f"{line}\n" for line in lines)


def test_a_long_log_keeps_its_beginning_and_its_end_and_counts_the_rest() -> None:
    log = Log(head=100, tail=100)
    for number in range(1000):
        log.add(f"line {number:04}")
    text = log.text()
    assert len(text) < 300
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("line 0000", "line 0999")
    left_out = next(line for line in lines if "left out" in line)
    assert left_out == f"[roost: {1000 - (len(lines) - 1)} lines left out]"
    assert lines.index(left_out) == 10


def test_a_last_line_that_is_longer_than_the_room_is_kept() -> None:
    log = Log(head=1, tail=5)
    log.add("first of the end")
    log.add("x" * 100)
    assert log.text().splitlines() == ["[roost: 1 lines left out]", "x" * 100]


def test_each_line_is_looked_at_once() -> None:
    log = Log(head=5, tail=5)
    log.add("one")
    assert log.unread() == ["one"]
    log.add("two")
    log.add("three")
    assert log.unread() == ["two", "three"]
    assert log.unread() == []


@given(st.text())
def test_what_is_packed_comes_back(text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert unpacked(packed(text)) == text


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One whose dmesg prints a file."""
    program = tmp_path / "dmesg"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/kernel.log\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Machine()


KERNEL = """\
[   10.000001] NVRM: Xid (PCI:000f:01:00): 31, pid=7, name=vllm
[   20.000001] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=abc1,mems_allowed=0,\
oom_memcg=/docker/abc1,task_memcg=/docker/abc1,task=vllm,pid=4242,uid=0
[   20.000002] Memory cgroup out of memory: Killed process 4242 (vllm) total-vm:9kB, anon-rss:8kB
[   21.000001] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,\
global_oom,task_memcg=/docker/def2,task=other,pid=4343,uid=0
[   21.000002] Out of memory: Killed process 4343 (other) total-vm:9kB, anon-rss:8kB
[   30.000001] NVRM: Xid (PCI:000f:01:00): 79, pid=7, GPU has fallen off the bus.
"""


def test_the_kernel_is_asked_about_one_container(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "kernel.log").write_text(KERNEL)
    (killed,) = machine.kernel({"Id": "abc1"})
    assert "Killed process 4242" in killed
    killed, fallen = machine.kernel({"Id": "def2"}, since=25.0)
    assert "Killed process 4343" in killed
    assert "Xid (PCI:000f:01:00): 79" in fallen
    assert machine.kernel({"Id": "0123"}) == []


def test_a_kernel_that_tells_nothing(machine: Machine, tmp_path: Path) -> None:
    assert machine.kernel({"Id": "abc1"}) == []
    (tmp_path / "dmesg").unlink()
    assert isinstance(machine.kernel({"Id": "abc1"}), list)


@pytest.mark.parametrize(
    ("finished", "whole", "asked"),
    [
        ("0001-01-01T00:00:00Z", True, "--follow --tail=all"),
        ("0001-01-01T00:00:00Z", False, "--follow --tail=100"),
        ("2026-11-29T20:00:00Z", True, "--follow --tail=all --since=2026-11-29T20:00:05Z"),
        # The lines on which its last life ended are no sign that this one ends.
        ("2026-11-29T20:00:00Z", False, "--follow --tail=100 --since=2026-11-29T20:00:05Z"),
    ],
)
def test_only_the_log_of_this_start_is_followed(
    machine: Machine, tmp_path: Path, finished: str, whole: bool, asked: str
) -> None:
    program = tmp_path / "docker"
    inspected = f"2026-11-29T20:00:05Z {finished}"
    program.write_text(f'#!/bin/sh\n[ "$1" = inspect ] && echo {inspected} || echo "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with machine.follow("roost-llm", whole=whole) as log:
        log.settle(60)
    assert log.text() == f"logs {asked} roost-llm\n"

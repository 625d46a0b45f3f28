"""Groups of lab hosts, in a folder that looks like a hierarchy of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from roost.lab import cgroups


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    for folder in (
        "memory/roost-lab.a.h1/payload/system.slice",
        "memory/roost-lab.a.h2",
        "memory/roost-lab.b.h1",
        "pids/deeper/roost-lab.a.h1.scope",
        "pids/another.h1",
    ):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_groups_are_found_by_lab_and_host_in_every_hierarchy(root: Path) -> None:
    of_one = [root / "memory/roost-lab.a.h1", root / "pids/deeper/roost-lab.a.h1.scope"]
    assert cgroups.find("a", "h1") == of_one
    assert cgroups.find("a") == sorted([*of_one, root / "memory/roost-lab.a.h2"])
    assert cgroups.hosts("a") == {"h1", "h2"}


def test_processes_are_those_of_all_groups_within(root: Path) -> None:
    (root / "memory/roost-lab.a.h1/cgroup.procs").write_text("")
    (root / "memory/roost-lab.a.h1/payload/system.slice/cgroup.procs").write_text("12\n0\n7\n")
    assert cgroups.members("a", "h1") == {7, 12}


def test_processor_time_is_that_of_all_hosts_whatever_the_hierarchy(root: Path) -> None:
    (root / "memory/roost-lab.a.h2/cpuacct.usage").write_text("1500000000\n")
    (root / "memory/roost-lab.b.h1/cpuacct.usage").write_text("7000000000\n")
    (root / "pids/deeper/roost-lab.a.h1.scope/cpu.stat").write_text(
        "usage_usec 250000\nuser_usec 200000\nsystem_usec 50000\n"
    )
    assert cgroups.cpu_seconds("a") == pytest.approx(1.75)


def test_groups_are_removed_with_what_is_in_them(root: Path) -> None:
    cgroups.remove("a", "h1")
    assert cgroups.find("a") == [root / "memory/roost-lab.a.h2"]


def test_a_group_that_goes_while_one_looks_is_no_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host that boots: its short-lived services have groups of their own."""
    gone = root / "memory/roost-lab.a.h1/payload/system.slice"
    beside = root / "memory/gone"
    beside.mkdir()
    listed = os.scandir

    def scandir(path: Any = ".") -> Any:
        entries = listed(path)
        for folder in (gone, beside):
            if folder.parent == Path(path) and folder.exists():
                held = list(entries)
                folder.rmdir()
                return _Entries(held)
        return entries

    monkeypatch.setattr(os, "scandir", scandir)
    assert cgroups.members("a", "h1") == set()
    assert not gone.exists()
    assert not beside.exists()


class _Entries:
    """What os.scandir returns: an iterator that is a context too."""

    def __init__(self, held: list[os.DirEntry[str]]) -> None:
        self._left = iter(held)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> os.DirEntry[str]:
        return next(self._left)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

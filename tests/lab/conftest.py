"""What is left of a lab, seen with other means than its own code."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest


def _left(lab: str, state: Path) -> list[str]:
    found = [str(state)] if state.exists() else []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            groups = (entry / "cgroup").read_text()
        except OSError:
            continue
        if f"{state}/".encode() in text or f"roost-lab.{lab}." in groups:
            found.append(f"process {entry.name}: {text[:80]!r}")
    mounts = Path("/proc/mounts").read_text().splitlines()
    found += [f"mount {line}" for line in mounts if str(state) in line]
    shown = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=True)
    names = [one["ifname"] for one in json.loads(shown.stdout) if one]
    found += [f"interface {name}" for name in names if name.startswith(f"rl-{lab}")]
    for place in ("/sys/fs/cgroup", "/run/systemd/nspawn"):
        # Other labs' groups go meanwhile; unlike Path.rglob, os.walk bears that.
        for folder, inner, files in os.walk(place):
            names = [name for name in inner + files if fnmatch(name, f"roost-lab.{lab}.*")]
            found += [str(Path(folder, name)) for name in names]
    return found


@pytest.fixture
def left() -> Callable[[str, Path], list[str]]:
    """What is left of a lab, given its name and state directory; empty if nothing is."""
    return _left

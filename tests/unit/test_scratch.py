"""Folders in the temporary directory: gone with their maker, and what the killed have left."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roost import scratch

PREFIX = "roost-run-"


def left(place: Path, name: str, *, days: float) -> Path:
    """A folder with something in it, as one leaves it who is killed."""
    folder = place / name
    folder.mkdir()
    (folder / "socket").touch()
    then = time.time() - days * 86_400
    os.utime(folder, (then, then))
    return folder


def test_it_ends_with_its_block(tmp_path: Path) -> None:
    def interrupted() -> None:
        with scratch.folder(PREFIX, tmp_path) as folder:
            assert folder.parent == tmp_path
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "socket").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_goes_with_the_next(tmp_path: Path) -> None:
    made = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom roost import scratch\n"
        f"with scratch.folder({PREFIX!r}, Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", made, str(tmp_path)], check=False)
    (folder,) = tmp_path.iterdir()
    with scratch.folder(PREFIX, tmp_path):
        # What it had begun may still be at work there.
        assert folder.exists()
    os.utime(folder, (0, 0))
    with scratch.folder(PREFIX, tmp_path):
        assert not folder.exists()


def test_nothing_else_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = left(tmp_path, "elsewhere", days=9)
    link = tmp_path / f"{PREFIX}link"
    link.symlink_to(elsewhere)
    kept = [link, left(tmp_path, "roost-runs", days=9), left(tmp_path, f"{PREFIX}new", days=0.5)]
    (file := tmp_path / f"{PREFIX}file").touch()
    os.utime(file, (0, 0))
    held = left(tmp_path, f"{PREFIX}held", days=9)
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with scratch.folder(PREFIX, tmp_path):
        assert all(path.exists() for path in [*kept, file, held])
        assert (elsewhere / "socket").exists()
    os.close(descriptor)
    # Another user's, if one could write there.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with scratch.folder(PREFIX, tmp_path):
        assert held.exists()


def test_one_that_is_in_use_is_held(tmp_path: Path) -> None:
    with scratch.folder(PREFIX, tmp_path) as folder:
        os.utime(folder, (0, 0))
        with scratch.folder(PREFIX, tmp_path):
            assert folder.exists()

"""Folders in the temporary directory that end with whoever made them."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Seconds after which one that nobody holds is of no use to what its maker may have left running.
_OLD_S = 86_400.0


@contextmanager
def folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder for the length of a ``with``; what killed processes have left of its kind goes, too.

    It is locked as long, so that neither another of us nor systemd-tmpfiles takes it for old.

    Args:
        prefix: Of its name; nobody else's may begin so.
        parent: By default the temporary directory.
    """
    place = parent or Path(tempfile.gettempdir())
    _clear(place, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place) as name:
        held = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # without locks there, nothing is ever taken for old
                fcntl.flock(held, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(held)


def _clear(place: Path, prefix: str) -> None:
    """Remove our user's own folders that are old and that no process holds."""
    for path in place.glob(f"{prefix}*"):
        with suppress(OSError):
            found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(found)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _OLD_S:
                    fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(found)

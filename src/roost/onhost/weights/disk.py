"""Small questions to a disk, and what it refuses, in words."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .failures import SnapshotError

#: Bytes that are read at a time.
CHUNK = 1 << 20


def size(path: Path) -> int | None:
    """Bytes of a file; none if it cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def remove(folder: Path) -> None:
    """Remove a directory. Of a symbolic link to one only the link goes: a user may have moved the
    directory to another disk and left a link in its place.
    """
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def explaining(name: str, folder: Path) -> Iterator[None]:
    """What the disk refuses, in words.

    Args:
        name: Of what is to be there, for messages.
        folder: Where work goes on, named where an error names no file.

    Raises:
        SnapshotError: Within it the disk refused something.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise SnapshotError(
                "disk",
                f"{name}: the disk of {folder} is full ({error.strerror})",
                "What arrived is kept; free space and deploy again to go on from it",
            ) from None
        if error.errno == errno.EROFS:
            raise SnapshotError(
                "target",
                f"{name}: {where} is on a filesystem that is mounted read-only",
                "Look why (`dmesg`: errors make the kernel do that) and remount it, or set "
                "roost_model_dir to another",
            ) from None
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise SnapshotError(
                "target",
                f"{name}: {where} may not be written by uid {os.geteuid()}",
                "Deploy with become, or give that directory to the user",
            ) from None
        if error.errno in {errno.EEXIST, errno.ENOTDIR}:
            raise SnapshotError(
                "target",
                f"{name}: {_no_directory(Path(where))} is in the way: a directory belongs "
                "there, and it is none",
                "Look what it is (a link to a disk that is not mounted?) and move it away, or set "
                "roost_model_dir to another",
            ) from None
        raise SnapshotError(
            "target",
            f"{name}: {where} cannot be written ({error.strerror or error})",
            "Look at that disk (`dmesg` on the host), or set roost_model_dir to another",
        ) from None


def _no_directory(path: Path) -> Path:
    """The first part of a path that exists and is no directory."""
    way = [*reversed(path.parents), path]
    return next((one for one in way if os.path.lexists(one) and not one.is_dir()), path)

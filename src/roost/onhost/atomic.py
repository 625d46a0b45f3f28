"""Files and links that are there whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Iterator

#: Ends the name of what is not in its place yet; one that is killed leaves it behind.
_DRAFT = ".new"
#: What a file system says that has no such promise to give, and a folder that may not be listed.
_NO_PROMISE = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES}


def write(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write a file, so that a reader sees all of it or the one before, power cuts included.

    Of a symbolic link the file that it leads to is written. Missing folders are made. Several may
    write one file at a time: the last one's is there in the end.

    Args:
        path: Of the file.
        content: Text is written as UTF-8.
        mode: Its permissions, from the first moment on. None: those of the file that it replaces;
            of a new one as the umask has it.

    Raises:
        OSError: It cannot be written; the error names ``path``. What was there is unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    with _naming(path):
        place = Path(os.path.realpath(path))
        with contextlib.suppress(FileNotFoundError):
            there = place.stat().st_mode
            if not stat.S_ISREG(there):
                # Renaming would put a file in the place of a device or a pipe.
                raise OSError(errno.EEXIST, "what is there is no file")
            mode = stat.S_IMODE(there) if mode is None else mode
        place.parent.mkdir(parents=True, exist_ok=True)
        with _beside(place) as draft:
            wanted = 0o666 if mode is None else mode
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, wanted)
            with os.fdopen(handle, "wb") as file:
                if mode is not None and stat.S_IMODE(os.fstat(handle).st_mode) != mode:
                    os.fchmod(handle, mode)  # the umask has taken something away
                file.write(data)
                file.flush()
                os.fsync(handle)


def point(link: Path, to: str | Path) -> None:
    """Make a symbolic link lead elsewhere, from one moment to the next, power cuts included.

    Raises:
        OSError: It cannot be made; the error names ``link``. What was there is unchanged.
    """
    with _naming(link), _beside(link) as draft:
        draft.symlink_to(to)


def flush(path: Path) -> None:
    """Make a file's content, or the names in a folder, outlive a power cut, where that can be."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_PROMISE:
            raise


def is_draft(name: str) -> bool:
    """Whether a file of this name is what :func:`write` or :func:`point` had begun."""
    return name.startswith(".") and name.endswith(_DRAFT)


@contextlib.contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """A name that nobody else has, to make what is then put in its place; or nothing is left."""
    draft = place.with_name(f".{place.name}.{os.urandom(4).hex()}{_DRAFT}")
    try:
        yield draft
        draft.replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    flush(place.parent)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors name what was to be written: of a full disk the system names no file at all."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error

"""Opening what stands in a run's folder, which may have come from anywhere.

A link there could lead to anything that whoever reads runs may read, a pipe would be waited for,
and a file may be larger than memory. A folder that somebody names may be a link itself, as may any
above it: that is their own choice.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

#: Bytes of a document or table; the largest that a run writes are a hundredth of this.
LARGEST = 128 * 2**20


def opened(path: Path, most: int | None = LARGEST) -> BinaryIO:
    """A plain file, to be read.

    Args:
        path: The file.
        most: Bytes that it may have; none: any number.

    Raises:
        OSError: It cannot be opened, is no plain file or is too large; ``strerror`` says which.
    """
    try:
        # Without O_NONBLOCK a pipe is waited for until somebody writes.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _refused(path, "a link, and links in a run's folder are not followed") from None
        raise
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise _refused(path, "a pipe, socket or device, and no file")
        if most is not None and found.st_size > most:
            size = f"{found.st_size / 2**20:,.0f} MiB, {most // 2**20} at the most"
            raise OSError(errno.EFBIG, size, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: Path, most: int | None = LARGEST) -> bytes:
    """All of a plain file.

    Raises:
        OSError: As :func:`opened`.
    """
    with opened(path, most) as stream:
        return stream.read()


def text(path: Path, most: int | None = LARGEST) -> str:
    """All of a plain file of UTF-8.

    Raises:
        OSError: As :func:`opened`.
        UnicodeDecodeError: It is no text.
    """
    return read(path, most).decode()


def _refused(path: Path, why: str) -> OSError:
    return OSError(errno.EINVAL, why, str(path))

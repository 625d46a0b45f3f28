"""Files on the controller: whole or not at all, with one message where they cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path

from roost.errors import RoostError
from roost.onhost import atomic


def write(path: Path, content: str | bytes) -> None:
    """Write a file, see :func:`roost.onhost.atomic.write`.

    Raises:
        RoostError: It cannot be written; what was there is unchanged, and nothing is left behind.
    """
    try:
        atomic.write(path, content)
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        todo = f"make room on the disk of {path.parent}" if full else "choose another place"
        raise RoostError(
            f"{path}: cannot be written",
            why=str(error.strerror),
            fix=f"what was there before is unchanged; {todo}",
        ) from None

"""Files on the controller: whole or not at all, with one message where they cannot be written."""

from __future__ import annotations

import errno
import shlex
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


def create(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write a file that is not there yet; never over one that is, nor into a folder that is not.

    Args:
        path: Of the file.
        content: Text is written as UTF-8.
        mode: Its permissions, from the first moment on; none: as the umask has it.

    Raises:
        RoostError: It is there, or cannot be written; then nothing is left behind.
    """
    try:
        # The name is taken first: of two writers the second is refused.
        path.open("xb").close()
        try:
            atomic.write(path, content, mode)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except FileExistsError:
        raise RoostError(
            f"{path}: is there already", fix="name another file, or remove that one"
        ) from None
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        todo = f"make room on the disk of {path.parent}" if full else "name another file"
        if not path.parent.is_dir():
            todo = f"mkdir -p {shlex.quote(str(path.parent))}"
        raise RoostError(f"{path}: cannot be written", why=str(error.strerror), fix=todo) from None

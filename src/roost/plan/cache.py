"""What was read of a commit, kept on disk: a commit never changes, so a hub is asked once.

A cache only: a record that is damaged, cannot be written, or was made by other code than this is as
good as none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from roost.onhost import atomic
from roost.onhost.weights import safetensors


def read(where: str) -> Any | None:
    """The document that is kept under a name; none if there is none, or it cannot be trusted.

    Args:
        where: ``owner/name@commit``.
    """
    # Finding the user's home raises RuntimeError where there is none.
    with suppress(OSError, ValueError, RuntimeError):
        text = _file(where).read_text(encoding="utf-8")
        body = text.partition("\n")[2]
        if text == _sealed(body):
            return json.loads(body)
    return None


def write(where: str, document: Any) -> None:
    """Keep a document, whole or not at all; one that cannot be kept is no error.

    Args:
        where: ``owner/name@commit``.
        document: Anything that :mod:`json` writes, NaN and lone surrogates included.
    """
    # Reading again costs seconds; a full disk or a read-only home is no reason to fail.
    with suppress(OSError, ValueError, RuntimeError):
        file = _file(where)
        # What a gated repository holds is for this user alone.
        atomic.write(file, _sealed(json.dumps(document)), 0o600)


def _file(where: str) -> Path:
    """Where a document is kept, as the XDG base directory specification has it."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    root = base if base.is_absolute() else Path.home() / ".cache"
    return root / "roost" / "checkpoints" / f"{where}.json"


@functools.cache
def code() -> bytes:
    """The code that reads checkpoints: what another version of it has kept is read anew."""
    here = sorted(Path(__file__).parent.glob("*.py"))
    return b"".join(path.read_bytes() for path in [*here, Path(safetensors.__file__)])


def _sealed(body: str) -> str:
    """The text of a record: a digest of code and content, then the content.

    The digest tells a damaged record, and one that other code has made.
    """
    return hashlib.sha256(code() + body.encode()).hexdigest() + "\n" + body

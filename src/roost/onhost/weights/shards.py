"""Checks weights that have arrived: their indexes, shards and headers must agree.

Their hashes are right by then, so what is wrong here is wrong on the hub. Engines may not notice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from . import safetensors
from .failures import SnapshotError
from .revision import Revision


class _BrokenError(Exception):
    def __init__(self, path: Path, what: str, reason: str = "incomplete") -> None:
        self.path = path
        self.what = what
        self.reason = reason
        super().__init__(what)


def check(folder: Path, revision: Revision) -> None:
    """Look at every index and every safetensors file below a directory.

    Raises:
        SnapshotError: One is not what it should be.
    """
    try:
        _check(folder, revision.wants)
    except _BrokenError as error:
        raise SnapshotError(
            error.reason,
            f"{revision.name}: {error.path.relative_to(folder)} {error.what}",
            "It is so on the hub: the repository is broken at this revision, pin another one",
        ) from None


def _check(folder: Path, wanted: Callable[[str], bool]) -> None:
    held = {str(path.relative_to(folder)): _tensors(path) for path in folder.rglob("*.safetensors")}
    for index in folder.rglob("*.safetensors.index.json"):
        try:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _BrokenError(index, "is no index of shards") from None
        for tensor, shard in places:
            path = os.path.relpath(index.parent / str(shard), folder)
            if path not in held:
                if wanted(path):
                    raise _BrokenError(index, f"names {shard}, which the repository lacks")
            elif tensor not in held[path]:
                raise _BrokenError(index, f"names {tensor[:80]!r}, which {shard} lacks")


def _tensors(path: Path) -> set[str]:
    """Names of the tensors in one file; its header must account for every byte of it."""
    size = path.stat().st_size
    with path.open("rb") as reading:
        start = reading.read(512)
        length = safetensors.header_length(start)
        too_long = length > safetensors.MOST_HEADER_BYTES
        if too_long and (kind := safetensors.another_kind(start)):
            raise _BrokenError(path, f"is {kind}, not weights", "not_weights")
        if len(start) < safetensors.PREFIX or too_long or safetensors.PREFIX + length > size:
            raise _BrokenError(path, "has no header that a safetensors file begins with")
        reading.seek(safetensors.PREFIX)
        header = reading.read(length)
    try:
        entries = json.loads(header)
        entries.pop(safetensors.METADATA, None)
        places = [(*entry["data_offsets"], name) for name, entry in entries.items()]
        end = safetensors.PREFIX + length + safetensors.data_end(places)
    except safetensors.MisplacedError:
        raise _BrokenError(path, "has tensors that overlap or leave holes") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _BrokenError(path, "has a header that cannot be read") from None
    if end != size:
        raise _BrokenError(path, f"has {size:,} bytes, its header tells of {end:,}")
    return set(entries)

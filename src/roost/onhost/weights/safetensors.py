"""What a safetensors file begins with, and what stands there instead where it is none.

A file is 8 bytes with the header's length (little-endian), the header (JSON: data type, shape and
place of each tensor), and the tensors, one after another up to the file's end. Nothing here does
I/O. These rules hold on the host, for what has arrived, and on the controller, for what a plan
reads (:mod:`roost.plan.safetensors`, which asks more of a header); they are those of the reference
implementation (safetensors 0.8, ``tensor.rs``).
"""

from __future__ import annotations

from collections.abc import Iterable

#: Bytes before the header.
PREFIX = 8
#: The longest header that the reference implementation reads, bytes.
MOST_HEADER_BYTES = 100_000_000
#: In a header, beside the tensors: texts about the file.
METADATA = "__metadata__"

LFS_POINTER = "a Git LFS pointer"
PAGE = "an HTML page"


class MisplacedError(Exception):
    """A tensor does not begin where the one before it ends; the message is its name."""


def header_length(start: bytes) -> int:
    """The length that a file's first bytes promise its header; of any text, a huge one."""
    return int.from_bytes(start[:PREFIX], "little")


def another_kind(start: bytes) -> str | None:
    """What a file is that begins like this, where it is a well-known something else.

    The first bytes of a right header may read like the beginning of a page; ask this only where
    what they promise is more than :data:`MOST_HEADER_BYTES`, or the size is another.
    """
    if start.startswith(b"version https://git-lfs"):
        return LFS_POINTER
    if start.lstrip()[:1] == b"<":
        return PAGE
    return None


def data_end(places: Iterable[tuple[int, int, str]]) -> int:
    """Where the last tensor ends, which is where the file must.

    Args:
        places: Where each begins and ends, in bytes after the header, and its name.

    Raises:
        MisplacedError: Some overlap or leave holes.
    """
    reached = 0
    for begin, end, name in sorted(places):
        if begin != reached or end < begin:
            raise MisplacedError(name)
        reached = end
    return reached

"""Binary multiples of a byte, and amounts of bytes for people."""

from __future__ import annotations

KIB = 2**10
MIB = 2**20
GIB = 2**30


def size(count: int) -> str:
    """Bytes in the largest fitting binary unit, with one decimal."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"

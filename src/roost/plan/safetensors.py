"""The safetensors format: an index of shards, and the header that each shard begins with.

What holds wherever a file is read is in :mod:`roost.onhost.weights.safetensors`. A plan counts with
the tensors, so here their types and shapes must be right too. Nothing here does I/O; what is
accepted is what the reference implementation accepts (safetensors 0.8, ``tensor.rs``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from roost.errors import RoostError
from roost.onhost.weights.safetensors import (
    LFS_POINTER,
    METADATA,
    MOST_HEADER_BYTES,
    PAGE,
    PREFIX,
    MisplacedError,
    another_kind,
    data_end,
    header_length,
)
from roost.plan.architecture import parse_config

# Bits of one item. NVFP4 is mostly stored as U8, two values a byte; F4 counts values.
_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(["BOOL", "U8", "I8"], 8),
    **dict.fromkeys(["F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"], 8),
    **dict.fromkeys(["I16", "U16", "F16", "BF16"], 16),
    **dict.fromkeys(["I32", "U32", "F32"], 32),
    **dict.fromkeys(["I64", "U64", "F64", "C64"], 64),
}

# What PyTorch can hold; a product over more is a way to keep a reader busy.
_MOST_DIMENSIONS = 64

_FETCH_AGAIN = "fetch the file again; if it stays so, the repository is broken at this revision"


def parse_index(text: str, where: str) -> dict[str, str]:
    """Shard by tensor, from the text of a ``model.safetensors.index.json``.

    Raises:
        RoostError: Not an index, or one that names what is no file beside it.
    """
    weights = parse_config(text, where).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise RoostError(
            f"{where}: weight_map: must be a mapping of tensors to shards",
            fix=_FETCH_AGAIN,
        )
    for shard in {shard if isinstance(shard, str) else None for shard in weights.values()}:
        if shard is None or not _is_shard(shard):
            raise RoostError(
                f"{where}: weight_map: {short(shard)} is not the name of a shard",
                why="shards are .safetensors files beside their index",
                fix="do not use this repository at this revision",
            )
    return weights


def _is_shard(name: str) -> bool:
    return (
        name.endswith(".safetensors")
        and not name.startswith(".")
        and name.isprintable()
        and "/" not in name
    )


def header_bytes(start: bytes, file_bytes: int, where: str) -> int:
    """The length of a file's header.

    Args:
        start: The file's first bytes: more than :data:`PREFIX`, or all there are.
        file_bytes: Size of the whole file.
        where: Its name in messages.

    Raises:
        RoostError: The file is empty, something else, or shorter than its header.
    """
    if not file_bytes:
        raise RoostError(f"{where}: is empty (0 bytes)", fix=_FETCH_AGAIN)
    if file_bytes < PREFIX or len(start) < PREFIX:
        raise RoostError(
            f"{where}: is cut off: {file_bytes:,} bytes are less than a header", fix=_FETCH_AGAIN
        )
    length = header_length(start)
    if length > MOST_HEADER_BYTES:
        raise _other(start, length, where)
    if PREFIX + length > file_bytes:
        raise RoostError(
            f"{where}: is cut off inside its header: {file_bytes:,} bytes of "
            f"{PREFIX + length:,} or more",
            fix=_FETCH_AGAIN,
        )
    return length


def _other(start: bytes, length: int, where: str) -> RoostError:
    """What a file is whose first bytes would make no header: any text reads as a huge length."""
    kind = another_kind(start)
    if kind == LFS_POINTER:
        return RoostError(
            f"{where}: is a Git LFS pointer, not the weights",
            fix="fetch it from the hub, or run `git lfs pull` in the clone",
        )
    if kind == PAGE:
        return RoostError(
            f"{where}: is HTML or XML, not weights",
            why="a login or error page was saved in its place",
            fix="fetch it again from the hub, with a token where the repository is gated",
        )
    if start[:PREFIX].isascii():
        return RoostError(
            f"{where}: is text, not weights: {short(start[:80].decode('latin-1'))}",
            why="a hub's error message was saved in its place, or another file under its name",
            fix=_FETCH_AGAIN,
        )
    return RoostError(
        f"{where}: is no safetensors file, or a damaged one",
        why=f"its first bytes promise a header of {length:,} bytes, and none is that long",
        fix=_FETCH_AGAIN,
    )


def parse_header(header: bytes, data_bytes: int, where: str) -> dict[str, int]:
    """Bytes by tensor.

    Args:
        header: The JSON after the first :data:`PREFIX` bytes.
        data_bytes: What follows it in the file.
        where: The file's name in messages.

    Raises:
        RoostError: Not a header, or one that does not describe a file of that size: a data type
            nobody knows, a shape that takes other bytes than the tensor has, tensors that overlap
            or leave holes, a file that ends before its last tensor or goes on after it.
    """
    try:
        entries = json.loads(header.decode())
    except (ValueError, RecursionError):
        # Not UTF-8, not JSON, a number of thousands of digits, or brackets without end.
        raise RoostError(f"{where}: its header is not JSON", fix=_FETCH_AGAIN) from None
    if not isinstance(entries, dict):
        raise RoostError(f"{where}: its header is not a mapping", fix=_FETCH_AGAIN)
    metadata = entries.pop(METADATA, None)
    if metadata is not None and not _is_text_mapping(metadata):
        raise _wrong(where, METADATA, "is not a mapping of texts")
    places = [(*_place(entry, name, where), name) for name, entry in entries.items()]
    try:
        reached = data_end(places)
    except MisplacedError as error:
        what = "does not begin where the tensor before it ends"
        raise _wrong(where, str(error), what) from None
    if reached > data_bytes:
        raise RoostError(
            f"{where}: is cut off: its tensors take {reached:,} bytes, and "
            f"{data_bytes:,} are there",
            fix=_FETCH_AGAIN,
        )
    if reached < data_bytes:
        raise RoostError(
            f"{where}: goes on for {data_bytes - reached:,} bytes after its last tensor",
            why="its header is not the one that these weights were written with",
            fix=_FETCH_AGAIN,
        )
    return {name: end - begin for begin, end, name in places}


def _place(entry: Any, name: str, where: str) -> tuple[int, int]:
    """Where a tensor begins and ends, bytes after the header."""
    if not isinstance(entry, dict):
        raise _wrong(where, name, "is not described by a mapping")
    bits = _BITS.get(entry["dtype"]) if isinstance(entry.get("dtype"), str) else None
    if bits is None:
        raise _wrong(where, name, f"has a data type nobody knows: {short(entry.get('dtype'))}")
    shape = _counts(entry.get("shape"))
    if shape is None or len(shape) > _MOST_DIMENSIONS:
        raise _wrong(where, name, "has a shape that is no list of sizes")
    offsets = _counts(entry.get("data_offsets"))
    if offsets is None or len(offsets) != 2 or offsets[1] < offsets[0]:
        raise _wrong(where, name, "has data_offsets that are no beginning and end")
    begin, end = offsets
    if (end - begin) * 8 != math.prod(shape) * bits:
        raise _wrong(where, name, "takes other bytes than its shape and data type")
    return begin, end


def _counts(value: Any) -> list[int] | None:
    # By type, not isinstance: true and false are integers to Python. No file has 2**64 bytes.
    if isinstance(value, list) and all(type(item) is int and 0 <= item < 2**64 for item in value):
        return value
    return None


def _is_text_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())


def _wrong(where: str, name: str, what: str) -> RoostError:
    return RoostError(f"{where}: header: {short(name)} {what}", fix=_FETCH_AGAIN)


def short(value: object) -> str:
    """Somebody else's value for a message: one line of ASCII, not long."""
    if isinstance(value, str):
        return ascii(value if len(value) <= 80 else value[:77] + "...")
    return f"a {type(value).__name__}"

"""Headers and indexes: right ones, damaged ones, hostile ones.

Which headers are accepted was compared with the ``safetensors`` package itself on 180,000 drawn
files, without a difference; the cases here are the kinds of those.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plan_checkpoints import Tensors, header

from roost.errors import RoostError
from roost.plan.safetensors import header_bytes, parse_header, parse_index

GOOD: Tensors = {"a": ("BF16", [2, 3]), "b": ("U8", [5]), "c": ("F32", []), "d": ("F4", [8])}


def read(file: bytes, file_bytes: int | None = None) -> dict[str, int]:
    """As a reader would: length, header, tensors."""
    size = len(file) if file_bytes is None else file_bytes
    length = header_bytes(file[:64], size, "x.safetensors")
    return parse_header(file[8 : 8 + length], size - 8 - length, "x.safetensors")


def of(entries: object, data: int = 0) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


def one(**changes: Any) -> bytes:
    return of({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}, 8)


def test_bytes_of_each_tensor() -> None:
    start, data = header(GOOD)
    assert read(start + bytes(data)) == {"a": 12, "b": 5, "c": 4, "d": 4}


def test_a_header_whose_length_reads_like_html() -> None:
    """The first byte of a header of 60 + 256 bytes is the `<` of a web page."""
    text = b"{}" + b" " * (ord("<") + 256 - 2)
    assert read(len(text).to_bytes(8, "little") + text) == {}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"{}", "is cut off: 2 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "is a Git LFS pointer"),
        (b"<!DOCTYPE html><title>Log in</title>", "is HTML"),
        (b"\n <html>", "is HTML"),
        (b"Entry not found", "is text, not weights: 'Entry not found'"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P", "is no safetensors file"),  # a pickle
        ((100_000_001).to_bytes(8, "little") + bytes(9), "is no safetensors file"),
        ((100).to_bytes(8, "little") + b"{", "cut off inside its header: 9 bytes of 108"),
        (of([]), "its header is not a mapping"),
        (b"\x02" + bytes(7) + b"{\xff", "its header is not JSON"),
        (b"\x02" + bytes(7) + b"{]", "its header is not JSON"),
        (of({"__metadata__": {"format": 1}}), "is not a mapping of texts"),
        (of({"t": 3}), "'t' is not described by a mapping"),
        (one(dtype="F7"), "data type nobody knows: 'F7'"),
        (one(dtype=["F32"]), "data type nobody knows: a list"),
        (one(shape=2), "a shape that is no list of sizes"),
        (one(shape=[2.0]), "a shape that is no list of sizes"),
        (one(shape=[True, 2]), "a shape that is no list of sizes"),
        (one(shape=[-2]), "a shape that is no list of sizes"),
        (one(shape=[0, 2**64]), "a shape that is no list of sizes"),
        (one(shape=[1] * 99 + [2]), "a shape that is no list of sizes"),
        (one(shape=[3]), "takes other bytes than its shape and data type"),
        (one(shape=[2**63] * 64), "takes other bytes"),
        (one(dtype="F4", shape=[15]), "takes other bytes"),
        (one(data_offsets=[8, 0]), "no beginning and end"),
        (one(data_offsets=[0, 8, 8]), "no beginning and end"),
        (one(data_offsets=None), "no beginning and end"),
        (one(data_offsets=[1, 9]), "does not begin where the tensor before it ends"),
    ],
)
def test_each_damage_has_its_own_words(file: bytes, message: str) -> None:
    with pytest.raises(RoostError, match=message) as caught:
        read(file)
    assert caught.value.what.startswith("x.safetensors: ")
    assert "\n" not in caught.value.what


def test_tensors_that_overlap_or_leave_holes() -> None:
    entries = {
        name: {"dtype": "U8", "shape": [4], "data_offsets": place}
        for name, place in (("a", [0, 4]), ("b", [3, 7]))
    }
    with pytest.raises(RoostError, match="'b' does not begin where"):
        read(of(entries, 7))
    entries["b"]["data_offsets"] = [5, 9]
    with pytest.raises(RoostError, match="'b' does not begin where"):
        read(of(entries, 9))


def test_a_file_that_ends_early_or_late() -> None:
    start, data = header(GOOD)
    with pytest.raises(RoostError, match=f"take {data} bytes, and {data - 1} are there"):
        read(start + bytes(data - 1))
    with pytest.raises(RoostError, match="goes on for 3 bytes"):
        read(start + bytes(data + 3))


def test_brackets_without_end_and_endless_numbers() -> None:
    for text in (b"[" * 100_000, b'{"t": ' + b"9" * 10_000 + b"}"):
        with pytest.raises(RoostError, match="is not JSON"):
            read(len(text).to_bytes(8, "little") + text)


def sizes_or_error(file: bytes) -> dict[str, int] | RoostError:
    try:
        return read(file)
    except RoostError as error:
        return error


@given(st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_a_damaged_file_is_an_error_or_still_the_whole_truth(place: int, damage: bytes) -> None:
    start, data = header(GOOD)
    file = start + bytes(data)
    place %= len(file)
    file = file[:place] + damage + file[place + len(damage) :]
    found = sizes_or_error(file)
    if isinstance(found, RoostError):
        assert found.what.isprintable()
    else:
        length = int.from_bytes(file[:8], "little")
        assert sum(found.values()) == len(file) - 8 - length


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_for_a_person(file: bytes) -> None:
    found = sizes_or_error(file)
    assert isinstance(found, dict) or found.what.isprintable()


def test_an_index() -> None:
    text = json.dumps({"metadata": {"total_size": 3}, "weight_map": {"a": "m-1.safetensors"}})
    assert parse_index(text, "i") == {"a": "m-1.safetensors"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html>", "is HTML"),
        ("version https://git-lfs.github.com/spec/v1", "is a Git LFS pointer"),
        ("{", "is not JSON"),
        ("[]", "must be a mapping"),
        ("{}", "weight_map: must be a mapping"),
        ('{"weight_map": []}', "weight_map: must be a mapping"),
        ('{"weight_map": {}}', "weight_map: must be a mapping"),
        *[
            (json.dumps({"weight_map": {"ok": "a.safetensors", "t": shard}}), "is not the name of")
            for shard in (
                None,
                3,
                ["m.safetensors"],
                "",
                "pytorch_model.bin",
                ".safetensors",
                "../../etc/passwd",
                "../m.safetensors",
                "/m.safetensors",
                "deep/m.safetensors",
                "m\0.safetensors",
                "m\n.safetensors",
            )
        ],
    ],
)
def test_what_is_no_index(text: str, message: str) -> None:
    with pytest.raises(RoostError, match=message) as caught:
        parse_index(text, "x.json")
    assert caught.value.what.startswith("x.json: ")
    assert "\n" not in caught.value.what

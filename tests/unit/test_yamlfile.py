"""Strict YAML: duplicates, positions, messages."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost import yamlfile
from roost.errors import RoostError

HERE = Path("some/file.yml")


def test_lines_of_nested_keys_and_items() -> None:
    document = yamlfile.parse("a:\n  b: 1\n  c:\n    - x\n    - y\n", HERE)
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1)) == 5
    assert document.line(("a", "missing")) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "some/file.yml:3: key 'a' stands twice (first on line 1)"),
        ("a: {b: 1, b: 2}\n", "some/file.yml:1: key 'b' stands twice (first on line 1)"),
        ("a: &x [1]\nb: *x\n", "some/file.yml:2: aliases are not used here; write the value out"),
        ("a: [1\n", "some/file.yml:2: "),
        ("? [1]\n: 2\n", "some/file.yml:1: "),
        ("a: !!python/object:os.system x\n", "some/file.yml:1: could not determine a constructor"),
        ("a: 2026-13-40\n", "some/file.yml: not valid YAML"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(RoostError) as caught:
        yamlfile.parse(text, HERE)
    assert message in str(caught.value)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_read_or_refused_in_our_words(text: str) -> None:
    with contextlib.suppress(RoostError):
        yamlfile.parse(text, HERE)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(RoostError, match="no such file"):
        yamlfile.read(tmp_path / "absent.yml")
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(RoostError, match="is not UTF-8 text"):
        yamlfile.read(binary)
    huge = tmp_path / "huge.yml"
    huge.write_bytes(b"#" * (yamlfile.MAX_BYTES + 1))
    with pytest.raises(RoostError, match="which no file of this kind needs"):
        yamlfile.read(huge)
    with pytest.raises(RoostError, match="cannot be read"):
        yamlfile.read(tmp_path)

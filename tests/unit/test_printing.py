"""JSON for other programs, on terminals and pipes of any encoding."""

from __future__ import annotations

import io
import json
import sys

import pytest

from roost import printing

SAID = {"why": "zu wenig Speicher: drei mal 24 GB für 🚢"}


@pytest.mark.parametrize(
    ("encoding", "plain"), [("utf-8", False), ("UTF8", False), ("ascii", True), ("latin-1", True)]
)
def test_what_comes_out_is_json_whatever_the_encoding(
    encoding: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's escapes for what a terminal lacks (\\x, \\U) are none of JSON's."""
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", output)
    printing.as_json(SAID)
    output.flush()
    text = written.getvalue().decode(encoding)
    assert json.loads(text) == SAID
    assert text.isascii() is plain

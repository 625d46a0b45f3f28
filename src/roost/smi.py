"""Cells of nvidia-smi's tables, in all the ways it says that it has no answer."""

from __future__ import annotations

import re

_ABSENT = {"", "n/a", "[n/a]", "not supported", "[not supported]", "[unknown error]"}


def word(text: str) -> str | None:
    """What a cell says, if anything."""
    return None if text.strip().lower() in _ABSENT else text.strip()


def number(text: str) -> int | None:
    """A whole figure; GB10 prints [N/A] where it has no memory of its own."""
    match = re.match(r"\d+", word(text) or "")
    return int(match[0]) if match else None


def figure(text: str) -> float | None:
    """A figure with a fraction, as of power."""
    match = re.match(r"\d+(\.\d+)?", word(text) or "")
    return float(match[0]) if match else None

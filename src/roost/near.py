"""What somebody may have meant who misspelt a name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def miss(given: str, known: Iterable[str], prefix: str = "") -> str:
    """The end of a message about a name that is none; empty if nothing is near.

    Args:
        given: The name.
        known: Those that there are.
        prefix: Stands before what was meant in the message.
    """
    near = difflib.get_close_matches(given, list(known), n=1)
    return f", did you mean {prefix}{near[0]}?" if near else ""

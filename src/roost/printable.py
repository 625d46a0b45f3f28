"""Text from elsewhere, as it may go to a terminal.

A hub's answer, a name in an index, a line from a host: whoever writes them could move the cursor,
retitle the window or hide the rest of the line.
"""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: C0 and C1 without line breaks and tabs, and what turns the direction of writing around.
_CODES = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = {code: ascii(chr(code))[1:-1] for code in _CODES if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """The same text without colours, and with control characters spelled out."""
    return _COLOUR.sub("", text.replace("\r\n", "\n")).translate(_SHOWN)

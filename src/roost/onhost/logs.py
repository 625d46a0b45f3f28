"""An engine's log in bounded memory: its beginning, where a failure's root stands, and its end."""

from __future__ import annotations

import base64
import threading
import zlib
from collections import deque

#: Bytes that are kept of a log's beginning and of its end.
HEAD_BYTES, TAIL_BYTES = 2 << 20, 8 << 20
#: Longer lines are cut into pieces.
LONGEST = 1 << 16
#: Lines that may wait for whoever looks at each.
_WAITING = 100_000


class Log:
    """Lines as they come, from one thread, for another to look at."""

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._lock = threading.Lock()
        self._room, self._tail_bytes = head, tail
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._held = self._left_out = 0
        self._new: deque[str] = deque(maxlen=_WAITING)

    def add(self, line: str) -> None:
        """Take in the next line."""
        with self._lock:
            self._new.append(line)
            if not self._tail and len(line) < self._room:
                self._head.append(line)
                self._room -= len(line) + 1
                return
            self._tail.append(line)
            self._held += len(line) + 1
            while self._held > self._tail_bytes and len(self._tail) > 1:
                self._held -= len(self._tail.popleft()) + 1
                self._left_out += 1

    def unread(self) -> list[str]:
        """Lines that came since this was asked last."""
        with self._lock:
            lines = list(self._new)
            self._new.clear()
        return lines

    def text(self) -> str:
        """All that is kept, with a word on what is not."""
        with self._lock:
            lines = list(self._head)
            if self._left_out:
                lines.append(f"[roost: {self._left_out} lines left out]")
            lines += self._tail
        return "".join(line + "\n" for line in lines)


def packed(text: str) -> str:
    """A log for a message that holds text only; a tenth of its size or so."""
    return base64.b64encode(zlib.compress(text.encode())).decode("ascii") if text else ""


def unpacked(packed_text: str) -> str:
    """What was packed."""
    if not packed_text:
        return ""
    return zlib.decompress(base64.b64decode(packed_text)).decode(errors="replace")

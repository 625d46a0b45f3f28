"""Reads a log once and calls whoever listens for words that stand in it.

Most lines of a log repeat with other numbers. So each *shape* of line is searched for all words
only the first time; that, and searching whole blocks at once, makes a large log quick to read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from typing import TypeAlias

from roost.diagnose import text
from roost.diagnose.text import Line, Passage
from roost.diagnose.words import Words

#: Called with the index of a line; returns whether it explains the line.
Handler: TypeAlias = Callable[[int], bool]

#: Lines kept before and after the one that is looked at: other processes' lines stand between.
_BEHIND, _AHEAD = 16, 96
#: Lines of the same process before it, where a terminal may have wrapped the message.
_BEFORE = 3
#: Shapes remembered.
_MEMORY = 50_000

# What differs between lines that say the same: numbers, hashes, request ids.
_VARYING = b"0123456789abcdef-"
_WHITE = bytes([*range(33), 127])
_ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@cache
def words_of(listened: tuple[bytes, ...]) -> Words:
    """The same words are listened for in every log, so their tables are made once."""
    return Words(listened)


class Scanner:
    """Reads a log block by block and calls the handlers of words that stand in it."""

    def __init__(self) -> None:
        self._handlers: dict[bytes, list[tuple[Handler, bool]]] = {}
        self._lines: list[bytes] = []
        self._numbers: list[int] = []
        self._next = 0
        self._cleaned: dict[int, Line] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._settled: set[int] = set()

    def listen(self, words: str, handler: Handler, *, last: bool = False) -> None:
        """Have a handler called for every line that holds some words, whatever their case.

        Handlers of one line are called in the order in which their words were given first; a
        ``last`` one only if none before it accounts for the line. Once one does, lines of this
        shape are left alone until :meth:`unsettle`.
        """
        squeezed = "".join(words.lower().split()).encode()
        self._handlers.setdefault(squeezed, []).append((handler, last))

    def unsettle(self) -> None:
        """Call handlers for lines of every shape again."""
        self._settled.clear()

    def feed(self, lines: list[bytes], numbers: list[int]) -> None:
        """Take in further lines, and look at those whose successors are known far enough."""
        self._lines += lines
        self._numbers += numbers
        self._look(len(self._lines) - _AHEAD)

    def finish(self) -> None:
        """Look at the last lines, and forget them: what is fed next does not follow on them."""
        self._look(len(self._lines))
        self._lines, self._numbers, self._next = [], [], 0

    def line(self, at: int) -> Line:
        """The line at a place."""
        if at not in self._cleaned:
            self._cleaned[at] = text.clean(self._lines[at], self._numbers[at])
        return self._cleaned[at]

    def owners(self, at: int) -> tuple[str, ...]:
        """Who may have written the line at a place.

        A line that does not say whose it is goes on with the one above, or was written by a process
        that never says so.
        """
        own = self.line(at).owner
        above = range(at, max(-1, at - _BEHIND), -1)
        inherited = next((self.line(index).owner for index in above if self.line(index).owner), "")
        return tuple(dict.fromkeys((inherited, own)))

    def passages(self, at: int, lines: int) -> Iterator[Passage]:
        """For each owner that a line may have, a passage around it.

        Args:
            at: Index of the line.
            lines: How many lines of the owner from there on, at the most; a few before are added.
        """
        for owner in self.owners(at):
            yield self._passage(at, lines, owner)

    def _passage(self, at: int, lines: int, owner: str) -> Passage:
        mine: list[Line] = []
        end = None
        whose = ""
        for index in range(max(0, at - _BEHIND), min(at + _AHEAD, len(self._lines))):
            line = self.line(index)
            whose = line.owner or (whose if owner else "")
            if index == at:
                mine, whose = mine[-_BEFORE:], owner
                end = len(mine) + lines
            if whose == owner and line.text.strip():
                mine.append(line)
                if len(mine) == end:
                    break
        return Passage(mine)

    def _look(self, end: int) -> None:
        if end <= self._next:
            return
        shapes = [hash(line.translate(None, _VARYING)) for line in self._lines[self._next : end]]
        novel = [index for index, shape in enumerate(shapes) if shape not in self._shapes]
        if novel:
            self._shapes.update((shapes[index], ()) for index in novel)
            for at, heard in self._search([self._next + index for index in novel]).items():
                if self._next <= at < end:
                    shape = shapes[at - self._next]
                    self._shapes[shape] = tuple(sorted(heard.union(self._shapes[shape])))
        for index, shape in enumerate(shapes):
            if (words := self._shapes[shape]) and shape not in self._settled:
                self._call(words, self._next + index, shape)
        if len(self._shapes) > _MEMORY:
            self._shapes.clear()
            self._settled.clear()
        dropped = max(0, end - _BEHIND)
        del self._lines[:dropped], self._numbers[:dropped]
        self._next = end - dropped
        self._cleaned.clear()

    def _search(self, novel: list[int]) -> dict[int, set[int]]:
        """Which words stand in which lines, both by index. A terminal may have broken the words."""
        near = {at + step for at in novel for step in (-1, 0, 1, 2)}
        picked = sorted(at for at in near if 0 <= at < len(self._lines))
        raw = b"\n".join([self._lines[at] for at in picked]).lower()
        if b"\x1b" in raw:
            raw = _ESCAPE.sub(b"", raw)
        heard: dict[int, set[int]] = {}
        ends: list[int] = []
        for at, word in words_of(tuple(self._handlers)).search(raw.translate(None, _WHITE)):
            if not ends:
                pieces = raw.split(b"\n")
                ends = list(accumulate(len(piece.translate(None, _WHITE)) for piece in pieces))
            heard.setdefault(picked[bisect_right(ends, at)], set()).add(word)
        return heard

    def _call(self, words: tuple[int, ...], at: int, shape: int) -> None:
        accounted = False
        handlers = list(self._handlers.values())
        for word in words:
            for handler, last in handlers[word]:
                if not (last and accounted):
                    accounted |= handler(at)
        if accounted:
            self._settled.add(shape)

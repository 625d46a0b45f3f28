"""Reads a log once and calls whoever listens for words that stand in it.

Most lines of a log repeat with other numbers. So each *shape* of line is searched for all words
only the first time; that, and searching whole blocks at once, makes a large log quick to read.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

from roost.diagnose import text
from roost.diagnose.text import Line, Passage
from roost.diagnose.words import Words

#: Given the place of a line, says whether it accounts for it.
Handler: TypeAlias = Callable[[int], bool]

#: Lines kept before and after the one that is looked at: other processes' lines stand between.
_BEHIND, _AHEAD = 16, 96
#: Lines of the same process before it: the beginning of what a terminal wrapped.
_BEFORE = 3
#: Shapes remembered.
_MEMORY = 50_000

# What differs between lines that say the same: numbers, hashes, request ids.
_VARYING = b"0123456789abcdef-"
_WHITE = bytes([*range(33), 127])
_ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Scanner:
    """A log that goes by, a few hundred kilobytes at a time."""

    def __init__(self) -> None:
        self._words: list[bytes] = []
        self._handlers: list[list[tuple[Handler, bool]]] = []
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
        if squeezed not in self._words:
            self._words.append(squeezed)
            self._handlers.append([])
        self._handlers[self._words.index(squeezed)].append((handler, last))

    def unsettle(self) -> None:
        """Give every shape attention again."""
        self._settled.clear()

    def feed(self, lines: list[bytes], numbers: list[int]) -> None:
        """Take in further lines, and look at those that have enough of their successors."""
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

    def passages(self, at: int, lines: int) -> Iterator[Passage]:
        """The line at a place, up to ``lines`` - 1 more of the same process and a few before.

        A line that does not say whose it is goes on with the one above, or was written by a process
        that never says so: then there are two ways to read it.
        """
        own = self.line(at).owner
        above = range(at, max(-1, at - _BEHIND), -1)
        inherited = next((self.line(index).owner for index in above if self.line(index).owner), "")
        for owner in dict.fromkeys((inherited, own)):
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
            heard = self._search([self._next + index for index in novel])
            for index in novel:
                self._shapes[shapes[index]] = tuple(sorted(heard.get(self._next + index, ())))
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
        near = {at + step for at in novel for step in range(3)}
        picked = sorted(at for at in near if at < len(self._lines))
        raw = b"\n".join([self._lines[at] for at in picked]).lower()
        if b"\x1b" in raw:
            raw = _ESCAPE.sub(b"", raw)
        heard: dict[int, set[int]] = {}
        ends: list[int] = []
        for at, word in self._searcher.search(raw.translate(None, _WHITE)):
            if not ends:
                pieces = raw.split(b"\n")
                ends = list(accumulate(len(piece.translate(None, _WHITE)) for piece in pieces))
            heard.setdefault(picked[bisect_right(ends, at)], set()).add(word)
        return heard

    @cached_property
    def _searcher(self) -> Words:
        return Words(self._words)

    def _call(self, words: tuple[int, ...], at: int, shape: int) -> None:
        accounted = False
        for word in words:
            for handler, last in self._handlers[word]:
                if not (last and accounted):
                    accounted |= handler(at)
        if accounted:
            self._settled.add(shape)

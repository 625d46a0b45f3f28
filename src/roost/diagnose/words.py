"""Finds any of a few hundred words in a text, all at once.

Python searches for one word at a time, and its regular expressions try one alternative after the
other. Here three tables say of every pair of letters whether some word has it at its beginning, two
letters on, or four letters on; only where all three agree is a word looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

#: Shortest word: one more letter than two pairs.
SHORTEST = 5


class Words:
    """Words to look for.

    Args:
        words: Of :data:`SHORTEST` bytes at least.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        self._tables = np.zeros((3, 1 << 16), dtype=bool)
        self._heads: dict[bytes, list[int]] = {}
        for number, word in enumerate(words):
            for pair, table in enumerate(self._tables):
                first, *second = word[2 * pair : 2 * pair + 2]
                # The third pair of a word of five letters has no second letter, so any will do.
                start = first << 8
                table[start | second[0] if second else slice(start, start + 256)] = True
            self._heads.setdefault(word[:SHORTEST], []).append(number)
        self._words = list(words)

    def search(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Where in a text which word begins: offset and number of the word, by offset."""
        # A byte more, so that the last letter of a text is the first of a pair.
        letters = np.frombuffer(text + b"\0", dtype=np.uint8)
        pairs: npt.NDArray[np.uint16] = letters[:-1].astype(np.uint16)
        pairs <<= 8
        pairs |= letters[1:]
        first, second, third = self._tables
        begins = np.flatnonzero(first[pairs[:-4]])
        begins = begins[second[pairs[begins + 2]]]
        begins = begins[third[pairs[begins + 4]]]
        for at in begins.tolist():
            for number in self._heads.get(text[at : at + SHORTEST], ()):
                if text.startswith(self._words[number], at):
                    yield at, number

"""From the bytes of a log to the lines that programs wrote.

Logs arrive coloured, timestamped, prefixed by whoever collected them, escaped into JSON, wrapped by
a terminal and interleaved with other processes. Here a line loses all that, and keeps who said it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import IO, TypeAlias

Source: TypeAlias = IO[bytes] | IO[str] | Iterable[bytes] | Iterable[str]

#: Bytes read at a time.
CHUNK = 1 << 19
#: Longer lines are cut into pieces: nothing worth a word is longer, and memory stays bounded.
LONGEST = 1 << 14

# The escape byte gets lost when a terminal's text is pasted, and syslog writes it as #033.
_COLOUR = re.compile(
    r"(?:\x1b|\\x1b|\\033|#033|\^\[)\[[0-9;?]*[A-Za-z]|\[(?:\d{1,3};)*\d{1,3}m|\x1b\][^\x07]*\x07"
)
_CONTROL = re.compile(r"[\x01-\x08\x0b-\x1f\x7f\ufffd]")
# Docker's json-file, Ansible's results: text inside a string of a JSON object.
_JSON = re.compile(r'\{"|.{0,200}=> \{|\s+"\w+": "')
_ESCAPES = re.compile(r'\\(u[0-9a-fA-F]{4}|[nrt"/\\])')
_LINE_END = re.compile(rb"(?:\\r)?\\n")
# One string of a list, as Ansible prints it.
_ITEM = re.compile(r'\s*"(.*)",?')
_PLAIN = {"n": "\n", "r": " ", "t": " "}
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})

# One space at most after each, so that a traceback keeps its indentation.
_PREFIX = re.compile(
    r"""\ * (?:
      (?:>\ )+                                                       # quoted in a mail
    | \{"log":"                                                      # docker's json-file
    | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?[ ]
      (?:-\ |\S+\ [\w./@-]+\[\d+\]:\ )?
    | [A-Z][a-z]{2}\ [ \d]\d\ \d\d:\d\d:\d\d\ \S+\ [\w./@-]+(?:\[\d+\])?:[ ]  # syslog, journald
    | (?P<stream>[\w.-]+)\ *\|[ ]                                    # docker compose
    | \[(?P<pod>pod/[^\]\s]+)\][ ]                                   # kubectl
    | \[\ *\d+\.\d{3,}\][ ]                                          # kernel
    | \((?P<process>[\w.-]+(?:\ rank=\d+)?\ pid=\d+)(?:,\ ip=[\d.]+)?\)[ ]    # vLLM, Ray
    | \[\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d(?P<rank>(?:\ [A-Z]{2}\d+)*)\][ ]      # SGLang
    | \[rank\d+\]:\ ?                                                # torch
    | (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\ \d\d-\d\d\ \d\d:\d\d:\d\d(?:\.\d+)?
      \ \[?[\w./-]+:\d+\]\ ?                                         # vLLM
    )
    """,
    re.VERBOSE,
)
_JSON_TAIL = re.compile(r'(?:\\n)?"(?:,"\w+":"[^"]*")*\}?\s*$')


@dataclass(frozen=True, slots=True)
class Line:
    """One line as its program wrote it.

    Attributes:
        number: Of the line in the log, from 1.
        text: Without colours, prefixes and escapes; indentation is kept.
        process: Who wrote it, as far as the line says.
        stream: Whose log it is, where several were collected into one.
        level: As the engine's logger gave it.
        width: Columns that it took in the log, prefixes included.
    """

    number: int
    text: str
    process: str = ""
    stream: str = ""
    level: str = ""
    width: int = 0

    @property
    def prefix(self) -> int:
        """Columns of the line that its program did not write."""
        return self.width - len(self.text)

    @property
    def owner(self) -> str:
        """Stream and process, or nothing where the line does not name a process."""
        return f"{self.stream}/{self.process}" if self.process else ""


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _PLAIN.get(code, code)


def clean(raw: bytes, number: int) -> Line:
    """What a raw line says."""
    # Without its zero bytes, UTF-16 of a Windows terminal reads as ASCII.
    text = raw.replace(b"\0", b"").decode("utf-8", "replace").rstrip("\r\n")
    if text.endswith(('"', '",')) and (item := _ITEM.fullmatch(text)):
        text = _ESCAPES.sub(_unescape, item[1])
    elif '":' in text and _JSON.match(text):
        text = _ESCAPES.sub(_unescape, _JSON_TAIL.sub("", text))
    if "[" in text:
        text = _COLOUR.sub("", text)
    text = _CONTROL.sub(" ", text).translate(_QUOTES)
    width, at, process, stream, level = len(text), 0, "", "", ""
    while match := _PREFIX.match(text, at):
        at = match.end()
        process = match["process"] or (match["rank"] or "").strip() or process
        stream = match["stream"] or match["pod"] or stream
        level = match["level"] or level
    return Line(number, text[at:], process, stream, level, width)


class Passage:
    """Successive lines of one process, and their text without any white space.

    A terminal wraps where it likes, even inside a word; without white space the text is the same.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    @cached_property
    def _pieces(self) -> list[str]:
        return ["".join(line.text.split()) for line in self.lines]

    @cached_property
    def squeezed(self) -> str:
        """The text without white space."""
        return "".join(self._pieces)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self._pieces)))

    def line_at(self, place: int) -> int:
        """Index of the line that holds the character at ``place`` of :attr:`squeezed`."""
        return bisect_right(self._ends, place)

    def _column(self, place: int) -> tuple[int, int]:
        """Line and column of a character of :attr:`squeezed`."""
        index = self.line_at(place)
        nth = place - (self._ends[index] - len(self._pieces[index]))
        visible = (at for at, char in enumerate(self.lines[index].text) if not char.isspace())
        return index, next(islice(visible, nth, None))

    def after(self, line: Line) -> Sequence[Line]:
        """The lines that follow one of them."""
        return self.lines[self.lines.index(line) + 1 :]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Numbers of the first and last line of the message that holds a part of the text."""
        first = self.line_at(start)
        while first and not (self.lines[first].owner or self.lines[first].level):
            first -= 1
        return self.lines[first].number, self.lines[self.line_at(end - 1)].number

    def slice(self, start: int, end: int) -> str:
        """The original text of a part of :attr:`squeezed`, on one line."""
        first, begin = self._column(start)
        last, stop = self._column(end - 1)
        return self._part(first, begin, last, stop + 1)

    def rest(self, start: int) -> str:
        """The original text from a character of :attr:`squeezed` to the end of its line."""
        first, begin = self._column(start)
        last = first
        while last + 1 < len(self.lines) and self._broken(last):
            last += 1
        return self._part(first, begin, last, None)

    def evidence(self, start: int, end: int) -> str:
        """The lines that hold a part of :attr:`squeezed`, on one line."""
        return self._part(self.line_at(start), 0, self.line_at(end - 1), None)

    def _part(self, first: int, begin: int, last: int, stop: int | None) -> str:
        texts = [line.text for line in self.lines[first : last + 1]]
        texts[-1] = texts[-1][:stop]
        texts[0] = texts[0][begin:]
        glued = texts[0]
        for index, part in enumerate(texts[1:], first):
            if part.strip(" ^~"):
                glued += part if self._broken(index) else " " + part
        return " ".join(glued.split())

    def _broken(self, index: int) -> bool:
        """Whether a terminal broke a line: at its width, wherever that was."""
        after = self.lines[index + 1]
        full = self.lines[index].width == max(line.width for line in self.lines)
        return full and not (after.process or after.stream or after.level)


def blocks(source: Source | str | bytes) -> Iterator[tuple[list[bytes], list[int]]]:
    """Read a log by blocks of whole lines, in bounded memory.

    Yields:
        Lines without their ends, and the number of each. A line that holds escaped line ends, or is
        longer than :data:`LONGEST`, comes in pieces that share its number.
    """
    rest, number = b"", 1
    for chunk in chain(_chunks(source), [None]):
        if chunk is None and not rest:
            break
        data = rest + (chunk or b"")
        lines = data.split(b"\n")
        # Only an unfinished line of bounded length waits for its end.
        whole = chunk is None or len(lines[-1]) > LONGEST
        rest = b"" if whole else lines.pop()
        if not lines:
            continue
        numbers = list(range(number, number + len(lines)))
        number += len(lines) - (whole and chunk is not None)
        if b"\\n" in data or max(map(len, lines)) > LONGEST:
            lines, numbers = _cut(lines, numbers)
        yield lines, numbers


def _chunks(source: Source | str | bytes) -> Iterator[bytes]:
    if isinstance(source, str | bytes):
        yield _bytes(source)
    elif isinstance(source, Iterable) and not hasattr(source, "read"):
        held, size = [], 0
        for line in source:
            held.append(_bytes(line).rstrip(b"\n"))
            size += len(held[-1])
            if size >= CHUNK:
                yield b"\n".join([*held, b""])
                held, size = [], 0
        yield b"\n".join([*held, b""]) if held else b""
    else:
        while piece := source.read(CHUNK):
            yield _bytes(piece)


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8", "replace") if isinstance(text, str) else text


def _cut(lines: list[bytes], numbers: list[int]) -> tuple[list[bytes], list[int]]:
    short: list[bytes] = []
    of: list[int] = []
    for line, number in zip(lines, numbers, strict=True):
        # Ansible prints a program's whole output as one string; Docker escapes each line's own end.
        inside = b"\\n" in line and not line.startswith(b'{"log":')
        for part in _LINE_END.split(line) if inside else [line]:
            for at in range(0, len(part) or 1, LONGEST):
                short.append(part[at : at + LONGEST])
                of.append(number)
    return short, of

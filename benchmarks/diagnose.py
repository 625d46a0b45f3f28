"""How quickly a large log is read, and in how much memory.

Usage: python benchmarks/diagnose.py [MEGABYTES]

Logs are made from the engine logs of the tests. Prints megabytes per second and the largest memory
of a process that does nothing else, for the kinds of log that cost differently.
"""

from __future__ import annotations

import gzip
import io
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roost.diagnose import diagnose

LOGS = Path(__file__).parents[1] / "tests" / "unit" / "data" / "engine-logs"


class Stream(io.RawIOBase):
    """A log of a size, that is never in memory as a whole."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self.pieces, self.left, self.held, self.spent = pieces, size, b"", 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        before = time.process_time()
        while self.left > 0 and len(self.held) < len(into):
            self.held += next(self.pieces)
        self.spent += time.process_time() - before
        piece, self.held = self.held[: len(into)], self.held[len(into) :]
        self.left -= len(piece)
        into[: len(piece)] = piece
        return len(piece)


def log(name: str) -> bytes:
    """One of the tests' logs."""
    return gzip.decompress((LOGS / f"{name}.txt.gz").read_bytes())


def serving() -> Iterator[bytes]:
    """A start, then requests and statistics without end."""
    healthy = log("vllm-0.24.0-healthy-dflash-synthetic-acceptance")
    at = healthy.index(b"Application startup complete.") + 30
    lines = healthy[at:].split(b"[shutdown]")[0].rsplit(b"\n", 1)[0] + b"\n"
    yield healthy[:at]
    while True:
        yield lines * (1 + (1 << 18) // len(lines))


def crash_loop() -> Iterator[bytes]:
    """The same failing start, again and again."""
    while True:
        yield log("vllm-0.24.0-fails-drafter-page-larger")


def unlike_lines() -> Iterator[bytes]:
    """No two lines alike, as where prompts are logged."""
    words = [bytes(random.choices(range(97, 123), k=7)) for _ in range(20_000)]  # noqa: S311
    while True:
        yield b"".join(
            b"(APIServer pid=1) INFO 11-29 14:43:27 [logger.py:41] Received request: prompt: '"
            + b" ".join(random.choices(words, k=24))  # noqa: S311
            + b"'\n"
            for _ in range(1200)
        )


def noise() -> Iterator[bytes]:
    """Bytes that are no text."""
    while True:
        yield random.randbytes(1 << 18)  # noqa: S311


def one_line() -> Iterator[bytes]:
    """No end of line at all."""
    while True:
        yield b"=" * (1 << 18)


def measure(kind: str, size: int) -> None:
    """Read one kind of log and print a line about it."""
    made = Stream(globals()[kind](), size)
    stream = io.BufferedReader(made)
    # Of this process, without making the log: what else the machine does is not counted.
    before = time.process_time()
    found = [item.id for item in diagnose(stream) if item.severity != "info"]
    seconds = time.process_time() - before - made.spent
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{kind:14} {size / 1e6 / seconds:6.0f} MB/s  {memory:4.0f} MiB  {found}")


if __name__ == "__main__":
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for kind in ("serving", "crash_loop", "unlike_lines", "noise", "one_line"):
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(kind, megabytes * 1_000_000)
        )
        process.start()
        process.join()

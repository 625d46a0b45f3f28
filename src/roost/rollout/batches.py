"""How a fleet is divided: one host of each kind first, then shares of every kind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roost.errors import UsageError

DEFAULT = "1,25%,100%"


@dataclass(frozen=True)
class Size:
    """How many hosts of a kind: a number, or a percentage of them."""

    number: int
    percent: bool = False

    def of(self, hosts: int) -> int:
        """That many of so many hosts; a percentage is rounded down, and is at least one host."""
        return max(1, hosts * self.number // 100) if self.percent else self.number


def parse(text: str) -> list[Size]:
    """Sizes from ``1,25%,100%``.

    Raises:
        UsageError: A size is no number of hosts and no percentage, or is none of them.
    """
    sizes = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(%?)\s*", word)
        size = Size(int(match[1]), bool(match[2])) if match else None
        if size is None or size.number < 1 or (size.percent and size.number > 100):
            raise UsageError(
                f"batches {text!r}: {word.strip()!r} is no size of a batch",
                why="a size is a number of hosts from 1, or a percentage from 1% to 100%",
                fix=f"for example --batches {DEFAULT}",
            )
        sizes.append(size)
    return sizes


def divide(kinds: Mapping[str, Sequence[str]], sizes: Sequence[Size]) -> list[tuple[str, ...]]:
    """Hosts in batches, in order.

    The first size is taken of one kind after the other: kinds may serve the same name, and their
    canaries together may be all the hosts that it has. Each further one is taken of all kinds at
    once; the last size is repeated until no host is left.

    Args:
        kinds: Hosts by what they are and run, none of them empty.
        sizes: At least one.
    """
    left = {kind: list(hosts) for kind, hosts in kinds.items()}
    batches: list[tuple[str, ...]] = []
    first, *further = sizes
    for kind, hosts in left.items():
        batches.append(tuple(_take(hosts, first.of(len(kinds[kind])))))
    while any(left.values()):
        size = further.pop(0) if len(further) > 1 else (further or [first])[0]
        taken = [
            host for kind, hosts in left.items() for host in _take(hosts, size.of(len(kinds[kind])))
        ]
        batches.append(tuple(taken))
    return batches


def _take(hosts: list[str], count: int) -> list[str]:
    taken = hosts[:count]
    del hosts[:count]
    return taken

"""The terminal that a standard stream may be."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

#: Columns where nothing has to fit: more than any table has.
UNLIMITED = 100_000


def present(name: str = "stdout") -> bool:
    """Whether a standard stream is a terminal; it is none where it was closed."""
    # Python has no stream at all for a closed descriptor, whatever the types say.
    stream = getattr(sys, name, None)
    return stream is not None and stream.isatty()


def columns() -> int:
    """How wide the terminal is; without one nothing has to fit, and a file has whole lines."""
    return shutil.get_terminal_size().columns if present() else UNLIMITED


def lines(table: Table) -> list[str]:
    """A table at the width that it needs, without the blanks that fill its last column.

    On a terminal that is narrower the terminal itself breaks the lines: nothing is left out.
    """
    from rich.console import Console

    console = Console(width=UNLIMITED)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def fits(shown: list[str]) -> bool:
    """Whether no line is wider than the terminal."""
    return all(len(click.unstyle(line)) <= columns() for line in shown)


def show(table: Table) -> None:
    """Print a table, whole."""
    for line in lines(table):
        click.echo(line)

"""The command lines of modules that generate pages."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def target(module: str, usual: str, given: Sequence[str] | None = None) -> Path:
    """Where to write: the one argument of ``python -m MODULE``.

    Args:
        module: Its name, for the usage.
        usual: Where the page is in the checkout, from its root.
        given: Arguments; none: the process's own.

    Raises:
        SystemExit: Another number of arguments, or an option; with the usage, 0 for ``--help``.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("path", metavar="PATH", type=Path, help=f"what to write: {usual}")
    path: Path = parser.parse_args(given).path
    return path

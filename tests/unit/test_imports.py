"""Which parts of the package may lean on which."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import roost

SOURCES = Path(roost.__file__).parent
LAB = re.compile(r"roost\.lab(\.\w+)*")


def named(path: Path) -> Iterator[str]:
    """What a module imports, and what it could import by a name in a string."""
    package = ["roost", *path.relative_to(SOURCES).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_only_the_command_of_the_lab_leads_into_the_lab() -> None:
    """Users deploy without it: it wants root, and packages that they need not install."""
    found = {
        (path.relative_to(SOURCES).as_posix(), name)
        for path in SOURCES.rglob("*.py")
        if path.relative_to(SOURCES).parts[0] != "lab"
        for name in named(path)
        if LAB.fullmatch(name)
    }
    assert found == {("cli.py", "roost.lab.cli")}

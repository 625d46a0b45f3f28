"""Parts of the package that are installed on hosts, and the hashes that tell whether they are."""

from __future__ import annotations

import ast
import functools
import hashlib
from importlib import resources


@functools.cache
def watchdog() -> dict[str, str]:
    """SHA-256 of the watchdog's files by name, as the module ``onhost_program`` writes them.

    They are the module itself and what it imports of its package, as Ansible sends it.
    """
    package = resources.files("roost.onhost")
    present = {entry.name for entry in package.iterdir()}
    found: dict[str, str] = {}
    wanted = ["__init__.py", "watchdog.py"]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        text = package.joinpath(name).read_bytes()
        found[name] = hashlib.sha256(text).hexdigest()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                modules = [node.module] if node.module else [alias.name for alias in node.names]
                wanted += [file for module in modules if (file := f"{module}.py") in present]
    return found

"""The environment that Ansible is started with, wherever roost starts it."""

from __future__ import annotations

import functools
import locale
import os
import sys
import tempfile
from pathlib import Path

from roost.errors import UsageError


def environment() -> dict[str, str]:
    """Variables to set over this process's own.

    Ansible refuses to run in another encoding than UTF-8, and in a locale that is not installed (as
    ssh may bring one along): ``C.UTF-8`` stands in for both.

    Raises:
        UsageError: The home directory cannot be written, where Ansible keeps its temporary files.
    """
    _require_home()
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        # Ansible is beside this Python, also where nobody activated the environment.
        "PATH": os.pathsep.join(path),
        **({} if _speaks_utf8() else {"LC_ALL": "C.UTF-8"}),
    }


def _require_home() -> None:
    if os.environ.keys() & {"ANSIBLE_HOME", "ANSIBLE_LOCAL_TEMP"}:
        return
    try:
        # Ansible makes it as well, and ends in a traceback where it cannot.
        folder = Path.home() / ".ansible"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"the home directory cannot be written: {error}",
            why="Ansible keeps its temporary files there",
            fix="name other places: export ANSIBLE_HOME=$(mktemp -d) IPYTHONDIR=$(mktemp -d)",
        ) from None


@functools.cache
def _speaks_utf8() -> bool:
    """Whether the environment's locale is installed, and of that encoding."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
        return locale.getlocale(locale.LC_CTYPE)[1] == "UTF-8"
    except (locale.Error, ValueError):
        return False
    finally:
        locale.setlocale(locale.LC_ALL, before)

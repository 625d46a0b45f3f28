"""Where the playbooks, roles and notebooks are, and a user's own catalogue."""

from __future__ import annotations

from pathlib import Path

from roost.errors import UsageError

#: Names a directory of further catalogue files; `roost --catalog` sets it. In the environment,
#: since notebooks' kernels and Ansible's filters are processes of their own.
CATALOG_VARIABLE = "ROOST_CATALOG"


def default_lock_file() -> Path:
    """Where a lock is looked for when nothing names one: the checkout's, else this directory's."""
    try:
        return repository_root() / "roost.lock.yml"
    except UsageError:
        return Path("roost.lock.yml")


def repository_root() -> Path:
    """The checkout that holds ``deploy.yml``: the working directory's, else this package's own.

    Raises:
        UsageError: Neither is inside a checkout.
    """
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            if (folder / "deploy.yml").is_file() and (folder / "playbooks").is_dir():
                return folder
    raise UsageError(
        "this directory is not inside a checkout of roost",
        why="playbooks, roles and notebooks are read from there",
        fix="cd into the checkout and try again",
    )

"""Where the playbooks, roles and notebooks are, and a user's own catalogue."""

from __future__ import annotations

from pathlib import Path

from roost.errors import UsageError

#: Names a directory of further catalogue files; `roost --catalog` sets it. In the environment,
#: since notebooks' kernels and Ansible's filters are processes of their own.
CATALOG_VARIABLE = "ROOST_CATALOG"


def places(path: str | Path) -> list[Path]:
    """Where something may be that was named from the working directory or the repository root.

    This is how every path of something that is there already is read which a user gives, in
    notebooks, too: their working directory is ``notebooks/`` in one program and any in the others.
    """
    given = expanded(path)
    try:
        return list(dict.fromkeys([given, repository_root() / given]))
    except UsageError:
        return [given]


def expanded(path: str | Path) -> Path:
    """A path with ``~`` as the home directory that it stands for.

    Raises:
        UsageError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path}: no such home directory", why=str(error)) from None


def first_place(path: str | Path) -> Path:
    """The first of :func:`places` that is there; the path as it was given where neither is."""
    named = places(path)
    return next((place for place in named if place.exists()), named[0])


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

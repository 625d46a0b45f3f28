"""Folders that are built once: keyed by their inputs, whole or absent.

``<cache>/<name>-<key>`` where the key is a hash of everything the content depends on. A change of
an input gives another folder beside the old one, so a running lab keeps the layers it stands on.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from roost.onhost import atomic

Say = Callable[[str], None]

Input = str | bytes | Path

_KEY_DIGITS = 12


def key(*inputs: Input) -> str:
    """A name for these inputs: 12 hexadecimal digits.

    Args:
        inputs: Text and bytes count as they are, a path as the content of that file. Their
            order counts, and so do the borders between them.
    """
    digest = hashlib.sha256()
    for value in inputs:
        if isinstance(value, Path):
            data = value.read_bytes()
        else:
            data = value.encode() if isinstance(value, str) else value
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:_KEY_DIGITS]


def build(
    cache: Path,
    name: str,
    inputs: Sequence[Input],
    make: Callable[[Path], None],
    say: Say,
) -> Path:
    """The folder ``<cache>/<name>-<key>``, made first if it is not there.

    It is made under another name and renamed when it is whole, so what a killed build leaves is
    never taken for the result; the next build of the same name removes that. Builds of one name
    take turns: the second finds what the first has made.

    Args:
        cache: The folder of all built things.
        name: A plain noun, free of slashes.
        inputs: Everything the content depends on, see :func:`key`.
        make: Fills the empty folder that it is given.
        say: Told what is being built and how long it took, in seconds.

    Returns:
        The folder; nobody may change it.
    """
    folder = cache / f"{name}-{key(*inputs)}"
    if folder.is_dir():
        return folder
    with turn(cache, name, say):
        if folder.is_dir():
            return folder
        for stale in cache.glob(f".{name}-*.partial"):
            shutil.rmtree(stale)
        partial = cache / f".{folder.name}.partial"
        partial.mkdir()
        say(f"{name}: building")
        started = time.monotonic()
        make(partial)
        partial.rename(folder)
        say(f"{name}: built in {time.monotonic() - started:.0f} s")
    return folder


@contextmanager
def turn(cache: Path, name: str, say: Say) -> Iterator[None]:
    """Wait for our turn at ``name``; the kernel gives it back when its holder ends."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{name}.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for another build of it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def point(link: Path, folder: Path) -> Path:
    """Make the symbolic link ``link`` name ``folder``, both in the cache, in one step.

    Returns:
        The link.
    """
    target = folder.relative_to(link.parent)
    if not link.is_symlink() or link.readlink() != target:
        atomic.point(link, target)
    return link

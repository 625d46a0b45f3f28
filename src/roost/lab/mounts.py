"""Mounts below a lab's state directory: asked of the kernel, undone deepest first."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from roost.errors import RoostError
from roost.lab import network


def _points() -> list[Path]:
    """All mount points of this mount namespace, in the order they were mounted."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # Blanks and the like are written as three octal digits.
        escaped = line.split()[4]
        points.append(Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), escaped)))
    return points


def below(folder: Path) -> list[Path]:
    """Mount points at or below a folder, the last mounted first."""
    return [point for point in reversed(_points()) if point.is_relative_to(folder)]


def is_mounted(point: Path) -> bool:
    """Whether something is mounted right there."""
    return point in _points()


def unmount(point: Path) -> None:
    """Unmount whatever is mounted right there, however often."""
    while is_mounted(point):
        network.run(["umount", "--no-canonicalize", str(point)])


def unmount_below(folder: Path) -> None:
    """Unmount everything at or below a folder."""
    while points := below(folder):
        unmount(points[0])


def remove_tree(folder: Path) -> None:
    """Delete a folder that nothing is mounted below any more.

    Raises:
        RoostError: Something is; deleting would reach into it.
    """
    if points := below(folder):
        raise RoostError(f"{folder} is not removed", why=f"{points[0]} is still mounted")
    if folder.exists():
        shutil.rmtree(folder)

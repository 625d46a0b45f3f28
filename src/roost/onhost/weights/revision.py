"""One revision of a repository, and its files: their names, and how each is verified."""

from __future__ import annotations

import fnmatch
import hashlib
from pathlib import Path
from typing import Any

from . import disk


class File:
    """One file as the hub records it: path, size in bytes, and how to know its content."""

    def __init__(self, path: str, size: int, sha256: str | None, blob: str | None) -> None:
        self.path = path
        self.size = size
        self.sha256 = sha256
        self.blob = blob

    def digest(self) -> Any:
        """An empty hash of the kind that the hub records for this file."""
        if self.sha256:
            return hashlib.sha256()
        # What is not in LFS is named as git names a blob.
        return hashlib.sha1(f"blob {self.size}\0".encode(), usedforsecurity=False)

    @property
    def record(self) -> dict[str, Any]:
        """What the directory's record says of the file."""
        return {"size": self.size, "sha256": self.sha256, "blob": self.blob}

    def is_in(self, path: Path) -> bool:
        """Whether a file on disk, which is read for that, is this one."""
        if disk.size(path) != self.size:
            return False
        digest = self.digest()
        with path.open("rb") as reading:
            while chunk := reading.read(disk.CHUNK):
                digest.update(chunk)
        return self.is_right(digest)

    def is_right(self, digest: Any) -> bool:
        """Whether that is the content the hub records, as far as it records any."""
        wanted = self.sha256 or self.blob
        return wanted is None or digest.hexdigest() == wanted


class Revision:
    """One repository at one commit, or as much of it as is wanted.

    Args:
        repo: ``organisation/name``.
        commit: 40 hexadecimal digits.
        endpoint: Of the hub or a mirror of it.
        allow: Patterns; a file is wanted only if one of these matches, or there are none.
        ignore: Patterns of files that are not wanted.
    """

    def __init__(
        self, repo: str, commit: str, endpoint: str, allow: list[str], ignore: list[str]
    ) -> None:
        self.repo = repo
        self.commit = commit
        self.endpoint = endpoint.rstrip("/")
        self.allow = allow
        self.ignore = ignore
        self.name = f"{repo}@{commit[:12]}"
        self.where = f"{self.name} on {self.endpoint}"

    def address(self, path: str) -> str:
        """The path of a file's content on the hub."""
        return f"/{self.repo}/resolve/{self.commit}/{path}"

    def wants(self, path: str) -> bool:
        """Whether the patterns choose it, as those of the hub's own client do."""

        def matches(pattern: str) -> bool:
            return fnmatch.fnmatch(path, f"{pattern}*" if pattern.endswith("/") else pattern)

        allowed = not self.allow or any(map(matches, self.allow))
        return allowed and not any(map(matches, self.ignore))

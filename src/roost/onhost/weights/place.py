"""A revision's directory on the disk, and what lies beside it until it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import atomic  # noqa: TID252  # on a host, the package has another name
from . import PARTS, RECORD, TURN, XET, disk, partial_of
from .failures import SnapshotError
from .revision import File, Revision


class Place:
    """Where one revision is to be.

    Args:
        revision: Which.
        dest: Its directory, ``<models>/<org>--<name>/<commit>``.
    """

    def __init__(self, revision: Revision, dest: Path) -> None:
        self.revision = revision
        self.dest = dest
        self.partial = partial_of(dest)
        self.replaced = dest.with_name(f".{dest.name}.replaced")
        self.parts = self.partial / PARTS
        self.xet = self.partial / XET

    @contextlib.contextmanager
    def taking_turns(self) -> Iterator[None]:
        """One run at a time for one store; the kernel frees the lock of a killed run."""
        self.dest.parent.mkdir(parents=True, exist_ok=True)
        with (self.dest.parent.parent / TURN).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # -- what is there

    def whole(self) -> dict[str, Any] | None:
        """The record of a directory that is there and has all that is asked for, else nothing."""
        asked = self.revision
        try:
            record: dict[str, Any] = json.loads((self.dest / RECORD).read_text(encoding="utf-8"))
            right = record["repo"] == asked.repo and record["revision"] == asked.commit
            chosen = [record["allow_patterns"], record["ignore_patterns"]]
            right = right and chosen in ([[], []], [asked.allow, asked.ignore])
            for path, known in record["files"].items():
                right = right and (self.dest / path).stat().st_size == known["size"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return record if right else None

    def missing(self, files: list[File]) -> list[tuple[File, int]]:
        """Files that are not whole yet, with the bytes that still have to come."""
        found = []
        for file in files:
            # What has its own name was verified before it got it.
            if disk.size(self.partial / file.path) != file.size:
                part = disk.size(self.parts / file.path) or 0
                found.append((file, file.size - part if part <= file.size else file.size))
        return found

    # -- fetching

    def begin(self, files: list[File], headroom: int) -> None:
        """Have the partial directory, with all that is known to be right in it.

        Args:
            files: Of the revision, as the hub records them now.
            headroom: Bytes that must stay free when they are there.

        Raises:
            SnapshotError: There is no room for what is missing.
        """
        self.partial.mkdir(exist_ok=True)
        shutil.rmtree(self.xet, ignore_errors=True)  # of a run that was killed
        self._reconsider(files)
        self._adopt(files)
        self._check_space(files, headroom)

    def _reconsider(self, files: list[File]) -> None:
        """Keep what an earlier run verified only if the hub says of it today what it said then.

        Another hub, or one that has changed its mind, may record other content under a name.
        """
        try:
            text = (self.partial / RECORD).read_text(encoding="utf-8")
            verified: dict[str, Any] = json.loads(text)["files"]
        except (OSError, ValueError, KeyError, TypeError):
            verified = {}
        for file in files:
            here = self.partial / file.path
            if here.exists() and verified.get(file.path) != file.record and not file.is_in(here):
                here.unlink()
        self._write_record(files)

    def _adopt(self, files: list[File]) -> None:
        """Take over what is right in a directory that is damaged or lacks files."""
        for file in files:
            there, here = self.dest / file.path, self.partial / file.path
            if not here.exists() and file.is_in(there):
                here.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # not every filesystem has links
                    os.link(there, here)

    def _check_space(self, files: list[File], headroom: int) -> None:
        """Refuse before the first byte what would fill the disk."""
        need = sum(size for _, size in self.missing(files)) + headroom
        free = shutil.disk_usage(self.partial).free
        if free < need:
            raise SnapshotError(
                "disk",
                f"{self.revision.name}: needs {need:,} bytes more on the filesystem of "
                f"{self.dest.parent} ({headroom:,} of them headroom), and {free:,} are free",
                "Free space (playbooks/prune.yml removes revisions that no release names), or set "
                "roost_model_dir to a larger filesystem",
            )

    def take(self, part: Path, file: File) -> None:
        """Give a verified file its name."""
        atomic.flush(part)  # before the rename: what has its name is whole, power cuts included
        here = self.partial / file.path
        here.parent.mkdir(parents=True, exist_ok=True)
        part.replace(here)

    # -- the end

    def tidy(self, files: list[File]) -> None:
        """Leave nothing but the files: an earlier run may have had other patterns."""
        shutil.rmtree(self.parts, ignore_errors=True)
        chosen = {self.partial / file.path for file in files}
        for path in list(self.partial.rglob("*")):
            if not path.is_dir() and path not in chosen:
                path.unlink()

    def publish(self, files: list[File]) -> None:
        """Record, flush to disk, and make it visible with one rename."""
        self._write_record(files)
        for folder, _, _ in os.walk(self.partial):
            atomic.flush(Path(folder))
        if self.dest.exists():
            self.dest.rename(self.replaced)
        self.partial.rename(self.dest)
        atomic.flush(self.dest.parent)
        disk.remove(self.replaced)

    def _write_record(self, files: list[File]) -> None:
        record = {
            "repo": self.revision.repo,
            "revision": self.revision.commit,
            "endpoint": self.revision.endpoint,
            "allow_patterns": self.revision.allow,
            "ignore_patterns": self.revision.ignore,
            "fetched": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": {file.path: file.record for file in files},
        }
        atomic.write(self.partial / RECORD, json.dumps(record, indent=1) + "\n")

    def recover(self) -> None:
        """Bring back what a run that was killed while it replaced a directory had moved away."""
        if self.replaced.exists():
            if self.dest.exists():
                disk.remove(self.replaced)
            else:
                self.replaced.rename(self.dest)

    # -- removing

    def holds(self) -> list[Path]:
        """Every file of the revision on this disk, whole or not."""
        return [
            path
            for folder in (self.dest, self.partial)
            for path in folder.rglob("*")
            if path.is_file() and path.name != RECORD
        ]

    def refuse_released(self, releases: Path) -> None:
        """Raise if a file of a release names this revision."""
        for path in sorted(releases.rglob("*.json")):
            if self.revision.commit in path.read_text(encoding="utf-8", errors="replace"):
                raise SnapshotError(
                    "released",
                    f"{self.revision.name}: a release that is kept on this host names it ({path})",
                    "Remove the release first, if it is not to be gone back to",
                )

    def remove(self) -> None:
        """Out of sight with one rename, then gone; what a kill leaves is a partial download."""
        disk.remove(self.partial)
        if self.dest.exists():
            self.dest.rename(self.partial)
        disk.remove(self.partial)
        with contextlib.suppress(OSError):
            self.dest.parent.rmdir()  # its last revision

"""Model repositories on disk, as the lab's hub serves them.

``<store>/models/<org>/<name>/``:

- ``refs.json``: ``{"branches": {"main": "<commit>"}, "gated": false}``;
- ``<commit>/``: the files of one revision, never changed once there;
- ``<commit>.json``: ``{"files": {"<path>": {"size", "sha256", "blob_id"}}}``.

A commit is named by its content: publishing the same files again gives the same 40 digits, on
every machine. So a cache may be rebuilt without any pin becoming wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from roost import atomic
from roost.errors import RoostError

_REPO_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$")
_BRANCH = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True)
class StoredFile:
    """A file of a revision.

    Attributes:
        size: Bytes.
        sha256: Of its content; what an LFS pointer would name.
        blob_id: git's name for its content.
    """

    size: int
    sha256: str
    blob_id: str


@dataclass(frozen=True)
class Repository:
    """A repository's names for its revisions."""

    repo_id: str
    folder: Path
    branches: dict[str, str]
    gated: bool


@dataclass(frozen=True)
class Revision:
    """The files of one commit; ``files`` by POSIX path, sorted."""

    commit: str
    folder: Path
    files: dict[str, StoredFile]


def _folder(store: Path, repo_id: str) -> Path | None:
    if not _REPO_ID.match(repo_id) or ".." in repo_id:
        return None
    return store / "models" / repo_id


def repository(store: Path, repo_id: str) -> Repository | None:
    """Look a repository up; None if the store has none of that name."""
    folder = _folder(store, repo_id)
    if folder is None or not (folder / "refs.json").is_file():
        return None
    refs = json.loads((folder / "refs.json").read_text())
    return Repository(repo_id, folder, dict(refs["branches"]), bool(refs["gated"]))


def revision(repo: Repository, name: str) -> Revision | None:
    """Look a branch or a full commit up; None if the repository has none of that name."""
    commit = repo.branches.get(name, name)
    if not _COMMIT.match(commit):
        return None
    manifest = repo.folder / f"{commit}.json"
    if not manifest.is_file():
        return None
    files = json.loads(manifest.read_text())["files"]
    return Revision(
        commit, repo.folder / commit, {path: StoredFile(**files[path]) for path in sorted(files)}
    )


def publish(store: Path, repo_id: str, branch: str, folder: Path, *, gated: bool = False) -> str:
    """Put the files of ``folder`` into the store as the newest revision of ``branch``.

    Atomic: readers see the branch before or after, and a kill leaves nothing half-published.

    Returns:
        The commit, 40 hexadecimal digits computed from repository, paths and contents.

    Raises:
        RoostError: A name that no hub would take, or a folder that is missing or empty.
    """
    home = _folder(store, repo_id)
    if home is None or not _BRANCH.match(branch) or _COMMIT.match(branch):
        raise RoostError(f"{repo_id}@{branch} is no name for a repository and a branch")
    if not folder.is_dir():
        raise RoostError(f"{folder} cannot be published: no such folder")
    home.mkdir(parents=True, exist_ok=True)
    with _exclusive(home):
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=home))
        try:
            files = {path: _take(folder / path, draft / path) for path in _paths(folder)}
            if not files:
                raise RoostError(f"{folder} cannot be published: it is empty")
            record = {path: vars(file) for path, file in files.items()}
            content = json.dumps([repo_id, record], sort_keys=True)
            commit = hashlib.sha1(content.encode(), usedforsecurity=False).hexdigest()
            if not (home / f"{commit}.json").exists():
                final = home / commit
                if final.exists():
                    # Renamed into place by a run that was killed before it wrote the manifest.
                    shutil.rmtree(final)
                draft.chmod(0o755)
                draft.rename(final)
                atomic.write(home / f"{commit}.json", json.dumps({"files": record}, indent=1))
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        known = repository(store, repo_id)
        branches = {**(known.branches if known else {}), branch: commit}
        atomic.write(
            home / "refs.json", json.dumps({"branches": branches, "gated": gated}, indent=1)
        )
    return commit


def _paths(folder: Path) -> list[str]:
    """Relative POSIX paths of all files; version control and download caches are left out."""
    found = []
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if path.is_file() and not {".git", ".cache"} & set(relative.parts):
            found.append(relative.as_posix())
    return sorted(found)


def _take(source: Path, target: Path) -> StoredFile:
    """Copy a file and take its measures in one pass."""
    size = source.stat().st_size
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    copied = 0
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(1 << 20):
            sha256.update(chunk)
            blob.update(chunk)
            writing.write(chunk)
            copied += len(chunk)
    if copied != size:
        raise RoostError(f"{source} changed while it was published")
    return StoredFile(size, sha256.hexdigest(), blob.hexdigest())


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One publisher a repository at a time; what a killed one left is swept up."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for stale in folder.glob(".draft-*"):
            shutil.rmtree(stale)
        yield
    finally:
        os.close(handle)

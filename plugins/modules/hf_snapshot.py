#!/usr/bin/python
"""Ansible module: one repository of a model hub at one commit, whole or not there at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
---
module: hf_snapshot
short_description: Keep one revision of a model repository on disk
description:
  - Downloads every file of a repository at one commit, verifies sizes and hashes against the
    hub's own record, and makes the directory visible with one rename. A directory that is there is
    whole.
  - An interrupted download is continued by the next run. Two runs on one host take turns.
  - With the directory in place nothing is asked of the hub.
  - In check mode the hub is asked what would be fetched, so a revision that does not exist, or a
    hub that does not answer, is found before anything changes.
options:
  repo_id:
    description: C(organisation/name) on the hub.
    type: str
    required: true
  revision:
    description: The full commit, 40 hexadecimal digits. Branches and shortened commits move.
    type: str
    required: true
  dest:
    description:
      - Directory of this revision. Its parent also holds the partial download and the lock file,
        both with a leading dot.
    type: path
    required: true
  endpoint:
    description: Address of the hub or of a mirror of it.
    type: str
    default: https://huggingface.co
  token:
    description: Access token for private and gated repositories.
    type: str
  headroom:
    description: Bytes that must stay free on the filesystem after the download.
    type: int
    default: 1073741824
  timeout:
    description: Seconds until an unanswered question to the hub counts as no answer.
    type: int
    default: 20
requirements:
  - huggingface_hub, for downloading; not in check mode and not when the directory is in place
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - roost
"""

EXAMPLES = r"""
- name: Keep the weights that the lock names
  hf_snapshot:
    repo_id: z-lab/Qwen3.6-35B-A3B-DFlash
    revision: 0123456789abcdef0123456789abcdef01234567
    dest: /srv/models/z-lab--Qwen3.6-35B-A3B-DFlash/0123456789abcdef0123456789abcdef01234567
  vars:
    ansible_python_interpreter: /var/lib/roost/venv/bin/python
"""

RETURN = r"""
present:
  description: Whether the directory was in place already.
  returned: success
  type: bool
bytes:
  description: Bytes of the files that were, or in check mode would be, fetched.
  returned: always
  type: int
files:
  description: How many files the revision has.
  returned: always
  type: int
seconds:
  description: How long it took.
  returned: always
  type: float
path:
  description: The directory.
  returned: always
  type: str
reason:
  description: >-
    Why it failed, one of V(hub_unreachable), V(hub_error), V(repository), V(revision), V(disk),
    V(hash), V(incomplete), V(requirement), V(usage).
  returned: failure
  type: str
"""


RECORD = ".roost.json"
#: Where huggingface_hub keeps what it knows of a download into a plain directory.
CLIENT_STATE = ".cache"
WORKERS = 4
CHUNK = 1 << 20


class SnapshotError(Exception):
    """Something to tell the user: a reason for programs, a sentence for people."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class File:
    """One file as the hub records it: path, size in bytes, and how to know its content."""

    def __init__(self, path: str, size: int, sha256: str | None, blob: str | None) -> None:
        self.path = path
        self.size = size
        self.sha256 = sha256
        self.blob = blob


class Snapshot:
    """One revision of one repository, and its place on disk."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.repo: str = params["repo_id"]
        self.revision: str = params["revision"]
        self.endpoint: str = params["endpoint"].rstrip("/")
        self.token: str | None = params["token"]
        self.headroom: int = params["headroom"]
        self.timeout: int = params["timeout"]
        self.dest = Path(params["dest"])
        self.partial = self.dest.with_name(f".{self.dest.name}.partial")
        self.name = f"{self.repo}@{self.revision[:12]}"

    # -- what is there

    def whole(self) -> dict[str, Any] | None:
        """The record of a directory that is in place and has all its files, else nothing."""
        try:
            record: dict[str, Any] = json.loads((self.dest / RECORD).read_text(encoding="utf-8"))
            right = record["repo"] == self.repo and record["revision"] == self.revision
            for path, known in record["files"].items():
                right = right and (self.dest / path).stat().st_size == known["size"]
        except (OSError, ValueError, KeyError):
            return None
        return record if right else None

    def have(self, files: list[File]) -> int:
        """Bytes of an interrupted download that need not be fetched again."""
        total = 0
        for file in files:
            with contextlib.suppress(OSError):
                size = (self.partial / file.path).stat().st_size
                total += size if size == file.size else 0
        state = self.partial / CLIENT_STATE
        for unfinished in state.rglob("*.incomplete"):
            total += unfinished.stat().st_size
        return total

    # -- what the hub says

    def ask(self) -> list[File]:
        """The files of the revision, as the hub records them."""
        where = f"{self.repo}@{self.revision} on {self.endpoint}"
        url = f"{self.endpoint}/api/models/{self.repo}/revision/{self.revision}?blobs=true"
        headers = {"User-Agent": "roost", "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310  # http(s), see ensure
            with urllib.request.urlopen(request, timeout=self.timeout) as response:  # noqa: S310
                document = json.load(response)
            files = [self._file(entry) for entry in document["siblings"]]
        except urllib.error.HTTPError as error:
            with error:  # it holds the connection
                raise _refusal(where, error) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, OSError):
                cause = getattr(error, "reason", None) or error
                raise SnapshotError(
                    "hub_unreachable",
                    f"{where}: the hub cannot be reached ({cause}). Check the network of this host "
                    "and the hub's address (roost_hub_endpoint); nothing was changed.",
                ) from None
            raise SnapshotError(
                "hub_error",
                f"{where}: what answers is not a model hub ({type(error).__name__}). Check "
                "roost_hub_endpoint; a proxy's login page answers like this too.",
            ) from None
        if not files:
            raise SnapshotError("hub_error", f"{where}: the hub lists no files for this revision.")
        return files

    def _file(self, entry: dict[str, Any]) -> File:
        path = entry["rfilename"]
        if path.startswith("/") or ".." in Path(path).parts:
            raise SnapshotError(
                "hub_error", f"{self.name}: the hub lists a file outside the repository: {path!r}."
            )
        lfs = entry.get("lfs") or {}
        return File(path, int(entry["size"]), lfs.get("sha256"), entry.get("blobId"))

    # -- fetching

    def fetch(self, files: list[File]) -> None:
        """Download, verify, and rename into place."""
        if self.dest.exists():
            # Damaged since: what is still right of it need not be fetched again.
            shutil.rmtree(self.partial, ignore_errors=True)
            self.dest.rename(self.partial)
        self.check_space(files)
        self.partial.mkdir(exist_ok=True)
        try:
            self.download()
            self.verify(files)
            self.check_index()
            self.publish(files)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise SnapshotError(
                    "disk",
                    f"{self.name}: the disk of {self.dest.parent} is full. What is there already "
                    "is kept; free space and deploy again to go on from it.",
                ) from None
            raise

    def check_space(self, files: list[File]) -> None:
        """Refuse before the first byte what would fill the disk."""
        need = sum(file.size for file in files) - self.have(files) + self.headroom
        free = shutil.disk_usage(self.dest.parent).free
        if free < need:
            raise SnapshotError(
                "disk",
                f"{self.name}: needs {need:,} bytes on the filesystem of {self.dest.parent} "
                f"({self.headroom:,} of them headroom), and {free:,} are free. Free space, or set "
                "roost_model_dir to a larger filesystem.",
            )

    def download(self) -> None:
        """Every file, into the partial directory, with the hub's own client."""
        # Read when huggingface_hub is imported: nothing of it may land outside our directory.
        os.environ["HF_HOME"] = str(self.partial / CLIENT_STATE / "home")
        os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        try:
            import huggingface_hub
            from huggingface_hub import errors
        except ImportError as error:
            raise SnapshotError(
                "requirement",
                f"{error}: this Python has no huggingface_hub; the role model_store makes one "
                "that has (set ansible_python_interpreter on the task).",
            ) from None
        try:
            huggingface_hub.snapshot_download(
                self.repo,
                revision=self.revision,
                local_dir=self.partial,
                endpoint=self.endpoint,
                token=self.token or False,
                max_workers=WORKERS,
                etag_timeout=self.timeout,
            )
        except Exception as error:  # its transport changes between versions
            if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise
            # The client's own word for a hub that went away hides how it went.
            hidden = isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__
            raise self._interrupted(hidden or error) from None

    def _interrupted(self, error: BaseException) -> SnapshotError:
        text = " ".join(str(error).split()) or type(error).__name__
        return SnapshotError(
            "hub_unreachable",
            f"{self.name} on {self.endpoint}: the download broke off ({text}). What arrived is "
            "kept; deploy again to go on from it.",
        )

    def verify(self, files: list[File]) -> None:
        """Size and hash of every file against the hub's record; wrong ones are removed."""
        with ThreadPoolExecutor(WORKERS) as pool:
            wrong = [text for text in pool.map(self._defect, files) if text]
        if wrong:
            raise SnapshotError(
                "hash",
                f"{self.name} from {self.endpoint}: what arrived is not what the hub records: "
                + "; ".join(wrong)
                + ". These files were removed; deploy again to fetch them anew. If it happens "
                "again, something between hub and host alters them.",
            )

    def _defect(self, file: File) -> str | None:
        path = self.partial / file.path
        size = path.stat().st_size if path.is_file() else None
        if size != file.size:
            path.unlink(missing_ok=True)
            return f"{file.path} has {size} bytes instead of {file.size}"
        if file.sha256:
            digest, wanted = hashlib.sha256(), file.sha256
        elif file.blob:
            # What is not in LFS is named as git names a blob.
            header = f"blob {size}\0".encode()
            digest, wanted = hashlib.sha1(header, usedforsecurity=False), file.blob
        else:
            return None
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
        if digest.hexdigest() == wanted:
            return None
        path.unlink()
        return f"{file.path} has another {digest.name}"

    def check_index(self) -> None:
        """Every shard that an index names is there: an engine may not notice one that is not."""
        for index in self.partial.glob("*.safetensors.index.json"):
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(shard for shard in shards if not (self.partial / shard).is_file())
            if missing:
                raise SnapshotError(
                    "incomplete",
                    f"{self.name}: {index.name} names files that the repository does not have: "
                    + ", ".join(missing)
                    + ". The repository is broken at this revision; pin another one.",
                )

    def publish(self, files: list[File]) -> None:
        """Record, flush to disk, and make it visible with one rename."""
        record = {
            "repo": self.repo,
            "revision": self.revision,
            "endpoint": self.endpoint,
            "fetched": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": {
                file.path: {"size": file.size, "sha256": file.sha256, "blob": file.blob}
                for file in files
            },
        }
        (self.partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(self.partial / CLIENT_STATE, ignore_errors=True)
        for folder, _, names in os.walk(self.partial):
            for name in names:
                _flush(Path(folder, name))
            _flush(Path(folder))
        self.partial.rename(self.dest)
        _flush(self.dest.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refusal(where: str, error: urllib.error.HTTPError) -> SnapshotError:
    """What an HTTP status of the hub means."""
    code = error.headers.get("X-Error-Code", "")
    if code == "RevisionNotFound":
        return SnapshotError(
            "revision",
            f"{where}: the hub has the repository, but not this revision. It was removed (by a "
            "rewritten history, for example), or the lock was written against another hub: run "
            "`roost lock` and look at what changed.",
        )
    if code == "GatedRepo" or error.code == 403:
        return SnapshotError(
            "repository",
            f"{where}: the repository is gated, and the token given does not open it (or none was "
            "given). Accept its terms on the hub with the account that the token belongs to.",
        )
    if code == "RepoNotFound" or error.code == 401:
        return SnapshotError(
            "repository",
            f"{where}: the hub shows no such repository. It is missing, private, or gated and "
            "asked without a token; the hub answers all three alike.",
        )
    if error.code == 429:
        return SnapshotError(
            "hub_error", f"{where}: the hub's rate limit is reached. Wait, try again."
        )
    return SnapshotError(
        "hub_error",
        f"{where}: the hub answered {error.code} ({error.reason}). Check that roost_hub_endpoint "
        "is a model hub; if it is, wait and try again.",
    )


@contextlib.contextmanager
def taking_turns(dest: Path) -> Iterator[None]:
    """One run at a time for one revision; the kernel frees the lock of a killed run."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    with dest.with_name(f".{dest.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def result(snapshot: Snapshot, files: list[File], moved: int) -> dict[str, Any]:
    """What a changed run returns."""
    listing = "".join(f"{file.size:>14,} {file.path}\n" for file in files)
    return {
        "changed": True,
        "present": False,
        "bytes": moved,
        "files": len(files),
        "diff": {
            "before_header": str(snapshot.dest),
            "after_header": f"{snapshot.name} from {snapshot.endpoint}",
            "before": "",
            "after": listing,
        },
    }


def ensure(module: AnsibleModule) -> dict[str, Any]:
    """Bring the directory about, or in check mode say what that would take."""
    if not re.fullmatch(r"[0-9a-f]{40}", module.params["revision"]):
        raise SnapshotError(
            "usage",
            f"revision {module.params['revision']!r} of {module.params['repo_id']} is not a full "
            "commit (40 hexadecimal digits).",
        )
    if not re.match(r"https?://", module.params["endpoint"]):
        raise SnapshotError(
            "usage", f"endpoint {module.params['endpoint']!r} is not an http(s) address."
        )
    snapshot = Snapshot(module.params)
    record = snapshot.whole()
    if record is not None:
        return {"changed": False, "present": True, "bytes": 0, "files": len(record["files"])}
    if module.check_mode:
        files = snapshot.ask()
        total = sum(file.size for file in files)
        return result(snapshot, files, total - min(total, snapshot.have(files)))
    with taking_turns(snapshot.dest):
        # Another run may have finished it while this one waited for its turn.
        record = snapshot.whole()
        if record is not None:
            return {"changed": False, "present": True, "bytes": 0, "files": len(record["files"])}
        files = snapshot.ask()
        total = sum(file.size for file in files)
        moved = total - min(total, snapshot.have(files))
        snapshot.fetch(files)
        return result(snapshot, files, moved)


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "repo_id": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "no_log": True},
            "headroom": {"type": "int", "default": 1 << 30},
            "timeout": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    started = time.monotonic()
    try:
        outcome = ensure(module)
    except SnapshotError as failure:
        module.fail_json(msg=str(failure), reason=failure.reason)
    module.exit_json(
        path=module.params["dest"], seconds=round(time.monotonic() - started, 1), **outcome
    )


if __name__ == "__main__":
    main()

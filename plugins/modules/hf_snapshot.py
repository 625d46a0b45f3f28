#!/usr/bin/python
"""Ansible module: one repository of a model hub at one commit, whole or not there at all."""

from __future__ import annotations

import contextlib
import email.utils
import errno
import fcntl
import fnmatch
import hashlib
import http.client
import importlib.util
import json
import os
import re
import selectors
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
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
    hub's own record, looks into the weights, and makes the directory visible with one rename. A
    directory that is there is whole.
  - An interrupted download, killed or without power included, is continued by the next run from
    the byte it had reached. Runs on one host take turns.
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
      - Directory of this revision, V(<model_dir>/<org>--<name>/<revision>). Its parent also holds
        the partial download, with a leading dot, and V(<model_dir>) the lock file.
    type: path
    required: true
  state:
    description:
      - V(absent) removes the revision and what is left of its download, unless a release that is
        kept on the host names it.
    type: str
    choices: [present, absent]
    default: present
  allow_patterns:
    description: Fetch only files that match one of these (C(fnmatch) on the whole path).
    type: list
    elements: str
    default: []
  ignore_patterns:
    description: Do not fetch files that match one of these.
    type: list
    elements: str
    default: []
  endpoint:
    description: Address of the hub or of a mirror of it.
    type: str
    default: https://huggingface.co
  token:
    description: Access token for private and gated repositories; sent to the endpoint alone.
    type: str
  headroom:
    description: Bytes that must stay free on the filesystem after the download.
    type: int
    default: 1073741824
  timeout:
    description: Seconds until an unanswered question to the hub counts as no answer.
    type: int
    default: 20
  stall_timeout:
    description: Seconds without a byte until a transfer is broken off and tried again.
    type: int
    default: 30
  retries:
    description:
      - How often in a row, without a new byte, something that may pass is tried again (no answer,
        5xx, 429, a broken transfer). Pauses double from one second, or are what the hub asks for.
    type: int
    default: 5
  max_wait:
    description: Longest pause in seconds that a hub may ask for; a longer one fails at once.
    type: int
    default: 300
  releases:
    description: Where this host's releases are recorded; what they name is not removed.
    type: path
    default: /var/lib/roost/releases
requirements:
  - huggingface_hub with hf_xet, for transfers from Xet storage; without it everything comes by
    plain HTTP
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
    token: "{{ roost_hub_token | default(omit) }}"
  vars:
    ansible_python_interpreter: /var/lib/roost/venv/bin/python
"""

RETURN = r"""
present:
  description: Whether the directory was in place already.
  returned: success
  type: bool
bytes:
  description: >-
    Bytes that came over the network, those fetched twice counted twice; in check mode those that
    would have to come.
  returned: always
  type: int
files:
  description: How many files of the revision there are, or with O(state=absent) were.
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
    Why it failed, one of V(network), V(dns), V(tls), V(timeout), V(hub_error), V(rate_limit),
    V(token), V(gated), V(forbidden), V(repository), V(revision), V(broken_off), V(stalled),
    V(truncated), V(hash), V(not_weights), V(incomplete), V(disk), V(target), V(released),
    V(usage).
  returned: failure
  type: str
outage:
  description: Whether it may pass by itself, and says nothing of what was asked for.
  returned: failure
  type: bool
"""


RECORD = ".roost.json"
#: In the partial directory: files that are not whole yet, under their own paths.
PARTS = ".roost-parts"
#: In the partial directory: where the hub's own client works, for Xet.
XET = ".roost-xet"
WORKERS = 4
CHUNK = 1 << 20
#: Seconds; the first pause before another try.
PAUSE = 1.0
#: The longest header that the safetensors reference implementation reads, bytes.
MOST_HEADER_BYTES = 100_000_000

CHECK_ADDRESS = "Check the network of this host and the hub's address (roost_hub_endpoint)"
GO_ON = "What arrived is kept; deploy again to go on from it"


class SnapshotError(Exception):
    """Something to tell the user: a reason for programs, two sentences for people.

    Args:
        reason: One of the module's ``reason`` values.
        saw: What was seen, with what and where.
        fix: What to do.
        outage: It may pass by itself, so trying again makes sense.
        wait: Seconds that the hub asks to be left alone for.
    """

    def __init__(
        self, reason: str, saw: str, fix: str, *, outage: bool = False, wait: float | None = None
    ) -> None:
        self.reason = reason
        self.outage = outage
        self.wait = wait
        super().__init__(f"{saw}. {fix}.")


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
        """What is written down of it."""
        return {"size": self.size, "sha256": self.sha256, "blob": self.blob}

    def is_in(self, path: Path) -> bool:
        """Whether a file on disk, which is read for that, is this one."""
        if _size(path) != self.size:
            return False
        digest = self.digest()
        with path.open("rb") as reading:
            while chunk := reading.read(CHUNK):
                digest.update(chunk)
        return self.is_right(digest)

    def is_right(self, digest: Any) -> bool:
        """Whether that is the content the hub records, as far as it records any."""
        wanted = self.sha256 or self.blob
        return wanted is None or digest.hexdigest() == wanted


# -- the hub


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects; the token goes along only where host and scheme stay the same."""

    def redirect_request(self, req: Any, *args: Any) -> Any:
        following = super().redirect_request(req, *args)
        if following is not None and "Authorization" in req.unredirected_hdrs:
            before, after = (urllib.parse.urlsplit(one.full_url) for one in (req, following))
            if (before.scheme, before.netloc) == (after.scheme, after.netloc):
                following.add_unredirected_header(
                    "Authorization", req.unredirected_hdrs["Authorization"]
                )
        return following


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Hub:
    """A hub, spoken to with what Python brings along."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.endpoint: str = params["endpoint"].rstrip("/")
        self.token: str | None = params["token"]
        self.timeout: int = params["timeout"]
        self._following = urllib.request.build_opener(_SameHost())
        self._staying = urllib.request.build_opener(_NoRedirect())

    def open(
        self,
        where: str,
        path: str,
        *,
        query: str = "",
        timeout: float | None = None,
        headers: dict[str, str] | None = None,
        head_only: bool = False,
    ) -> Any:
        """The answer to one request, its body unread.

        Raises:
            SnapshotError: No answer, or one that is no success.
        """
        request = urllib.request.Request(  # noqa: S310  # http(s), see ensure
            self.endpoint + urllib.parse.quote(path) + query,
            headers={"User-Agent": "roost", "Accept-Encoding": "identity", **(headers or {})},
            method="HEAD" if head_only else "GET",
        )
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        opener = self._staying if head_only else self._following
        where += through(request)
        try:
            return opener.open(request, timeout=timeout or self.timeout)
        except urllib.error.HTTPError as error:
            if head_only and error.code in {301, 302, 303, 307, 308}:
                return error
            with error:  # it holds the connection
                raise refusal(where, error, self.token is not None) from None
        except (OSError, http.client.HTTPException) as error:
            raise no_answer(where, error, timeout or self.timeout) from None
        except ValueError as error:
            raise SnapshotError(
                "usage", f"{where}: the hub's address cannot be used ({error})", CHECK_ADDRESS
            ) from None


def through(request: urllib.request.Request) -> str:
    """The proxy that this process's environment has for a request, without its account."""
    proxy = urllib.request.getproxies().get(request.type)
    if not proxy or urllib.request.proxy_bypass(request.host):
        return ""
    address = proxy.rpartition("//")[2].rpartition("@")[2].rstrip("/")
    return f", through the proxy {address} ({request.type}_proxy; no_proxy excepts hosts from it)"


def no_answer(where: str, error: BaseException, timeout: float) -> SnapshotError:
    """What it means that a connection did not come about."""
    cause = getattr(error, "reason", None) or error
    text = " ".join(str(cause).split()) or type(cause).__name__
    if isinstance(cause, socket.gaierror):
        return SnapshotError(
            "dns",
            f"{where}: the name of the hub (or of its storage) cannot be resolved ({text})",
            "Check this host's name server and the hub's address (roost_hub_endpoint)",
            outage=True,
        )
    if isinstance(cause, ssl.SSLCertVerificationError):
        return SnapshotError(
            "tls",
            f"{where}: no trusted connection to the hub ({text})",
            "Check this host's clock and certificates (a private mirror's authority must be among "
            "them), whether the mirror's own has expired, and roost_hub_endpoint",
        )
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return SnapshotError(
            "tls",
            f"{where}: what answers there speaks no TLS, or none that this host speaks ({text})",
            "Write http:// in roost_hub_endpoint if it is a mirror without TLS; else look what "
            "answers at that address",
        )
    if isinstance(cause, TimeoutError):
        return SnapshotError(
            "timeout",
            f"{where}: the hub did not answer within {timeout:.0f} s",
            CHECK_ADDRESS,
            outage=True,
        )
    return SnapshotError(
        "network", f"{where}: the hub cannot be reached ({text})", CHECK_ADDRESS, outage=True
    )


#: What a mirror that `playbooks/mirror.yml` set up says of itself, by its X-Error-Code.
MIRROR_REFUSALS = {
    "MirrorNetwork": (
        "gated",
        "the mirror does not serve this host's network",
        "Add this host's network to mirror_allow and run playbooks/mirror.yml",
    ),
    "MirrorKey": (
        "token",
        "the mirror asks for its key, and was given none or another",
        "Set roost_hub_token to the mirror's key (mirror_key)",
    ),
    "MirrorUpstream": (
        "network",
        "the mirror does not have it yet, and cannot reach its hub",
        "Check the network and the name server of the mirror, and its mirror_hub",
    ),
    "MirrorRevision": (
        "revision",
        "the mirror serves a bundle, and this revision is not in it",
        "Pack it (`roost bundle`) and have the mirror serve that, or correct the lock",
    ),
}


def asked_wait(headers: Any) -> float | None:
    """Seconds that an answer asks to be left alone for, in whichever way it says so."""
    after = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]+", after):
        return float(after)
    # As huggingface.co has it (draft-ietf-httpapi-ratelimit-headers): r requests are left until a
    # window ends in t seconds.
    if found := re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*([0-9]+)", headers.get("RateLimit", "")):
        return float(found[1])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def refusal(where: str, error: urllib.error.HTTPError, with_token: bool) -> SnapshotError:
    """What an HTTP status of the hub means."""
    code = error.headers.get("X-Error-Code", "")
    said = error.headers.get("X-Error-Message", "")
    if code == "RevisionNotFound":
        return SnapshotError(
            "revision",
            f"{where}: the hub has the repository, but not this revision",
            "It was removed (by a rewritten history, for example), or the lock was written against "
            "another hub: run `roost lock` and look at what changed",
        )
    if code in MIRROR_REFUSALS:
        reason, saw, fix = MIRROR_REFUSALS[code]
        return SnapshotError(reason, f"{where}: {saw}", fix, outage=code == "MirrorUpstream")
    if code == "EntryNotFound":
        return SnapshotError(
            "incomplete",
            f"{where}: the hub lists this file and does not have it",
            "Try again; if it stays so, the repository is broken at this revision: pin another one",
        )
    if error.code == 401 and with_token and "credentials" in said.lower():
        return SnapshotError(
            "token",
            f"{where}: the hub does not know the token (expired, revoked or mistyped)",
            "Make a new one on the hub and set roost_hub_token",
        )
    if code == "GatedRepo":
        if with_token:
            return SnapshotError(
                "gated",
                f"{where}: the repository is gated, and the token does not open it",
                "Accept its terms on the hub with the account that the token belongs to, and give "
                "the token the right to read gated repositories",
            )
        return SnapshotError(
            "gated",
            f"{where}: the repository is gated, and no token was given",
            "Accept its terms on the hub, make a token there and set roost_hub_token",
        )
    if code == "RepoNotFound" or error.code == 401:
        return SnapshotError(
            "repository",
            f"{where}: the hub shows no such repository: it is missing, private, or gated and "
            "asked without a token that opens it; the hub answers all three alike",
            "Check its name; for a private one set roost_hub_token",
        )
    if error.code == 403:
        host, said = urllib.parse.urlsplit(error.url).netloc, said[:200].replace(". ", "; ")
        return SnapshotError(
            "forbidden",
            f"{where}: {host} forbids it (403{f', {said!r}' if said else ''})",
            "If it is the hub, give the token (roost_hub_token) the right to read this repository; "
            "if it is a proxy or a firewall, have it let that address through",
        )
    if error.code == 416:
        return SnapshotError(
            "stale", f"{where}: the hub does not have the part that was asked for", "Deploy again"
        )
    wait = asked_wait(error.headers)
    if error.code == 429:
        asks = f" and asks to wait {wait:.0f} s" if wait is not None else ""
        return SnapshotError(
            "rate_limit",
            f"{where}: the hub's rate limit is reached{asks}",
            "Wait and deploy again; a token (roost_hub_token) or a mirror (roost_hub_endpoint) "
            "raises the limit",
            outage=True,
            wait=wait,
        )
    # The status of a storage host may come with its own page; its first line says nothing more.
    return SnapshotError(
        "hub_error",
        f"{where}: the hub answered {error.code} ({error.reason})",
        "Wait and try again; if it stays so, check that roost_hub_endpoint is a model hub",
        outage=error.code >= 500 or error.code == 408,
        wait=wait,
    )


# -- one file on its way


class Arrival:
    """A file of the snapshot, as far as it has come.

    What is on disk of an earlier run is hashed first and gone on from; a body is hashed as it is
    written, so that verifying costs no second reading.
    """

    def __init__(self, snapshot: Snapshot, file: File) -> None:
        self.snapshot = snapshot
        self.file = file
        self.where = f"{snapshot.where}: {file.path}"
        self.part = snapshot.parts / file.path
        self.digest = file.digest()
        self.size = 0
        self.best = 0
        self.moved = 0
        self.again = True  # whether a wrong content may be fetched anew

    def fetch(self) -> None:
        """Fetch what is missing of it, verify it, and put it among the whole files.

        Raises:
            SnapshotError: What does not pass by itself, or did not within the retries.
        """
        self.part.parent.mkdir(parents=True, exist_ok=True)
        self._take_up()
        failures = 0
        while not self.snapshot.stopped.is_set():
            self.best = max(self.best, self.size)
            try:
                self._receive()
                return
            except SnapshotError as failure:
                # A transfer that gets on is not given up, however often it breaks.
                failures = 1 if self.size > self.best else failures + 1
                if not self.snapshot.may_try_again(failure, failures):
                    raise

    def _take_up(self) -> None:
        with contextlib.suppress(FileNotFoundError), self.part.open("rb") as there:
            while chunk := there.read(CHUNK):
                self.digest.update(chunk)
                self.size += len(chunk)

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.digest, self.size = self.file.digest(), 0

    def _receive(self) -> None:
        if self.size < self.file.size or not self.part.exists():
            with self._open() as response:
                self._write(response)
            if self.snapshot.stopped.is_set():
                return
        if self.file.is_right(self.digest):
            _flush(self.part)  # before the rename: what has its name is whole, power cuts included
            self.snapshot.take(self.part, self.file)
            return
        self._discard()
        raise SnapshotError(
            "hash",
            f"{self.where}: what arrived is not what the hub records (another {self.digest.name}), "
            "and was removed",
            "Deploy again; if it stays so, what answers there has a damaged copy (of a mirror's "
            "bundle: `roost bundle --check`), or something on the way alters files",
            outage=self._once_more(),
        )

    def _once_more(self) -> bool:
        """True the first time: a cache on the way, or a page the disk lost, may have it wrong."""
        once, self.again = self.again, False
        return once

    def _open(self) -> Any:
        snapshot, file = self.snapshot, self.file
        path = f"/{snapshot.repo}/resolve/{snapshot.revision}/{file.path}"
        headers = {"Range": f"bytes={self.size}-"} if self.size else {}
        if not self.again:
            # A cache on the way may have kept what was wrong, and would give it out for ever.
            headers["Cache-Control"] = "no-cache"
        try:
            response = snapshot.hub.open(
                self.where, path, timeout=snapshot.stall_timeout, headers=headers
            )
        except SnapshotError as error:
            if error.reason != "stale" or not self.size:
                raise
            # A range that the server does not have: what is here is no part of its file.
            self._discard()
            return self._open()
        total = response.headers.get("Content-Length", "")
        if self.size and response.status == 206:
            found = re.fullmatch(
                rf"bytes {self.size}-\d+/(\d+)", response.headers.get("Content-Range", "")
            )
            total = found[1] if found else "-"
        elif self.size:
            self._discard()  # it answers with the whole file
        if total and total != str(file.size):
            with response:
                raise self._something_else(response.read(512), total)
        return response

    def _something_else(self, start: bytes, total: str) -> SnapshotError:
        kind = another_kind(start)
        return SnapshotError(
            "not_weights" if kind else "hub_error",
            f"{self.where}: the answer {f'is {kind}' if kind else 'is another file'} of {total} "
            f"bytes, and the hub records {self.file.size:,}",
            "Check what answers at roost_hub_endpoint (a proxy's login page, a clone without LFS)",
        )

    def _write(self, response: Any) -> None:
        with self.part.open("ab", buffering=0) as writing:
            while self.size < self.file.size and not self.snapshot.stopped.is_set():
                try:
                    # What is there, rather than a full buffer: a stall must not take it along.
                    data = response.read1(CHUNK)
                except TimeoutError:
                    raise SnapshotError(
                        "stalled",
                        f"{self.where}: no byte came for {self.snapshot.stall_timeout} s at "
                        f"{self.size:,} of {self.file.size:,}",
                        f"{GO_ON}; if it stays so, name a nearer mirror (roost_hub_endpoint)",
                        outage=True,
                    ) from None
                except (OSError, http.client.HTTPException) as error:
                    raise SnapshotError(
                        "broken_off",
                        f"{self.where}: the transfer broke off at {self.size:,} of "
                        f"{self.file.size:,} bytes ({error or type(error).__name__})",
                        GO_ON,
                        outage=True,
                    ) from None
                if not data:
                    break
                if self.size + len(data) > self.file.size:
                    self._discard()
                    raise self._something_else(b"", f"more than {self.file.size:,}")
                self.moved += len(data)
                self._append(writing, memoryview(data))
        if self.size < self.file.size and not self.snapshot.stopped.is_set():
            raise SnapshotError(
                "truncated",
                f"{self.where}: the answer ended at {self.size:,} of {self.file.size:,} bytes",
                f"{GO_ON}; if it stays so, a proxy on the way cuts large files",
                outage=True,
            )

    def _append(self, writing: Any, data: memoryview) -> None:
        while data:
            count = writing.write(data)  # a full disk may take a piece
            self.digest.update(data[:count])
            self.size += count
            data = data[count:]


# -- the snapshot


class Snapshot:
    """One revision of one repository, and its place on disk."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.repo: str = params["repo_id"]
        self.revision: str = params["revision"]
        self.allow: list[str] = params["allow_patterns"]
        self.ignore: list[str] = params["ignore_patterns"]
        self.headroom: int = params["headroom"]
        self.stall_timeout: int = params["stall_timeout"]
        self.retries: int = params["retries"]
        self.max_wait: int = params["max_wait"]
        self.hub = Hub(params)
        self.dest = Path(params["dest"])
        self.partial = self.dest.with_name(f".{self.dest.name}.partial")
        self.replaced = self.dest.with_name(f".{self.dest.name}.replaced")
        self.parts = self.partial / PARTS
        self.name = f"{self.repo}@{self.revision[:12]}"
        self.where = f"{self.name} on {self.hub.endpoint}"
        self.stopped = threading.Event()

    # -- what is there

    def whole(self) -> dict[str, Any] | None:
        """The record of a directory that is there and has all that is asked for, else nothing."""
        try:
            record: dict[str, Any] = json.loads((self.dest / RECORD).read_text(encoding="utf-8"))
            right = record["repo"] == self.repo and record["revision"] == self.revision
            chosen = [record["allow_patterns"], record["ignore_patterns"]]
            right = right and chosen in ([[], []], [self.allow, self.ignore])
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
            if _size(self.partial / file.path) != file.size:
                part = _size(self.parts / file.path) or 0
                found.append((file, file.size - part if part <= file.size else file.size))
        return found

    # -- what the hub says

    def wanted(self, path: str) -> bool:
        """Whether the patterns choose it, as those of the hub's own client do."""

        def matches(pattern: str) -> bool:
            return fnmatch.fnmatch(path, f"{pattern}*" if pattern.endswith("/") else pattern)

        allowed = not self.allow or any(map(matches, self.allow))
        return allowed and not any(map(matches, self.ignore))

    def ask(self) -> list[File]:
        """The files of the revision, as the hub records them; tried again where that may help."""
        failures = 0
        while True:
            try:
                return self._ask()
            except SnapshotError as failure:
                failures += 1
                if not self.may_try_again(failure, failures):
                    raise

    def _ask(self) -> list[File]:
        path = f"/api/models/{self.repo}/revision/{self.revision}"
        try:
            with self.hub.open(self.where, path, query="?blobs=true") as response:
                document = json.load(response)
            commit, files = document["sha"], [self._file(one) for one in document["siblings"]]
        except (OSError, http.client.HTTPException) as error:
            raise no_answer(self.where, error, self.hub.timeout) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(
                "hub_error",
                f"{self.where}: what answers is not a model hub ({type(error).__name__})",
                "Check roost_hub_endpoint; a proxy's login page answers like this too",
            ) from None
        if commit != self.revision:
            raise SnapshotError(
                "hub_error",
                f"{self.where}: the hub answers with another commit ({commit})",
                "Check what answers at roost_hub_endpoint",
            )
        paths = {file.path for file in files}
        folders = {str(folder) for path in paths for folder in Path(path).parents}
        if len(paths) < len(files) or paths & folders:
            raise SnapshotError(
                "hub_error",
                f"{self.where}: the hub lists a file twice, or as a directory too",
                "Check what answers at roost_hub_endpoint",
            )
        chosen = [file for file in files if self.wanted(file.path)]
        if not chosen:
            raise SnapshotError(
                "incomplete",
                f"{self.where}: no file to fetch, of {len(files)} that the hub lists",
                "Check the patterns and the revision",
            )
        return chosen

    def _file(self, entry: dict[str, Any]) -> File:
        path, lfs = entry["rfilename"], entry.get("lfs")
        parts = path.split("/")
        if (
            {"", ".", ".."}.intersection(parts)
            or parts[0] in {RECORD, PARTS, XET}
            or re.search(r"[\0-\x1f\x7f\ud800-\udfff]", path)
        ):
            raise SnapshotError(
                "hub_error",
                f"{self.where}: the hub lists a file that cannot be one of a repository: {path!r}",
                "Check what answers at roost_hub_endpoint",
            )
        sha256 = (lfs.get("sha256") or lfs.get("oid")) if lfs else None
        if lfs and not re.fullmatch(r"[0-9a-f]{64}", sha256 or ""):
            raise SnapshotError(
                "hub_error",
                f"{self.where}: the hub gives no SHA-256 for {path}",
                "Name a hub or mirror that does (roost_hub_endpoint)",
            )
        return File(path, int(entry["size"]), sha256, entry.get("blobId"))

    def may_try_again(self, failure: SnapshotError, failures: int) -> bool:
        """Wait as long as makes sense, unless the failure is final."""
        pause = PAUSE * 2 ** (failures - 1) if failure.wait is None else failure.wait
        if not failure.outage or failures > self.retries or pause > self.max_wait:
            return False
        return not self.stopped.wait(pause)

    # -- fetching

    def fetch(self, files: list[File]) -> int:
        """Download, verify, and rename into place.

        Returns:
            Bytes that came over the network.
        """
        self.partial.mkdir(exist_ok=True)
        shutil.rmtree(self.partial / XET, ignore_errors=True)  # of a run that was killed
        self.reconsider(files)
        self.adopt(files)
        self.check_space(files)
        moved = self.download_xet(files) if self.offers_xet(files) else 0
        moved += self.download(files)
        self.tidy(files)
        self.check_weights()
        self.publish(files)
        return moved

    def reconsider(self, files: list[File]) -> None:
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

    def adopt(self, files: list[File]) -> None:
        """What is right of a directory that is damaged, or lacks files, need not come again."""
        for file in files:
            there, here = self.dest / file.path, self.partial / file.path
            if not here.exists() and file.is_in(there):
                here.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # not every filesystem has links
                    os.link(there, here)

    def check_space(self, files: list[File]) -> None:
        """Refuse before the first byte what would fill the disk."""
        need = sum(size for _, size in self.missing(files)) + self.headroom
        free = shutil.disk_usage(self.partial).free
        if free < need:
            raise SnapshotError(
                "disk",
                f"{self.name}: needs {need:,} bytes more on the filesystem of {self.dest.parent} "
                f"({self.headroom:,} of them headroom), and {free:,} are free",
                "Free space (playbooks/prune.yml removes revisions that no release names), or set "
                "roost_model_dir to a larger filesystem",
            )

    def download(self, files: list[File]) -> int:
        """Every missing file by HTTP, some at a time."""
        # Large ones first, so that none is left alone at the end.
        missing = sorted((file for file, _ in self.missing(files)), key=lambda file: -file.size)
        arrivals = [Arrival(self, file) for file in missing]
        with ThreadPoolExecutor(WORKERS) as pool:
            futures = [pool.submit(self._until_one_fails, arrival) for arrival in arrivals]
        failures = [error for future in futures if (error := future.exception())]
        if failures:
            # A disk or a revision that is gone says more than the transfers it ended.
            raise min(failures, key=lambda error: getattr(error, "outage", False))
        return sum(arrival.moved for arrival in arrivals)

    def _until_one_fails(self, arrival: Arrival) -> None:
        try:
            arrival.fetch()
        except BaseException:
            self.stopped.set()
            raise

    def take(self, part: Path, file: File) -> None:
        """Give a verified file its name."""
        here = self.partial / file.path
        here.parent.mkdir(parents=True, exist_ok=True)
        part.replace(here)

    # -- Xet

    def offers_xet(self, files: list[File]) -> bool:
        """Whether the large files come from Xet storage and the client for that is here."""
        large = [file for file, size in self.missing(files) if file.sha256 and size == file.size]
        if not large or not all(map(importlib.util.find_spec, ("huggingface_hub", "hf_xet"))):
            return False
        path = f"/{self.repo}/resolve/{self.revision}/{large[0].path}"
        try:
            with self.hub.open(self.where, path, head_only=True) as response:
                return "X-Xet-Hash" in response.headers
        except SnapshotError:
            return False  # the download finds out, and is patient

    def download_xet(self, files: list[File]) -> int:
        """Large files with the hub's own client, in a process that can be ended.

        One after the other: this client cannot go on with a file, so that of an interrupted
        download one file is lost at most. Whatever goes wrong here is left to HTTP.
        """
        moved = 0
        waiting = [f for f, size in self.missing(files) if f.sha256 and size == f.size]
        folder = self.partial / XET
        by_path = {file.path: file for file in waiting}
        with XetClient(self, folder, list(by_path)) as client:
            for path in client.arrived():
                file, there = by_path[path], folder / path
                moved += file.size
                if not file.is_in(there):
                    break
                _flush(there)
                self.take(there, file)
        shutil.rmtree(folder, ignore_errors=True)
        return moved

    # -- the end

    def tidy(self, files: list[File]) -> None:
        """Leave nothing but the files: an earlier run may have had other patterns."""
        shutil.rmtree(self.parts, ignore_errors=True)
        chosen = {self.partial / file.path for file in files}
        for path in list(self.partial.rglob("*")):
            if not path.is_dir() and path not in chosen:
                path.unlink()

    def check_weights(self) -> None:
        """Index, shards and headers agree: an engine may not notice where they do not."""
        held = {
            str(path.relative_to(self.partial)): self._tensors(path)
            for path in self.partial.rglob("*.safetensors")
        }
        for index in self.partial.rglob("*.safetensors.index.json"):
            try:
                places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
            except (ValueError, KeyError, TypeError, AttributeError):
                raise self._broken(index, "is no index of shards") from None
            for tensor, shard in places:
                path = os.path.relpath(index.parent / str(shard), self.partial)
                if path not in held:
                    if self.wanted(path):
                        raise self._broken(index, f"names {shard}, which the repository lacks")
                elif tensor not in held[path]:
                    raise self._broken(index, f"names {tensor[:80]!r}, which {shard} lacks")

    def _tensors(self, path: Path) -> set[str]:
        size = path.stat().st_size
        with path.open("rb") as reading:
            start = reading.read(512)
            length = int.from_bytes(start[:8], "little")
            # Of text the first bytes are too large a number, and of no header; but those of a right
            # header may read as the beginning of a page.
            if length > MOST_HEADER_BYTES and (kind := another_kind(start)):
                raise self._broken(path, f"is {kind}, not weights", "not_weights")
            if len(start) < 8 or length > MOST_HEADER_BYTES or 8 + length > size:
                raise self._broken(path, "has no header that a safetensors file begins with")
            reading.seek(8)
            try:
                header = json.loads(reading.read(length))
                header.pop("__metadata__", None)
                end = 0
                for begin, after in sorted(tensor["data_offsets"] for tensor in header.values()):
                    if begin != end or after < begin:
                        raise self._broken(path, "has tensors that overlap or leave holes")
                    end = int(after)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise self._broken(path, "has a header that cannot be read") from None
        if 8 + length + end != size:
            raise self._broken(
                path, f"has {size:,} bytes, its header tells of {8 + length + end:,}"
            )
        return set(header)

    def _broken(self, path: Path, what: str, reason: str = "incomplete") -> SnapshotError:
        return SnapshotError(
            reason,
            f"{self.name}: {path.relative_to(self.partial)} {what}",
            "It is so on the hub: the repository is broken at this revision, pin another one",
        )

    def publish(self, files: list[File]) -> None:
        """Record, flush to disk, and make it visible with one rename."""
        self._write_record(files)
        for folder, _, _ in os.walk(self.partial):
            _flush(Path(folder))
        if self.dest.exists():
            self.dest.rename(self.replaced)
        self.partial.rename(self.dest)
        _flush(self.dest.parent)
        _remove(self.replaced)

    def _write_record(self, files: list[File]) -> None:
        record = {
            "repo": self.repo,
            "revision": self.revision,
            "endpoint": self.hub.endpoint,
            "allow_patterns": self.allow,
            "ignore_patterns": self.ignore,
            "fetched": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": {file.path: file.record for file in files},
        }
        (self.partial / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        _flush(self.partial / RECORD)

    def recover(self) -> None:
        """Bring back what a run that was killed while it replaced a directory had moved away."""
        if self.replaced.exists():
            if self.dest.exists():
                _remove(self.replaced)
            else:
                self.replaced.rename(self.dest)

    # -- removing

    def refuse_released(self, releases: Path) -> None:
        """Raise if a file of a release names this revision."""
        for path in sorted(releases.rglob("*.json")):
            if self.revision in path.read_text(encoding="utf-8", errors="replace"):
                raise SnapshotError(
                    "released",
                    f"{self.name}: a release that is kept on this host names it ({path})",
                    "Remove the release first, if it is not to be gone back to",
                )

    def remove(self) -> None:
        """Out of sight with one rename, then gone; what a kill leaves is a partial download."""
        _remove(self.partial)
        if self.dest.exists():
            self.dest.rename(self.partial)
        _remove(self.partial)
        with contextlib.suppress(OSError):
            self.dest.parent.rmdir()  # its last revision


#: What the client's process runs. It ends when its standard input does, so with its parent; the
#: job comes that way too, for the token must be seen in no process list.
XET_CLIENT = """
import json, os, sys, threading
job = json.loads(sys.stdin.readline())
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
from huggingface_hub import hf_hub_download
from huggingface_hub.utils import tqdm

class Reports(tqdm):
    def update(self, count=1):
        if count:
            print(flush=True)
        return super().update(count)

for path in job.pop("paths"):
    hf_hub_download(filename=path, tqdm_class=Reports, **job)
    print(path, flush=True)
"""


class XetClient:
    """The hub's own client at work in a process of its own."""

    def __init__(self, snapshot: Snapshot, folder: Path, paths: list[str]) -> None:
        self.stall_timeout = snapshot.stall_timeout
        job = {
            "repo_id": snapshot.repo,
            "revision": snapshot.revision,
            "endpoint": snapshot.hub.endpoint,
            "token": snapshot.hub.token or False,
            "local_dir": str(folder),
            "paths": paths,
        }
        # Nothing of it may land outside the directory, no token that lies about is used, and it
        # says how it gets on, whatever this host's environment would have it do.
        home = {"HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        here = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TQDM_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", XET_CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**here, **home},
            bufsize=0,
        )
        assert self.process.stdin is not None  # noqa: S101  # for the type checker
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job).encode() + b"\n")

    def __enter__(self) -> XetClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def arrived(self) -> Iterator[str]:
        """Paths as they are whole, until it ends or no byte comes for too long."""
        assert self.process.stdout is not None  # noqa: S101  # for the type checker
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(self.stall_timeout):
                if not (data := os.read(self.process.stdout.fileno(), CHUNK)):
                    return
                *lines, text = (text + data).split(b"\n")
                yield from (line.decode() for line in lines if line)


def another_kind(start: bytes) -> str | None:
    """What a file is that begins like this, where it is a well-known something else."""
    if start.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer"
    if start.lstrip()[:1] == b"<":
        return "an HTML page"
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _remove(folder: Path) -> None:
    """A directory; of a link to one, as somebody short of room makes them, the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def taking_turns(dest: Path) -> Iterator[None]:
    """One run at a time for one store; the kernel frees the lock of a killed run."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    with (dest.parent.parent / ".hf_snapshot.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def explaining(snapshot: Snapshot) -> Iterator[None]:
    """What the disk refuses, in words."""
    try:
        yield
    except OSError as error:
        where = error.filename or snapshot.dest.parent
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise SnapshotError(
                "disk",
                f"{snapshot.name}: the disk of {snapshot.dest.parent} is full ({error.strerror})",
                "What arrived is kept; free space and deploy again to go on from it",
            ) from None
        if error.errno == errno.EROFS:
            raise SnapshotError(
                "target",
                f"{snapshot.name}: {where} is on a filesystem that is mounted read-only",
                "Look why (`dmesg`: errors make the kernel do that) and remount it, or set "
                "roost_model_dir to another",
            ) from None
        if error.errno in {errno.EACCES, errno.EPERM}:
            raise SnapshotError(
                "target",
                f"{snapshot.name}: {where} may not be written by uid {os.geteuid()}",
                "Deploy with become, or give that directory to the user",
            ) from None
        if error.errno in {errno.EEXIST, errno.ENOTDIR}:
            raise SnapshotError(
                "target",
                f"{snapshot.name}: {_no_directory(Path(where))} is in the way: a directory belongs "
                "there, and it is none",
                "Look what it is (a link to a disk that is not mounted?) and move it away, or set "
                "roost_model_dir to another",
            ) from None
        raise SnapshotError(
            "target",
            f"{snapshot.name}: {where} cannot be written ({error.strerror or error})",
            "Look at that disk (`dmesg` on the host), or set roost_model_dir to another",
        ) from None


def _no_directory(path: Path) -> Path:
    """The first on the way to a path that is there and no directory."""
    way = [*reversed(path.parents), path]
    return next((one for one in way if os.path.lexists(one) and not one.is_dir()), path)


def result(
    snapshot: Snapshot, files: list[File], missing: list[tuple[File, int]]
) -> dict[str, Any]:
    """What a changed run returns; the difference lists what has to come."""
    listing = "".join(f"{size:>16,} {file.path}\n" for file, size in missing)
    total = sum(size for _, size in missing)
    return {
        "changed": True,
        "present": False,
        "bytes": total,
        "files": len(files),
        "diff": {
            "before_header": str(snapshot.dest),
            "after_header": f"{snapshot.where}, {total:,} bytes to fetch",
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
            "commit (40 hexadecimal digits)",
            "Run `roost lock`",
        )
    # An error about such a header would have the token in it, written otherwise than Ansible hides.
    if not re.fullmatch(r"[!-~]*", module.params["token"] or ""):
        raise SnapshotError(
            "token",
            "the token has a character that no token has (a line break at its end, for example)",
            "Correct roost_hub_token",
        )
    if not re.match(r"https?://", module.params["endpoint"]):
        raise SnapshotError(
            "usage",
            f"endpoint {module.params['endpoint']!r} is not an http(s) address",
            "Correct roost_hub_endpoint",
        )
    snapshot = Snapshot(module.params)
    with explaining(snapshot):
        if module.params["state"] == "absent":
            return absent(snapshot, Path(module.params["releases"]), module.check_mode)
        return present(snapshot, module.check_mode)


def present(snapshot: Snapshot, check_mode: bool) -> dict[str, Any]:
    """The directory is there and whole, or would be fetched."""

    def there() -> dict[str, Any] | None:
        record = snapshot.whole()
        if record is None:
            return None
        return {"changed": False, "present": True, "bytes": 0, "files": len(record["files"])}

    if found := there():
        return found
    if check_mode:
        files = snapshot.ask()
        return result(snapshot, files, snapshot.missing(files))
    with taking_turns(snapshot.dest):
        snapshot.recover()
        # Another run may have finished it while this one waited for its turn.
        if found := there():
            return found
        files = snapshot.ask()
        outcome = result(snapshot, files, snapshot.missing(files))
        return {**outcome, "bytes": snapshot.fetch(files)}


def absent(snapshot: Snapshot, releases: Path, check_mode: bool) -> dict[str, Any]:
    """The directory is gone, unless a release needs it."""
    snapshot.refuse_released(releases)
    files = [
        path
        for folder in (snapshot.dest, snapshot.partial)
        for path in folder.rglob("*")
        if path.is_file() and path.name != RECORD
    ]
    outcome = {
        "changed": snapshot.dest.exists() or snapshot.partial.exists(),
        "present": snapshot.dest.exists(),
        "bytes": 0,
        "files": len(files),
        "diff": {
            "before_header": str(snapshot.dest),
            "before": "".join(f"{path.stat().st_size:>16,} {path}\n" for path in sorted(files)),
            "after": "",
        },
    }
    if outcome["changed"] and not check_mode:
        with taking_turns(snapshot.dest):
            snapshot.refuse_released(releases)  # a deploy may have had its turn meanwhile
            snapshot.remove()
    return outcome


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "repo_id": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "allow_patterns": {"type": "list", "elements": "str", "default": []},
            "ignore_patterns": {"type": "list", "elements": "str", "default": []},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "no_log": True},
            "headroom": {"type": "int", "default": 1 << 30},
            "timeout": {"type": "int", "default": 20},
            "stall_timeout": {"type": "int", "default": 30},
            "retries": {"type": "int", "default": 5},
            "max_wait": {"type": "int", "default": 300},
            "releases": {"type": "path", "default": "/var/lib/roost/releases"},
        },
        supports_check_mode=True,
    )
    started = time.monotonic()
    try:
        outcome = ensure(module)
    except SnapshotError as failure:
        module.fail_json(msg=str(failure), reason=failure.reason, outage=failure.outage)
    module.exit_json(
        path=module.params["dest"], seconds=round(time.monotonic() - started, 1), **outcome
    )


if __name__ == "__main__":
    main()

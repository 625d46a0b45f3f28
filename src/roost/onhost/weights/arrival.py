"""One file on its way from a hub, by HTTP."""

from __future__ import annotations

import contextlib
import http.client
import re
from typing import Any

from . import disk
from .failures import SnapshotError
from .hub import Hub
from .patience import Patience
from .place import Place
from .revision import File
from .safetensors import another_kind

_GO_ON = "What arrived is kept; deploy again to go on from it"


class Arrival:
    """A file of the snapshot, as far as it has come.

    What an earlier run has left on disk is hashed and continued. What arrives is hashed as it is
    written, so that verifying costs no second reading.

    Args:
        place: Where it is to be.
        hub: Where it comes from.
        patience: That all transfers share.
        file: Which.
    """

    def __init__(self, place: Place, hub: Hub, patience: Patience, file: File) -> None:
        self.revision = place.revision
        self.place = place
        self.hub = hub
        self.patience = patience
        self.file = file
        self.where = f"{self.revision.where}: {file.path}"
        self.part = place.parts / file.path
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
        while not self.patience.stopped.is_set():
            self.best = max(self.best, self.size)
            try:
                self._receive()
                return
            except SnapshotError as failure:
                # A transfer that gets on is not given up, however often it breaks.
                failures = 1 if self.size > self.best else failures + 1
                if not self.patience.may_try_again(failure, failures):
                    raise

    def _take_up(self) -> None:
        with contextlib.suppress(FileNotFoundError), self.part.open("rb") as there:
            while chunk := there.read(disk.CHUNK):
                self.digest.update(chunk)
                self.size += len(chunk)

    def _discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.digest, self.size = self.file.digest(), 0

    def _receive(self) -> None:
        if self.size < self.file.size or not self.part.exists():
            with self._open() as response:
                self._write(response)
            if self.patience.stopped.is_set():
                return
        if self.file.is_right(self.digest):
            self.place.take(self.part, self.file)
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
        """True the first time: a cache on the way may have been wrong, or the disk lost a page."""
        once, self.again = self.again, False
        return once

    def _open(self) -> Any:
        file = self.file
        headers = {"Range": f"bytes={self.size}-"} if self.size else {}
        if not self.again:
            # A cache on the way may have kept what was wrong, and would give it out for ever.
            headers["Cache-Control"] = "no-cache"
        try:
            response = self.hub.open(
                self.where,
                self.revision.address(file.path),
                timeout=self.hub.stall_timeout,
                headers=headers,
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
            while self.size < self.file.size and not self.patience.stopped.is_set():
                try:
                    # What is there, rather than a full buffer: a stall must not take it along.
                    data = response.read1(disk.CHUNK)
                except TimeoutError:
                    raise SnapshotError(
                        "stalled",
                        f"{self.where}: no byte came for {self.hub.stall_timeout} s at "
                        f"{self.size:,} of {self.file.size:,}",
                        f"{_GO_ON}; if it stays so, name a nearer mirror (roost_hub_endpoint)",
                        outage=True,
                    ) from None
                except (OSError, http.client.HTTPException) as error:
                    raise SnapshotError(
                        "broken_off",
                        f"{self.where}: the transfer broke off at {self.size:,} of "
                        f"{self.file.size:,} bytes ({error or type(error).__name__})",
                        _GO_ON,
                        outage=True,
                    ) from None
                if not data:
                    break
                if self.size + len(data) > self.file.size:
                    self._discard()
                    raise self._something_else(b"", f"more than {self.file.size:,}")
                self.moved += len(data)
                self._append(writing, memoryview(data))
        if self.size < self.file.size and not self.patience.stopped.is_set():
            raise SnapshotError(
                "truncated",
                f"{self.where}: the answer ended at {self.size:,} of {self.file.size:,} bytes",
                f"{_GO_ON}; if it stays so, a proxy on the way cuts large files",
                outage=True,
            )

    def _append(self, writing: Any, data: memoryview) -> None:
        while data:
            count = writing.write(data)  # a full disk may take a piece
            self.digest.update(data[:count])
            self.size += count
            data = data[count:]

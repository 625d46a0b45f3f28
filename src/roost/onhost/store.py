"""Releases on the host's disk: what was deployed, what it proved, and what is being done now.

::

    /var/lib/roost/releases/
      <id>/release.json      what runs: hashed, and the hash is in the id
           deployment.json   all that is needed to serve it again
           plan.json         verdict and findings it was deployed with, where there was a plan
           gate.json         what it proved when it was last put in place
           baseline.json     its answers and figures when it first passed; later ones are compared
           times.json        when it served first and last
      current, previous      links to two of them
      held                   a link to the one that an experiment will go back to; gone once
                             anything else has been deployed
      transaction.json       a swap that has begun and not ended
      rollout.json           whose rollout or experiment the host takes part in, see
                             :mod:`roost.onhost.lease`
      last-failed/           why the last one that did not serve did not, and its log; what the
                             controller made of it
    /run/roost/
      lock                   held by whoever changes any of this, except rollout.json
      outcome.json           what the last piece of work came to

A file is written beside its place and renamed into it, so that what can be read is whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Mapping

from . import RUNTIME, atomic

#: What those who look for a release call the one that is there to stay (:meth:`Store.lasting`).
LASTING = "lasting"
#: And the one that a rollback goes back to, where nobody names another (:meth:`Store.before`).
BEFORE = "before"
#: Releases that stay on the host, besides those that a link points to.
KEPT = 5
#: Seconds beyond its patience that a caller waits while the lock is held only by others who look
#: whose turn it is (:meth:`Store.holder`).
GLANCE = 2.0
#: Where the last failure is kept.
FAILED = "last-failed"


class BusyError(Exception):
    """Somebody else is changing this host; the message says who and since when."""


class Store:
    """The releases below one directory.

    Args:
        root: The directory.
        runtime: Of what does not outlive a reboot.
    """

    def __init__(self, root: str, runtime: str = RUNTIME) -> None:
        self.root = Path(root)
        self.runtime = Path(runtime)
        self._lock: int | None = None

    # -- turns

    def take_turn(self, who: str, patience: float) -> str:
        """Wait until nobody else changes this host; from then on it is this process's turn.

        A process that is forked off shares the turn; the kernel ends it with the last of them.

        Args:
            who: Shown to those who wait meanwhile.
            patience: Seconds to wait.

        Returns:
            Who had the turn before; empty if nobody had to be waited for.

        Raises:
            BusyError: It took longer.
        """
        self.runtime.mkdir(mode=0o755, exist_ok=True)
        descriptor = os.open(self.runtime / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        waited_for = ""
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = self.holder()
            if holder is not None:
                waited_for = holder or "somebody"
            # No holder, and yet locked: somebody is looking whose turn it is.
            if time.monotonic() > deadline + (GLANCE if holder is None else 0):
                os.close(descriptor)
                raise BusyError(waited_for or "somebody")
            time.sleep(0.5)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{who}, since {now()}".encode(), 0)
        self._lock = descriptor
        return waited_for

    def end_turn(self) -> None:
        """Give the turn back, for a process that lives on."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def holder(self) -> str | None:
        """Who changes this host at the moment; none if nobody does."""
        try:
            descriptor = os.open(self.runtime / "lock", os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(descriptor, 1000, 0).decode(errors="replace")
        finally:
            os.close(descriptor)
        return None

    # -- files

    def read(self, *path: str) -> dict[str, Any] | None:
        """A file's content; none if it is not there, or is damaged (by a disk, or by hand)."""
        try:
            content = json.loads(self.root.joinpath(*path).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) and content else None

    def write(self, content: Mapping[str, Any], *path: str) -> None:
        """Write a file so that it is there whole or not at all, power cuts included.

        Missing directories are made, :attr:`root` too.
        """
        target = self.root.joinpath(*path)
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        atomic.write(target, json.dumps(content, indent=1) + "\n")

    # -- releases

    def pointed(self, name: str) -> str | None:
        """The release that ``current``, ``previous`` or ``held`` is; none if it is not kept."""
        try:
            release = os.readlink(self.root / name)  # Path.readlink is Python 3.9
        except OSError:
            return None
        return release if (self.root / release).is_dir() else None

    def lasting(self) -> str | None:
        """The release that is there to stay; none if there is none.

        It serves, or is the one to which an experiment goes back from what is only tried.
        """
        return self.pointed("held") or self.pointed("current")

    def before(self) -> str | None:
        """The release that a rollback goes back to; none if there is none.

        From what an experiment has only tried that is what it holds, and not what served before
        that.
        """
        held = self.pointed("held")
        return held if held and held != self.pointed("current") else self.pointed("previous")

    def point(self, name: str, release: str) -> None:
        """Make ``current`` or ``previous`` a release, from one moment to the next."""
        target = self.root / name
        if target.is_dir() and not target.is_symlink():
            # A copy or a backup that follows links has made it one; nothing can take its place.
            shutil.rmtree(target)
        atomic.point(target, release)

    def ids(self) -> list[str]:
        """Releases that have served, the one that did so last first."""
        times = {folder.name: self.read(folder.name, "times.json") for folder in self._folders()}
        serials = {release: found["serial"] for release, found in times.items() if found}
        return sorted(serials, key=lambda release: -serials[release])

    def served(self, release: str) -> None:
        """Note that a release serves from now on.

        The order is kept as a number of its own: a clock may be wrong, or be set back.
        """
        latest = (self.read(self.ids()[0], "times.json") if self.ids() else None) or {"serial": 0}
        times = self.read(release, "times.json") or {"first_served": now()}
        again = {"last_served": now(), "serial": latest["serial"] + 1}
        self.write({**times, **again}, release, "times.json")

    def prune(self) -> None:
        """Forget all but the last releases, and those that never served."""
        pointed = {self.pointed(name) for name in ("current", "previous", "held")}
        keep = {*pointed, *self.ids()[:KEPT]}
        for folder in self._folders():
            if folder.name not in keep:
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> list[Path]:
        found = [path.parent for path in self.root.glob("*/release.json")]
        return [folder for folder in found if not folder.is_symlink()]

    def keep_failure(self, why: Mapping[str, Any], log: str) -> str:
        """Keep why a release does not serve, and its log, in place of the last such.

        Returns:
            When, which tells this failure from any other.

        Raises:
            OSError: It cannot be written; the last one stays.
        """
        at = now()
        draft, folder = self.root / ".last-failed.new", self.root / FAILED
        shutil.rmtree(draft, ignore_errors=True)
        try:
            self.write({**why, "at": at}, draft.name, "why.json")
            kept = os.open(draft / "engine.log", os.O_WRONLY | os.O_CREAT, 0o600)
            # Where there is no room for all of it, its beginning is the better part.
            with contextlib.suppress(OSError), os.fdopen(kept, "w", encoding="utf-8") as file:
                file.write(log)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return at

    def failure(self) -> dict[str, Any] | None:
        """The last failure, with ``diagnosis`` if the controller left one, and none otherwise."""
        why = self.read(FAILED, "why.json")
        if why is None:
            return None
        told = self.read(FAILED, "diagnosis.json") or {}
        # Another one may have taken its place before the controller came to write it.
        mine = told.get("at") == why["at"]
        return {**why, "diagnosis": told["findings"] if mine else None}

    def failed_log(self) -> str:
        """The log of the last failure."""
        try:
            return (self.root / FAILED / "engine.log").read_text("utf-8", errors="replace")
        except OSError:
            return ""

    # -- what is being done

    def outcome(self) -> dict[str, Any] | None:
        """What the last piece of work came to, for those who lost the connection meanwhile."""
        try:
            found: dict[str, Any] = json.loads((self.runtime / "outcome.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def keep_outcome(self, outcome: Mapping[str, Any] | None) -> None:
        """Keep it until the next one; none: there is none yet."""
        path = self.runtime / "outcome.json"
        path.unlink(missing_ok=True)
        if outcome is not None:
            # It holds a log, which is not for everybody.
            atomic.write(path, json.dumps(outcome), 0o600)

    def begun(self) -> dict[str, Any] | None:
        """The swap that has begun and not ended."""
        return self.read("transaction.json")

    def begin(self, swap: Mapping[str, Any]) -> None:
        """Record a swap, before anything of it is done and at each further phase."""
        self.write(swap, "transaction.json")

    def end(self) -> None:
        """The swap is over, one way or the other."""
        (self.root / "transaction.json").unlink(missing_ok=True)


def now() -> str:
    """This moment for people, UTC; nothing is decided by it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

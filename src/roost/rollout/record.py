"""What is kept of a rollout: ``rollout.json`` in its folder, and whose turn it is.

::

    runs/<utc>-rollout-<inventory>/
      rollout.json           all of it, written whole before and after every step
      report.html, report.md the same for people
      ansible/               what each run of a playbook printed
      runs/                  the executed notebooks, a run's folder each
"""

from __future__ import annotations

import datetime as dt
import fcntl
import getpass
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roost import atomic, kept_files, runs
from roost.errors import RoostError
from roost.root import repository_root

FILE = "rollout.json"


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Baseline(_Data):
    """A benchmark that later ones are compared with.

    Attributes:
        release: What served while it was measured.
        run: Its folder; absolute where it is another rollout's.
    """

    release: str
    run: str


class HostRecord(_Data):
    """One host of a rollout; folders are relative to the rollout's.

    Attributes:
        kind: What it is and runs: hardware, recipe and choice of speculation.
        figures_key: Releases with the same one can be measured by each other.
        wanted: Id of the release that it is to serve.
        before: Id of the release to go back to, which served when the rollout began; none: nothing.
        unjudged: Releases that earlier rollouts brought and did not get to judge. Where one of them
            serves, ``before`` is what served before those.
        baseline: If there is one.
        compared: How its benchmark compares with the baseline.
        verdict: ``passed``: serves the new release, judged. ``back``: serves the one before,
            checked. ``stuck``: neither, and ``why`` says what is to be done.
        why: What was found wrong with the new release on it, or with its way back.
        runs: Notebooks by what they are: verify, benchmark, before.
        seconds: Of each step that was done for it, by the step's name.
        out: Moments from which and until which it served no clients; the second is none as long
            as it does not.
    """

    kind: str
    figures_key: str
    wanted: str
    before: str | None = None
    unjudged: list[str] = Field(default_factory=list)
    baseline: Baseline | None = None
    compared: str = ""
    verdict: Literal["waiting", "passed", "back", "stuck"] = "waiting"
    why: str = ""
    runs: dict[str, str] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    out: list[tuple[dt.datetime, dt.datetime | None]] = Field(default_factory=list)


class BatchRecord(_Data):
    """Hosts that change together.

    Attributes:
        verdict: ``failing``: something was found, and not all hosts are back yet.
    """

    hosts: tuple[str, ...]
    verdict: Literal["waiting", "begun", "passed", "failing", "back"] = "waiting"
    started: dt.datetime | None = None
    finished: dt.datetime | None = None


class Rollout(_Data):
    """``rollout.json``.

    Attributes:
        verdict: ``running``: it goes on, or was interrupted. ``refused``: it ended before any host
            was changed. ``stopped``: a batch did not pass.
        reason: Why it was refused or stopped, and which hosts do not know that it is over.
    """

    inventory: str
    limit: str | None
    sizes: str
    suite: str
    who: str
    started: dt.datetime
    finished: dt.datetime | None = None
    verdict: Literal["running", "passed", "refused", "stopped", "superseded"] = "running"
    reason: str = ""
    prepared: bool = False
    hosts: dict[str, HostRecord]
    batches: list[BatchRecord]

    @property
    def ok(self) -> bool:
        return self.verdict == "passed"

    def same_wishes(self, other: Rollout) -> bool:
        """Whether both want the same releases on the same hosts."""
        mine = {name: host.wanted for name, host in self.hosts.items()}
        return mine == {name: host.wanted for name, host in other.hosts.items()}


def now() -> dt.datetime:
    """This moment, to the second as it is shown."""
    return dt.datetime.now(dt.UTC)


def who() -> str:
    """Who runs it, for those who find it running."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def owner(of: Path) -> str:
    """Whose rollouts of an inventory these are, for hosts: this checkout's on this machine.

    The same of every process that :func:`turn` lets have its turn, and of no other.

    Args:
        of: The inventory; or, of an experiment, the lock that gives it its turn.
    """
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_text(encoding="ascii").strip()
        return _digest(machine, socket.gethostname(), repository_root(), of.resolve())
    return _digest(socket.gethostname(), repository_root(), of.resolve())


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:12]


def write(folder: Path, rollout: Rollout) -> None:
    """Keep it, whole."""
    atomic.write(folder / FILE, rollout.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Rollout:
    """What is kept in a rollout's folder.

    Raises:
        RoostError: Nothing is, or it is none.
    """
    try:
        return Rollout.model_validate_json(kept_files.read(folder / FILE))
    except OSError as error:
        raise RoostError(f"{folder}: no rollout", why=str(error.strerror)) from None
    except ValidationError as error:
        raise RoostError(
            f"{folder / FILE}: {runs.first_defect(error)}",
            why="it is damaged, or of another version of roost",
            fix="move its folder elsewhere; what a rollout has changed, its hosts know",
        ) from None


def of_inventory(runs_dir: Path, inventory: Path) -> Iterator[tuple[Path, Rollout]]:
    """Rollouts of an inventory with their folders, the last first."""
    for path in sorted(runs_dir.glob(f"*/{FILE}"), reverse=True):
        found = read(path.parent)
        if found.inventory == str(inventory):
            yield path.parent, found


@contextmanager
def turn(inventory: Path) -> Iterator[None]:
    """The only rollout of this inventory on this controller, for the length of a ``with``.

    A lock of the kernel: it ends with the process that holds it, however that ends.

    Raises:
        RoostError: Another one is running; it is named. Or its lock is another user's.
    """
    folder = repository_root() / "runs"
    folder.mkdir(exist_ok=True)
    name = f".rollout-{_digest(inventory.resolve())}.lock"
    try:
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    except PermissionError:
        raise RoostError(
            f"{folder / name} belongs to somebody else",
            why="another user of this checkout has rolled out this inventory",
            fix="roll out as that user, or from a checkout of your own; nothing was changed",
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace")
            raise RoostError(
                f"{inventory}: another rollout of this inventory is running",
                why=holder,
                fix="wait for its end, or end it; nothing was changed by this one",
            ) from None
        os.ftruncate(descriptor, 0)
        said = f"process {os.getpid()} of {who()}, since {now():%Y-%m-%d %H:%M:%S} UTC"
        os.pwrite(descriptor, said.encode(), 0)
        yield
    finally:
        os.close(descriptor)

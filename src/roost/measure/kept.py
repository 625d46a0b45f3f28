"""A run's folder, as far as it can be read: what it says of itself, of any kind and any version."""

from __future__ import annotations

import datetime as dt
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from roost.measure import points, throttling
from roost.measure.checks import Figure
from roost.measure.points import Benchmark
from roost.parquet import read as read_parquet

State = Literal["passed", "failed", "unfinished", "unreadable"]


class KeptCheck(BaseModel):
    """A check as any version of roost wrote it; in older ones ``verdict`` and ``fix`` are empty."""

    model_config = ConfigDict(frozen=True)

    id: str
    ok: bool
    expected: str = ""
    observed: str = ""
    why: str = ""
    fix: str = ""
    verdict: str = ""

    @property
    def outcome(self) -> str:
        """``passed``, ``failed``, or another verdict in its own words."""
        plain = {"": "passed" if self.ok else "failed", "pass": "passed", "fail": "failed"}
        return plain.get(self.verdict, self.verdict)


#: A time before this, or after 2200, is no time of a run.
_EPOCH = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
_Moment = Annotated[AwareDatetime, Field(gt=_EPOCH, lt=_EPOCH.replace(year=2200))]


class KeptOrigin(BaseModel):
    """One of the runs that a comparison is of."""

    model_config = ConfigDict(frozen=True, extra="allow")

    run: str = ""
    recipe: str = ""
    host: str = ""
    hardware: str = ""
    speculation: str = ""
    lock: dict[str, str | None] = {}
    command: list[str] = []
    env: dict[str, str] = {}


class KeptResult(BaseModel):
    """``result.json`` of any kind of run and any version; other keys are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    ok: bool
    notebook: str
    started: _Moment
    finished: _Moment | None = None
    recipe: str = ""
    host: str = ""
    hardware: str = ""
    speculation: str = ""
    lock: dict[str, str | None] = {}
    checks: list[KeptCheck] = []
    figures: dict[str, Figure] = {}
    command: list[str] = []
    env: dict[str, str] = {}
    trial: bool = False
    compared: list[KeptOrigin] = []

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        return (self.finished - self.started).total_seconds() if self.finished else None


class _Gpu(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = ""
    driver: str | None = None


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    gpus: list[_Gpu] = []


class KeptHost(BaseModel):
    """``host.json``; of the facts, what is shown by name, and all else as it was."""

    model_config = ConfigDict(frozen=True)

    facts: _Facts | None = None
    engine_version: str | None = None
    not_read: str = ""


#: Facts that are many words, of which two runs may differ in one.
IN_WORDS = frozenset({"command", "env"})


def environment(env: Mapping[str, str]) -> str:
    """A container's variables as words of one text, in an order that says nothing."""
    return shlex.join(f"{name}={value}" for name, value in sorted(env.items()))


@dataclass(frozen=True)
class Kept:
    """One run's folder, as far as it can be read.

    Attributes:
        name: The folder, from the root that was searched, with ``/`` in it.
        result: None where ``result.json`` is missing or is none.
        document: What ``result.json`` holds, if it is a JSON object.
        benchmark: From :func:`roost.measure.store.read_all` it comes without requests and draft
            positions, which are nearly all of it; :meth:`whole` has them.
        measured: The rows of a benchmark in :attr:`roost.measure.frames.Frames.points`.
        machine: None in runs from before it was kept.
        problem: What could not be read, and why; empty where everything could.
        unfinished: It has no ``result.json``.
    """

    name: str
    folder: Path
    result: KeptResult | None = None
    document: dict[str, Any] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    measured: tuple[dict[str, Any], ...] = ()
    machine: KeptHost | None = None
    problem: str = ""
    unfinished: bool = False

    @property
    def state(self) -> State:
        if self.result is None:
            return "unfinished" if self.unfinished else "unreadable"
        return "passed" if self.result.ok else "failed"

    @property
    def kind(self) -> str:
        """The notebook that it is a run of, or as much as is known of it."""
        said = self.result.notebook if self.result else self.document.get("notebook")
        return said if isinstance(said, str) and said else "unknown"

    @property
    def engine_version(self) -> str:
        """As the engine said it; empty where nobody asked."""
        asked = self.machine.engine_version if self.machine else None
        checks = self.result.checks if self.result else []
        return str(asked or next((c.observed for c in checks if c.id == "engine_version"), ""))

    @property
    def driver(self) -> str:
        """The GPU driver's version; empty where there is none or nobody asked."""
        facts = self.machine.facts if self.machine else None
        return (facts.gpus[0].driver or "") if facts and facts.gpus else ""

    def facts(self) -> dict[str, str]:
        """Versions and digests that the run was made with; what is not known is left out."""
        lock = self.result.lock if self.result else {}
        machine = self.machine.facts if self.machine else None
        found = {
            # The repository may be a mirror's; the digest says what runs.
            "image": (lock.get("image") or "").rpartition("@")[2],
            "model": lock.get("model") or "",
            "drafter": lock.get("drafter") or "",
            "command": shlex.join(self.result.command) if self.result else "",
            # Of some images every setting is in here.
            "env": environment(self.result.env) if self.result else "",
            "engine": self.engine_version,
            "driver": self.driver,
            "kernel": str(machine.model_dump().get("kernel", "")) if machine else "",
        }
        return {key: value for key, value in found.items() if value}

    def whole(self) -> Benchmark | None:
        """The benchmark with every request, read again; nothing where there is none.

        Raises:
            RoostError: It was readable, and is no longer.
        """
        return points.load(self.folder) if self.benchmark is not None else None

    def gpu_samples(self) -> list[dict[str, Any]]:
        """Rows of :data:`roost.measure.throttling.FILE`; none where nothing was sampled.

        Raises:
            RoostError: The file is broken.
        """
        path = self.folder / throttling.FILE
        if not os.path.lexists(path):
            return []
        return read_parquet(path, throttling.COLUMNS, throttling.NOT_ALWAYS)

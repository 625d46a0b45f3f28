"""A look at a fleet: the hosts of an inventory, and which of their kept runs are compared.

Hosts of a class run the same recipe and speculation on the same hardware; only they are compared.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roost import asking, runs, ssh
from roost import inventory as inventories
from roost.errors import RoostError
from roost.hosts import HostFacts
from roost.inventory import Host, Inventory
from roost.measure import store
from roost.measure.checks import Evidence
from roost.measure.compare import TOLERANCE
from roost.measure.kept import Kept, KeptResult
from roost.measure.points import Benchmark
from roost.runs import Pins, Result

#: Hosts asked at a time.
_JOBS = 8


@dataclass(frozen=True)
class Class:
    """What hosts must share to be compared."""

    hardware: str
    recipe: str
    speculation: str

    def __str__(self) -> str:
        return f"{self.hardware}, {self.recipe}, {self.speculation}"


@dataclass(frozen=True)
class Measured:
    """A finished run of one of the hosts."""

    kept: Kept
    result: KeptResult

    @property
    def belongs(self) -> Class:
        return Class(self.result.hardware, self.result.recipe, self.result.speculation)

    def facts(self) -> dict[str, str]:
        """Versions and digests that the run was made with; what is not known is left out."""
        return self.kept.facts()

    def values(self, metric: str) -> dict[str, float]:
        """Its value of a metric at each point, where it is positive."""
        return {
            row["point"]: row["value"]
            for row in self.kept.measured
            if row["metric"] == metric and row["value"] > 0
        }


@dataclass(frozen=True)
class Fleet:
    """A look at a fleet that has begun."""

    inventory: Inventory
    folder: Path
    started: dt.datetime
    tolerance: float
    measured: list[Measured]
    problems: list[str] = field(default_factory=list)
    live: Mapping[str, HostFacts | RoostError] = field(default_factory=dict)

    def of(self, host: str, kind: str = "") -> list[Measured]:
        """A host's runs, the newest last."""
        return [
            one for one in self.measured if one.result.host == host and kind in {"", one.kept.kind}
        ]

    def named(self, belongs: Class) -> str:
        """The class in parentheses, for ids and titles; empty in a fleet that has only one."""
        return f" ({belongs})" if len({one.belongs for one in self.measured}) > 1 else ""

    def describe(self) -> dict[str, str]:
        """What is about to be looked at, for the first output of a notebook."""
        return {
            "inventory": str(self.inventory.path),
            "hosts": ", ".join(self.inventory.hosts),
            "kept runs": f"{len(self.measured)} of these hosts",
            "live": f"{len(self.live)} hosts asked now" if self.live else "no host is asked",
            "folder": str(self.folder),
        }

    def finish(self, evidence: Evidence) -> Result:
        """Write everything into the folder and return the result."""
        newest = [found[-1] for host in self.inventory.hosts if (found := self.of(host))]
        result = Result(
            ok=evidence.ok,
            notebook="fleet",
            recipe=runs.together(one.result.recipe for one in newest),
            host=self.inventory.path.stem,
            hardware=runs.together(one.result.hardware for one in newest),
            speculation=runs.together(one.result.speculation for one in newest),
            lock=Pins.together(one.result.lock for one in newest),
            started=self.started,
            finished=dt.datetime.now(dt.UTC),
            checks=evidence.checks,
            figures=evidence.figures,
        )
        runs.write(self.folder, result, evidence.artefacts)
        return result


def start(
    inventory: Any,
    *,
    live: Any = False,
    tolerance: Any = TOLERANCE,
    runs_dir: Any = "runs",
    run_dir: Any = None,
) -> Fleet:
    """Check a notebook's parameters, read the runs and make the folder of this look.

    Args:
        inventory: Path, relative to the working directory or the repository root.
        live: Also ask every host now what it is.
        tolerance: The gap that is too small to care about, as a fraction.
        runs_dir: Where runs are kept; relative to the repository root.
        run_dir: This look's own folder, where a caller has made it already.

    Raises:
        UsageError: A parameter makes no sense, or there is no such inventory or folder of runs.
    """
    ask_now, share = runs.switch("live", live), runs.fraction("tolerance", tolerance)
    loaded = inventories.load(runs.text("inventory", inventory))
    home = runs.kept_in(runs_dir)
    own = runs.own_path(run_dir) if run_dir is not None else None
    kept = [run for run in store.read_all(home) if run.folder.absolute() != own]
    measured = [
        Measured(run, run.result)
        for run in kept
        if run.result is not None
        and run.result.host in loaded.hosts
        and run.kind in store.OF_A_HOST
        and not run.result.trial
    ]
    measured.sort(key=lambda one: one.result.started)
    return Fleet(
        inventory=loaded,
        folder=runs.given_folder(own) if own else runs.new_folder(home, "fleet", loaded.path.stem),
        started=dt.datetime.now(dt.UTC),
        tolerance=share,
        measured=measured,
        problems=[run.problem for run in kept if run.problem],
        live=ask(loaded.hosts.values()) if ask_now else {},
    )


def ask(hosts: Iterable[Host]) -> dict[str, HostFacts | RoostError]:
    """What each host is now, several at a time, or why it did not say."""

    def one(host: Host) -> HostFacts | RoostError:
        try:
            with ssh.connect(host) as remote:
                return asking.facts(remote, host)
        except RoostError as error:
            return error

    known = list(hosts)
    with ThreadPoolExecutor(_JOBS) as pool:
        return dict(zip((host.name for host in known), pool.map(one, known), strict=True))


def benchmarked(fleet: Fleet) -> dict[tuple[str, Class, str], list[Measured]]:
    """Benchmarks by host, class and suite, the newest last, of what each host serves now.

    Only those count that asked the same as the class's newest (of other prompts or of another
    version of the suite nothing can be compared), and only those of the class a host is in now.
    """
    asked: dict[tuple[Class, str], Benchmark] = {}
    for one, benchmark in benchmarks(fleet):
        asked[one.belongs, benchmark.suite] = benchmark
    found: dict[tuple[str, Class, str], list[Measured]] = {}
    for one, benchmark in benchmarks(fleet):
        if benchmark.asks_as(asked[one.belongs, benchmark.suite]):
            key = (one.result.host, one.belongs, benchmark.suite)
            found.setdefault(key, []).append(one)
    return found


def benchmarks(fleet: Fleet) -> Iterator[tuple[Measured, Benchmark]]:
    """Every benchmark of a host in the class that its newest run is of, the newest last."""
    now = {one.result.host: one.belongs for one in fleet.measured}
    for one in fleet.measured:
        if one.kept.benchmark is not None and one.belongs == now[one.result.host]:
            yield one, one.kept.benchmark

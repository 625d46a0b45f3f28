"""A fleet in memory: does what a rollout asks for, fails where it is told, can be killed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roost.rollout import batches, record
from roost.rollout.fleet import Lease, Played, Serving
from roost.rollout.judging import Judged
from roost.rollout.record import BatchRecord, HostRecord, Rollout

OLD, NEW, KEY = "r-old", "r-new", "key"
MINE = "mine"
THEN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class KilledError(Exception):
    """The controller was killed."""


@dataclass
class FakeFleet:
    """Hosts by the release that they serve, and what is wrong with which.

    Attributes:
        fails: Hosts whose own gate refuses the new release.
        judged_bad: Hosts on which the notebooks do.
        off: Hosts that cannot be reached.
        unprepared: Hosts that cannot be prepared.
        no_docker: Hosts that cannot say what they serve until they are prepared.
        behind: Hosts behind a gateway.
        late: Those whose running requests do not end.
        never_alone: Nothing can be measured before the swap.
        leases: What is written down on hosts about whose rollout they take part in.
        held: The release that an experiment would have gone back to, by host.
        drained: Those that get no requests.
        kill_at: The step, counted over everything that is asked for, at which the controller dies;
            a fraction of a half: after it was done.
    """

    serves: dict[str, str | None]
    fails: set[str] = field(default_factory=set)
    judged_bad: set[str] = field(default_factory=set)
    off: set[str] = field(default_factory=set)
    unprepared: set[str] = field(default_factory=set)
    no_docker: set[str] = field(default_factory=set)
    behind: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    never_alone: bool = False
    drained: set[str] = field(default_factory=set)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = (OLD, NEW)
    kill_at: float | None = None
    steps: list[str] = field(default_factory=list)
    baselines: dict[str, Path | None] = field(default_factory=dict)

    def hold(
        self, notes: Mapping[str, Mapping[str, Any]], *, take_over: bool
    ) -> tuple[dict[str, Lease], Played]:
        def do(names: list[str]) -> None:
            for name in names:
                was = self.leases.get(name, {})
                held = take_over or was.get("owner", MINE) == MINE
                found[name] = Lease(held, was)
                if held:
                    self.leases[name] = {"owner": MINE, **notes[name]}

        found: dict[str, Lease] = {}
        return found, self._step("hold", notes, do)

    def let_go(self, hosts: Iterable[str]) -> Played:
        def do(names: list[str]) -> None:
            for name in names:
                if self.leases.get(name, {}).get("owner") == MINE:
                    del self.leases[name]

        return self._step("let go", hosts, do)

    def look(self, hosts: Iterable[str]) -> tuple[dict[str, Serving], Played]:
        def do(names: list[str]) -> None:
            for name in names:
                key = {"gate": {"figures_key": KEY}}
                if name not in self.no_docker:
                    held = self.held.get(name)
                    found[name] = Serving(self.serves[name], True, self.kept, held, key)

        found: dict[str, Serving] = {}
        asked = list(hosts)
        played = self._step("look", asked, do)
        dumb = dict.fromkeys(self.no_docker & set(asked), "docker: no such file")
        return found, Played({**dumb, **played.bad}, played.unreachable)

    def prepare(self, hosts: Iterable[str]) -> Played:
        played = self._step("prepare", hosts, lambda names: self.no_docker.difference_update(names))
        return Played({**played.bad, **dict.fromkeys(self.unprepared, "no disk")})

    def deploy(self, hosts: Iterable[str]) -> Played:
        asked = list(hosts)
        assert not {n for n in self.behind & set(asked) if self.serves[n]} - self.drained
        played = self._step("deploy", asked, self._deploy)
        wrong = {name: f"{name}: too slow" for name in self.fails & set(asked)}
        swaps = {name: (THEN, THEN + dt.timedelta(seconds=5)) for name in asked}
        return Played({**played.bad, **wrong}, seconds=dict.fromkeys(asked, 9.0), swaps=swaps)

    def _deploy(self, names: list[str]) -> None:
        for name in names:
            if name not in self.fails:
                self.serves[name] = NEW

    def roll_back(self, release: str, hosts: Iterable[str]) -> Played:
        def do(names: list[str]) -> None:
            for name in names:
                self.serves[name] = release

        return self._step(f"back to {release}", hosts, do)

    def drain(self, hosts: Iterable[str]) -> Played:
        def do(names: list[str]) -> None:
            self.drained |= set(names)

        return self._gateway("drain", hosts, do)

    def give_back(self, hosts: Iterable[str]) -> Played:
        def do(names: list[str]) -> None:
            self.drained -= set(names)

        return self._gateway("return", hosts, do)

    def _gateway(self, what: str, hosts: Iterable[str], do: object) -> Played:
        behind = [name for name in hosts if name in self.behind]
        if not behind:
            return Played()
        played = self._step(what, behind, do)
        late = dict.fromkeys(self.late & set(behind), "a request does not end")
        bad = late if what == "drain" else {}
        return Played({**played.bad, **bad}, seconds=dict.fromkeys(behind, 1.0))

    def measure(self, served: Mapping[str, Mapping[str, object]]) -> dict[str, Judged]:
        self._step("measure", served, lambda _: None)
        why = "another client was served" if self.never_alone else ""
        return {name: Judged(why, {"before": self._run(name, "before")}) for name in served}

    def judge(self, baselines: Mapping[str, Path | None]) -> dict[str, Judged]:
        self.baselines.update(baselines)
        self._step("judge", baselines, lambda _: None)
        return {
            name: Judged(
                "answers wrongly" if name in self.judged_bad else "",
                {"verify": self._run(name, "verify"), "benchmark": self._run(name, "benchmark")},
            )
            for name in baselines
        }

    folder: Path = Path()

    def _run(self, name: str, what: str) -> Path:
        return self.folder / "runs" / f"{name}-{what}"

    def _step(self, what: str, hosts: Iterable[str], do: object) -> Played:
        names = list(hosts)
        number = len(self.steps)
        self.steps.append(f"{what} {','.join(names)}")
        if self.kill_at == number:
            raise KilledError
        reached = [name for name in names if name not in self.off]
        do(reached)  # type: ignore[operator]
        if self.kill_at == number + 0.5:
            raise KilledError
        missed = {name: "No route to host" for name in names if name in self.off}
        return Played(missed, frozenset(missed))


def new_rollout(hosts: Mapping[str, str], sizes: str = batches.DEFAULT) -> Rollout:
    """A rollout over hosts, given with their kinds."""
    kinds: dict[str, list[str]] = {}
    for name, kind in hosts.items():
        kinds.setdefault(kind, []).append(name)
    return Rollout(
        inventory="/fleet",
        limit=None,
        sizes=sizes,
        suite="gate",
        who="ops@desk",
        started=record.now(),
        hosts={
            name: HostRecord(kind=kind, figures_key=KEY, wanted=NEW) for name, kind in hosts.items()
        },
        batches=[BatchRecord(hosts=some) for some in batches.divide(kinds, batches.parse(sizes))],
    )

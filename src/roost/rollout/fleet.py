"""What a rollout has Ansible do: the project's own playbooks, for some of the hosts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roost import fleet
from roost.rollout import record

#: The tasks whose results are asked for, and the one that has a host swap and judge.
_ASKED = {"Read the releases", "Have the host's lease"}
_SWAP = "Have it serve, or what served before"

Span = tuple[dt.datetime, dt.datetime]


@dataclass(frozen=True)
class Serving:
    """What a host says of itself.

    Attributes:
        release: Id of the release that is in place; none if nothing is.
        healthy: Whether it answers as healthy.
        kept: Ids of the releases that it could serve.
        held: Id of the one to which an experiment would have gone back that never ended: what
            serves was only tried.
        deployment: What the release was made from, as the host keeps it; empty without one.
    """

    release: str | None
    healthy: bool
    kept: tuple[str, ...] = ()
    held: str | None = None
    deployment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Lease:
    """Whose rollout or experiment a host takes part in.

    Attributes:
        held: This one's.
        was: The lease that was found there, see :meth:`Fleet.hold`, with ``who``, ``inventory``,
            ``since`` and ``renewed``; empty if there was none.
    """

    held: bool
    was: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Played:
    """How a run of a playbook went.

    Attributes:
        bad: What Ansible said of each host that failed or was not reached.
        unreachable: Those of them that were not reached.
        seconds: From its beginning to each host's last task.
        swaps: When each host's engine was stopped and another one judged in its place.
        results: Of the task that was asked for, by host.
    """

    bad: dict[str, str] = field(default_factory=dict)
    unreachable: frozenset[str] = frozenset()
    seconds: dict[str, float] = field(default_factory=dict)
    swaps: dict[str, Span] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)


class Fleet:
    """The hosts of an inventory.

    Args:
        inventory: Its absolute path.
        folder: The rollout's; what Ansible prints goes to files in it.
        behind: Those that stand behind a gateway.
        become_password: For hosts where sudo asks.
    """

    def __init__(
        self,
        inventory: Path,
        folder: Path,
        behind: Collection[str] = (),
        become_password: str | None = None,
    ) -> None:
        self._inventory = inventory
        self._behind = behind
        self._logs = folder / "ansible"
        self._password = become_password

    def hold(
        self, notes: Mapping[str, Mapping[str, Any]], *, take_over: bool
    ) -> tuple[dict[str, Lease], Played]:
        """Have hosts take part in this rollout, unless they do in somebody else's, or in an
        experiment.

        Args:
            notes: For each host, what whoever takes it over should know: ``wanted``, a release
                that it may serve by now and that nobody has judged, and ``before``, the one to go
                back to then. Empty: nothing.
            take_over: From another controller too.
        """
        played = self._lease(notes, "held", take_over=take_over)
        found = {host: Lease(one["held"], one["was"] or {}) for host, one in played.results.items()}
        return found, played

    def let_go(self, hosts: Iterable[str]) -> Played:
        """Have the hosts take part in no rollout, if this was theirs."""
        return self._lease({host: {} for host in hosts}, "free", take_over=False)

    def _lease(
        self, notes: Mapping[str, Mapping[str, Any]], state: str, *, take_over: bool
    ) -> Played:
        mine = {
            "owner": record.owner(self._inventory),
            "who": record.who(),
            "inventory": str(self._inventory),
        }
        wanted = {
            "lease_of": {host: {**mine, **note} for host, note in notes.items()},
            "lease_state": state,
            "lease_taken_over": take_over,
        }
        return self._play("lease", notes, extra_vars=wanted)

    def look(self, hosts: Iterable[str]) -> tuple[dict[str, Serving], Played]:
        """What each host serves. Changes nothing."""
        played = self._play("status", hosts, extra_vars={"llm_server_wanted": "current"})
        found = {}
        for host, facts in played.results.items():
            chosen = facts["chosen"] or {"files": {}}
            found[host] = Serving(
                release=facts["current"],
                healthy=facts["engine"]["healthy"],
                kept=tuple(each["id"] for each in facts["releases"] if not each["missing"]),
                held=facts["held"],
                deployment=chosen["files"].get("deployment.json", {}),
            )
        return found, played

    def prepare(self, hosts: Iterable[str]) -> Played:
        """Have weights and image on the hosts, and every plan judged; swap nothing."""
        return self._play("deploy", hosts, tags="prepare")

    def deploy(self, hosts: Iterable[str]) -> Played:
        """Have each host serve what the inventory says, or what it served before."""
        return self._play("deploy", hosts, extra_vars=fleet.STAYS_OUT)

    def roll_back(self, release: str, hosts: Iterable[str]) -> Played:
        """Have the hosts serve a release that they keep."""
        return self._play("rollback", hosts, extra_vars={"rollback_to": release, **fleet.STAYS_OUT})

    def drain(self, hosts: Iterable[str]) -> Played:
        """Have gateways send no more requests, and wait for those that run."""
        return self._gateway("drain", hosts)

    def give_back(self, hosts: Iterable[str]) -> Played:
        """Have gateways send requests again, once their health checks pass."""
        return self._gateway("return", hosts)

    def _gateway(self, name: str, hosts: Iterable[str]) -> Played:
        behind = [host for host in hosts if host in self._behind]
        return self._play(name, behind) if behind else Played()

    def _play(
        self,
        name: str,
        hosts: Iterable[str],
        *,
        tags: str | None = None,
        extra_vars: Mapping[str, Any] | None = None,
    ) -> Played:
        self._logs.mkdir(parents=True, exist_ok=True)
        number = len(list(self._logs.iterdir())) + 1
        watch = _Watch()
        with (self._logs / f"{number:02}-{tags or name}.log").open("w", encoding="utf-8") as log:

            def see(event: Mapping[str, Any]) -> bool:
                if text := event.get("stdout"):
                    log.write(f"{text}\n")
                watch.see(event)
                return True

            result = fleet.run_playbook(
                name,
                self._inventory,
                limit=",".join(hosts),
                tags=tags,
                # Hosts that take part in this rollout refuse others.
                extra_vars={"rollout_owner": record.owner(self._inventory), **(extra_vars or {})},
                become_password=self._password,
                watch=see,
            )
        bad = {
            host: watch.said.get(host, "Ansible gave no reason; see its output")
            for host in [*result.failed, *result.unreachable]
        }
        return Played(bad, frozenset(result.unreachable), watch.seconds, watch.swaps, watch.results)


class _Watch:
    """What is told by Ansible's events."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.swaps: dict[str, Span] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self._started = record.now()
        self._swapping: dict[str, dt.datetime] = {}

    def see(self, event: Mapping[str, Any]) -> None:
        kind, data = event["event"], event.get("event_data") or {}
        host = data.get("host")
        if not host or not kind.startswith("runner_on_"):
            return
        now = record.now()
        self.seconds[host] = (now - self._started).total_seconds()
        if kind == "runner_on_start":
            if data.get("task") == _SWAP:
                self._swapping[host] = now
            return
        outcome = data.get("res") or {}
        if kind in {"runner_on_failed", "runner_on_unreachable"}:
            self.said[host] = str(outcome.get("msg") or "no reason given").strip()
        if kind == "runner_on_ok" and data.get("task") in _ASKED:
            self.results[host] = outcome
        if data.get("task") == _SWAP and host in self._swapping and outcome.get("changed"):
            self.swaps[host] = (self._swapping.pop(host), now)

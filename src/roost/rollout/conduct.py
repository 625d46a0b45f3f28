"""What comes next in a rollout.

Each step may be done twice, and what was begun is written down before it is done: so a rollout
that was interrupted, at whatever step, is gone on with by running it again. Which hosts have been
changed is asked of the hosts; the record says what was judged. The hosts know whose rollout or
experiment they take part in, so that somebody else's is left alone, or, where it has taken over,
not disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from roost.errors import RoostError
from roost.onhost.lease import said as whose
from roost.rollout import record, report
from roost.rollout.fleet import Lease, Played, Serving
from roost.rollout.record import Baseline, BatchRecord, HostRecord, Rollout

if TYPE_CHECKING:
    from roost.rollout.judging import Judged

Say = Callable[[str], None]


class Hosts(Protocol):
    """What can be done with hosts; see :class:`roost.rollout.fleet.Fleet`."""

    def hold(
        self, notes: Mapping[str, Mapping[str, Any]], *, take_over: bool
    ) -> tuple[dict[str, Lease], Played]: ...
    def let_go(self, hosts: Iterable[str]) -> Played: ...
    def look(self, hosts: Iterable[str]) -> tuple[dict[str, Serving], Played]: ...
    def prepare(self, hosts: Iterable[str]) -> Played: ...
    def deploy(self, hosts: Iterable[str]) -> Played: ...
    def roll_back(self, release: str, hosts: Iterable[str]) -> Played: ...
    def drain(self, hosts: Iterable[str]) -> Played: ...
    def give_back(self, hosts: Iterable[str]) -> Played: ...


class Judges(Protocol):
    """What can be found out about hosts; see :class:`roost.rollout.judging.Judge`."""

    def measure(self, served: Mapping[str, Mapping[str, object]]) -> dict[str, Judged]: ...
    def judge(self, baselines: Mapping[str, Path | None]) -> dict[str, Judged]: ...


class Conductor:
    """A rollout that begins, or goes on.

    Args:
        rollout: What is kept of it, with its batches.
        folder: Its folder.
        hosts: Does things with hosts.
        judge: Finds out about them.
        say: Takes one line of progress at a time.
        take_over: Also hosts that take part in somebody else's rollout, or in an experiment.
    """

    def __init__(
        self,
        rollout: Rollout,
        folder: Path,
        hosts: Hosts,
        judge: Judges,
        say: Say,
        *,
        take_over: bool = False,
    ) -> None:
        self._rollout = rollout
        self._folder = folder
        self._hosts = hosts
        self._judge = judge
        self._say = say
        self._take_over = take_over
        #: Hosts that have its lease, as far as is known.
        self._leased = set(rollout.hosts) if rollout.prepared else set()

    def run(self) -> Rollout:
        """Go through the batches that are not passed; the rollout as it ended.

        Raises:
            RoostError: Ansible or a notebook could not be run at all, or another controller has
                taken hosts over. Nothing is decided by that: the rollout can be gone on with.
        """
        if not self._rollout.prepared:
            refusal = self._prepare()
            if refusal:
                return self._end("refused", refusal)
        count = len(self._rollout.batches)
        for number, batch in enumerate(self._rollout.batches, 1):
            self._say(f"batch {number} of {count}: {', '.join(batch.hosts)}")
            if self._passed_before(batch):
                self._say("  passed before")
                continue
            reason = self._change(batch)
            if reason:
                self._back(batch)
                return self._end("stopped", f"batch {number} of {count}: {reason}")
        return self._end("passed")

    # -- before the first swap

    def _prepare(self) -> str:
        """Have everything on every host; what keeps the rollout from beginning."""
        hosts = self._rollout.hosts
        self._say(f"preparing {len(hosts)} hosts: weights, image and plan")
        leases, held = self._hold()
        if held.bad:
            what = "not reached" if held.unreachable else "cannot write down whose rollout it is"
            return _listed(f"{what}, and nothing was changed", held.bad)
        if others := _of_others(leases):
            what = "left to somebody else, and nothing was changed"
            return f"{_listed(what, others)}\n{_TAKE_OVER}"
        for name, lease in leases.items():
            if lease.was.get("wanted"):
                hosts[name].unjudged.append(lease.was["wanted"])
                hosts[name].before = hosts[name].before or lease.was["before"]
        found, looked = self._hosts.look(hosts)
        if looked.unreachable:
            return _listed("not reached, and nothing was changed", looked.bad)
        self._keep_before(found)
        prepared = self._hosts.prepare(hosts)
        for name, seconds in prepared.seconds.items():
            hosts[name].seconds["prepare"] = round(seconds, 1)
        if prepared.bad:
            return _listed("cannot be prepared; no host was swapped", prepared.bad)
        # Without Docker a host says nothing; it has it now. Not known is not nothing to go back to.
        if silent := [name for name in hosts if name not in found]:
            found, looked = self._hosts.look(silent)
            if looked.bad:
                what = "does not say what it serves; no host was swapped"
                return _listed(what, looked.bad)
            self._keep_before(found)
        self._rollout.prepared = True
        self._keep()
        return ""

    def _keep_before(self, found: Mapping[str, Serving]) -> None:
        for name, serving in found.items():
            host = self._rollout.hosts[name]
            host.before = self._judged_before(host, serving)
        self._keep()

    def _hold(self, batch: BatchRecord | None = None) -> tuple[dict[str, Lease], Played]:
        """Have every host take part in this rollout, whose next batch that is."""
        begun = {
            name
            for one in self._rollout.batches
            if one.started or one is batch
            for name in one.hosts
        }
        notes = {
            name: {"wanted": host.wanted, "before": host.before}
            if name in begun and host.verdict not in {"passed", "back"}
            else {}
            for name, host in self._rollout.hosts.items()
        }
        take_over, self._take_over = self._take_over, False
        leases, played = self._hosts.hold(notes, take_over=take_over)
        self._leased.update(name for name, lease in leases.items() if lease.held)
        return leases, played

    def _hold_on(self, batch: BatchRecord) -> None:
        """The same before a batch is changed, or taken back; raises where another took over."""
        leases, _ = self._hold(batch)  # who is not reached cannot be changed either
        if others := _of_others(leases):
            raise RoostError(
                f"{self._folder}: somebody else has begun to change hosts of this rollout",
                why="\n".join(f"{name}: {who}" for name, who in others.items()),
                fix="leave it to that one; or, once it has ended, run this again with --take-over",
            )

    def _judged_before(self, host: HostRecord, serving: Serving) -> str | None:
        """The release to go back to: what serves, or what served before nobody judged that."""
        if serving.held in serving.kept:
            return serving.held
        if serving.release not in host.unjudged:
            return serving.release
        return host.before if host.before in serving.kept else None

    # -- a batch

    def _passed_before(self, batch: BatchRecord) -> bool:
        if batch.verdict != "passed":
            return False
        found, _ = self._hosts.look(batch.hosts)
        hosts = self._rollout.hosts
        # One that cannot be reached now was judged then.
        return all(serving.release == hosts[name].wanted for name, serving in found.items())

    def _change(self, batch: BatchRecord) -> str:
        """Have the hosts of a batch serve the new release, judged; what speaks against it."""
        if batch.verdict in {"failing", "back"}:
            return self._rollout.reason
        self._hold_on(batch)
        batch.verdict = "begun"
        batch.started = batch.started or record.now()
        self._keep()
        bad = self._swap(batch) or self._judged(batch) or self._return(batch.hosts)
        for name, why in bad.items():
            self._rollout.hosts[name].why = why
        if bad:
            batch.verdict = "failing"
            self._rollout.reason = _listed("did not pass", bad)
            self._keep()
            return self._rollout.reason
        for name in batch.hosts:
            self._rollout.hosts[name].verdict = "passed"
        batch.verdict, batch.finished = "passed", record.now()
        self._keep()
        return ""

    def _swap(self, batch: BatchRecord) -> dict[str, str]:
        found, _ = self._hosts.look(batch.hosts)
        # What serves nothing has no requests to wait for.
        if bad := self._drain([name for name, serving in found.items() if serving.release]):
            return bad
        self._baselines(batch, found)
        started = time.monotonic()
        self._say("  deploying")
        played = self._hosts.deploy(batch.hosts)
        self._note(played, "deploy")
        if not played.bad:
            self._say(f"  deployed in {time.monotonic() - started:.0f} s")
        return played.bad

    def _drain(self, names: Sequence[str]) -> dict[str, str]:
        begun = record.now()
        played = self._hosts.drain(names)
        self._note(played, "drain")
        for name in played.seconds:
            host = self._rollout.hosts[name]
            if not _is_out(host):
                host.out.append((begun, None))
        self._keep()
        return played.bad

    def _return(self, names: Sequence[str]) -> dict[str, str]:
        played = self._hosts.give_back(names)
        for name in names:
            host = self._rollout.hosts[name]
            if _is_out(host) and name not in played.bad:
                host.out[-1] = (host.out[-1][0], record.now())
        self._keep()
        return played.bad

    def _baselines(self, batch: BatchRecord, found: Mapping[str, Serving]) -> None:
        """Measure what serves, where nothing is kept of it and it will be compared."""
        served = {}
        for name in batch.hosts:
            host, serving = self._rollout.hosts[name], found.get(name)
            if serving and self._needs_baseline(host, serving):
                served[name] = serving.deployment
        if not served:
            return
        self._say(f"  measuring what serves on {', '.join(served)}")
        for name, one in self._judge.measure(served).items():
            host = self._rollout.hosts[name]
            self._link(host, one)
            if host.before and not one.why:
                host.baseline = Baseline(release=host.before, run=host.runs["before"])
            elif one.why:
                self._say(f"  no baseline of {name}: {one.why}")
        self._keep()

    def _needs_baseline(self, host: HostRecord, serving: Serving) -> bool:
        if not serving.healthy or serving.release != host.before or host.before == host.wanted:
            return False
        if host.baseline and host.baseline.release == host.before:
            return False
        gate = serving.deployment.get("gate") or {}
        return bool(gate.get("figures_key") == host.figures_key)

    def _judged(self, batch: BatchRecord) -> dict[str, str]:
        self._say("  judging by notebooks")
        hosts = self._rollout.hosts
        baselines: dict[str, Path | None] = {}
        for name in batch.hosts:
            known = hosts[name].baseline
            fits = known and known.release == hosts[name].before
            baselines[name] = self._folder / known.run if known and fits else None
        started = time.monotonic()
        bad = {}
        for name, one in self._judge.judge(baselines).items():
            host = hosts[name]
            self._link(host, one)
            host.compared = one.remark
            host.seconds["judge"] = round(time.monotonic() - started, 1)
            if one.why:
                bad[name] = one.why
        return bad

    # -- back

    def _back(self, batch: BatchRecord) -> None:
        """Have every host of a batch serve what it served before, checked."""
        self._say("  not passed: taking the batch back")
        self._hold_on(batch)
        hosts = self._rollout.hosts
        found, looked = self._hosts.look(batch.hosts)
        to_do: dict[str, list[str]] = {}
        failed = dict(looked.bad)
        for name, serving in found.items():
            before = hosts[name].before
            if before and before != hosts[name].wanted and not _serves(serving, before):
                to_do.setdefault(before, []).append(name)
        for release, names in to_do.items():
            played = self._hosts.roll_back(release, names)
            self._note(played, "back")
            failed.update(played.bad)
        found, looked = self._hosts.look(batch.hosts)
        for name in batch.hosts:
            self._settle(hosts[name], found.get(name), failed.get(name) or looked.bad.get(name))
        served = [n for n in batch.hosts if hosts[n].verdict == "back" and hosts[n].before]
        for name, why in self._return(served).items():
            hosts[name].verdict = "stuck"
            hosts[name].why += f"\nit is back, but no client reaches it: {why}"
        if all(hosts[name].verdict == "back" for name in batch.hosts):
            batch.verdict = "back"
        batch.finished = record.now()
        self._keep()

    def _settle(self, host: HostRecord, serving: Serving | None, said: str | None) -> None:
        """The verdict on a host that was taken back."""
        as_before = serving is not None and serving.release == host.before
        well = serving is not None and (serving.healthy or host.before is None)
        if as_before and well and not (host.why and host.before == host.wanted):
            host.verdict = "back"
            return
        host.verdict = "stuck"
        if serving is None or said:
            now = f"it was not taken back: {said}"
        elif host.before == host.wanted:
            now = "it served this release before the rollout too, so it was left as it is"
        elif host.before is None:
            now = "nothing served there before, so there is nothing to go back to"
        else:
            now = f"it serves {serving.release}, which is not healthy"
        if now not in host.why:
            host.why = "\n".join(filter(None, [host.why, now]))

    # -- what is kept

    def _note(self, played: Played, step: str) -> None:
        for name, seconds in played.seconds.items():
            self._rollout.hosts[name].seconds[step] = round(seconds, 1)
        for name, (begun, ended) in played.swaps.items():
            if not _is_out(self._rollout.hosts[name]):
                self._rollout.hosts[name].out.append((begun, ended))

    def _link(self, host: HostRecord, one: Judged) -> None:
        for what, folder in one.runs.items():
            host.runs[what] = str(folder.relative_to(self._folder))

    def _end(self, verdict: str, reason: str = "") -> Rollout:
        # First, so that killed in between it is gone on with.
        still = [name for name in let_go(self._hosts, self._rollout.hosts) if name in self._leased]
        reason = "\n".join(filter(None, [reason, *map(still_leased, still)]))
        self._rollout = self._rollout.model_copy(
            update={"verdict": verdict, "reason": reason, "finished": record.now()}
        )
        self._keep()
        return self._rollout

    def _keep(self) -> None:
        record.write(self._folder, self._rollout)
        report.write(self._folder, self._rollout)


def let_go(hosts: Hosts, names: Collection[str]) -> list[str]:
    """End the leases of a rollout that is over; the hosts that did not hear of it."""
    try:
        return list(hosts.let_go(names).bad)
    except RoostError:
        return list(names)


def still_leased(name: str) -> str:
    """What is to be said of a host that did not hear that the rollout is over."""
    return f"{name}: still has this rollout's lease: deploy with --despite-lease, or roll out again"


_TAKE_OVER = (
    "Wait for its end. If that controller is no more, go on with --take-over "
    "(-e rollout_take_over=true); it is not asked for once a lease was not renewed for a day."
)


def _of_others(leases: Mapping[str, Lease]) -> dict[str, str]:
    """Whose rollout or experiment hosts take part in, where that is not this rollout."""
    return {name: whose(lease.was) for name, lease in leases.items() if not lease.held}


def _is_out(host: HostRecord) -> bool:
    """Whether its gateway sends it no requests."""
    return bool(host.out) and host.out[-1][1] is None


def _serves(serving: Serving, release: str) -> bool:
    return serving.healthy and serving.release == release


def _listed(what: str, bad: Mapping[str, str]) -> str:
    """One text for several hosts; a host's own message begins with its name, or gets it."""
    lines = [why if why.startswith(f"{name}:") else f"{name}: {why}" for name, why in bad.items()]
    return f"{', '.join(bad)} {what}\n" + "\n".join(lines)

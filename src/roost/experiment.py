"""One host, several deployments in turn, each measured, and the host back where it was.

Every variant comes by the ordinary deploy playbook and is measured by the benchmark notebook, both
with the same ``roost_*`` variables on top of the inventory's. The release that served before is
*held* on the host (a link beside ``current``), so that the host does not forget it however many
variants come after it, and so that it is known where to go back to after this process was killed.

The host takes part in the experiment as it would in a rollout (:mod:`roost.onhost.lease`): others
leave it alone. Whoever deploys there all the same, and passes, has the host forget the experiment,
which then does not go back.

What was measured is noted in the experiment's folder as it comes; the same experiment begun again
goes on from there.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from roost import asking, deployment, fleet, releases, runs, site, ssh
from roost import inventory as inventories
from roost.deployment import Deployment
from roost.errors import RefusedError, RoostError, UsageError
from roost.hosts import HostFacts
from roost.interruptions import interruptible
from roost.inventory import Host
from roost.measure import benchmark
from roost.onhost import RELEASES
from roost.onhost.lease import said
from roost.plan import gate
from roost.preflight import of_a_rollout
from roost.rollout import record
from roost.root import repository_root
from roost.ssh import Remote

FILE = "experiment.json"
#: Tasks that say how a playbook ended.
_DEPLOYED = "Say what became of it"
_PREFLIGHT = "Judge the host"
_LEASED = "Have the host's lease"
_DRAINED = "Send it no more requests, and wait for those that run"
_RETURNED = "Have it served again"
#: A variant is judged beside the others, not beside the one that happened to serve before it.
_FLOORS = {"roost_speed_floor": 0, "roost_accept_length_floor": 0}


class Tried(BaseModel):
    """What became of one variant.

    Attributes:
        name: Of the variant.
        release: Id of what it comes to on the host; none where it was refused before that.
        refusal: Why the planner does not allow it; such a variant is never tried.
        run: The benchmark's folder.
        failure: Why it has none, though it was tried.
        seconds: What trying it took.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    settings: dict[str, Any] = {}
    release: str | None = None
    refusal: str | None = None
    run: str | None = None
    failure: str | None = None
    seconds: float = 0.0

    @property
    def open(self) -> bool:
        """Whether it is still to be tried."""
        return self.refusal is None and self.run is None and self.failure is None


class Notes(BaseModel):
    """``experiment.json``. What is asked of every variant (suite, prompts) is in ``question``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    host: str
    question: str
    tried: list[Tried]


@dataclass(frozen=True)
class Variant:
    """One deployment to try.

    Attributes:
        name: For people, unique in an experiment.
        variables: ``roost_*`` variables that win over the inventory's.
        settings: What of them was varied, for tables.
    """

    name: str
    variables: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Experiment:
    """One that has begun.

    Attributes:
        unended: Whether the host still serves what an experiment that was killed has tried.
        lost: Why the host is this experiment's no more, once that was seen.
        made: Whether its folder is new.
    """

    inventory: Path
    host: Host
    plan: benchmark.Plan
    prompts: Path | None
    folder: Path
    runs_dir: Path
    variants: dict[str, Variant]
    notes: Notes
    become_password: str | None = None
    say: Callable[[str], None] = print
    unended: bool = False
    lost: str = ""
    made: bool = False

    @property
    def owner(self) -> str:
        """Whose lease the host has meanwhile."""
        return record.owner(_lock(self.runs_dir, self.host.name))

    @property
    def refused(self) -> list[Tried]:
        return [one for one in self.notes.tried if one.refusal is not None]

    @property
    def measured(self) -> list[Tried]:
        return [one for one in self.notes.tried if one.run is not None]

    def note(self, now: Tried) -> None:
        """Keep what became of a variant."""
        tried = [now if one.name == now.name else one for one in self.notes.tried]
        self.notes = self.notes.model_copy(update={"tried": tried})
        self.save()

    def save(self) -> None:
        """Write the notes down."""
        runs.write_atomically(self.folder / FILE, self.notes.model_dump_json(indent=1) + "\n")

    def tell(self, line: str) -> None:
        """One line of progress; a terminal that is gone must not keep a host from going back."""
        with suppress(OSError):
            self.say(f"{self.host.name}: {line}")


def begin(
    kind: str,
    inventory: str | Path,
    host: str,
    variants: Callable[[Host, Deployment], Sequence[Variant]],
    *,
    suite: Any,
    prompts: Any = None,
    runs_dir: Path,
    run_dir: Path | None = None,
    resume: Path | None = None,
    anew: bool = False,
    all_or_none: bool = False,
    become_password: str | None = None,
    say: Callable[[str], None] = print,
) -> Experiment:
    """Plan every variant for the host as it is; go on with what an earlier process has measured.

    Touches nothing on the host, unless all or none are asked for and one is refused: then a host
    that a killed experiment has left is brought back first.

    Args:
        kind: ``compare`` or ``tune``, for the folder's name.
        inventory: Its path.
        host: One of its hosts.
        variants: Given the host and its deployment by the inventory, what to try, in this order.
        suite: What is measured of each.
        prompts: The user's own file of prompts, or none.
        runs_dir: Where runs are kept.
        run_dir: The experiment's folder, where a caller has begun it; nothing is planned again.
        resume: The folder of one to go on with, finished or not.
        anew: Go on with no earlier one; else with the newest that was not finished.
        all_or_none: Refuse the experiment if the planner refuses one variant.
        become_password: For hosts where sudo asks.
        say: Takes one line of progress at a time.

    Raises:
        UsageError: No such inventory, host, suite or file of prompts, or a variable is wrong.
        RefusedError: A variant is refused, and all or none were asked for; or the host takes part
            in a rollout, or in somebody else's experiment.
        RoostError: The host cannot be reached, or not be brought back.
    """
    planned = benchmark.plan(suite, prompts)
    loaded = inventories.load(inventory)
    chosen = loaded.host(host)
    resolved = deployment.from_variables(host, chosen.variables, repository_root())
    wanted = variants(chosen, resolved)
    question = planned.question
    earlier = None if anew else _earlier(kind, host, question, runs_dir, run_dir or resume)
    if resume is not None and earlier is None:
        raise UsageError(
            f"{resume}: nothing to go on with",
            why=f"it is no {kind} of {host} with the suite {planned.name} and these prompts",
        )
    folder = run_dir or (earlier[0] if earlier else None)
    tried = earlier[1].tried if earlier else []
    names = [one.name for one in wanted]
    unended = False
    # In its own folder the caller has planned just this.
    if run_dir is None or [one.name for one in tried] != names:
        with ssh.connect(chosen) as remote:
            facts = asking.facts(remote, chosen)
            unended = _pointed(remote, "held") is not None
        owner = record.owner(_lock(runs_dir.absolute(), host))
        for lease in of_a_rollout(facts, owner=owner):
            raise _not_free(host, lease.saw)
        tried = list(_planned(chosen, wanted, facts, {one.release: one for one in tried}))
    made = folder is None
    if folder is None:
        folder = runs.new_folder(runs_dir.absolute(), f"{host}-{kind}", resolved.recipe)
    found = Experiment(
        inventory=loaded.path,
        host=chosen,
        plan=planned,
        prompts=Path(prompts).expanduser().absolute() if prompts is not None else None,
        folder=folder,
        runs_dir=runs_dir.absolute(),
        variants={one.name: one for one in wanted},
        notes=Notes(kind=kind, host=host, question=question, tried=tried),
        become_password=become_password,
        say=say,
        unended=unended,
        made=made,
    )
    if found.refused and all_or_none:
        with or_nothing(found):
            raise RefusedError(
                f"{host}: not all of it can run; nothing was tried",
                why="\n".join(f"{one.name}: {one.refusal}" for one in found.refused),
                fix="see `roost plan`, or leave it out",
            )
    found.save()
    return found


def _not_free(host: str, lease: str) -> RefusedError:
    return RefusedError(
        f"{host}: takes part in what somebody else does; nothing was changed",
        why=lease,
        fix="wait for its end: it changes what would be measured. If its controller is no more, "
        "end a rollout with roost rollout --take-over, and an experiment with roost start "
        "--despite-lease, which has serve again what served before it; a lease that was not "
        "renewed for a day counts no more",
    )


def _earlier(
    kind: str, host: str, question: str, runs_dir: Path, folder: Path | None
) -> tuple[Path, Notes] | None:
    """The newest experiment of that kind that was not finished; or the one in a folder."""
    found = [folder / FILE] if folder else sorted(runs_dir.glob(f"*/{FILE}"), reverse=True)
    for path in found:
        if folder is None and (path.parent / runs.RESULT).is_file():
            continue
        try:
            notes = Notes.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            continue
        if (notes.kind, notes.host, notes.question) == (kind, host, question):
            return path.parent, notes
    return None


def _planned(
    host: Host,
    variants: Sequence[Variant],
    facts: HostFacts,
    known: Mapping[str | None, Tried],
) -> Iterator[Tried]:
    """Each variant with the planner's refusal, or with what is known of its release already."""
    resolved: dict[str, Deployment] = {}
    refusals: dict[str, str] = {}
    for variant in variants:
        try:
            resolved[variant.name] = resolve(host, variant)
        except RefusedError as error:
            refusals[variant.name] = " ".join(str(error).split())
    token = site.from_variables(host.name, host.variables).token()
    plans = gate.plans(resolved.values(), facts, token)
    for name, plan in zip(resolved, plans, strict=True):
        if plan.refused:
            refusals[name] = "; ".join(f"{one.id}: {one.summary}" for one in plan.refused)
    seen: dict[str, str] = {}
    for variant in variants:
        name = variant.name
        now = Tried(name=name, settings=dict(variant.settings))
        release = str(releases.release(resolved[name])["id"]) if name in resolved else None
        if name in refusals:
            yield now.model_copy(update={"refusal": refusals[name]})
        elif release in seen:
            yield now.model_copy(update={"refusal": f"the same as {seen[release]}"})
        else:
            assert release is not None  # noqa: S101 - else it was refused
            seen[release] = name
            before = known.get(release)
            if before is None or not (before.run is None or _finished(before.run)):
                before = now
            yield before.model_copy(
                update={"name": name, "settings": now.settings, "release": release}
            )


def _finished(run: str) -> bool:
    return Path(run, runs.RESULT).is_file()


def resolve(host: Host, variant: Variant) -> Deployment:
    """What a host runs for a variant.

    Raises:
        RefusedError: It does not run there, or something of it is not pinned.
        UsageError: A variable is wrong.
    """
    variables = {**host.variables, **variant.variables}
    return deployment.from_variables(host.name, variables, repository_root())


@contextmanager
def or_nothing(experiment: Experiment) -> Iterator[None]:
    """One that is refused before anything was tried leaves no folder behind.

    Nor a host that a killed one has left: that is brought back first.

    Raises:
        RoostError: The host could not be brought back.
    """
    try:
        yield
    except RefusedError:
        if experiment.made and not experiment.measured:
            with suppress(OSError):
                (experiment.folder / FILE).unlink(missing_ok=True)
                experiment.folder.rmdir()
        if experiment.unended:
            with on_host(experiment):
                raise
        raise


def preflight(experiment: Experiment) -> None:
    """Have the deploy's own preflight judge every variant that is still to be tried.

    Beyond the plan it asks hub, registry and disk, and changes nothing.

    Raises:
        RefusedError: At least one would be refused.
    """
    refused = []
    for one in experiment.notes.tried:
        if not one.open:
            continue
        experiment.tell(f"{one.name}: preflight")
        _, failed = fleet.ask(
            "deploy",
            _PREFLIGHT,
            experiment.inventory,
            limit=experiment.host.name,
            check=True,
            become_password=experiment.become_password,
            extra_vars={
                **experiment.variants[one.name].variables,
                "rollout_owner": experiment.owner,
            },
            tags="preflight",
        )
        if experiment.host.name in failed:
            refused.append(f"{one.name}: {failed[experiment.host.name]}")
    if refused:
        raise RefusedError("nothing was tried, for not all of it can run", why="\n".join(refused))


@contextmanager
def on_host(experiment: Experiment) -> Iterator[None]:
    """Hold what serves, and have it serve again at the end, whatever happens in between.

    Raises:
        RoostError: The host could not be brought back, or not be reached at the beginning; or
            another experiment is under way there.
    """
    experiment.unended = False  # or this one ends it, or says why it cannot
    with interruptible(), _turn(experiment), _leased(experiment):
        held = _hold(experiment)
        try:
            # What serves nothing has no requests to wait for.
            if held is not None and _behind(experiment):
                _play(experiment, "drain", _DRAINED)
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                experiment.tell("interrupted")
            _go_back(experiment, held, f"first: {error}" if str(error) else "")
            raise
        _go_back(experiment, held, "")


@contextmanager
def _leased(experiment: Experiment) -> Iterator[None]:
    """Have the host take part in this experiment, for the length of a ``with``."""
    try:
        took = _lease(experiment)
        if not took["held"]:
            raise _not_free(experiment.host.name, said(took["was"]))
        yield
    finally:
        try:
            _lease(experiment, "free")
        except (RoostError, KeyboardInterrupt) as error:
            experiment.tell(
                "may still have this experiment's lease, for a day: until then only another run of "
                f"it, or --despite-lease, deploys there ({error or 'interrupted'})"
            )


def _lease(experiment: Experiment, state: str = "held") -> dict[str, Any]:
    """Take or renew the host's lease, or give it up; what the host says of it.

    Raises:
        RoostError: The host cannot be reached, or cannot write it down.
    """
    name = experiment.host.name
    mine = {
        "owner": experiment.owner,
        "who": record.who(),
        "inventory": str(experiment.inventory),
        "experiment": experiment.notes.kind,
    }
    found, failed = fleet.ask(
        "lease",
        _LEASED,
        experiment.inventory,
        limit=name,
        become_password=experiment.become_password,
        extra_vars={"lease_of": {name: mine}, "lease_state": state, "lease_taken_over": False},
    )
    if name not in found:
        raise RoostError(f"{name}: it cannot be said whose it is", why=failed.get(name, ""))
    return found[name]


def lost(experiment: Experiment) -> str:
    """Why the host is this experiment's no more; empty: it is, and its lease was renewed.

    Raises:
        RoostError: The host cannot be reached, or cannot write it down.
    """
    # What was ended is not begun again: by then the host has a lease, but of nothing.
    if not experiment.lost:
        now = _lease(experiment)
        if not now["held"]:
            experiment.lost = said(now["was"])
        elif now["was"] is None or now["was"]["owner"] != experiment.owner:
            serves = serving(experiment.host) or "nothing"
            experiment.lost = f"somebody else has deployed {serves} since"
    return experiment.lost


@contextmanager
def _turn(experiment: Experiment) -> Iterator[None]:
    """The only experiment on this host with runs in this folder, for the length of a ``with``.

    A second one would go on with the first one's notes, and deploy over what it measures. The lock
    is the kernel's: it ends with the process that holds it, however that ends.
    """
    name = experiment.host.name
    path = _lock(experiment.runs_dir, name)
    try:
        try:
            # NFS locks what may be written.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except PermissionError:
            if not path.exists():
                raise
            # Another user's; elsewhere that is enough for a lock.
            descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise RoostError(f"{path}: cannot be opened", why=str(error.strerror)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RoostError(
                f"{name}: another search or comparison deploys and measures there",
                why=f"it keeps its runs in {experiment.runs_dir}, too",
                fix="wait for its end, or end it; nothing was changed by this one",
            ) from None
        except OSError as error:
            raise RoostError(
                f"{path}: cannot be locked",
                why=str(error.strerror),
                fix="keep runs on a disk of this machine (--runs)",
            ) from None
        yield
    finally:
        os.close(descriptor)


def _lock(runs_dir: Path, host: str) -> Path:
    return runs_dir / re.sub(r"[^\w.+-]", "_", f".experiment-{host}.lock")


def try_variant(experiment: Experiment, tried: Tried) -> Tried:
    """Deploy and measure one variant, and note it.

    Raises:
        RoostError: It was not deployed, not measured to the end, or another release served.
    """
    started = time.monotonic()
    variant = experiment.variants[tried.name]
    if why := lost(experiment):
        raise RoostError(f"{experiment.host.name}: {tried.name} was not deployed", why=why)
    experiment.tell(f"{tried.name}: deploy")
    _play(experiment, "deploy", _DEPLOYED, {**variant.variables, **_FLOORS, **fleet.STAYS_OUT})
    folder = _measure(experiment, variant)
    now_serves = serving(experiment.host)
    if now_serves != tried.release:
        raise RoostError(
            f"{experiment.host.name}: {tried.name} was not measured",
            why=f"somebody else deployed {now_serves or 'nothing'} meanwhile, not {tried.release}",
            fix="run it again when nobody else works on this host",
        )
    took = time.monotonic() - started
    now = tried.model_copy(update={"run": str(folder), "seconds": tried.seconds + took})
    experiment.note(now)
    return now


def _measure(experiment: Experiment, variant: Variant) -> Path:
    """Run the benchmark notebook; its folder."""
    # Brings papermill along, which no other part of this module needs.
    from roost import notebooks

    (outcome,) = notebooks.execute_all(
        "benchmark",
        experiment.inventory,
        [experiment.host.name],
        parameters={
            "suite": experiment.plan.name,
            "prompts": str(experiment.prompts) if experiment.prompts else None,
            "variables": dict(variant.variables),
        },
        runs_dir=experiment.runs_dir,
        progress=lambda _, line: experiment.tell(f"{variant.name}: {line}"),
    )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.result is not None  # noqa: S101 - exactly one of the two is there
    if not outcome.ok:
        raise RoostError(
            f"{experiment.host.name}: the benchmark of {variant.name} cannot be believed",
            why=outcome.result.summary(),
            fix=f"its evidence is in {outcome.folder}",
        )
    return outcome.folder


# --- the host -------------------------------------------------------------------------------------


def _behind(experiment: Experiment) -> bool:
    """Whether a gateway sends the host requests."""
    return bool(experiment.host.variables.get("roost_gateway"))


def _play(
    experiment: Experiment, playbook: str, task: str, extra_vars: Mapping[str, Any] | None = None
) -> None:
    """Run a playbook that is done once a task of it is.

    Raises:
        RoostError: It is not; with the playbook's own message.
    """
    name = experiment.host.name
    found, failed = fleet.ask(
        playbook,
        task,
        experiment.inventory,
        limit=name,
        become_password=experiment.become_password,
        extra_vars={"rollout_owner": experiment.owner, **(extra_vars or {})},
    )
    if name in failed or name not in found:
        raise RoostError(failed.get(name, f"{name}: {playbook} did not come to its end"))


def _pointed(remote: Remote, link: str) -> str | None:
    """The release that a link on the host points to."""
    return ssh.run_privileged(remote, ["readlink", f"{RELEASES}/{link}"]).out.strip() or None


def _link(host: Host, link: str) -> str | None:
    with ssh.connect(host) as remote:
        return _pointed(remote, link)


def serving(host: Host) -> str | None:
    """Id of the release in place; none where nothing was deployed.

    Raises:
        SshError: The host cannot be reached.
    """
    return _link(host, "current")


def _hold(experiment: Experiment) -> str | None:
    """The release to go back to: what serves, unless a killed experiment held another one."""
    host = experiment.host
    held = _link(host, "held")
    if held is not None:
        experiment.tell(f"an experiment was not ended here; it will go back to {held}")
        return held
    current = serving(host)
    if current is None:
        experiment.tell("nothing is deployed; the last that is measured will stay")
        return None
    with ssh.connect(host) as remote:
        done = ssh.run_privileged(remote, ["ln", "-sfn", current, f"{RELEASES}/held"])
        # By a deploy that was at work before the host had a lease. It has not ended what was held
        # after it; and of the release that served already, all it leaves is that the lease is gone.
        moved = _pointed(remote, "current") != current or lost(experiment)
        if moved:
            ssh.run_privileged(remote, ["rm", "-f", f"{RELEASES}/held"])
    if moved:
        raise RoostError(
            f"{host.name}: somebody else has just deployed there; nothing was changed",
            why=experiment.lost,
            fix="run it again when nobody else works on this host",
        )
    if done.rc != 0:
        raise RoostError(
            f"{host.name}: {current} cannot be held; nothing was changed",
            why=done.err.strip(),
            fix="roost must become root there without a password (sudo -n), as for a benchmark",
        )
    return current


def _go_back(experiment: Experiment, held: str | None, first: str) -> None:
    """Have the held release serve again, unless somebody else has decided since what serves.

    Raises:
        RoostError: It does not; it stays held, and the message says how to try again.
    """
    host = experiment.host
    if held is None:
        if _behind(experiment) and serving(host) is not None:
            _play(experiment, "return", _RETURNED)
        return
    try:
        if not lost(experiment):
            experiment.tell(f"going back to {held}")
            try:
                # The host forgets with it that anything was held.
                _play(experiment, "rollback", _DEPLOYED, {"rollback_to": held})
            except RoostError:
                # It may have waited for somebody's deploy, which has passed.
                if serving(host) == held or not lost(experiment):
                    raise
            else:
                experiment.tell(f"{held} serves again")
                return
    except (RoostError, KeyboardInterrupt) as error:
        raise RoostError(
            f"{host.name} was not brought back to {held}",
            why="\n".join(text for text in (str(error) or "interrupted", first) if text),
            fix=f"roost rollback -i {experiment.inventory} --limit {host.name} --to {held}",
        ) from None
    experiment.tell(f"is left as it is, not brought back to {held}: {experiment.lost}")
    _give_to_clients(experiment)


def _give_to_clients(experiment: Experiment) -> None:
    """Have the gateway send requests to what somebody else has had pass on a host that was lost.

    Theirs was returned by themselves, but a deploy of ours that waited for its end has drained the
    host again before it was refused. What others only try stays out, and what they have not judged.
    """
    if not _behind(experiment):
        return
    try:
        # What passes has the host forget what was held.
        if _lease(experiment)["held"] and _link(experiment.host, "held") is None:
            # By hand, so that a host which cannot say any more whose it is stays out, too.
            _play(experiment, "return", _RETURNED, {"rollout_owner": ""})
    except RoostError as error:
        experiment.tell(f"may get no requests from its gateway: {error}")

"""Serving another release, or still the one before.

The container of the new release is created beside the one that serves, under a name of its own.
:func:`serve` then stops the old one, starts the new one on trial, and judges it. Only when it has
proved itself do the names change; until then ``roost-llm`` is the old container, and whatever ends
the trial (a failed gate, a crash, a reboot, a power cut) leaves it there to be started again. The
systemd unit starts what is called ``roost-llm``, so a reboot alone brings the old release back.

Nobody but the host takes part: it finishes what was begun though the controller be killed or the
line cut. ``transaction.json`` says what has begun; :func:`recover` ends what a process that was
killed has left.
"""

from __future__ import annotations

import calendar
import contextlib
import time
from typing import Any, Mapping

from . import NAME, lease
from .gate import failed
from .machine import Machine, MachineError
from .store import Store, now
from .trial import (
    HEALTH_TIMEOUT,
    TrialError,
    Wanted,
    ended,
    endpoint_of,
    gate_of,
    healthy,
    prove,
    redactor_of,
)

#: What the container is called between the moment that another one takes its name and its removal.
OLD = f"{NAME}-old"

#: Seconds that an engine which has run for long may be unhealthy before it is started again.
LATE_HEALTH = 30.0
#: Seconds that a container which nobody started is left for the deploy that made it, which may
#: wait hours for its turn.
FRESH = 86400.0
#: Seconds that Docker may be away while a release is brought back.
DOCKER_AWAY = 120.0


def serve(machine: Machine, store: Store, wanted: Wanted) -> dict[str, Any]:
    """Have the wanted release serve and prove itself, else what served before.

    The caller has the host's turn.

    Returns:
        ``{outcome, changed, release, previous, failure, kept, restored, checks, figures,
        recovered, died}`` with the outcome

        - ``serves``: the wanted release serves and has proved itself.
        - ``restored``: it did not; the release before serves again, and answers rightly.
        - ``unproved``: neither proved itself; the release before was started again.
        - ``nothing``: it did not, and nothing served before: nothing does now.
        - ``fails``: the wanted release was serving already, and no longer proves itself.
        - ``untouched``: the swap could not begin; what was is as it was.

        ``kept`` is when the failure was recorded, as its record says; none: it is not. ``died`` is
        what was found of an engine that served and had ended by itself, or was dead inside.
    """
    recovered = died = None
    try:
        _have_docker(machine)
        died = _died(machine, store, wanted)
        recovered = recover(machine, store, wanted.name)
        mine = machine.inspect(wanted.container)
        serving = machine.inspect(NAME)
        served = bool(serving and (serving["State"]["Running"] or _is_kept(machine)))
        if mine and serving and mine["Id"] != serving["Id"] and same(mine, serving):
            # Only a stopped container is to be started.
            machine.remove(wanted.name)
            mine = serving
    except (MachineError, OSError) as error:
        result = _result("untouched", wanted, failure=TrialError("host", str(error)))
    else:
        if mine is None:
            result = _vanished(machine, wanted, recovered)
        elif serving and mine["Id"] == serving["Id"]:
            result = _confirm(machine, store, wanted)
        else:
            result = _swap(machine, store, wanted, serving, recovered, served=served)
    with contextlib.suppress(MachineError):
        _sweep(machine)
    return {**result, "recovered": recovered, "died": died or result.get("died")}


def abandon(machine: Machine, store: Store, wanted: Wanted, what: str) -> dict[str, Any]:
    """End what :func:`serve` has left when it was killed, or fell over a defect of its own.

    Args:
        machine: The host.
        store: Its releases.
        wanted: What :func:`serve` was called with.
        what: What became of it.

    Returns:
        As :func:`serve` does.
    """
    swap = store.begun()
    failure = TrialError("roost", what)
    if swap is None:
        result = _result("untouched", wanted, failure=failure)
    elif swap["phase"] == "passed":
        result = _in_place(machine, store, wanted, swap)
    else:
        result = _back(machine, store, wanted, swap, failure)
    return {**result, "recovered": None, "died": None}


def halt(machine: Machine, store: Store) -> bool:
    """Stop what serves, also over a reboot; whether there was something to stop.

    The release stays in place: :func:`serve` starts it again. The caller has the host's turn.
    """
    ended = recover(machine, store) is not None
    found, unit = machine.inspect(NAME), machine.unit(NAME)
    running = bool(found and found["State"]["Running"])
    rests = (unit["ActiveState"] in {"inactive", "failed"}, unit["UnitFileState"] != "enabled")
    if found is None or (not running and all(rests)):
        return ended
    if unit["UnitFileState"]:  # else there is no unit yet
        # First, so that a reboot in between does not undo it.
        machine.unit_disable(NAME)
    _down(machine)
    return True


def recover(machine: Machine, store: Store, trial: str = "") -> dict[str, Any] | None:
    """End a swap that a killed process has left.

    Forwards if it had passed and the names were being changed, else back: as long as ``roost-llm``
    is the old container, whoever compared it with what is wanted saw the old one.

    Args:
        machine: The host.
        store: Its releases.
        trial: Name of the container whose trial is about to begin; it is stopped, not removed.

    Returns:
        The swap that was ended, and its ``way``; none if there was none.
    """
    swap = store.begun()
    if swap is None:
        return None
    on_trial, serving = machine.inspect(swap["container"]), machine.inspect(NAME)
    # By its id: somebody may have cleared stopped containers away meanwhile, either one or both.
    renamed = serving["Id"] == swap["id"] if serving else on_trial is not None
    if swap["phase"] == "passed" and renamed:
        _finish(machine, store, swap)
        return {**swap, "way": "forwards"}
    if swap["container"] != trial:
        machine.remove(swap["container"])
    elif on_trial:
        machine.stop(trial)
    store.end()
    return {**swap, "way": "back"}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two containers were created from the same."""

    def made_of(container: Mapping[str, Any]) -> Any:
        # The host name is the container's id unless it is set.
        config = {key: value for key, value in container["Config"].items() if key != "Hostname"}
        return config, container["HostConfig"], container["Image"]

    return bool(made_of(one) == made_of(other))


# -- another release


def _swap(
    machine: Machine,
    store: Store,
    wanted: Wanted,
    serving: Mapping[str, Any] | None,
    recovered: Mapping[str, Any] | None,
    *,
    served: bool,
) -> dict[str, Any]:
    old = store.pointed("current") if serving else None
    was_stopped = bool(serving and recovered and recovered["served"])
    swap = {
        "phase": "trial",
        "new": wanted.id,
        "container": wanted.name,
        "id": wanted.container,
        "old": old,
        # What is to stay replaces what served before an experiment, not what that has only tried.
        "before": None if wanted.tries else store.pointed("held") or old,
        "served": served or was_stopped,
        "who": wanted.who,
        "tries": wanted.tries,
    }
    try:
        _write_files(store, wanted)
        store.begin(swap)
    except OSError as error:
        what = f"its record cannot be written: {error}"
        with contextlib.suppress(MachineError):
            machine.remove(wanted.name)
            if was_stopped:
                _up(machine)
        store.prune()
        return _result("untouched", wanted, failure=TrialError("record", what))
    try:
        if serving:
            _down(machine)
        proof = _try(machine, store, wanted, old)
        _record(store, wanted, proof)
        store.begin({**swap, "phase": "passed"})
    except TrialError as failure:
        return _back(machine, store, wanted, swap, failure)
    except (MachineError, OSError) as error:
        return _back(machine, store, wanted, swap, TrialError("host", str(error)))
    return {**_in_place(machine, store, wanted, swap), **proof}


def _vanished(
    machine: Machine, wanted: Wanted, recovered: Mapping[str, Any] | None
) -> dict[str, Any]:
    what = "its container is gone: another deploy came in between; deploy again"
    try:
        if recovered and recovered["served"]:
            _up(machine)
    except MachineError as error:
        what = f"{what}, and {error}"
    return _result("untouched", wanted, failure=TrialError("start", what))


def _try(machine: Machine, store: Store, wanted: Wanted, old: str | None) -> dict[str, Any]:
    """Start the new release on trial and judge it."""
    try:
        machine.start(wanted.name)
    except MachineError as error:
        raise TrialError("start", f"its container does not start: {error}") from None
    limit = wanted.deployment["ready_timeout"]
    return prove(machine, store, wanted, wanted.name, limit, old, whole=True)


def _in_place(
    machine: Machine, store: Store, wanted: Wanted, swap: Mapping[str, Any]
) -> dict[str, Any]:
    """Put what has passed in place; the result."""
    try:
        _finish(machine, store, swap)
        store.prune()
    except (MachineError, OSError) as error:
        what = f"it passed, but could not be put in place: {error}. The next deploy does so"
        return _result("fails", wanted, changed=True, failure=TrialError("host", what))
    return _result("serves", wanted, changed=True, previous=swap.get("before", swap["old"]))


def _finish(machine: Machine, store: Store, swap: Mapping[str, Any]) -> None:
    """Put what has passed in place. What of this was done before, by a killed process, stays."""
    if machine.inspect(swap["container"]):
        machine.remove(OLD)
        if machine.inspect(NAME):
            # A reboot in between has started it again.
            _down(machine)
            machine.rename(NAME, OLD)
        machine.rename(swap["container"], NAME)
    before = swap.get("before", swap["old"])  # which an older roost did not write down
    if before and before != swap["new"]:
        store.point("previous", before)
    store.point("current", swap["new"])
    if not swap.get("tries"):  # which an older roost did not write down
        lease.end_experiment(store)
    _up(machine)
    machine.remove(OLD)
    store.end()


def _back(
    machine: Machine, store: Store, wanted: Wanted, swap: Mapping[str, Any], failure: TrialError
) -> dict[str, Any]:
    """Take the new release away and bring back the one before, proved."""
    kept = _keep(store, wanted, "not kept", failure)
    outcome, restored = "nothing", ""
    deadline = time.monotonic() + DOCKER_AWAY
    while True:
        try:
            for name in dict.fromkeys([wanted.name, swap["container"]]):
                machine.remove(name)
            if swap["served"]:
                _up(machine)
                outcome, restored = _prove_old(machine, store, wanted, swap["old"])
            break
        except MachineError as error:
            if time.monotonic() > deadline:
                # The unit starts it as soon as Docker is back, which needs no deploy.
                outcome, restored = "unproved", str(error)
                break
            # Whoever stopped it did not know that a release was on trial.
            machine.start_docker()
            machine.sleep(2)
    store.end()
    store.prune()
    return _result(
        outcome,
        wanted,
        changed=True,
        previous=swap["old"],
        failure=failure,
        kept=kept,
        restored=restored,
        checks=failure.checks,
    )


def _prove_old(machine: Machine, store: Store, wanted: Wanted, old: str | None) -> tuple[str, str]:
    """That what was brought back serves: an outcome, and what is to be said about it."""
    record = store.read(old, "deployment.json") if old else None
    before = wanted._replace(deployment=record or wanted.deployment)
    try:
        with machine.follow(NAME, whole=True) as log:
            healthy(machine, before, NAME, log, before.deployment["ready_timeout"])
        if record is None:
            return "restored", "healthy (its answers were not checked: no record of it is kept)"
        wrong = failed(gate_of(before).answers()[0])
    except TrialError as failure:
        return "unproved", failure.what
    except (OSError, KeyError) as error:
        # Its key's file is gone, or another version of roost recorded it.
        return "unproved", f"its record does not tell how to ask it: {error}"
    if wrong:
        return "unproved", "; ".join(f"{found['id']}: {found['why']}" for found in wrong)
    return "restored", "healthy, with right answers"


# -- what serves already


def _confirm(machine: Machine, store: Store, wanted: Wanted) -> dict[str, Any]:
    """Judge what serves already; start it if it does not run, or is dead inside."""
    changed = False
    died = None
    try:
        state = machine.inspect(NAME)
        unit = machine.unit(NAME)
        running = bool(state and state["State"]["Running"])
        restart = running and (wanted.restart or _keyed_otherwise(wanted))
        started = restart or not running
        if restart:
            _down(machine)
        if started or (unit["ActiveState"], unit["UnitFileState"]) != ("active", "enabled"):
            changed = True
            # Ours to keep running, whoever started it.
            _up(machine)
        known = store.pointed("current") == wanted.id
        whole = started or not known
        limit = wanted.deployment["ready_timeout"]
        if not started and state:
            limit = max(LATE_HEALTH, limit - machine.age(state))
        try:
            proof = prove(machine, store, wanted, NAME, limit, wanted.id, whole=whole)
        except TrialError as failure:
            if started or failure.step == "gate":
                raise
            changed = whole = True
            _keep(store, wanted, "died", failure)
            died = failure.as_dict(redactor_of(wanted.deployment))
            _down(machine)
            _up(machine)
            limit = wanted.deployment["ready_timeout"]
            proof = prove(machine, store, wanted, NAME, limit, wanted.id, whole=True)
        if whole:
            changed = True
            _write_files(store, wanted)
            _record(store, wanted, proof)
            current = store.pointed("current")
            if current and not known and not wanted.tries:
                store.point("previous", current)
            store.point("current", wanted.id)
        if not wanted.tries:
            held = store.pointed("held")
            if held and held != wanted.id:
                # Going back from what an experiment has only tried is going back to this one.
                store.point("previous", held)
            lease.end_experiment(store)
    except TrialError as failure:
        kept = _keep(store, wanted, "fails", failure)
        return _result(
            "fails", wanted, changed=changed, failure=failure, kept=kept, checks=failure.checks
        )
    except (MachineError, OSError) as error:
        return _result("fails", wanted, changed=changed, failure=TrialError("host", str(error)))
    before = store.pointed("previous")
    return {
        **_result("serves", wanted, changed=changed, previous=before, **proof),
        "died": died,
    }


def _keyed_otherwise(wanted: Wanted) -> bool:
    """Whether a running engine has read another API key than is there now.

    A run that was killed between writing the key and coming here has left it so.
    """
    if not wanted.deployment["spec"]["secrets"]:
        return False
    return endpoint_of(wanted.deployment).get("/v1/models", HEALTH_TIMEOUT).status == 401


def _is_kept(machine: Machine) -> bool:
    """Whether an engine that does not run will by itself: Docker was just started, or it has
    crashed and its unit pauses before the next start.
    """
    return machine.unit(NAME)["ActiveState"] in {"active", "activating"}


def _have_docker(machine: Machine) -> None:
    """Start Docker if somebody has stopped it since the container was made."""
    try:
        machine.inspect(NAME)
    except MachineError:
        machine.start_docker()


def _died(machine: Machine, store: Store, wanted: Wanted) -> dict[str, Any] | None:
    """Keep what is known of an engine that served and has ended by itself, before it is started
    again or replaced.
    """
    container = machine.inspect(NAME)
    # Given up, or in one of the pauses before a further attempt.
    by_itself = machine.unit(NAME)["ActiveState"] in {"failed", "activating"}
    if container is None or container["State"]["Running"] or not by_itself:
        return None
    what = f"{ended(container)} while it served"
    failure = TrialError(
        "engine",
        what,
        machine.log(NAME),
        state=container["State"],
        kernel=machine.kernel(container),
    )
    _keep(store, wanted._replace(id=store.pointed("current") or NAME), "died", failure)
    return failure.as_dict(redactor_of(wanted.deployment))


# -- steps of both


def _keep(store: Store, wanted: Wanted, kind: str, failure: TrialError) -> str | None:
    """Record a failure; when, or none where that cannot be written.

    A full disk must not keep the old release from serving.
    """
    redact = redactor_of(wanted.deployment)
    with contextlib.suppress(OSError):
        why = {**failure.why(redact), "release": wanted.id, "kind": kind}
        return store.keep_failure(why, redact(failure.log))
    return None


def _up(machine: Machine) -> None:
    """Start what is called by our name, and have systemd keep it running."""
    # By Docker first: when that returns it runs, which of a started unit is not sure yet.
    machine.start(NAME)
    machine.unit_start(NAME)


def _down(machine: Machine) -> None:
    machine.unit_stop(NAME)
    # Before there was a unit, Docker alone kept it.
    machine.stop(NAME)


def _write_files(store: Store, wanted: Wanted) -> None:
    for name, content in wanted.files.items():
        store.write(content, wanted.id, name)


def _record(store: Store, wanted: Wanted, proof: Mapping[str, Any]) -> None:
    """What it proved, and for later ones to be compared with what it answered first."""
    keys = {key: wanted.deployment["gate"][key] for key in ("output_key", "figures_key")}
    store.write(
        {**keys, "checks": proof["checks"], "figures": proof["figures"], "at": now()},
        wanted.id,
        "gate.json",
    )
    first = store.read(wanted.id, "baseline.json")
    if first is None or any(first[key] != value for key, value in keys.items()):
        content = {**keys, "answers": proof["answers"], "figures": proof["figures"], "at": now()}
        store.write(content, wanted.id, "baseline.json")
    store.served(wanted.id)


def _sweep(machine: Machine) -> None:
    """Remove containers that were made for a swap which never came."""
    for name, found in machine.containers(f"{NAME}-").items():
        made = calendar.timegm(time.strptime(found["Created"][:19], "%Y-%m-%dT%H:%M:%S"))
        # Another deploy may have made one a moment ago, and be waiting for its turn.
        if not found["State"]["Running"] and time.time() - made > FRESH:
            machine.remove(name)


def _result(
    outcome: str,
    wanted: Wanted,
    *,
    changed: bool = False,
    previous: str | None = None,
    failure: TrialError | None = None,
    kept: str | None = None,
    restored: str = "",
    checks: list[dict[str, Any]] | None = None,
    figures: Mapping[str, float] | None = None,
    answers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "changed": changed,
        "release": wanted.id,
        "previous": previous,
        "failure": failure.as_dict(redactor_of(wanted.deployment)) if failure else None,
        "kept": kept,
        "restored": restored,
        "checks": checks or [],
        "figures": figures or {},
        "answers": answers or {},
    }

"""The host of an experiment: nobody else's meanwhile, and back where it was in the end."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from roost import fleet, ssh
from roost.errors import RefusedError, RoostError
from roost.experiment.notes import Experiment, lock_path
from roost.interruptions import interruptible
from roost.inventory import Host
from roost.onhost import RELEASES
from roost.onhost.lease import said
from roost.rollout import record
from roost.ssh import Remote

#: Tasks that say how a playbook ended.
DEPLOYED = "Say what became of it"
LEASED = "Have the host's lease"
DRAINED = "Send it no more requests, and wait for those that run"
RETURNED = "Have it served again"


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
                play(experiment, "drain", DRAINED)
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
            raise not_free(experiment.host.name, said(took["was"]))
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
        LEASED,
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
    path = lock_path(experiment.runs_dir, name)
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


def not_free(host: str, lease: str) -> RefusedError:
    """What is said of a host that somebody else has, whose lease it is in words."""
    return RefusedError(
        f"{host}: takes part in what somebody else does; nothing was changed",
        why=lease,
        fix="wait for its end: it changes what would be measured. If its controller is no more, "
        "end a rollout with roost rollout --take-over, and an experiment with roost start "
        "--despite-lease, which has serve again what served before it; a lease that was not "
        "renewed for a day counts no more",
    )


def _behind(experiment: Experiment) -> bool:
    """Whether a gateway sends the host requests."""
    return bool(experiment.host.variables.get("roost_gateway"))


def play(
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


def pointed(remote: Remote, link: str) -> str | None:
    """The release that a link on the host points to."""
    return ssh.run_privileged(remote, ["readlink", f"{RELEASES}/{link}"]).out.strip() or None


def _link(host: Host, link: str) -> str | None:
    with ssh.connect(host) as remote:
        return pointed(remote, link)


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
        moved = pointed(remote, "current") != current or lost(experiment)
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
            play(experiment, "return", RETURNED)
        return
    try:
        if not lost(experiment):
            experiment.tell(f"going back to {held}")
            try:
                # The host forgets with it that anything was held.
                play(experiment, "rollback", DEPLOYED, {"rollback_to": held})
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
            play(experiment, "return", RETURNED, {"rollout_owner": ""})
    except RoostError as error:
        experiment.tell(f"may get no requests from its gateway: {error}")

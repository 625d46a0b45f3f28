"""Whose rollout or experiment a host takes part in, so that nobody else changes it meanwhile.

The controller's own lock is a file beside its runs, which another machine or another checkout does
not see; hosts are what they have in common. A lease is taken before a rollout looks at a host and
again before each of its batches, so a controller to which that does not happen any more, because
another one took over, changes nothing further. Hosts count its age by their own clock.

An experiment (a comparison of choices, a tuning) takes the same lease: a rollout leaves it alone,
and does not take what is only tried for what serves.

Who changes a host by hand asks for the lease too (:func:`of_others`), and leaves the host alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, Iterator, Mapping

from .store import Store, now

FILE = "rollout.json"
#: Seconds after which a lease that was not renewed is nobody's: longer than any step of a rollout.
ABANDONED = 86400.0
_DESPITE = (
    "to change the host all the same, for instance because that controller is no more: -e "
    "despite_lease=true (roost: --despite-lease){}. A lease that was not renewed for a day "
    "counts no more"
)


def take(store: Store, mine: Mapping[str, Any], *, take_over: bool = False) -> dict[str, Any]:
    """Have a host take part in this controller's rollout, or go on doing so.

    Args:
        store: The host's releases.
        mine: What is to be known of it; its ``owner`` says whose it is, and ``experiment`` that
            it is one, and of which kind.
        take_over: Take it from whoever has it.

    Returns:
        ``{held, was}``: whether it is this controller's now, and the lease that was found, none if
        there was none. Not held, that one is another's and goes on.
    """
    with _alone(store):
        found = store.read(FILE)
        others = found is not None and found["owner"] != mine["owner"]
        if others and not take_over and _age(store) < ABANDONED:
            return {"held": False, "was": found}
        since = found["since"] if found and not others else now()
        store.write({**mine, "since": since, "renewed": now()}, FILE)
    return {"held": True, "was": found}


def give_up(store: Store, owner: str) -> None:
    """Let others roll out to this host. What is another's stays."""
    with _alone(store):
        found = store.read(FILE)
        if found and found["owner"] == owner:
            (store.root / FILE).unlink()


def of_others(store: Store, owner: str = "") -> dict[str, Any] | None:
    """The lease that speaks against changing this host now; none: there is none, or it is old.

    Args:
        store: The host's releases.
        owner: On whose behalf it would be changed; empty: by hand.
    """
    found = store.read(FILE)
    with contextlib.suppress(FileNotFoundError):  # given up since it was read
        if found and found["owner"] != owner and _age(store) < ABANDONED:
            return found
    return None


def has(store: Store, owner: str) -> bool:
    """Whether a host takes part in what this owner does."""
    found = store.read(FILE)
    return found is not None and found["owner"] == owner


def tries(store: Store, owner: str) -> bool:
    """Whether what is deployed for this owner is only tried: it has an experiment there."""
    found = store.read(FILE)
    return found is not None and found["owner"] == owner and "experiment" in found


def end_experiment(store: Store) -> None:
    """Forget the experiment of a host on which something serves now that is to stay.

    Nobody goes back any more to what served before the experiment. A rollout's lease stays.
    """
    with _alone(store):
        found = store.read(FILE)
        (store.root / "held").unlink(missing_ok=True)
        if found and "experiment" in found:
            (store.root / FILE).unlink()


def part(lease: Mapping[str, Any]) -> str:
    """What a host with this lease takes part in."""
    return "an experiment" if "experiment" in lease else "a rollout"


def said(lease: Mapping[str, Any]) -> str:
    """Whose it is, in words."""
    experiment = lease.get("experiment")
    does = f"tries deployments ({experiment}) of" if experiment else "rolls out"
    return (
        f"{lease['who']} {does} {lease['inventory']}, since {lease['since']}, last heard of "
        f"{lease['renewed']}"
    )


def fix(lease: Mapping[str, Any]) -> str:
    """What somebody can do who wanted to change a host with this lease."""
    if "experiment" in lease:
        return (
            "wait for its end, or run it again where it was begun, which brings the host back in "
            "the end; " + _DESPITE.format(", which ends the experiment")
        )
    return (
        "wait for its end, or go on with it where it was begun (roost rollout -i INVENTORY); "
        + _DESPITE.format("")
    )


def _age(store: Store) -> float:
    # One from the future, after the clock was set back, must not hold everybody off for years.
    return abs(time.time() - (store.root / FILE).stat().st_mtime)


@contextlib.contextmanager
def _alone(store: Store) -> Iterator[None]:
    # Not the turn of those who change the host, which is taken for as long as a deploy lasts.
    store.runtime.mkdir(mode=0o755, exist_ok=True)
    descriptor = os.open(store.runtime / "rollout.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

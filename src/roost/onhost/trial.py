"""Whether an engine that was started becomes healthy and passes its gate, or why not."""

from __future__ import annotations

import re
import time
from typing import Any, Mapping, NamedTuple

from .endpoint import endpoint_of as endpoint_of
from .endpoint import keys_of
from .gate import Gate, failed
from .logs import packed
from .machine import Follower, Machine
from .redaction import Redactor
from .store import Store

#: Seconds between two looks at an engine that is starting.
INTERVAL = 0.5
#: Seconds that one health request may take: some engines generate a token for it.
HEALTH_TIMEOUT = 25.0
#: Seconds for the rest of a log after the line that says it is over, or after its end.
LAST_WORDS = 1.0
#: Looks at an engine that has hung up, and seconds between two: its clients see that it has ended
#: before Docker does, by seconds on a host with much to do.
HUNG_UP_LOOKS, HUNG_UP_INTERVAL = 20, 0.5
#: Exit code of what was killed by SIGKILL, as the kernel does for want of memory.
SIGKILLED = 137

#: Who ended an engine for want of memory. The controller tells these ends from others by the words
#: (:mod:`roost.failures`).
BY_WATCHDOG = "the watchdog stopped it"
BY_KERNEL = "the kernel killed it for memory"


class Wanted(NamedTuple):
    """What is to serve.

    Attributes:
        id: Of the release.
        name: Of its container while it is on trial.
        container: Docker's id of its container, which serves already or was made for it.
        deployment: What the package resolved: addresses, limits, gate.
        files: Of the release's directory, by file name.
        answer_timeout: Seconds one answer may take.
        restart: Restart the engine even where nothing else differs.
        going_back: It has served before and is wanted again, so it is measured by its own earlier
            figures and not by those of the release that it replaces.
        who: Who wants it, for messages.
        tries: An experiment wants it for a while, and goes back to the release that is held.
    """

    id: str
    name: str
    container: str
    deployment: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    answer_timeout: float = 600.0
    restart: bool = False
    going_back: bool = False
    who: str = ""
    tries: bool = False


class TrialError(Exception):
    """Why a release does not serve.

    Args:
        step: Where it was found: ``start``, ``health``, ``warm_up``, ``gate``, …
        what: One sentence.
        log: The engine's.
        checks: Of the gate, as far as it came.
        state: Docker's of a container that has ended.
        kernel: What the kernel says of its end.
    """

    def __init__(
        self,
        step: str,
        what: str,
        log: str = "",
        checks: list[dict[str, Any]] | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        kernel: list[str] | None = None,
    ) -> None:
        super().__init__(what)
        self.step = step
        self.what = what
        self.log = log
        self.checks = checks or []
        self.exit_code = state["ExitCode"] if state else None
        self.kernel = kernel or []

    def why(self, redact: Redactor) -> dict[str, Any]:
        """The failure as plain data, without its log and without secrets."""
        return {
            "step": self.step,
            "what": redact(self.what),
            "exit_code": self.exit_code,
            "kernel": self.kernel,
            "checks": [
                {key: redact(said) if isinstance(said, str) else said for key, said in one.items()}
                for one in self.checks
            ],
        }

    def as_dict(self, redact: Redactor) -> dict[str, Any]:
        """All of it; the log is packed (:func:`roost.onhost.logs.packed`)."""
        return {**self.why(redact), "log": packed(redact(self.log))}


def prove(
    machine: Machine,
    store: Store,
    wanted: Wanted,
    container: str,
    limit: float,
    old: str | None,
    *,
    whole: bool,
) -> dict[str, Any]:
    """Wait for health and go through the gate.

    Args:
        machine: The host.
        store: Its releases.
        wanted: What is to be proved.
        container: Name of its container.
        limit: Seconds until it must be healthy.
        old: The release that is replaced.
        whole: The engine was just started, so it is warmed up and measured too.

    Returns:
        ``{checks, figures, answers}``.

    Raises:
        TrialError: It does not get healthy, ends, or does not pass.
    """
    figures: dict[str, float] = {}
    gate = gate_of(wanted)
    with machine.follow(container, whole=whole) as log:
        ready = healthy(machine, wanted, container, log, limit)
        if whole:
            warm = gate.warm_up()
            if warm.status != 200:
                _ended(machine, container, log, "at the first request", hung_up=gate.hung_up)
                answer = f"HTTP {warm.status}" if warm.status else "no answer"
                what = f"the first request got {answer}: {str(warm.body)[:300]}"
                raise TrialError("warm_up", what, log.text())
            figures = {"ready_seconds": round(ready, 1), "warm_up_seconds": round(warm.seconds, 1)}
        checks = gate.closed() if wanted.deployment["spec"]["secrets"] else []
        right, texts = gate.answers()
        checks += right
        if not failed(right):
            checks += gate.same_answers(texts, _baseline(store, wanted))
            if whole:
                floors, measured = gate.figures(_reference(store, wanted, old))
                checks += floors
                figures.update(measured)
        _ended(machine, container, log, "while it was judged", hung_up=gate.hung_up)
        if failed(checks):
            what = "it is healthy, but does not pass its gate"
            raise TrialError("gate", what, log.text(), checks)
    return {"checks": checks, "figures": figures, "answers": texts}


def healthy(machine: Machine, wanted: Wanted, container: str, log: Follower, limit: float) -> float:
    """Wait until the engine is healthy; the seconds it took.

    Raises:
        TrialError: It ended, gave up or took longer than ``limit`` seconds.
    """
    endpoint = endpoint_of(wanted.deployment)
    fatal = [re.compile(pattern) for pattern in wanted.deployment["fatal_lines"]]
    begun = time.monotonic()
    while True:
        _ended(machine, container, log, "before it was healthy")
        for line in log.unread():
            if any(pattern.search(line) for pattern in fatal):
                log.settle(LAST_WORDS)
                raise TrialError("health", f"the engine gave up: {line.strip()}", log.text())
        if endpoint.get(wanted.deployment["health_path"], HEALTH_TIMEOUT).status == 200:
            return time.monotonic() - begun
        if time.monotonic() - begun > limit:
            url = wanted.deployment["base_url"] + wanted.deployment["health_path"]
            what = f"the engine runs, but {url} did not answer 200 within {limit:.0f} s"
            raise TrialError("health", f"{what} (roost_ready_timeout)", log.text())
        machine.sleep(INTERVAL)


def _ended(
    machine: Machine, container: str, log: Follower, when: str, *, hung_up: bool = False
) -> None:
    """Raise if the engine has ended; after it has hung up, also if it does so soon."""
    found = machine.inspect(container)
    for _ in range(HUNG_UP_LOOKS if hung_up else 0):
        if found is None or not found["State"]["Running"]:
            break
        machine.sleep(HUNG_UP_INTERVAL)
        found = machine.inspect(container)
    if found and found["State"]["Running"]:
        return
    log.settle(LAST_WORDS)
    if found and found["State"]["ExitCode"] == SIGKILLED and not found["State"].get("OOMKilled"):
        # That it was for want of memory reaches Docker by another way, and may come later.
        machine.sleep(LAST_WORDS)
        found = machine.inspect(container) or found
    if found is None:
        raise TrialError("engine", f"the container is gone, {when}", log.text())
    kernel = machine.kernel(found, log.begun)
    relieved = machine.relieved(found)
    by = f" ({BY_WATCHDOG}: {relieved})" if relieved else ""
    raise TrialError(
        "engine", f"{ended(found)}{by} {when}", log.text(), state=found["State"], kernel=kernel
    )


def ended(container: Mapping[str, Any]) -> str:
    """How an engine ended, in a few words."""
    state = container["State"]
    killed = f" ({BY_KERNEL})" if state.get("OOMKilled") else ""
    return f"the engine ended with exit code {state['ExitCode']}{killed}"


def gate_of(wanted: Wanted) -> Gate:
    """The gate that a wanted release has to pass."""
    deployment = wanted.deployment
    return Gate(endpoint_of(deployment), deployment["gate"], wanted.answer_timeout)


def redactor_of(deployment: Mapping[str, Any]) -> Redactor:
    """Takes the deployment's secrets out of what is kept and told of it."""
    try:
        return Redactor(keys_of(deployment))
    except OSError:
        # Then no engine can have read them either.
        return Redactor([])


def _baseline(store: Store, wanted: Wanted) -> dict[str, Any] | None:
    """The first answers of this release, else of one with the same model and settings."""
    for release in [wanted.id, *store.ids()]:
        found = store.read(release, "baseline.json")
        if found and found["output_key"] == wanted.deployment["gate"]["output_key"]:
            return found
    return None


def _reference(store: Store, wanted: Wanted, old: str | None) -> dict[str, Any] | None:
    """Figures to compare with: those of the release that is replaced, else its own first ones."""
    if old and old != wanted.id and not wanted.going_back:
        found = store.read(old, "gate.json")
        if found and found["figures_key"] == wanted.deployment["gate"]["figures_key"]:
            return {**found, "id": old}
    found = store.read(wanted.id, "baseline.json")
    return {**found, "id": wanted.id} if found else None

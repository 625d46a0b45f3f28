"""What a failure on a host comes from: one answer from log, kernel, exit code and failed checks.

A failure is what the host tells (:class:`roost.onhost.trial.TrialError`): ``{step, what, exit_code,
kernel, checks, log}``. It is looked at here, on the controller, where the fingerprints are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roost.diagnose import Diagnosis, diagnose, symptoms
from roost.diagnose.findings import KILLED, shown
from roost.onhost.logs import unpacked
from roost.onhost.trial import BY_KERNEL, BY_WATCHDOG

Failure = Mapping[str, Any]

#: Ids of findings that the log alone gives without knowing the cause.
_GENERAL = ("unknown", KILLED)
#: What SIGKILL leaves.
_KILLED = 137


def explain(failure: Failure, deployment: Mapping[str, Any] | None = None) -> list[Diagnosis]:
    """Where a failure comes from, root cause first.

    Args:
        failure: As the host tells it.
        deployment: What ran, where it is known: fixes are then computed from its settings.

    Returns:
        At least one error; then warnings that the log holds.
    """
    log = unpacked(failure["log"])
    said = _diagnosed(log, deployment)
    errors = [item for item in said if item.severity == "error"]
    known = [
        *in_words("\n".join(failure["kernel"])),
        *(item for item in errors if item.id not in _GENERAL),
        # Docker's own, where there was no engine to log anything.
        *in_words(failure["what"]),
        *symptoms.of_checks(failure["checks"]),
    ]
    by_id: dict[str, Diagnosis] = {}
    for item in known:
        by_id.setdefault(item.id, item)
    causes = list(by_id.values())
    if not causes:
        # Of a death by signal, Docker and the kernel know more than a shell's one word in the log.
        killed = [*_killed(failure, log)]
        causes = [*killed, *(item for item in errors if not (killed and item.id == KILLED))]
        causes = causes or [_unexplained(failure, log)]
    return [*causes, *(item for item in said if item.severity == "warning")]


def of_run(
    checks: Sequence[Mapping[str, Any]], log: str, deployment: Mapping[str, Any]
) -> list[Diagnosis]:
    """Why an engine that was looked at fails, root cause first; nothing where nobody knows.

    Args:
        checks: Of a verification or a benchmark.
        log: The engine's, as far as it was kept.
        deployment: What should run.
    """
    said = [item for item in _diagnosed(log, deployment) if item.severity != "info"]
    found = symptoms.of_checks(checks)
    known = [item for item in said if item.id != "unknown"]
    return sorted([*known, *found], key=lambda item: item.severity == "warning") or said


def in_words(said: str) -> list[Diagnosis]:
    """What the catalogue knows of one message; nothing if it does not know it."""
    return [item for item in diagnose(said) if item.severity == "error" and item.id != "unknown"]


def explained(message: str) -> str:
    """A message of another program, with its cause below it where the catalogue knows one."""
    found = in_words(message)
    if not found:
        return message
    return f"{message}\n  cause: {found[0].title}\n    why: {found[0].why}\n    fix: {found[0].fix}"


def _diagnosed(log: str, deployment: Mapping[str, Any] | None) -> list[Diagnosis]:
    version = deployment["engine_version"] if deployment else None
    settings = deployment["asked"]["settings"] if deployment else {}
    return diagnose(log, version=version, settings=settings) if log else []


def _killed(failure: Failure, log: str) -> Iterator[Diagnosis]:
    if BY_WATCHDOG in failure["what"]:
        yield _told(
            "stopped-for-memory",
            "the watchdog stopped the engine before the host ran out of memory",
            failure,
            log,
            "memory was below the floor that keeps a host alive; on unified memory the GPU's "
            "allocations come out of the same pool",
            "lower gpu_memory_utilization or kv_cache_bytes, and end what else runs there; "
            "docs/watchdog.md has the floor",
            "the watchdog's own note",
        )
        return
    if failure["exit_code"] != _KILLED:
        return
    if BY_KERNEL in failure["what"]:
        yield _told(
            "killed-for-memory",
            "the kernel killed the engine for memory",
            failure,
            log,
            "it reached its container's limit, or the host had no memory left; Docker saw it",
            "lower gpu_memory_utilization or kv_cache_bytes so that the host keeps a reserve, and "
            "end what else runs there",
            "Docker's OOMKilled",
        )
        return
    yield _told(
        KILLED,
        "somebody killed the engine (SIGKILL)",
        failure,
        log,
        "neither its log nor the kernel's has a reason: docker kill, a watchdog or an operator. "
        "A kernel log that has wrapped round could hide that it was for memory",
        "docker events --since 1h names who stopped it; `roost logs` collects them. A deploy "
        "starts it again",
        "Docker's exit code",
    )


def _unexplained(failure: Failure, log: str) -> Diagnosis:
    if failure["step"] == "health":
        return _told(
            "never-healthy",
            "it started, logged no error, and never got healthy",
            failure,
            log,
            "it loads, compiles or captures graphs for longer than the limit, or it hangs at its "
            "last line",
            "if that line says that it goes on: raise roost_ready_timeout (first starts on a GB10 "
            "take 5 to 10 minutes); if it stands there every time, it hangs: leave out speculation "
            "(roost_speculation: none), then graphs (enforce_eager: true)",
            "source 004 (first boot)",
        )
    ended = failure["step"] == "engine"
    return _told(
        "ended-silently" if ended else "unknown",
        "the engine ended, and its log does not say why"
        if ended
        else "a failure that roost does not know",
        failure,
        log,
        "no line of its log tells of an error: a worker that died in native code or was ended from "
        "outside leaves none"
        if ended
        else "no line of its log tells of an error; the last one is all there is",
        "the same request again shows whether it is the request; without speculation "
        "(roost_speculation: none) or graphs (enforce_eager: true), whether it is one of those. "
        "Nobody has reported it? Send the engine's whole log, its version, the command "
        "(roost show RECIPE --on HARDWARE) and the host's facts (`roost logs` collects them) to "
        "the engine's issues",
        "the log alone",
    )


def _told(
    id_: str, title: str, failure: Failure, log: str, why: str, fix: str, source: str
) -> Diagnosis:
    """A finding that has no fingerprint: the failure's own words are the evidence."""
    said = log.strip().splitlines()
    evidence = failure["what"] + (f"; its last line: {said[-1].strip()}" if said else "")
    return Diagnosis(
        id=id_,
        title=title,
        severity="error",
        evidence=shown(evidence),
        line=len(said),
        why=why,
        fix=fix,
        source=source,
    )

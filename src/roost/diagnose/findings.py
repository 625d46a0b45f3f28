"""What is told about a log: by fingerprints, or in general words where none matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from roost.diagnose import advice
from roost.diagnose.fingerprints import Fingerprint, Severity
from roost.onhost.redaction import redact
from roost.settings import Settings

#: Longest evidence shown, in letters.
_EVIDENCE = 400
#: Id of what was ended by SIGKILL, as far as nobody knows who did it.
KILLED = "killed-from-outside"
#: Where a failure that nobody here knows is best reported.
_TRACKER = {
    "vllm": "https://github.com/vllm-project/vllm/issues",
    "sglang": "https://github.com/sgl-project/sglang/issues",
}
_SOURCE = "the log alone"


@dataclass(frozen=True)
class Diagnosis:
    """One finding.

    Attributes:
        id: Of the fingerprint; ``unknown`` for a failure that has none.
        severity: ``info`` is harmless.
        evidence: What the log says, without secrets.
        line: Where it says so, from 1.
        why: The cause.
        fix: What to do, with figures computed from the log; empty where nothing is to be done.
        source: Whose experience this is.
        values: What was read from the evidence.
    """

    id: str
    title: str
    severity: Severity
    evidence: str
    line: int
    why: str
    fix: str
    source: str
    values: dict[str, str | list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A fingerprint in a log, at the line where it begins."""

    item: Fingerprint
    line: int
    stream: str
    evidence: str
    values: dict[str, advice.Value]


def explain(found: Found, settings: Mapping[str, Any], version: str | None) -> Diagnosis:
    """A fingerprint's own words, filled in.

    Args:
        settings: Engine-neutral settings, as far as they are known.
        version: The engine's, if it is known.
    """
    values: dict[str, advice.Value] = {name: found.values.get(name) for name in found.item.values}
    known = {**dict.fromkeys(Settings.model_fields), "port": None, **settings}

    def fill(sentence: str) -> str:
        return redact(advice.fill(sentence, values, settings=known, version=version))

    return Diagnosis(
        id=found.item.id,
        title=fill(found.item.title),
        severity=found.item.severity,
        evidence=shown(found.evidence),
        line=found.line,
        why=fill(found.item.why),
        fix=fill(found.item.fix),
        source=found.item.source,
        values={
            name: [redact(word) for word in value]
            if isinstance(value, list)
            else redact(str(value))
            for name, value in values.items()
            if value is not None
        },
    )


def unknown(line: int, said: str, engine: str | None, *, fatal: bool) -> Diagnosis:
    """A failure without a fingerprint.

    Args:
        line: Of the most likely root.
        said: What stands there.
        engine: ``vllm``, ``sglang`` or not known.
        fatal: Whether anything died of it.
    """
    tracker = _TRACKER.get(engine or "")
    issues = f"the engine's issues, {tracker}" if tracker else "the issues of whatever printed it"
    return Diagnosis(
        id="unknown",
        title="a failure that roost does not know" if fatal else "an error that was not fatal",
        severity="error" if fatal else "warning",
        evidence=shown(said),
        line=line,
        why="no fingerprint matches; this line is the most likely root, as the first exception or "
        "error that nothing before it explains",
        fix=f"look for this line in {issues}. If nobody has reported it, send the log from its "
        "beginning (the failure's root stands first, its last lines only repeat it), the "
        "engine's version, the command (roost show RECIPE --on HARDWARE) and the host's facts "
        "(roost probe HOST); take keys and tokens out first",
        source=_SOURCE,
    )


def cut_off(wrapper: Found) -> Diagnosis:
    """A log in which only the last words of a failure are left."""
    return Diagnosis(
        id="unknown",
        title="the cause is not in this part of the log",
        severity="error",
        evidence=shown(wrapper.evidence),
        line=wrapper.line,
        why=f"{wrapper.item.why}; the root cause stands above it, and this log begins later",
        fix="give the whole log: docker logs CONTAINER 2>&1 | roost diagnose -",
        source=wrapper.item.source,
    )


def killed(line: int, said: str) -> Diagnosis:
    """A shell's word for a process that was ended by SIGKILL, with nothing else in the log."""
    return Diagnosis(
        id=KILLED,
        title="it was killed from outside (SIGKILL)",
        severity="error",
        evidence=shown(said),
        line=line,
        why="this is the shell's word for it; the process itself had no time for any. Mostly it is "
        "the kernel, out of memory: while loading, weights and page cache share unified memory",
        fix="sudo dmesg | grep -i -E 'out of memory|oom' names whom the kernel killed. Then end "
        "what else runs there, and lower gpu_memory_utilization or kv_cache_bytes so that the host "
        "keeps a reserve (source 004 leaves 15 to 20 GB of 128); weights that do not fit need a "
        "smaller checkpoint (roost plan RECIPE --on HARDWARE). Nothing in dmesg: docker events "
        "--since 1h names who else it was",
        source="source 004",
    )


def unfinished(line: int) -> Diagnosis:
    """A start that neither came up nor failed, as far as the log goes."""
    return Diagnosis(
        id="start-unfinished",
        title="the start is not finished in this log",
        severity="info",
        evidence="",
        line=line,
        why="nothing failed, but the server has not said that it is ready either: loading, "
        "compiling and capturing graphs take 5 to 10 minutes at a first start on a GB10. If the "
        "container is gone, something outside ended it",
        fix="docker ps -a shows its exit code; 137 means killed, mostly for memory: "
        "sudo dmesg | grep -i -E 'out of memory|oom'",
        source="source 004 (first boot)",
    )


def shown(evidence: str) -> str:
    """Evidence, short and without secrets."""
    clean = redact(evidence.strip())
    return clean if len(clean) <= _EVIDENCE else clean[:_EVIDENCE] + " …"

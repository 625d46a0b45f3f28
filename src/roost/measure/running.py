"""What runs on a host, as its Docker, its disk and the host itself tell: against what was pinned.

A figure belongs to the container that gave it. So a verification asks all of this, and a benchmark
asks it before it measures.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from roost import asking, site, ssh
from roost.builds import ImageBuild
from roost.errors import RoostError
from roost.hosts import HostFacts
from roost.launch.pinning import Weights
from roost.measure.checks import Check, Evidence, Target, attempt, unseen
from roost.onhost.weights import RECORD
from roost.pins import BUILD_LABEL

#: The host's facts and the engine's version, in a run's folder.
HOST = "host.json"
#: Last lines of the engine's log that are kept as evidence.
LOG_LINES = 20_000
#: How to mend a host that runs something else.
DEPLOY = "deploy again: roost deploy -i INVENTORY --limit HOST"


def container_checks(target: Target) -> list[Check]:
    """Running, from the pinned image, with the pinned command and mounts."""
    spec = target.deployment.spec
    made: list[Check] = []

    def running() -> Check:
        target.container = state = target.inspect()
        status = str(state["State"]["Status"])
        restarts = int(state.get("RestartCount", 0))
        return Check(
            id="container",
            ok=status == "running",
            expected=f"{spec.name} is running",
            observed=status + (f", restarted {restarts} times" if restarts else ""),
            why="" if status == "running" else _died(state),
            fix="" if status == "running" else "`roost diagnose` on engine.log, then deploy again",
        )

    def image() -> Check:
        asked = ["image", "inspect", _of(target, "Image")]
        inspected = target.docker(asked)[0]
        if target.deployment.build is not None:
            return _built(inspected, target.deployment.build)
        digests = inspected["RepoDigests"]
        found = sorted({str(item).partition("@")[2] for item in digests or []})
        wanted = target.deployment.image_digest or ""
        return Check(
            id="image_digest",
            ok=bool(wanted) and wanted in found,
            expected=wanted or "a pinned digest",
            observed=", ".join(found) or "an image without a digest (built or loaded locally)",
            why="" if wanted in found else f"{spec.name} runs another image",
            fix="" if wanted in found else DEPLOY,
        )

    def command() -> Check:
        config = _of(target, "Config")
        wanted = [*spec.entrypoint, *spec.command]
        found = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
        difference = _first_difference(wanted, found) or _missing_env(spec.env, config.get("Env"))
        return Check(
            id="command",
            ok=not difference,
            expected=" ".join(wanted),
            observed=site.hide_key(" ".join(str(word) for word in found), target.host.variables),
            why=site.hide_key(difference, target.host.variables),
            fix=DEPLOY if difference else "",
        )

    def mounts() -> Check:
        wanted = {f"{m.source}:{m.target}:{'ro' if m.read_only else 'rw'}" for m in spec.mounts}
        found = {
            f"{m['Source']}:{m['Destination']}:{'rw' if m['RW'] else 'ro'}"
            for m in _of(target, "Mounts")
            if m.get("Type", "bind") == "bind"
        }
        return Check(
            id="mounts",
            ok=wanted == found,
            expected=" ".join(sorted(wanted)),
            observed=" ".join(sorted(found)),
            why="" if wanted == found else "the container was given other directories",
            fix="" if wanted == found else DEPLOY,
        )

    for check_id, expected, make in (
        ("container", f"{spec.name} is running", running),
        ("image_digest", target.deployment.image_digest or "a pinned digest", image),
        ("command", "the pinned command", command),
        ("mounts", "the pinned directories", mounts),
    ):
        made.append(attempt(check_id, expected, make))
    return made


def _built(image: Mapping[str, Any], build: ImageBuild) -> Check:
    """An image that the host built has no digest; its label says what it was built from."""
    found = (image["Config"].get("Labels") or {}).get(BUILD_LABEL)
    ok = found == build.digest
    return Check(
        id="image_digest",
        ok=ok,
        expected=f"built from {build.git} at {build.commit} ({BUILD_LABEL} {build.digest[:12]})",
        observed=f"{image['Id']}, {BUILD_LABEL} {str(found)[:12]}",
        why="" if ok else "it was built from something else, or by hand",
        fix="" if ok else "`roost build -i INVENTORY`, then deploy again",
    )


def _of(target: Target, key: str) -> Any:
    """A part of what Docker said of the container; raises why there is none."""
    if key not in target.container:
        target.reached()
        raise RoostError("the container could not be inspected")
    return target.container[key]


def _died(state: Mapping[str, Any]) -> str:
    detail = state["State"]
    reason = f"exit status {detail.get('ExitCode')}"
    if detail.get("OOMKilled"):
        reason += ", killed for want of memory"
    return f"{reason} {detail.get('Error') or ''}".strip() + "; engine.log has its last words"


def _first_difference(wanted: Sequence[str], found: Sequence[Any]) -> str:
    for at, word in enumerate(wanted):
        if at >= len(found):
            return f"{word!r} is missing at the end"
        if str(found[at]) != word:
            return f"word {at + 1} is {found[at]!r} instead of {word!r}"
    return f"{found[len(wanted)]!r} was added at the end" if len(found) > len(wanted) else ""


def _missing_env(wanted: Mapping[str, str], found: Sequence[str] | None) -> str:
    missing = [f"{key}={value}" for key, value in wanted.items()]
    missing = [item for item in missing if item not in (found or [])]
    return f"environment lacks {', '.join(missing)}" if missing else ""


# --- the weights ----------------------------------------------------------------------------------


def weights_check(check_id: str, target: Target, weights: Weights) -> Check:
    """The directory on disk is the pinned revision, whole: record and file sizes agree."""
    expected = f"{weights.repo}@{weights.revision}"

    def make() -> Check:
        directory = PurePosixPath(weights.directory)
        done = ssh.run_privileged(target.reached(), ["cat", str(directory / RECORD)])
        if done.rc != 0:
            raise RoostError(done.err.strip() or f"no {RECORD} in {directory}")
        record = json.loads(done.out)
        listed = ssh.run_privileged(
            target.reached(), ["find", str(directory), "-type", "f", "-printf", "%s %P\\n"]
        )
        defect = _size_defect(record["files"], listed.out)
        found = f"{record['repo']}@{record['revision']}"
        why = f"{len(record['files'])} files, each as long as recorded"
        if found != expected:
            why = f"{directory} holds another revision"
        return Check(
            id=check_id,
            ok=found == expected and not defect,
            expected=expected,
            observed=found,
            why=defect or why,
        )

    return attempt(check_id, expected, make)


def _size_defect(files: Mapping[str, Any], listing: str) -> str:
    """The first file that is not as long as its record says."""
    sizes = {}
    for line in listing.splitlines():
        size, _, path = line.partition(" ")
        sizes[path] = int(size)
    for path, known in files.items():
        if path not in sizes:
            return f"{path} is not there"
        if sizes[path] != known["size"]:
            return f"{path} has {sizes[path]} bytes instead of {known['size']}"
    return ""


# --- kept as evidence -----------------------------------------------------------------------------


def start_log(target: Target) -> str:
    """The log of the newest start, up to when the engine had to be ready.

    A container that was started several times has all of them in its log.

    Raises:
        RoostError: There is no container, or its log cannot be read.
    """
    started = str(_of(target, "State").get("StartedAt") or "")
    found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", started)
    if found is None:
        raise RoostError(f"{target.deployment.spec.name} was never started")
    since = dt.datetime.fromisoformat(found[1]).replace(tzinfo=dt.UTC)
    until = since + dt.timedelta(seconds=target.deployment.ready_timeout)
    window = ["--since", f"{since:%Y-%m-%dT%H:%M:%SZ}", "--until", f"{until:%Y-%m-%dT%H:%M:%SZ}"]
    return _log(target, window)


def _log(target: Target, window: Sequence[str]) -> str:
    words = ["docker", "logs", "--timestamps", *window, target.deployment.spec.name]
    done = ssh.run_privileged(target.reached(), words)
    if done.rc != 0:
        raise RoostError(done.err.strip() or f"docker logs exited {done.rc}")
    # An engine logs to both streams; the time stamps put them back in order. A progress bar's
    # carriage returns stay within their stamped line.
    lines = sorted(filter(None, f"{done.out}\n{done.err}".split("\n")))
    return "\n".join(lines) + "\n"


def keep_log(target: Target, evidence: Evidence) -> None:
    """Keep the end of the engine's log; without it the reason takes its place."""
    try:
        evidence.artefacts["engine.log"] = _log(target, ["--tail", str(LOG_LINES)])
    except RoostError as error:
        evidence.artefacts["engine.log"] = f"not read: {error}\n"


def keep_host(target: Target, evidence: Evidence) -> Check:
    """Keep what this was found on: ``{facts, engine_version, not_read}``; a check that tells it.

    A figure without its machine says little, and a driver that was updated since explains a drift.
    What cannot be had is null, with the reason.
    """
    facts: HostFacts | None = None
    version, not_read = None, target.no_remote
    if target.remote is not None and target.client is not None:
        try:
            facts = asking.facts(target.remote, target.host)
            version = target.client.version()
        except RoostError as error:
            not_read = error.what
    kept = {
        "facts": facts.model_dump(mode="json") if facts else None,
        "engine_version": version,
        "not_read": not_read,
    }
    evidence.artefacts[HOST] = json.dumps(kept, indent=1) + "\n"
    check_id, expected = "machine", "what all of this is of can be told"
    if target.remote is None:
        return Check(id=check_id, ok=False, expected=expected, why=not_read)
    said = [f"engine {version}"] if version else []
    said += _told(facts) if facts else []
    if not said:
        return unseen(check_id, expected, not_read)
    return Check(id=check_id, expected=expected, observed=", ".join(said), why=not_read)


def _told(facts: HostFacts) -> list[str]:
    """GPUs, driver and kernel in words."""
    gpus = Counter(gpu.name for gpu in facts.gpus)
    drivers = sorted({gpu.driver for gpu in facts.gpus if gpu.driver})
    return [
        *(f"{count} of {name}" if count > 1 else name for name, count in gpus.items()),
        *(f"driver {driver}" for driver in drivers),
        f"{facts.architecture}, kernel {facts.kernel}",
    ]

"""Everything that somebody needs to explain a host's failure, collected once, without secrets.

Only reads on the host. What cannot be had is named with the reason and does not stop the rest.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import roost
from roost import asking, atomic, doctor, hosts, ssh
from roost.deployment import Deployment
from roost.diagnose import Diagnosis, diagnose
from roost.errors import RoostError
from roost.hosts import HostFacts
from roost.inventory import Host
from roost.launch.container import CONTAINER
from roost.onhost import RELEASES, WATCHDOG_STATE
from roost.onhost.evidence import KERNEL
from roost.onhost.logs import HEAD_BYTES, TAIL_BYTES
from roost.onhost.redaction import Redactor
from roost.onhost.store import FAILED
from roost.plan import gate
from roost.ssh import Remote

#: Seconds for one command; a container's log may have to be read from a slow disk.
_TIMEOUT_S = 300.0

# dd, because head would swallow more of the pipe than it prints.
_ENDS = (
    f"{{ dd bs=65536 count={HEAD_BYTES // 65536} iflag=fullblock 2>/dev/null; "
    f"printf '\\036'; tail -c {TAIL_BYTES + 1}; }}"
)
_LOG = f'docker logs --timestamps "$1" 2>&1 | {_ENDS}'
_FAILED_LOG = f'cat "$1/{FAILED}/engine.log" | {_ENDS}'
_EVENTS = 'docker events --since 1h --until "$(date +%s)"'
_RECORDS = (
    'cd "$1" && ls -la . && find . -type f -size -512k -exec sh -c '
    '\'for file; do printf "\\n==> %s\\n" "$file"; cat "$file"; done\' sh {} +'
)


@dataclass
class Collected:
    """What was collected of a host.

    Attributes:
        files: Contents by their name in the archive, without secrets.
        missing: Why something could not be had, by what it is.
        diagnosis: Of the engine's log and the kernel's.
    """

    host: str
    files: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    diagnosis: list[Diagnosis] = field(default_factory=list)


def collect(
    host: Host,
    remote: Remote,
    deployment: Deployment | RoostError,
    *,
    secrets: Sequence[str] = (),
) -> Collected:
    """Collect what there is.

    Args:
        host: The host.
        remote: An open connection to it.
        deployment: What its inventory wants there, or why that cannot be told.
        secrets: Values that must not be in any file, beside what looks like a secret.

    Raises:
        SshError: The connection broke.
    """
    found, redact = Collected(host.name), Redactor(secrets)

    def keep(name: str, what: str, ask: Callable[[], str]) -> str:
        """Add a file, or the reason why it is missing; the text without secrets."""
        try:
            said = redact(ask())
        except RoostError as error:
            if isinstance(error, ssh.SshError):
                raise
            found.missing[what] = _flat(error)
            return ""
        found.files[name] = said
        return said

    facts = _probe(host, remote, keep)
    sudo = _privilege(remote)
    names = _containers(remote, sudo, found)
    for name in names:
        keep(
            f"{name}.inspect.json",
            f"docker inspect {name}",
            partial(_ask, remote, [*sudo, "docker", "inspect", name]),
        )
        log = keep(
            f"{name}.log",
            f"log of {name}",
            partial(_log, remote, [*sudo, "sh", "-c", _LOG, "sh", name]),
        )
        found.diagnosis += _diagnosed(log, deployment)
    keep("docker-events.txt", "docker events", lambda: _ask(remote, [*sudo, "sh", "-c", _EVENTS]))
    kernel = keep("kernel.log", "kernel log", lambda: _kernel(remote))
    found.diagnosis += [item for item in diagnose(kernel) if item.id != "unknown"]
    records = keep(
        "releases.txt",
        "records of releases",
        lambda: _ask(remote, [*sudo, "sh", "-c", _RECORDS, "sh", RELEASES]),
    )
    if FAILED in records:
        log = keep(
            "last-failed.log",
            "log of the last failure",
            lambda: _log(remote, [*sudo, "sh", "-c", _FAILED_LOG, "sh", RELEASES]),
        )
        found.diagnosis += [
            replace(item, title=f"the last failure: {item.title}")
            for item in _diagnosed(log, deployment)
        ]
    keep(
        "watchdog.txt",
        "what the watchdog kept",
        lambda: _ask(remote, [*sudo, "sh", "-c", _RECORDS, "sh", WATCHDOG_STATE]),
    )
    _planned(deployment, facts, keep, found)
    if facts is not None:
        wanted = doctor.examine(facts, deployment=deployment)
        keep("doctor.json", "doctor", lambda: _json([check.model_dump() for check in wanted]))
    keep("diagnosis.json", "diagnosis", lambda: _json([asdict(item) for item in found.diagnosis]))
    found.missing = {what: redact(why) for what, why in found.missing.items()}
    return found


def write(found: Collected, path: Path, moment: datetime) -> None:
    """Write the archive, readable by its owner alone.

    Args:
        found: What goes in.
        path: Of the archive; it must not exist yet.
        moment: When it was collected, in UTC.

    Raises:
        RoostError: It cannot be written; then nothing is left of it.
    """
    folder = f"roost-logs-{found.host}"
    manifest = {
        "host": found.host,
        "collected": moment.isoformat(timespec="seconds"),
        "roost": roost.__version__,
        "files": {name: len(content.encode()) for name, content in found.files.items()},
        "missing": found.missing,
    }
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="") as plain,
        tarfile.open(fileobj=plain, mode="w") as archive,
    ):
        for name, content in {"manifest.json": _json(manifest), **found.files}.items():
            data = content.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, moment.timestamp()
            archive.addfile(entry, io.BytesIO(data))
    atomic.create(path, packed.getvalue(), 0o600)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _flat(error: RoostError) -> str:
    return " ".join(str(error).split())


def _ask(remote: Remote, argv: Sequence[str]) -> str:
    done = remote.run(argv, timeout=_TIMEOUT_S)
    if done.rc != 0:
        said = (done.err.strip() or done.out.strip())[-300:]
        raise RoostError(said or f"exit status {done.rc}")
    return done.out


def _privilege(remote: Remote) -> list[str]:
    """What to put before a command that may need root; nothing where sudo asks for a password."""
    if remote.run(["id", "-u"]).out.strip() == "0":
        return []
    return ["sudo", "-n", "--"] if remote.run(["sudo", "-n", "true"]).rc == 0 else []


def _probe(
    host: Host, remote: Remote, keep: Callable[[str, str, Callable[[], str]], str]
) -> HostFacts | None:
    done = asking.probe(remote, host)
    keep("probe.txt", "probe", lambda: done.out)
    # Parsed twice, so that what is wrong with it is told as of any other file.
    if not keep("facts.json", "host facts", lambda: _json(_facts(done.out))):
        return None
    return hosts.parse(done.out)


def _facts(probed: str) -> dict[str, Any]:
    return hosts.parse(probed).model_dump(mode="json")


def _containers(remote: Remote, sudo: Sequence[str], found: Collected) -> list[str]:
    """Names of roost's own containers, running or not."""
    listing = ["docker", "ps", "--all", "--format", "{{.Names}}", "--filter", f"name={CONTAINER}"]
    try:
        names = _ask(remote, [*sudo, *listing]).split()
    except RoostError as error:
        if isinstance(error, ssh.SshError):
            raise
        found.missing["containers"] = _flat(error)
        return []
    ours = sorted(name for name in names if name.startswith(CONTAINER))
    if not ours:
        found.missing["containers"] = f"no container is called {CONTAINER}"
    return ours


def _log(remote: Remote, argv: Sequence[str]) -> str:
    """Head and tail of a log as one, with a word on what is left out between them."""
    head, _, tail = _ask(remote, argv).partition("\x1e")
    if len(tail.encode()) <= TAIL_BYTES:
        return head + tail
    return (
        head.rpartition("\n")[0]
        + f"\n[roost: lines left out; the first {HEAD_BYTES >> 20} MiB and the last "
        f"{TAIL_BYTES >> 20} MiB are kept]\n" + tail.partition("\n")[2]
    )


def _diagnosed(log: str, deployment: Deployment | RoostError) -> list[Diagnosis]:
    if isinstance(deployment, Deployment):
        settings = deployment.asked.settings.model_dump(exclude_none=True)
        return diagnose(log, settings=settings) if log else []
    return diagnose(log) if log else []


def _kernel(remote: Remote) -> str:
    """Lines of the kernel's log that tell of hardware, drivers and memory."""
    reasons = []
    for argv in (
        ["dmesg", "--time-format", "iso"],
        ["sudo", "-n", "--", "dmesg", "--time-format", "iso"],
        ["journalctl", "--dmesg", "--no-pager", "--lines", "20000"],
    ):
        done = remote.run(argv, timeout=_TIMEOUT_S)
        if done.rc == 0 and done.out.strip():
            return "\n".join(line for line in done.out.splitlines() if KERNEL.search(line)) + "\n"
        reasons.append((done.err.strip() or f"{argv[0]}: nothing").splitlines()[-1])
    raise RoostError("; ".join(dict.fromkeys(reasons)))


def _planned(
    deployment: Deployment | RoostError,
    facts: HostFacts | None,
    keep: Callable[[str, str, Callable[[], str]], str],
    found: Collected,
) -> None:
    """What the controller would deploy there, and how it judges that."""
    if isinstance(deployment, RoostError):
        found.missing["deployment and plan"] = _flat(deployment)
        return
    keep("deployment.json", "deployment", lambda: _json(deployment.model_dump(mode="json")))
    if facts is not None:
        plan = partial(gate.plan, deployment, facts)
        keep("plan.json", "plan", lambda: _json(plan().model_dump(mode="json")))

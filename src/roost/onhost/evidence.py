"""What is kept of a host when an engine is found dead: a few small files without secrets.

Written before anything is done about it, for a restart destroys most of it. A program that hangs,
as nvidia-smi does on a driver that hangs, is left behind after some seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from .redaction import Redactor

#: What of the kernel's log tells of hardware, drivers and memory.
KERNEL = re.compile(
    r"NVRM|Xid|NV_ERR|nvidia|oom|out of memory|killed process|I/O error|nvme|EXT4-fs error|"
    r"hung task|soft lockup|thermal|machine check",
    re.IGNORECASE,
)
#: Cases that are kept.
KEPT = 10
#: Bytes of a file, of which the end is kept.
LARGEST = 256 << 10
#: Lines of an engine's log.
LOG_LINES = 500
#: Seconds that one program may take.
PATIENCE = 10.0
#: Processes that are listed, the largest first.
PROCESSES = 15


def said(argv: Iterable[str], patience: float = PATIENCE) -> str:
    """What a program prints, on both streams; where it cannot be run, why.

    One that does not end in time is killed, and then waited for no longer than a second: a process
    in a system call that never returns would never be gone.
    """
    words = list(argv)
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            return f"{words[0]}: {error.strerror}\n"
        end = time.monotonic() + patience
        while child.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        trouble = ""
        if child.poll() is None:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)
            trouble = f"{words[0]}: no end after {patience:.0f} s\n"
        output.seek(max(0, output.seek(0, os.SEEK_END) - LARGEST))
        return trouble + output.read().decode(errors="replace")


def capture(
    folder: Path,
    why: Mapping[str, Any],
    *containers: str,
    inspected: Mapping[str, Any] | None = None,
    metrics: str | None = None,
    before: Mapping[str, str] | None = None,
    secrets: Sequence[str] = (),
) -> str:
    """Keep what there is to be seen now.

    Args:
        folder: Of all cases.
        why: What was found, for its ``why.json``.
        containers: Whose logs are kept.
        inspected: What Docker says of one.
        metrics: The last that its engine said.
        before: Files that were made in a hurry, before there was time for this.
        secrets: Values that must be in no file, beside what looks like a secret.

    Returns:
        Name of the case in the folder; empty where it could not be written.
    """
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()) + f"-{why['why']}"
    redact = Redactor(secrets)
    logs = ["docker", "logs", f"--tail={LOG_LINES}", "--timestamps"]
    kernel = [line for line in said(["dmesg"]).splitlines() if KERNEL.search(line)]
    files = {
        "why.json": json.dumps(dict(why), indent=1),
        "meminfo.txt": Path("/proc/meminfo").read_text(),
        "processes.txt": processes(),
        **{f"{each}.log": said([*logs, each]) for each in containers},
        "inspect.json": json.dumps(inspected, indent=1),
        "metrics.txt": metrics or "",
        "nvidia-smi.txt": said(["nvidia-smi"]),
        "kernel.log": "".join(f"{line}\n" for line in kernel),
        **(before or {}),
    }
    try:
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / name / file).write_text(redact(content)[-LARGEST:], encoding="utf-8")
        for old in sorted(folder.iterdir())[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    except OSError:
        return ""
    return name


def processes() -> str:
    """Processes that hold most memory: resident and swapped MiB, id, name.

    What a driver has allocated for them is not in it.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        lines = text_of(path).splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        sizes = [int(fields.get(key, "0 kB").split()[0]) // 1024 for key in ("VmRSS", "VmSwap")]
        found.append((sum(sizes), *sizes, path.parent.name, fields.get("Name", "")))
    rows = sorted(found, reverse=True)[:PROCESSES]
    return "".join(f"{row[1]:>8} {row[2]:>8} {row[3]:>8} {row[4]}\n" for row in rows)


def text_of(path: Path) -> str:
    """A file of /proc; empty if its process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

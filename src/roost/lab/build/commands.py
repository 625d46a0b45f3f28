"""Running the tools that do the work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from roost.errors import RoostError

_WORDS_OF_A_FAILURE = 12

# What a shell or a packager may have set for its own Python, not for the ones that we start.
_UNWANTED = ("PYTHON", "VIRTUAL_ENV", "LD_PRELOAD", "HF_", "TRANSFORMERS_", "VLLM_", "OMP_")


def environment(**settings: str) -> dict[str, str]:
    """Our environment for a tool: less what would steer Python or the models' libraries."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_UNWANTED)}
    return {**kept, "LC_ALL": "C.UTF-8", **settings}


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a command to its end and give what it printed on stdout.

    Raises:
        RoostError: It is not installed or it failed; with the end of what it said.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            env=environment() if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise RoostError(f"{words[0]} is not installed") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RoostError(
            f"`{' '.join(words[:4])} …` failed (exit status {done.returncode})",
            why="\n".join(said[-_WORDS_OF_A_FAILURE:]),
        )
    return done.stdout


# Mounts are made in a mount namespace of their own: whatever happens, none stays behind.
_INSIDE = """
set -e
root=$1; shift
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2; done
shift
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev"
for node in null zero full random urandom tty; do
  touch "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir -m 1777 "$root/dev/shm"
exec chroot "$root" /usr/bin/env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \\
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


def run_inside(root: Path, argv: Sequence[str], *, binds: Mapping[Path, str] | None = None) -> str:
    """Run a command inside a root filesystem, as root, with /proc and the usual devices.

    Args:
        root: The root filesystem; it gets folders for ``binds`` if it has none.
        argv: The command as it is called inside.
        binds: Folders of ours and where they appear inside.

    Raises:
        RoostError: The command failed; with the end of what it said.
    """
    mounts = [word for ours, inside in (binds or {}).items() for word in (str(ours), inside)]
    namespace = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return run([*namespace, "sh", "-c", _INSIDE, "sh", root, *mounts, "--", *argv])

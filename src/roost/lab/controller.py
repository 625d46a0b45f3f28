"""What the machine that runs a lab must be and have; asked before anything is started."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from roost.errors import RoostError
from roost.lab import cgroups

Say = Callable[[str], None]

# Tool -> Debian package that has it.
_TOOLS = {
    "docker-registry": "docker-registry",
    "dpkg-scanpackages": "dpkg-dev",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "skopeo": "skopeo",
    "ss": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "umoci": "umoci",
}

_POLICY = Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = "#!/bin/sh\n# roost lab: while its tools are installed\nexit 101\n"

_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_INSTANCES = 1024

# One lock for all labs of a machine: names of interfaces and the cache are shared by all.
_LOCK = Path("/run/lock/roost-lab.lock")


def check_machine() -> None:
    """Refuse a machine that can have no lab: it must be Linux, and we must be root.

    Raises:
        RoostError: It is something else, or we are not; in one line.
    """
    if not sys.platform.startswith("linux"):
        raise RoostError(f"the lab needs Linux (network namespaces, overlays), not {sys.platform}")
    if os.geteuid() != 0:
        raise RoostError("the lab needs root (namespaces, mounts); run it with sudo")


def make_room(say: Say) -> None:
    """Raise the machine's limit on inotify instances to what a fleet takes.

    Every host is a systemd of its own and takes about ten of them, all in root's name. Debian
    allows root 128, and beyond a dozen hosts a service here and there would no longer start.
    """
    allowed = int(_INOTIFY.read_text(encoding="ascii"))
    if allowed < _INSTANCES:
        say(f"raising fs.inotify.max_user_instances from {allowed} to {_INSTANCES}")
        _INOTIFY.write_text(str(_INSTANCES), encoding="ascii")


def missing_packages() -> list[str]:
    """Debian packages of the tools that are not on PATH."""
    return sorted({package for tool, package in _TOOLS.items() if shutil.which(tool) is None})


def check_tools() -> None:
    """Refuse to go on without the tools that a lab needs.

    Raises:
        RoostError: Some are missing; with their packages and the line that installs them.
    """
    missing = missing_packages()
    if missing:
        raise RoostError(
            f"the lab needs packages that are not installed: {', '.join(missing)}",
            fix=f"apt-get install {' '.join(missing)}   (or: roost lab up --install)",
        )


def install_tools(say: Say) -> None:
    """Install what :func:`check_tools` would miss, with apt; start none of it as a service.

    Debian's docker-registry starts itself on port 5000 of every address when it is installed.
    The lab runs its own, so a policy-rc.d forbids starting for as long as apt runs.

    Raises:
        RoostError: There is no apt, or it failed.
    """
    missing = missing_packages()
    if not missing:
        return
    if shutil.which("apt-get") is None:
        check_tools()
    say(f"installing {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_service_starts():
        for argv in (
            ["apt-get", "-qq", "update"],
            ["apt-get", "-qq", "install", "--no-install-recommends", *missing],
        ):
            done = subprocess.run(
                argv, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                words = (done.stderr or done.stdout).strip().splitlines()
                raise RoostError(f"`{' '.join(argv)}` failed", why="\n".join(words[-3:]))
    if "docker-registry" in missing and cgroups.managed_by_systemd():
        # Nor at the next boot; nor now, if a policy of this machine's own let it start.
        subprocess.run(["systemctl", "-q", "disable", "--now", "docker-registry"], check=False)


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """invoke-rc.d asks this script before it starts anything; 101 forbids it."""
    # A script of ours may be left from an install that was killed; any other is the machine's own.
    if _POLICY.exists() and _POLICY.read_text() != _POLICY_TEXT:
        yield
        return
    _POLICY.write_text(_POLICY_TEXT)
    try:
        _POLICY.chmod(0o755)
        yield
    finally:
        _POLICY.unlink(missing_ok=True)


@contextlib.contextmanager
def turn(
    say: Say,
    busy: str = "another lab is being brought up or taken down",
    lock: Path = _LOCK,
    *,
    wait: bool = True,
) -> Iterator[None]:
    """Wait for our turn: labs of one machine are brought up and taken down one at a time.

    The kernel gives the lock back when its holder ends, however it ends.

    Raises:
        BlockingIOError: It is somebody else's turn, and we are not to wait.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            say(f"{busy}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield

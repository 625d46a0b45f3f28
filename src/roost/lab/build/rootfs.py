"""Debian root filesystems: the layers of the lab's hosts, and the base of the engine's image."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from roost.lab import paths
from roost.lab.build import cached, commands
from roost.lab.build.cached import Say

_SUITE = "bookworm"

# What a freshly installed server has, and no more: not Docker, and not python3-requests, which
# the Docker modules of Ansible need (a role's business).
HOST_PACKAGES = (
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "python3",
    "python3-venv",
    "sudo",
    "iproute2",
    "iptables",
    "ca-certificates",
    "procps",
)

# What turns it into a host of containers. pigz: Docker unpacks images with it, faster.
DOCKER_PACKAGES = ("docker.io", "pigz", "python3-requests")

# libnuma1 and libstdc++6 are linked by the engine, g++ and Python's headers are called by it when
# it compiles (the engine's default; the recipe turns it off, and a test turns it on again).
ENGINE_PACKAGES = (
    "python3",
    "ca-certificates",
    "libnuma1",
    "libstdc++6",
    "g++",
    "libpython3-dev",
)

_SOURCE = Path(__file__)

# Documentation is a tenth of a small system, and nobody reads it there.
_SMALL = (
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)

# apt's own program runs outside of the system it installs into, so this machine's configuration
# of apt holds (mirrors, proxies); docker.io comes from the same mirrors as everything else.
_KEEP_DEBS = (
    'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --yes --download-only '
    f"--no-install-recommends install {' '.join(DOCKER_PACKAGES)}"
)

_IMPERSONAL = 'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname'


def _debootstrap(folder: Path, packages: Sequence[str], *options: str) -> None:
    commands.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(packages)}",
            *_SMALL,
            *options,
            _SUITE,
            folder,
        ]
    )


def host_base(cache: Path, say: Say) -> Path:
    """A host without Docker (``rootfs/``), and the packages that Docker takes on it (``apt/``).

    ``apt/`` is a flat repository: the .deb files and their index ``Packages``.
    """
    inputs = (_SOURCE, _SUITE)
    return cached.build(cache, "host-base", inputs, _make_host_base, say)


def _make_host_base(folder: Path) -> None:
    debs = folder / "apt"
    debs.mkdir()
    root = folder / "rootfs"
    _debootstrap(
        root,
        HOST_PACKAGES,
        f"--customize-hook={_KEEP_DEBS}",
        f"--customize-hook=mv \"$1\"/var/cache/apt/archives/*.deb '{debs}'",
        f"--customize-hook={_IMPERSONAL}",
    )
    (debs / "Packages").write_text(_index(debs))


def _index(debs: Path) -> str:
    """The index of a flat repository; ``Filename`` is relative to it."""
    return commands.run(["dpkg-scanpackages", "--multiversion", "."], cwd=debs)


# Debian starts a service when it is installed; here it must not (see invoke-rc.d(8)).
_INSTALL_DOCKER = f"""
set -e
printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
echo 'deb [trusted=yes] file:/mnt/apt ./' > /tmp/apt.list
set -- -qq -o Dir::Etc::sourcelist=/tmp/apt.list -o Dir::Etc::sourceparts=-
apt-get "$@" update
apt-get "$@" install --yes --no-install-recommends {" ".join(DOCKER_PACKAGES)}
apt-get clean
rm -rf /var/lib/apt/lists/* /tmp/apt.list /usr/sbin/policy-rc.d
"""


def docker_layer(cache: Path, say: Say) -> Path:
    """What Docker adds to :func:`host_base`, as an overlay's upper directory (``upper/``)."""
    base = host_base(cache, say)

    def make(folder: Path) -> None:
        upper, work, root = (folder / part for part in ("upper", "work", "root"))
        for part in (upper, work, root):
            part.mkdir()
        options = f"lowerdir={base / 'rootfs'},upperdir={upper},workdir={work}"
        overlay = ["mount", "-t", "overlay", "overlay", "-o", options, root]
        commands.run(overlay)
        try:
            binds = {base / "apt": "/mnt/apt"}
            commands.run_inside(root, ["sh", "-c", _INSTALL_DOCKER], binds=binds)
            (root / "mnt/apt").rmdir()
        finally:
            commands.run(["umount", root])
        shutil.rmtree(work)
        root.rmdir()

    return cached.build(cache, "host-docker", (_SOURCE, base.name), make, say)


def host_rootfs(cache: Path, say: Say) -> list[Path]:
    """The layers of a host's root filesystem, uppermost first: ``[docker, base]``.

    They are overlay lower directories. The last one alone is a host without Docker; the packages
    it would need are then in :func:`apt_repository`.

    Raises:
        RoostError: A tool is missing or failed, for example because no mirror answers.
    """
    docker = docker_layer(cache, say) / "upper"
    base = host_base(cache, say) / "rootfs"
    apt_repository(cache, say)
    return [docker, base]


def apt_repository(cache: Path, say: Say) -> Path:
    """A flat Debian repository with Docker and all that it needs beyond :func:`host_base`."""
    return cached.point(paths.apt_repository(cache), host_base(cache, say) / "apt")


def engine_base_rootfs(cache: Path, say: Say) -> Path:
    """The Debian part of the engine's image."""

    def make(folder: Path) -> None:
        _debootstrap(folder, ENGINE_PACKAGES, f"--customize-hook={_IMPERSONAL}")

    return cached.build(cache, "engine-base", (_SOURCE, _SUITE), make, say)

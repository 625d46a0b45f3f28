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
    "python3-apt",  # Ansible's apt module speaks through it
    "sudo",
    "iproute2",
    "iptables",
    "ca-certificates",
    "procps",
)

# What turns it into a host of containers. pigz: Docker unpacks images with it, faster.
DOCKER_PACKAGES = ("docker.io", "pigz", "python3-requests")

# What turns it into a gateway; not installed on any host, but found by apt there.
GATEWAY_PACKAGES = ("haproxy",)

# What makes it the fleet's mirror; nothing of it is installed beforehand.
MIRROR_PACKAGES = ("nginx", "docker-registry")

# What building an engine's image takes; the same holds of it.
BUILD_PACKAGES = ("git",)

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

# Left out of every system: nobody reads documentation there.
_DOCUMENTATION = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")

# Left out of the image: the compilers' parts that a C++ compiler alone does not use (link-time
# optimisation, C, sanitizers), and static libraries of Python.
_SPARE_PARTS = (
    "/usr/lib/gcc/*/lto1",
    "/usr/lib/gcc/*/cc1",
    "/usr/bin/*lto-dump*",
    "/usr/lib/x86_64-linux-gnu/lib?san.so*",
    "/usr/lib/gcc/*/lib?san*",
    "/usr/lib/python3*/config-*/*.a",
    "/usr/lib/x86_64-linux-gnu/libpython3*.a",
)

# apt runs outside of the system it installs into, with this machine's mirrors and proxies. The
# packages of the system itself are thrown away first: what is then there is what these add.
_KEEP_DEBS = f"""
set -e
rm -f "$1"/var/cache/apt/archives/*.deb
APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get --yes --download-only --no-install-recommends \\
  install {" ".join((*DOCKER_PACKAGES, *GATEWAY_PACKAGES, *MIRROR_PACKAGES, *BUILD_PACKAGES))}
mv "$1"/var/cache/apt/archives/*.deb "$DEBS"
"""

# Each host makes its own keys and has its own name; none inherits this machine's resolver.
_IMPERSONAL = 'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/hostname'


def _debootstrap(packages: Sequence[str], excluded: Sequence[str], *hooks: str) -> list[str]:
    """The command that makes a small Debian; the folder is still to be added."""
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in excluded),
        *(f"--customize-hook={hook}" for hook in hooks),
        _SUITE,
    ]


_HOST_BASE = _debootstrap(HOST_PACKAGES, _DOCUMENTATION, _KEEP_DEBS, _IMPERSONAL)
_ENGINE_BASE = _debootstrap(ENGINE_PACKAGES, (*_DOCUMENTATION, *_SPARE_PARTS), _IMPERSONAL)


def host_base(cache: Path, say: Say) -> Path:
    """A host without Docker (``rootfs/``), and the packages that roles install on it (``apt/``).

    ``apt/`` is a flat repository: the .deb files and their index ``Packages``.
    """

    def make(folder: Path) -> None:
        debs = folder / "apt"
        debs.mkdir()
        commands.run([*_HOST_BASE, folder / "rootfs"], env=commands.environment(DEBS=str(debs)))
        (debs / "Packages").write_text(_index(debs))

    return cached.build(cache, "host-base", _HOST_BASE, make, say)


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
        commands.run(["mount", "-t", "overlay", "overlay", "-o", options, root])
        try:
            binds = {base / "apt": "/mnt/apt"}
            commands.run_inside(root, ["sh", "-c", _INSTALL_DOCKER], binds=binds)
            (root / "mnt/apt").rmdir()
        finally:
            commands.run(["umount", root])
        shutil.rmtree(work)
        root.rmdir()

    return cached.build(cache, "host-docker", [_INSTALL_DOCKER, base.name], make, say)


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
    """A flat Debian repository with what roles install, and its needs beyond :func:`host_base`."""
    return cached.point(paths.apt_repository(cache), host_base(cache, say) / "apt")


def engine_base_rootfs(cache: Path, say: Say) -> Path:
    """The Debian part of the engine's image."""

    def make(folder: Path) -> None:
        commands.run([*_ENGINE_BASE, folder])

    return cached.build(cache, "engine-base", _ENGINE_BASE, make, say)

"""Images on a lab's hosts without pulling: the first host pulls one, later ones get its files.

A pull of the engine's image takes most of a minute of processor time. Tests that are about
something else need the image, and not the pull.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roost.errors import RoostError
from roost.lab import network
from roost.lab.build import cached
from roost.lab.build.cached import Say
from roost.lab.hosts import Host

# Layers, and what Docker knows of them. All else below /var/lib/docker is of one host, or is
# written in place, which others must not see.
_PARTS = ("image", "overlay2")
_NAMES = "image/overlay2/repositories.json"
# Stands for the address of a lab's registry in the names of images.
_REGISTRY = "registry-of-the-lab"


def have(host: Host, image: str, cache: Path, say: Say) -> None:
    """Put an image of the lab's registry on a host, as if it had been pulled there.

    Args:
        host: A running host. Where it has images already, this one is really pulled.
        image: ``repository@sha256:…``.
        cache: Where the files are kept for other hosts.
        say: Told what is made.

    Raises:
        RoostError: The image cannot be pulled.
    """

    def make(folder: Path) -> None:
        _pull(host, image)
        with _docker_stopped(host) as docker:
            _copy(docker, folder, host.site.registry, _REGISTRY)

    if _has_images(host):
        _pull(host, image)
        return
    # Docker lays its files out as its version does.
    inputs = [image, _run(host, "dockerd", "--version"), *_PARTS]
    kept = cached.build(cache, "docker-files", inputs, make, say)
    if _has_images(host):
        return  # it has just pulled the image for all
    with _docker_stopped(host) as docker:
        for part in _PARTS:
            shutil.rmtree(docker / part)
        _copy(kept, docker, _REGISTRY, host.site.registry)


def _copy(source: Path, target: Path, old: str, new: str) -> None:
    """The same files under both folders, and the names of images with another registry.

    Hard links will do: Docker replaces its files, and a container copies a layer's before it
    changes them.
    """
    links = source.stat().st_dev == target.stat().st_dev
    for part in _PARTS:
        network.run(["cp", "-al" if links else "-a", str(source / part), str(target / part)])
    names = target / _NAMES
    text = names.read_text().replace(old, new)
    names.unlink()
    names.write_text(text)


@contextmanager
def _docker_stopped(host: Host) -> Iterator[Path]:
    """What Docker has on the host's disk, as this machine sees it, with nobody writing there."""
    _run(host, "systemctl", "stop", "docker.socket", "docker")
    try:
        yield host.folder / "docker"
    finally:
        _run(host, "systemctl", "start", "docker")
        # systemd allows three starts a minute, and tests have their own.
        _run(host, "systemctl", "reset-failed", "docker")


def _has_images(host: Host) -> bool:
    return _run(host, "docker", "images", "--quiet") != ""


def _pull(host: Host, image: str) -> None:
    _run(host, "docker", "pull", "--quiet", f"{host.site.registry}/{image}")


def _run(host: Host, *argv: str) -> str:
    done = host.exec(argv, timeout=600)
    if done.returncode != 0:
        raise RoostError(f"{host.name}: `{' '.join(argv)}` failed", why=done.stderr.strip())
    return done.stdout

"""Everything the lab serves, built once and kept in its cache.

Each part is a function of the cache and of someone to tell about progress; called again, it gives
what is there. :func:`build_all` makes all of them, ``python -m roost.lab.build`` from a shell.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from roost.lab import paths
from roost.lab.build.cached import Say
from roost.lab.build.drafter import publish_drafters
from roost.lab.build.engine import engine_image
from roost.lab.build.model import publish_model
from roost.lab.build.packages import engine_packages, wheelhouse
from roost.lab.build.rootfs import apt_repository, engine_base_rootfs, host_rootfs

__all__ = [
    "Artefacts",
    "apt_repository",
    "build_all",
    "engine_base_rootfs",
    "engine_image",
    "host_rootfs",
    "publish_drafters",
    "publish_model",
    "wheelhouse",
]


@dataclass(frozen=True)
class Artefacts:
    """What a lab stands on.

    Attributes:
        host_layers: Layers of a host's root filesystem, uppermost first; the last alone is a
            host without Docker.
        apt_repository: Flat Debian repository with Docker for such a host.
        registry_storage: Storage of a container registry that holds the engine's image.
        image_digest: The image's manifest, ``sha256:…``.
        hub_store: Store of a hub that holds the model and both revisions of the drafter.
        wheelhouse: Wheels of the hub's client for the hosts.
    """

    host_layers: tuple[Path, ...]
    apt_repository: Path
    registry_storage: Path
    image_digest: str
    hub_store: Path
    wheelhouse: Path


def build_all(cache: Path, say: Say) -> Artefacts:
    """Build what is not there yet, in two lines of work at once.

    Training is what takes longest and needs the engine's packages alone, so the root filesystems
    and the image are made beside it.

    Raises:
        RoostError: A part failed; what was finished stays.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=2) as lines:
        hosts = lines.submit(_systems, cache, say)
        engine_packages(cache, say)
        models = lines.submit(_models, cache, say)
        layers = hosts.result()
        digest = engine_image(cache, say)
        models.result()
    return Artefacts(
        host_layers=tuple(layers),
        apt_repository=paths.apt_repository(cache),
        registry_storage=paths.registry_storage(cache),
        image_digest=digest,
        hub_store=paths.hub_store(cache),
        wheelhouse=paths.wheelhouse(cache),
    )


def _systems(cache: Path, say: Say) -> list[Path]:
    wheelhouse(cache, say)
    layers = host_rootfs(cache, say)
    engine_base_rootfs(cache, say)
    return layers


def _models(cache: Path, say: Say) -> None:
    publish_model(cache, say)
    publish_drafters(cache, say)

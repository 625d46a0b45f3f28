"""Where the lab keeps things.

The cache holds what takes minutes to build (root filesystems, the engine's image, models) and
outlives every lab; the state directory holds one running lab and goes when it goes down.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Where labs are kept unless told else; ``inventory/lab`` names the keys and the lock there.
USUAL_STATE = Path("/var/lib/roost-lab")


def cache_dir() -> Path:
    """What is built once: ``/var/cache/roost-lab``, or ``ROOST_LAB_CACHE``."""
    return Path(os.environ.get("ROOST_LAB_CACHE", "/var/cache/roost-lab"))


def state_parent() -> Path:
    """The parent of all labs' state: ``/var/lib/roost-lab``, or ``ROOST_LAB_STATE``."""
    return Path(os.environ.get("ROOST_LAB_STATE", USUAL_STATE))


def state_dir(lab_name: str) -> Path:
    """The state of one lab; absent while that lab is down."""
    return state_parent() / lab_name


def hub_store(cache: Path) -> Path:
    """Model repositories, as :mod:`roost.lab.hubstore` lays them out."""
    return cache / "hub"


def registry_storage(cache: Path) -> Path:
    """The container registry's storage root."""
    return cache / "registry"


def wheelhouse(cache: Path) -> Path:
    """Python wheels for hosts that have no index to install from: one flat folder."""
    return cache / "wheels"


def apt_repository(cache: Path) -> Path:
    """A flat Debian repository (``Packages`` beside the packages) for hosts without Docker."""
    return cache / "apt"

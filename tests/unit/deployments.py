"""Deployments for tests, resolved from inventory variables and a lock with made-up commits."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from roost import lock
from roost.deployment import Deployment, from_variables
from roost.lock import Lock, LockedImage, LockedModel

ORNITH = "ornith-1.0-35b-heretic-nvfp4-dflash"
WEIGHTS, DRAFTER = 22 * 2**30, 2 * 2**30
_DAY = dt.date(2026, 11, 29)


def write_lock(path: Path) -> None:
    """Pin every repository and image of the catalogue to made-up commits and digests."""

    def model(digit: str, size: int) -> dict[str, LockedModel]:
        return {"main": LockedModel(commit=digit * 40, bytes=size, files=3, resolved=_DAY)}

    lock.write(
        path,
        Lock(
            models={
                "pottokao/Ornith-1.0-35B-Heretic-NVFP4-DFlash": model("1", WEIGHTS),
                "z-lab/Qwen3.6-35B-A3B-DFlash": model("2", DRAFTER),
                "roost-lab/SmolLM2-135M-Instruct": model("3", 300_000_000),
                "roost-lab/SmolLM2-135M-DFlash": model("4", 10_000_000),
            },
            images={
                "roost-lab/vllm-cpu": {
                    "0.32.0": LockedImage(
                        digest="sha256:" + "5" * 64,
                        platforms=["amd64"],
                        bytes={"amd64": 700_000_000},
                        resolved=_DAY,
                    )
                }
            },
        ),
    )


def deployment(folder: Path, hardware: str = "cpu", **variables: Any) -> Deployment:
    """A deployment of the recipe that belongs on ``hardware``."""
    path = folder / "roost.lock.yml"
    if not path.exists():
        write_lock(path)
    recipe = "smollm2-135m" if hardware == "cpu" else ORNITH
    given = {"roost_hardware": hardware, "roost_recipe": recipe, "roost_lock_file": str(path)}
    given.update({f"roost_{name}": value for name, value in variables.items()})
    return from_variables("host-01", given, folder)

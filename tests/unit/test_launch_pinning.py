"""Launch specs by what a lock knows, and what is refused without one."""

from __future__ import annotations

import pytest
from tests.unit.source_000 import DRAFTER
from tests.unit.test_launch_resolving import TODAY, build

from roost import catalog
from roost.errors import RefusedError
from roost.launch import resolving
from roost.lock import Lock, LockedImage
from roost.settings import Settings
from roost.site import Site


@pytest.mark.parametrize(
    ("mirror", "image"),
    [
        (None, "roost-lab/vllm-cpu:0.32.0"),
        ("10.0.0.1:5000", "10.0.0.1:5000/roost-lab/vllm-cpu:0.32.0"),
        ("http://10.0.0.1:5000", "10.0.0.1:5000/roost-lab/vllm-cpu:0.32.0"),
    ],
)
def test_unlocked_names_are_said_and_refused(mirror: str | None, image: str) -> None:
    resolved = resolving.resolve(
        catalog.builtin(), "smollm2-135m", "cpu", site=Site(registry_mirror=mirror)
    )
    assert resolved.spec.image == image
    assert resolved.spec.unresolved == [
        "image roost-lab/vllm-cpu:0.32.0",
        "revision roost-lab/SmolLM2-135M-Instruct@main",
        "revision roost-lab/SmolLM2-135M-DFlash@main",
    ]
    with pytest.raises(RefusedError, match="run `roost lock -i INVENTORY` and deploy again"):
        resolving.require_resolved(resolved)


def test_lock_pins_image_by_digest_alone() -> None:
    digest = "sha256:" + "a" * 64
    lock = Lock(
        images={
            "roost-lab/vllm-cpu": {
                "0.32.0": LockedImage(
                    digest=digest, platforms=["amd64"], bytes={"amd64": 7}, resolved=TODAY
                )
            }
        }
    )
    resolved = resolving.resolve(catalog.builtin(), "smollm2-135m", "cpu", lock=lock)
    assert resolved.spec.image == f"roost-lab/vllm-cpu@{digest}"
    assert resolved.image_bytes == {"amd64": 7}


def test_drafter_revision_selects_another_lock_entry() -> None:
    spec = build("gb10", overrides=Settings(drafter_revision="early"))
    assert spec.unresolved == [f"revision {DRAFTER}@early"]
    pinned = build("gb10", overrides=Settings(drafter_revision="3" * 40))
    assert pinned.mounts[1].source.endswith("3" * 40)

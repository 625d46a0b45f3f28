"""What the catalogue says of vLLM's versions: defaults, refused values, images."""

from __future__ import annotations

import pytest

from roost import catalog, versions
from roost.plan.effective import settled
from roost.settings import Settings

VLLM = catalog.builtin().engines["vllm"]
GIB = 1024**3
NIGHTLY = "0.23.1rc1.dev968+g2c17d33f4"


@pytest.mark.parametrize(
    ("version", "hardware", "gib", "sequences", "batched"),
    [
        # A GB10 counts as a large card until 0.33; source 001 speaks of slices above 8192 there.
        ("0.24.0", "gb10", 121, 1024, 8192),
        (NIGHTLY, "gb10", 121, 1024, 8192),
        ("0.32.0", "gb10", 121, 1024, 8192),
        ("0.33.0", "gb10", 121, 256, 2048),
        # The log of 0.24.0 on an H200 refuses 1024 sequences that nobody asked for.
        ("0.24.0", "h200", 140, 1024, 8192),
        ("0.33.0", "h200", 140, 1024, 8192),
        ("0.27.1", "b200", 178, 1024, 8192),
        ("0.28.0", "b200", 178, 1024, 16384),
        ("0.24.0", "rtx5070ti-x2", 15, 256, 2048),
        ("0.32.0", "cpu", None, 128, 2048),
        # A build that nobody can place is taken for a new one.
        ("a-commit", "gb10", 121, 256, 2048),
    ],
)
def test_defaults(
    version: str, hardware: str, gib: int | None, sequences: int, batched: int
) -> None:
    memory = gib * GIB if gib else None
    got = settled(VLLM, Settings(), version=version, hardware=hardware, gpu_bytes=memory)
    assert (got.max_num_seqs, got.max_num_batched_tokens) == (sequences, batched)


@pytest.mark.parametrize(
    ("version", "share"),
    [("0.19.1", 0.9), ("0.20.0", 0.92), (NIGHTLY, 0.92), ("0.33.0", 0.92), ("a-commit", 0.92)],
)
def test_default_share_of_memory(version: str, share: float) -> None:
    got = settled(VLLM, Settings(), version=version, hardware="cpu", gpu_bytes=None)
    assert got.gpu_memory_utilization == share


def refused(setting: str, value: str, quantization: str, version: str) -> bool:
    return any(
        versions.within(version, one.versions)
        for one in VLLM.refuses
        if (one.setting, one.value) == (setting, value) and one.quantization in {None, quantization}
    )


@pytest.mark.parametrize(
    ("value", "quantization", "version", "wanted"),
    [
        ("humming", "nvfp4", "0.23.0", True),
        ("humming", "nvfp4", NIGHTLY, False),  # source 000 served with it
        ("humming", "nvfp4", "0.24.0", True),  # its log says so
        ("humming", "nvfp4", "0.25.0", False),
        ("humming", "fp8", "0.24.0", True),
        ("humming", "fp8", "0.25.0", False),
        ("triton", "nvfp4", NIGHTLY, True),  # source 000
        ("triton", "nvfp4", "0.33.0", True),
        ("triton", "fp8", "0.24.0", False),  # source 001 serves with it
    ],
)
def test_moe_backends(value: str, quantization: str, version: str, wanted: bool) -> None:
    assert refused("moe_backend", value, quantization, version) is wanted


def test_no_recipe_asks_for_what_its_engine_refuses() -> None:
    known = catalog.builtin()
    for recipe in known.recipes.values():
        if recipe.engine != VLLM.id:
            continue
        weights = known.models[recipe.model.repo].weights
        for hardware, support in recipe.hardware.items():
            if support.image is None or support.settings.moe_backend is None:
                continue
            backend, version = support.settings.moe_backend, support.image.engine_version
            assert weights is not None
            assert not refused("moe_backend", backend, weights, version), (recipe.id, hardware)


def test_the_three_images_of_source_000() -> None:
    said = {(i.repository, i.tag): i for i in VLLM.images if i.source.startswith("source 000")}
    aeon = said["ghcr.io/aeon-7/aeon-vllm-ultimate", None]
    assert aeon.forces_drafter_backend == "FLASHINFER"
    glimmer = said["vllm/vllm-openai", "muse-glimmer"]
    assert glimmer.lacks_compute_capability == ["12.1"]
    nightly = said["vllm/vllm-openai", "nightly"]
    assert (nightly.forces_drafter_backend, nightly.lacks_compute_capability) == (None, [])

"""The truth table: what the sources call working passes, what they call failing is refused for it.

Sources that were corrected count as corrected: the drafter's first revision serves on the image of
source 003, and a BF16 KV cache holds the context that source 000 says it cannot.
"""

from __future__ import annotations

from typing import Any

import pytest

from roost import catalog
from roost.catalog import Catalog
from roost.catalog_schema import Recipe, Speculation
from roost.launch import resolving
from roost.pins import Image
from roost.plan import planner
from roost.plan.planner import Plan
from roost.settings import Settings

CATALOG = catalog.builtin()
HERETIC = "ornith-1.0-35b-heretic-nvfp4-dflash"
FP8 = "ornith-1.0-35b-fp8"
DFLASH2 = "ornith-1.5-35b-nvfp4-dflash2"
AEON = "ornith-1.0-35b-aeon-nvfp4-dflash"
QWEN27 = "qwen3.5-27b-aeon-nvfp4-dflash"
SOME_DIGEST = "sha256:" + "0" * 64


def plan(
    recipe: str,
    hardware: str,
    speculation: str | None = None,
    variant: str | None = None,
    known: Catalog = CATALOG,
    **settings: Any,
) -> Plan:
    resolved = resolving.resolve(
        known,
        recipe,
        hardware,
        speculation=speculation,
        variant=variant,
        overrides=Settings(**settings),
        refuse=False,
    )
    return planner.make(resolved, catalog=known)


def errors(made: Plan) -> set[str]:
    return {finding.id for finding in made.findings if finding.severity == "error"}


def with_recipe(recipe_id: str, **changes: Any) -> Catalog:
    """The catalogue with one recipe changed as somebody else might write it."""
    recipe: Recipe = CATALOG.recipes[recipe_id].model_copy(update=changes)
    return CATALOG.model_copy(update={"recipes": {**CATALOG.recipes, recipe_id: recipe}})


WORKS: list[tuple[str, str, str | None, dict[str, Any]]] = [
    # Source 000: both commands, its table of sequences and contexts.
    (HERETIC, "gb10", "dflash", {}),
    (HERETIC, "rtx5070ti-x2", "dflash", {}),
    (HERETIC, "rtx5070ti-x2", "dflash", {"max_num_seqs": 4}),
    (HERETIC, "rtx5070ti-x2", "dflash", {"max_num_seqs": 1, "max_model_len": 262144}),
    (HERETIC, "rtx5070ti-x2", "dflash", {"enforce_eager": True}),
    # Corrected by the arithmetic: FP8 doubles the pool, it is not what makes the context fit.
    (HERETIC, "rtx5070ti-x2", "dflash", {"kv_cache_dtype": "bfloat16"}),
    # Source 001.
    (FP8, "gb10", "none", {}),
    # Source 002: four configurations on two machines.
    *(
        (DFLASH2, hardware, choice, {})
        for hardware in ("gb10", "h200")
        for choice in ("none", "mtp", "dflash", "dflash2")
    ),
    # Source 003: as corrected on 2026-06-28.
    (AEON, "gb10", "none", {}),
    (AEON, "gb10", "mtp", {}),
    (AEON, "gb10", "dflash", {}),
    # Source 004.
    (QWEN27, "gb10", "dflash", {}),
]


@pytest.mark.parametrize(("recipe", "hardware", "speculation", "settings"), WORKS)
def test_what_works_passes(
    recipe: str, hardware: str, speculation: str | None, settings: dict[str, Any]
) -> None:
    assert errors(plan(recipe, hardware, speculation, **settings)) == set()


FAILS: list[tuple[str, str, str | None, dict[str, Any], str]] = [
    # Source 000: each row of its table of flags, and of images.
    (HERETIC, "rtx5070ti-x2", None, {"attention_backend": "FLASH_ATTN"}, "fp8-kv-unsupported"),
    (HERETIC, "rtx5070ti-x2", None, {"attention_backend": "FLASHINFER"}, "flashinfer-mixed-window"),
    (
        HERETIC,
        "rtx5070ti-x2",
        None,
        {"drafter_attention_backend": "FLASHINFER"},
        "flashinfer-mixed-window",
    ),
    (HERETIC, "rtx5070ti-x2", None, {"moe_backend": "triton"}, "moe-backend-refused"),
    (
        HERETIC,
        "rtx5070ti-x2",
        None,
        {"max_num_batched_tokens": 8192},
        "max-num-batched-tokens-beyond-known",
    ),
    (HERETIC, "rtx5070ti-x2", None, {"max_num_batched_tokens": 8192}, "out-of-memory"),
    (
        HERETIC,
        "gb10",
        None,
        {"image": f"ghcr.io/aeon-7/aeon-vllm-ultimate@{SOME_DIGEST}"},
        "flashinfer-mixed-window",
    ),
    # Releases against builds of main: no padding, no humming.
    (
        HERETIC,
        "rtx5070ti-x2",
        None,
        {"image": f"vllm/vllm-openai@{SOME_DIGEST}", "engine_version": "0.24.0"},
        "kv-page-size",
    ),
    (
        HERETIC,
        "rtx5070ti-x2",
        None,
        {"image": f"vllm/vllm-openai@{SOME_DIGEST}", "engine_version": "0.24.0"},
        "moe-backend-refused",
    ),
    # Source 001: the pin that is too small, a second node, a head that is only declared.
    (FP8, "gb10", None, {"kv_cache_bytes": 4 * 2**30}, "kv-too-small"),
    (FP8, "gb10", None, {"tensor_parallel": 2}, "too-few-gpus"),
    # Source 003: the drafter of today on an engine that cannot pad.
    (AEON, "gb10", "dflash-main", {}, "kv-page-size"),
    (AEON, "gb10", "dflash-main", {}, "known-not-to-run"),
    # Source 004: not this image on Hopper.
    (QWEN27, "h200", None, {}, "known-not-to-run"),
    # Logs of real starts of vLLM 0.24.0.
    (FP8, "gb10", None, {"max_num_seqs": 1024}, "max-num-seqs"),
    (FP8, "gb10", None, {"attention_backend": "TRITON"}, "no-such-choice"),
    (
        FP8,
        "gb10",
        None,
        {"max_num_batched_tokens": 128, "max_num_seqs": 256},
        "batched-tokens-below-sequences",
    ),
    (FP8, "gb10", None, {"gpu_memory_utilization": 0.97}, "utilization-too-high"),
    (
        FP8,
        "gb10",
        None,
        {"extra_args": ["--per-request-spec-decode-metrics"]},
        "flag-not-in-version",
    ),
]


@pytest.mark.parametrize(("recipe", "hardware", "speculation", "settings", "reason"), FAILS)
def test_what_fails_is_refused_for_its_own_reason(
    recipe: str, hardware: str, speculation: str | None, settings: dict[str, Any], reason: str
) -> None:
    made = plan(recipe, hardware, speculation, **settings)
    assert reason in errors(made)
    assert made.verdict == "refuse"


def test_each_refusal_says_why_and_how_to_mend_it() -> None:
    for recipe, hardware, speculation, settings, _ in FAILS:
        for finding in plan(recipe, hardware, speculation, **settings).findings:
            assert finding.summary
            assert finding.why
            assert finding.source
            if finding.severity == "error" and finding.id != "known-not-to-run":
                assert finding.fix, finding.id


def test_an_image_without_kernels_for_the_gpu() -> None:
    """Source 000: muse-glimmer asserts on sm_121, and is not blamed on sm_120."""

    def on(hardware: str) -> set[str]:
        support = CATALOG.recipes[HERETIC].hardware[hardware]
        image = Image(
            repository="vllm/vllm-openai", tag="muse-glimmer", engine_version="0.23.1rc1.dev968"
        )
        changed = support.model_copy(update={"image": image})
        hardwares = {**CATALOG.recipes[HERETIC].hardware, hardware: changed}
        return errors(plan(HERETIC, hardware, known=with_recipe(HERETIC, hardware=hardwares)))

    assert on("gb10") == {"image-lacks-kernels"}
    assert on("rtx5070ti-x2") == set()


def test_mtp_that_is_declared_and_not_there() -> None:
    """Source 001: 62,546 tensors, none of them of MTP."""
    mtp = Speculation(method="mtp", settings=Settings(num_speculative_tokens=1))
    known = with_recipe(FP8, speculation={**CATALOG.recipes[FP8].speculation, "mtp": mtp})
    made = plan(FP8, "gb10", "mtp", known=known)
    assert "mtp-tensors-missing" in errors(made)
    found = next(one for one in made.findings if one.id == "mtp-tensors-missing")
    assert "62,546" in found.why
    assert found.fix == "roost_speculation: none"


@pytest.mark.parametrize(
    ("recipe", "hardware", "settings", "warning"),
    [
        (HERETIC, "rtx5070ti-x2", {"enforce_eager": True}, "eager"),
        (FP8, "gb10", {"moe_backend": "flashinfer_cutlass"}, "moe-backend-overridden"),
        (FP8, "gb10", {"language_model_only": True}, "vision-switched-off"),
        (FP8, "rtx5090", {"image": f"vllm/vllm-openai@{SOME_DIGEST}"}, "untested"),
        (FP8, "gb10", {"extra_args": ["--kv-cache-memory", "3200000000"]}, "flag-has-a-setting"),
    ],
)
def test_what_is_slower_or_odd_is_a_warning(
    recipe: str, hardware: str, settings: dict[str, Any], warning: str
) -> None:
    made = plan(recipe, hardware, **settings)
    assert warning in {one.id for one in made.findings if one.severity == "warning"}


def test_a_drafter_without_a_backend_of_its_own() -> None:
    """Source 000: it is not inherited, and FlashInfer takes the engine to piecewise graphs."""
    recipe = CATALOG.recipes[AEON]
    assert recipe.settings.attention_backend is None
    found = {one.id for one in plan(AEON, "gb10", "dflash").findings}
    assert found & {"drafter-backend-automatic", "cudagraph-piecewise"}


def test_speculation_that_loses_is_said_with_figures() -> None:
    """Source 002: NEXTN is slower than no speculation at every concurrency on GB10."""
    made = plan(DFLASH2, "gb10", "mtp", max_num_seqs=8)
    found = next(one for one in made.findings if one.id == "speculation-loses")
    assert found.severity == "warning"
    assert "speculation-loses" not in {
        one.id for one in plan(DFLASH2, "gb10", "dflash2", max_num_seqs=8).findings
    }


def test_pools_are_the_sources_own() -> None:
    assert plan(HERETIC, "rtx5070ti-x2").memory.kv_pool_tokens == 347_124
    fp8 = plan(FP8, "gb10").memory
    assert (fp8.kv_pool_tokens, fp8.attention_block_size) == (412_980, 1056)
    assert fp8.max_concurrency == pytest.approx(1.58, abs=0.005)
    # Source 003 prints 1072 and not for which run: both it can have been come to it.
    for speculation in ("none", "mtp"):
        assert plan(AEON, "gb10", speculation).memory.attention_block_size == 1072


def test_an_accepted_error_no_longer_refuses() -> None:
    resolved = resolving.resolve(
        CATALOG, FP8, "gb10", overrides=Settings(tensor_parallel=2), refuse=False
    )
    refused = planner.make(resolved, catalog=CATALOG)
    assert refused.verdict == "refuse"
    accepted = planner.make(resolved, catalog=CATALOG, accept=[one.id for one in refused.refused])
    assert accepted.verdict == "warn"
    assert [one.id for one in accepted.findings if one.accepted] == [
        one.id for one in refused.refused
    ]


@pytest.mark.parametrize(
    ("recipe", "hardware", "speculation", "settings", "reason"),
    [
        # Nothing says how large these weights are; nine heads are no two halves.
        ("smollm2-135m", "rtx5070ti-x2", "none", {}, "tensor-parallel-uneven"),
        (DFLASH2, "gb10", "none", {"tensor_parallel": 3}, "tensor-parallel-uneven"),
        # There is no room for a pool, and its pages would not do.
        (AEON, "rtx5090", "dflash-main", {}, "kv-page-size"),
    ],
)
def test_what_no_size_mends_is_found_without_one(
    recipe: str, hardware: str, speculation: str, settings: dict[str, Any], reason: str
) -> None:
    assert reason in errors(plan(recipe, hardware, speculation, **settings))

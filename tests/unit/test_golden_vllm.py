"""Commands of the vLLM recipes against what their authors ran, flag by flag.

Golden values are the authors' commands (tests/unit/source_000.py, source_001.py). Whatever differs
is listed here with its reason, and nothing else may differ.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit import source_001
from tests.unit.source_000 import (
    AUTHOR_COMMAND,
    AUTHOR_DIGEST,
    AUTHOR_ENV,
    DRAFTER,
    MODEL,
    flags,
)

from roost import catalog
from roost.launch import resolving
from roost.launch.container import LaunchSpec
from roost.plan.memory import kv_pool
from roost.plan.rules import rules_for

HERETIC = "ornith-1.0-35b-heretic-nvfp4-dflash"
FP8 = "ornith-1.0-35b-fp8"
AGENTWORLD = "qwen-agentworld-35b-a3b"

#: In every command of roost, and why.
ALWAYS = {"--served-model-name": "clients need a name that is not a path"}

#: Flags that are spelled otherwise.
RENAMED = {
    # The short form works only as an argparse abbreviation.
    "--kv-cache-memory": "--kv-cache-memory-bytes",
}

#: What takes the place of the author's speculative configuration; none: nothing.
SPECULATION: dict[str, dict[str, Any] | None] = {
    # The author's own, but for the drafter, which is a pinned, read-only directory instead of a
    # name to download.
    "dflash": {"model": "/drafter"},
    # The author publishes figures of it, not its command.
    "mtp": {"method": "mtp", "num_speculative_tokens": 4, "attention_backend": "TRITON_ATTN"},
    "none": None,
}


def build(recipe: str, hardware: str, choice: str) -> LaunchSpec:
    return resolving.resolve(catalog.builtin(), recipe, hardware, speculation=choice).spec


def command(spec: LaunchSpec, served_name: str) -> dict[str, Any]:
    """The flags of a command, less those that every command of roost has."""
    assert spec.entrypoint == ["vllm"]
    assert spec.command[:2] == ["serve", "/model"]
    got = flags(spec.command[2:])
    assert got.pop("--served-model-name") == served_name
    return got


def author_s(hardware: str, choice: str) -> dict[str, Any]:
    """The command of source 000 with the listed deviations."""
    want = {RENAMED.get(name, name): value for name, value in AUTHOR_COMMAND[hardware].items()}
    its_own = want.pop("--speculative-config")
    change = SPECULATION[choice]
    if choice == "dflash":
        want["--speculative-config"] = its_own | (change or {})
    elif change is not None:
        want["--speculative-config"] = change
    return want


@pytest.mark.parametrize("choice", SPECULATION)
@pytest.mark.parametrize("hardware", AUTHOR_COMMAND)
def test_heretic(hardware: str, choice: str) -> None:
    spec = build(HERETIC, hardware, choice)
    assert command(spec, "ornith-1.0-35b") == author_s(hardware, choice)
    assert spec.image == f"vllm/vllm-openai@{AUTHOR_DIGEST[hardware]}"
    model = MODEL.replace("DFlash", "MTP") if choice == "mtp" else MODEL
    assert spec.labels["roost.model"] == f"{model}@main"
    assert spec.labels.get("roost.drafter") == (f"{DRAFTER}@main" if choice == "dflash" else None)
    assert [m.target for m in spec.mounts] == ["/model"] + ["/drafter"] * (choice == "dflash")


#: What the command of the FP8 recipe has and source 001 does not state.
FP8_ADDED = {
    "--max-num-seqs": (
        "256",
        "the engine's default on a GB10, 1024, is above the 397 blocks of the stated pool, where "
        "vLLM 0.24.0 stops; the source served, so it set a number or no graphs",
    ),
}


def test_fp8() -> None:
    spec = build(FP8, "gb10", "none")
    got = command(spec, source_001.SERVED_NAME)
    for name, (value, _why) in FP8_ADDED.items():
        assert got.pop(name) == value
    assert got == source_001.STATED_FLAGS
    assert not source_001.ABSENT_FLAGS & set(got)
    # The source names the release, no image; a tag until a lock pins it.
    assert spec.image == f"vllm/vllm-openai:v{source_001.ENGINE_VERSION}"
    assert [m.source.split("/")[-2] for m in spec.mounts] == [
        f"deepreinforce-ai--{source_001.MODEL_DIRECTORY}"
    ]


def test_fp8_as_the_source_has_it() -> None:
    known = catalog.builtin()
    recipe = known.recipes[FP8]
    gb10 = recipe.hardware["gb10"]
    assert gb10.image is not None
    assert gb10.image.engine_version == source_001.ENGINE_VERSION
    assert str(gb10.date) == source_001.VERIFIED
    assert recipe.chat_template_kwargs == source_001.CHAT_TEMPLATE_KWARGS
    assert list(recipe.speculation) == ["none"]
    model = known.models[recipe.model.repo]
    for facts in model.revisions.values():
        assert facts.contents is not None
        assert facts.contents.tensors == source_001.TENSORS
        assert facts.contents.vision.tensors == source_001.VISION_TENSORS
        assert facts.contents.mtp.tensors == source_001.MTP_TENSORS
    sibling = known.models["deepreinforce-ai/Ornith-1.0-35B"]
    for weights, one in (("fp8", model), ("bf16", sibling)):
        assert one.weights == weights
        loaded = one.revisions["main"].loaded_bytes
        assert loaded == round(source_001.LOADED_GIB[weights] * 1024**3)


def test_fp8_pool_is_the_one_that_was_printed() -> None:
    """From the recipe's settings, by the arithmetic of the planner."""
    known = catalog.builtin()
    resolved = resolving.resolve(known, FP8, "gb10")
    settings = resolved.settings
    model = known.models[resolved.model.repo]
    assert settings.max_model_len is not None
    assert settings.kv_cache_bytes is not None
    assert settings.max_num_seqs is not None
    assert model.architecture is not None
    pool = kv_pool(
        known.architectures[model.architecture].shape,
        None,
        tensor_parallel=1,
        kv_dtype="auto",
        mamba_cache_dtype="auto",
        num_speculative_tokens=0,
        max_model_len=settings.max_model_len,
        max_num_batched_tokens=8192,
        kv_cache_bytes=settings.kv_cache_bytes,
        prefix_caching=False,
        rules=rules_for(resolved.image.engine_version),
    )
    assert pool.kv_pool_tokens == source_001.POOL_TOKENS
    assert round(pool.max_concurrency, 2) == source_001.CONCURRENCY
    assert pool.attention_block_size == source_001.ATTENTION_BLOCK
    assert settings.max_num_seqs <= pool.num_blocks


#: What differs from the author's run on two RTX 5070 Ti → what the contradictions of the recipe say
#: that the arithmetic gives.
ARITHMETIC: list[tuple[str, dict[str, Any], list[int]]] = [
    ("dflash", {}, [347_124, 2160, 1_105_920, 241]),
    ("dflash", {"kv_dtype": "bfloat16"}, [203_416, 2_058_878_976]),
    ("dflash", {"max_model_len": 262_144}, [418_388, 151]),
    ("dflash", {"tensor_parallel": 1}, [2_211_840]),
    ("dflash", {"kv_cache_bytes": 2_601_123_840}, [196]),
    ("dflash", {"kv_cache_bytes": 3_000_000_000}, [226]),
    ("mtp", {}, [453_578]),
]


@pytest.mark.parametrize(("choice", "change", "numbers"), ARITHMETIC)
def test_contradictions_quote_the_arithmetic(
    choice: str, change: dict[str, Any], numbers: list[int]
) -> None:
    known = catalog.builtin()
    shape = known.architectures["qwen3.5-35b-a3b"].shape
    image = known.recipes[HERETIC].hardware["rtx5070ti-x2"].image
    assert image is not None
    run: dict[str, Any] = {
        "tensor_parallel": 2,
        "kv_dtype": "fp8",
        "mamba_cache_dtype": "auto",
        "num_speculative_tokens": 4,
        "max_model_len": 131_072,
        "max_num_batched_tokens": 2048,
        "kv_cache_bytes": 3_200_000_000,
        "prefix_caching": False,
        "rules": rules_for(image.engine_version),
    }
    own = known.models[DRAFTER].revisions["main"].drafter
    pool = kv_pool(shape, own if choice == "dflash" else shape.mtp_drafter(), **run | change)
    given = {
        pool.kv_pool_tokens,
        pool.attention_block_size,
        pool.gdn_state_bytes,
        pool.num_blocks,
        pool.blocks_per_request,
        pool.bytes_for_one_request,
    }
    recipe = known.recipes[HERETIC]
    text = " ".join(
        [side.says for item in recipe.contradictions for side in item.sides]
        + [item.why for item in recipe.contradictions]
        + recipe.notes
    )
    for number in numbers:
        assert number in given
        assert f"{number:,}" in text or str(number) in text, number


def test_older_drafter_makes_the_pool_that_was_printed() -> None:
    """1,021,738 tokens at 40,960, K=11, prefix caching: a public run of source 003's image.

    It printed no bytes; 4066 blocks are the only whole number that gives the figure, and with six
    layers instead of eight none does.
    """
    known = catalog.builtin()
    drafter = known.models[DRAFTER].revisions["31977fbe13a8"].drafter
    assert drafter is not None
    pool = kv_pool(
        known.architectures["qwen3.5-35b-a3b"].shape,
        drafter,
        tensor_parallel=1,
        kv_dtype="bfloat16",
        mamba_cache_dtype="auto",
        num_speculative_tokens=11,
        max_model_len=40_960,
        max_num_batched_tokens=32_768,
        kv_cache_bytes=4066 * 8 * 1136 * 2048,
        prefix_caching=True,
        rules=rules_for("0.23.0"),
    )
    assert (pool.attention_block_size, pool.num_blocks) == (1136, 4066)
    assert pool.kv_pool_tokens == 1_021_738
    assert round(pool.max_concurrency, 2) == 24.94


#: What the untested sibling leaves out of the GB10 command of source 000, and why.
AGENTWORLD_LEFT_OUT = {
    "--quantization": "that checkpoint is modelopt's, this one compressed-tensors"
}


@pytest.mark.parametrize("choice", ["dflash", "none"])
def test_agentworld(choice: str) -> None:
    want = author_s("gb10", choice)
    for name in AGENTWORLD_LEFT_OUT:
        del want[name]
    spec = build(AGENTWORLD, "gb10", choice)
    assert command(spec, AGENTWORLD) == want
    # A release instead of a nightly build that may be gone.
    assert spec.image == "vllm/vllm-openai:v0.26.0"
    assert not AUTHOR_ENV["gb10"].keys() & spec.env.keys()


def test_agentworld_is_verified_nowhere() -> None:
    known = catalog.builtin()
    recipe = known.recipes[AGENTWORLD]
    assert recipe.figures == []
    for hardware in known.hardware:
        assert recipe.support_on(hardware) == "untested"
        for choice in recipe.speculation:
            assert recipe.support_on(hardware, choice) == "untested"


def test_every_choice_on_verified_hardware_is_compared() -> None:
    known = catalog.builtin()
    pairs = {
        (recipe, hardware): set(known.recipes[recipe].speculation)
        for recipe in (HERETIC, FP8, AGENTWORLD)
        for hardware, support in known.recipes[recipe].hardware.items()
        if support.support == "verified"
    }
    assert pairs == {
        **{(HERETIC, hardware): set(SPECULATION) for hardware in AUTHOR_COMMAND},
        (FP8, "gb10"): {"none"},
    }


@pytest.mark.parametrize(
    ("choice", "verified"), [("dflash", True), ("mtp", False), ("none", False)]
)
def test_only_what_was_run_as_it_stands_is_verified(choice: str, verified: bool) -> None:
    """Figures of MTP are the author's, its flags are roost's."""
    recipe = catalog.builtin().recipes[HERETIC]
    for hardware in AUTHOR_COMMAND:
        assert (recipe.support_on(hardware, choice) == "verified") is verified

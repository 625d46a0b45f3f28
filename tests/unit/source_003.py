"""What source 003 (docs/sources.md) ran and found, as facts taken down by hand."""

from __future__ import annotations

from typing import Any

#: Not in the text that the source is; in the header of the page that it was taken from.
MODEL = "AEON-7/Ornith-1.0-35B-AEON-Ultimate-Uncensored-NVFP4"
DRAFTER = "z-lab/Qwen3.6-35B-A3B-DFlash"
OLD_DRAFTER = "31977fbe13a8"
IMAGE = "ghcr.io/aeon-7/aeon-vllm-ultimate"
TAG = "latest"
ENTRYPOINT = ["vllm"]

#: Flag → value (None: a bare switch) of the command behind `serve /model`.
COMMAND: dict[str, Any] = {
    "--served-model-name": "ornith",
    "--host": "0.0.0.0",
    "--port": "8000",
    "--quantization": "compressed-tensors",
    "--trust-remote-code": None,
    "--max-model-len": "262144",
    "--gpu-memory-utilization": "0.6",
    "--max-num-seqs": "16",
    "--max-num-batched-tokens": "16384",
    "--mamba-cache-dtype": "float32",
    "--enable-prefix-caching": None,
    "--reasoning-parser": "qwen3",
    "--speculative-config": {"method": "dflash", "model": "/drafter", "num_speculative_tokens": 6},
}
#: The same with the older drafter, as the comment below the command has it.
OLD_DRAFTER_CONFIG = {
    "method": "dflash",
    "model": DRAFTER,
    "revision": "31977fbe13a8...",
    "num_speculative_tokens": 6,
}
ENV = {
    "TORCH_CUDA_ARCH_LIST": "12.1a",
    "CUTE_DSL_ARCH": "sm_121a",
    "VLLM_USE_FLASHINFER_SAMPLER": "1",
}
IPC = "host"
PUBLISHED = "127.0.0.1:8000:8000"
MOUNTS = ["/model:ro", "/drafter:ro"]
MTP_DRAFTS = 3

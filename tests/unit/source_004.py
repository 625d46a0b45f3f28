"""What source 004 (docs/sources.md) runs, as facts taken down by hand from its two commands."""

from __future__ import annotations

MODEL = "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"
DRAFTER = "z-lab/Qwen3.5-27B-DFlash"
IMAGE = "ghcr.io/aeon-7/vllm-dflash"
TAG = "latest"

#: Variables of the quick start's `docker run`.
ENV = {
    "MODEL_PATH": "/models/target",
    "SERVED_MODEL_NAME": "qwen35-dflash",
    "DFLASH_DRAFTER": DRAFTER,
    "DFLASH_NUM_SPEC_TOKENS": "15",
    "MAX_MODEL_LEN": "65536",
    "MAX_NUM_SEQS": "16",
    "MAX_NUM_BATCHED_TOKENS": "32768",
    "GPU_MEMORY_UTILIZATION": "0.85",
    "ATTENTION_BACKEND": "flash_attn",
    "VLLM_API_KEY": "$VLLM_API_KEY",
}
#: Of the TurboQuant variant's: no name to serve under, no key, and these beside the others.
TURBOQUANT_ENV = {
    "ENABLE_TURBOQUANT": "1",
    "TQ_MODE": "hybrid",
    "TQ_KEY_BITS": "4",
    "TQ_VALUE_BITS": "3",
}
TURBOQUANT_DIRECTORY = "turboquant"
TURBOQUANT_LICENCE = "GPL-3.0"
#: Variable → default, of the table "TurboQuant-specific".
TURBOQUANT_DEFAULTS = {
    "TQ_MODE": "hybrid",
    "TQ_KEY_BITS": "4",
    "TQ_VALUE_BITS": "3",
    "TQ_RING_CAPACITY": "128",
    "TQ_INITIAL_LAYERS": "4",
}
TURBOQUANT_MODES = ["off", "capture_only", "hybrid", "full_tq"]

#: Variable → default, of the table "Environment variables"; none: required, unset or derived.
DEFAULTS = {
    "MODEL_PATH": None,
    "DFLASH_DRAFTER": None,
    "DFLASH_NUM_SPEC_TOKENS": 15,
    "MAX_MODEL_LEN": 65536,
    "MAX_NUM_SEQS": 16,
    "MAX_NUM_BATCHED_TOKENS": 32768,
    "GPU_MEMORY_UTILIZATION": 0.85,
    "ATTENTION_BACKEND": "flash_attn",
    "VLLM_API_KEY": None,
    "SERVED_MODEL_NAME": None,
    "EXTRA_ARGS": None,
}

GPUS, NETWORK, IPC = "all", "host", "host"
ULIMITS = {"memlock": -1}
MOUNTS = ["/models/target:ro"]
COMMAND: list[str] = []

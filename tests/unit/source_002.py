"""What the author of source 002 (docs/sources.md) ran, as facts.

Taken apart by hand from the command of the model card: the golden values of every test that
compares roost's container with the author's. One command is published, that of the DFlash2 drafter;
of the other three configurations the card says how they differ from it.
"""

from __future__ import annotations

RECIPE = "ornith-1.5-35b-nvfp4-dflash2"

MODEL = "ornith-ai/Ornith-1.5-35B-A3B-NVFP4"
MODEL_COMMIT = "0f0b1b59b879ccde1353e6ebd0fb10c204d4c544"
DRAFTER = "jzinno/Ornith-1.5-35B-A3B-DFlash2"
WARM_START = "z-lab/Qwen3.5-35B-A3B-DFlash"
ENGINE_COMMIT = "710267dc4c817b38d9965346390cd56b59b54eda"

#: The machines both matrices were measured on.
HARDWARE = ("gb10", "h200")

#: The words before the flags.
AUTHOR_PROGRAM = ["sglang", "serve"]

#: Flag → value (None: a bare switch) of the author's command, the same on both machines.
AUTHOR_COMMAND: dict[str, str | None] = {
    "--trust-remote-code": None,
    "--model-path": MODEL,
    "--revision": MODEL_COMMIT,
    "--kv-cache-dtype": "fp8_e4m3",
    "--attention-backend": "flashinfer",
    "--moe-runner-backend": "marlin",
    "--speculative-algorithm": "DFLASH",
    "--speculative-draft-model-path": DRAFTER,
    "--speculative-num-draft-tokens": "10",
    "--speculative-draft-attention-backend": "flashinfer",
    "--mamba-radix-cache-strategy": "extra_buffer",
    "--mamba-ssm-dtype": "float32",
}

#: The name the card gives each configuration, by the recipe's choice.
CONFIGURATIONS = {
    "none": "Autoregressive",
    "mtp": "NEXTN",
    "dflash": "Qwen3.5 DFlash warm start",
    "dflash2": "Ornith DFlash2",
}

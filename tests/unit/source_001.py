"""What source 001 (docs/sources.md) says of its server, as facts.

Taken apart by hand from the recipe page. Its table of parameters is empty, so there is no command
to compare with: what the text states of one is here, and what it leaves open is listed in the test.
"""

from __future__ import annotations

from typing import Any

#: Last part of the path that the page reads config.json from.
MODEL_DIRECTORY = "Ornith-1.0-35B-FP8"
SERVED_NAME = "ornith-fp8"
ENGINE_VERSION = "0.24.0"
VERIFIED = "2026-07-27"

#: Flag → value, as the text states them.
STATED_FLAGS: dict[str, Any] = {
    "--kv-cache-memory-bytes": "8589934592",
    "--max-model-len": "262144",
}
#: Flags that the text says must not be there, or that it had no need of.
ABSENT_FLAGS = {
    "--language-model-only",
    "--moe-backend",
    "--quantization",
    "--kv-cache-dtype",
    "--tensor-parallel-size",
    "--enforce-eager",
    "--speculative-config",
}
#: The body of both published requests.
CHAT_TEMPLATE_KWARGS = {"enable_thinking": False}

#: What the index holds.
TENSORS, VISION_TENSORS, MTP_TENSORS = 62_546, 333, 0
#: What the engine printed.
LOADED_GIB = {"fp8": 34.87, "bf16": 65.53}
POOL_TOKENS, CONCURRENCY, ATTENTION_BLOCK = 412_980, 1.58, 1056

"""Published figures of source 001, counted by hand in its text: see test_figures.py."""

from __future__ import annotations

from tests.unit.counted import Cell, Size

_FP8 = "ornith-1.0-35b-fp8"

SIZES = {
    _FP8: {
        # Six lengths with TTFT and decode; the text gives a prefill rate for three of them.
        "prompt-length": Size(rows=6, columns=3, empty=3),
        # Decode, prefill and weights of the two builds; what the text makes of the first two.
        "bf16-sibling": Size(rows=2, columns=3),
        "bf16-sibling-gain": Size(rows=1, columns=2),
        # In prose.
        "kv-pool": Size(rows=1, columns=3),
        "whole-context": Size(rows=1, columns=2),
        "memory": Size(rows=1, columns=3),
        "start-up": Size(rows=1, columns=2),
        "disk": Size(rows=1, columns=2),
    }
}

CELLS = [
    Cell(_FP8, "prompt-length", "ttft", 0.19, "s", "none", prompt_tokens=511),
    Cell(_FP8, "prompt-length", "ttft", 105.7, "s", "none", prompt_tokens=250_223),
    Cell(_FP8, "prompt-length", "decode_throughput", 26.5, "tok/s", "none", prompt_tokens=131_292),
    Cell(_FP8, "prompt-length", "decode_throughput", 34.3, "tok/s", "none", prompt_tokens=32_780),
    Cell(_FP8, "prompt-length", "prefill_throughput", 6062, "tok/s", "none", prompt_tokens=8208),
    Cell(_FP8, "prompt-length", "prefill_throughput", 2367, "tok/s", "none", prompt_tokens=250_223),
    Cell(_FP8, "bf16-sibling", "decode_throughput", 30.25, "tok/s", "none", weights="bf16"),
    Cell(_FP8, "bf16-sibling", "prefill_throughput", 3746, "tok/s", "none", weights="bf16"),
    Cell(_FP8, "bf16-sibling", "weights", 65.53, "GiB", "none", weights="bf16"),
    Cell(_FP8, "bf16-sibling", "weights", 34.87, "GiB", "none", weights="fp8"),
    Cell(_FP8, "bf16-sibling-gain", "decode_gain", 24.6, "%", "none"),
    Cell(_FP8, "kv-pool", "kv_pool", 412_980, "tokens", "none", kv_cache_bytes=8_589_934_592),
    Cell(_FP8, "kv-pool", "max_concurrency", 1.58, "requests", "none"),
    Cell(_FP8, "whole-context", "decode_throughput", 20.9, "tok/s", "none", prompt_tokens=261_224),
    Cell(_FP8, "whole-context", "prefill_time", 113, "s", "none"),
    Cell(_FP8, "memory", "working_set", 51, "GiB", "none"),
    Cell(_FP8, "start-up", "weight_load_time", 233, "s", "none"),
    Cell(_FP8, "start-up", "warm_up_time", 41, "s", "none"),
    Cell(_FP8, "disk", "checkpoint", 37.7, "GB", None),
]

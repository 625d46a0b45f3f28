"""The published tables of source 002 (docs/sources.md), counted and spot-checked by hand."""

from __future__ import annotations

#: Table → cells that hold a number. Each matrix has 12 rows of 5 columns, and three rows without
#: speculation have no accepted length.
TABLES: dict[str, int] = {
    "gb10-matrix": 57,
    "h200-matrix": 57,
    "gb10-summary": 2,
    "gb10-speedup": 1,
    "drafter-training": 15,
}

#: (table, speculation, concurrency, what) → value, read off the card: corners, and a cell of each
#: configuration and column.
VALUES: dict[tuple[str, str | None, int | None, str], float] = {
    ("gb10-matrix", "none", 1, "output_throughput"): 79.3,
    ("gb10-matrix", "none", 8, "tpot"): 31.43,
    ("gb10-matrix", "mtp", 4, "ttft"): 255.4,
    ("gb10-matrix", "mtp", 8, "accept_length"): 2.01,
    ("gb10-matrix", "dflash", 1, "accept_length"): 3.48,
    ("gb10-matrix", "dflash", 4, "output_throughput_per_user"): 50.8,
    ("gb10-matrix", "dflash2", 1, "output_throughput"): 114.2,
    ("gb10-matrix", "dflash2", 8, "ttft"): 539.0,
    ("gb10-matrix", "dflash2", 8, "accept_length"): 4.18,
    ("h200-matrix", "none", 1, "output_throughput"): 253.6,
    ("h200-matrix", "none", 4, "ttft"): 181.8,
    ("h200-matrix", "mtp", 1, "output_throughput_per_user"): 304.0,
    ("h200-matrix", "mtp", 8, "output_throughput"): 982.6,
    ("h200-matrix", "dflash", 8, "output_throughput"): 1190.0,
    ("h200-matrix", "dflash", 1, "tpot"): 2.07,
    ("h200-matrix", "dflash2", 4, "accept_length"): 3.90,
    ("h200-matrix", "dflash2", 8, "output_throughput"): 1351.6,
    ("h200-matrix", "dflash2", 8, "accept_length"): 3.97,
    ("gb10-summary", "dflash2", 1, "accept_length"): 4.02,
    ("gb10-speedup", "dflash2", 1, "output_throughput_gain"): 44.0,
    ("drafter-training", None, None, "assistant_completion_tokens"): 100_014_884,
    ("drafter-training", None, None, "conversations"): 108_729,
    ("drafter-training", None, None, "learning_rate"): 0.0001,
    ("drafter-training", None, None, "optimizer_steps"): 3228,
}

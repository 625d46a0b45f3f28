"""Published figures of source 000, counted by hand in its text: see test_figures.py."""

from __future__ import annotations

from tests.unit.counted import Cell, Size

_HERETIC = "ornith-1.0-35b-heretic-nvfp4-dflash"

SIZES = {
    _HERETIC: {
        # Two benchmark tables: eight categories; speed and accept length of DFlash and MTP.
        "benchmark-rtx5070ti-x2": Size(rows=8, columns=4),
        "benchmark-gb10": Size(rows=8, columns=4),
        # Two lines of the memory model: pool and free memory.
        "memory-pool": Size(rows=2, columns=2),
        # Three goals; single stream, aggregate, pool, free. One stream and eager have no
        # aggregate, eager no free memory; max-model-len and goal are conditions.
        "context-and-concurrency": Size(rows=3, columns=4, empty=3),
        # In prose and in the table of flags.
        "eager-and-graphs": Size(rows=2, columns=2, empty=1),
        "activation-peak": Size(rows=2, columns=1),
        "memory-parts": Size(rows=1, columns=3),
        "single-stream-context": Size(rows=1, columns=1),
        "dflash-to-mtp-gb10": Size(rows=1, columns=1),
    }
}

CELLS = [
    Cell(
        _HERETIC,
        "benchmark-rtx5070ti-x2",
        "output_throughput",
        133.89,
        "tok/s",
        "dflash",
        category="mine/code",
    ),
    Cell(
        _HERETIC,
        "benchmark-rtx5070ti-x2",
        "accept_length",
        3.86,
        "tokens",
        "mtp",
        category="spec/math_reasoning",
    ),
    Cell(
        _HERETIC,
        "benchmark-rtx5070ti-x2",
        "output_throughput",
        243.82,
        "tok/s",
        "mtp",
        category="spec/qa",
        thinking=False,
    ),
    Cell(
        _HERETIC,
        "benchmark-gb10",
        "output_throughput",
        93.41,
        "tok/s",
        "dflash",
        category="spec/coding",
        concurrency=1,
    ),
    Cell(
        _HERETIC, "benchmark-gb10", "accept_length", 3.17, "tokens", "dflash", category="mine/agent"
    ),
    Cell(
        _HERETIC,
        "benchmark-gb10",
        "output_throughput",
        79.82,
        "tok/s",
        "mtp",
        category="spec/translation",
    ),
    Cell(_HERETIC, "memory-pool", "kv_pool", 347_124, "tokens", "dflash", max_num_seqs=4),
    Cell(_HERETIC, "memory-pool", "free_memory", 359, "MiB per GPU", "dflash", max_num_seqs=4),
    Cell(_HERETIC, "memory-pool", "free_memory", 561, "MiB per GPU", "dflash", max_num_seqs=2),
    Cell(
        _HERETIC,
        "context-and-concurrency",
        "aggregate_throughput",
        332.1,
        "tok/s",
        "dflash",
        streams=2,
    ),
    Cell(
        _HERETIC, "context-and-concurrency", "free_memory", 1149, "MiB per GPU", "dflash", streams=1
    ),
    Cell(
        _HERETIC,
        "context-and-concurrency",
        "kv_pool",
        325_000,
        "tokens",
        "dflash",
        cuda_graphs=False,
    ),
    Cell(
        _HERETIC, "eager-and-graphs", "output_throughput", 217, "tok/s", "dflash", cuda_graphs=True
    ),
    Cell(_HERETIC, "eager-and-graphs", "cuda_graph_memory", 0.28, "GB per GPU", "dflash"),
    Cell(
        _HERETIC,
        "activation-peak",
        "activation_peak",
        1.15,
        "GB per GPU",
        None,
        max_num_batched_tokens=8192,
    ),
    Cell(
        _HERETIC,
        "activation-peak",
        "activation_peak",
        0.4,
        "GB per GPU",
        None,
        max_num_batched_tokens=2048,
    ),
    Cell(_HERETIC, "memory-parts", "drafter_memory", 737, "MB", "dflash"),
    Cell(_HERETIC, "memory-parts", "attention_block_size", 2160, "tokens", "dflash"),
]

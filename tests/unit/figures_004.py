"""The figures of source 004, counted and checked by hand against its tables and text."""

from __future__ import annotations

from tests.unit.published import Wanted

#: Table → cells. Columns of words ("Notes") are none; a cell with two numbers counts as two.
TABLES = {
    # "Single-stream throughput by prompt style": 4 rows, 2 columns of numbers.
    "single-stream": 8,
    # "Concurrency scaling": 4 rows, 4 columns, twice.
    "concurrency-code": 16,
    "concurrency-prose": 16,
    # "Summary metrics": 7 rows, two of them with two numbers.
    "summary": 9,
    # "Overhead vs baseline": 4 rows, 4 columns, twice.
    "turboquant-code": 16,
    "turboquant-prose": 16,
    # "Long-context behaviour": 3 rows, 3 columns.
    "turboquant-long-context": 9,
    # "Expected accepted-tokens-per-draft": 4 rows, 2 columns.
    "acceptance": 8,
    # Numbers of the text.
    "acceptance-range": 3,
    "claims": 8,
    "queueing": 2,
    "start-up": 9,
    "needs": 6,
}

_OUT, _TTFT, _TPOT = "output_throughput", "ttft_p50", "tpot_p50"
_CLAIM = "claimed"

VALUES = [
    Wanted("single-stream", _OUT, {"prompt": "code"}, 64.0),
    Wanted("single-stream", _TPOT, {"prompt": "reasoning"}, 18.4),
    Wanted("single-stream", _OUT, {"prompt": "dialogue"}, 38.4),
    Wanted("single-stream", _TPOT, {"prompt": "prose"}, 33.6),
    Wanted("concurrency-code", _OUT, {"concurrency": 4}, 181.5),
    Wanted("concurrency-code", _TTFT, {"concurrency": 8}, 564),
    Wanted("concurrency-code", "output_throughput_per_request_median", {"concurrency": 16}, 20.5),
    Wanted("concurrency-prose", _TTFT, {"concurrency": 1}, 225),
    Wanted("concurrency-prose", _OUT, {"concurrency": 16}, 151.8),
    Wanted("concurrency-prose", _TPOT, {"concurrency": 16}, 104),
    Wanted("summary", "output_throughput_peak", {"prompt": "code", "concurrency": 16}, 327.9),
    Wanted("summary", _TPOT, {}, [15, 104]),
    Wanted("summary", _TTFT, {}, [225, 884]),
    Wanted("summary", "kv_headroom", {}, 70),
    Wanted("summary", "context_most", {}, 262),
    Wanted("turboquant-code", _OUT, {"concurrency": 1, "turboquant": "off"}, 64.02),
    Wanted("turboquant-code", _OUT, {"concurrency": 8, "turboquant": "hybrid"}, 252.78),
    Wanted("turboquant-code", "output_throughput_change", {"concurrency": 8}, -3.80),
    Wanted("turboquant-prose", _OUT, {"concurrency": 4, "turboquant": "capture_only"}, 80.28),
    Wanted("turboquant-prose", "output_throughput_change", {"concurrency": 16}, -1.98),
    Wanted(
        "turboquant-long-context",
        "decode_throughput",
        {"context": 4000, "turboquant": "hybrid"},
        33.35,
    ),
    Wanted("turboquant-long-context", "decode_throughput_change", {"context": 32000}, -11.38),
    Wanted("acceptance", "accepted", {"prompt": "code or reasoning"}, 5, _CLAIM),
    Wanted("acceptance", "speedup", {"prompt": "prose"}, 1.3, _CLAIM),
    Wanted("acceptance", "accepted", {"prompt": "random"}, 1.5, _CLAIM),
    Wanted("acceptance-range", "accept_length", {}, [2.0, 5.5]),
    Wanted("acceptance-range", "accept_rate", {"position": 0}, 78),
    Wanted("claims", "speedup", {}, [2, 5], _CLAIM),
    Wanted("claims", "kv_compression", {}, 3.76, _CLAIM),
    Wanted("queueing", _TTFT, {"max_num_seqs": 4}, 14700),
    Wanted("queueing", _TTFT, {"max_num_seqs": 16}, 817),
    Wanted("start-up", "later_boot", {}, 2, _CLAIM),
    Wanted("start-up", "first_request", {}, 30, _CLAIM),
    Wanted("needs", "memory_free", {}, 64, _CLAIM),
    Wanted("needs", "drafter_size", {}, 4, _CLAIM),
]

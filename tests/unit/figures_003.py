"""The figures of source 003, counted and checked by hand against its text."""

from __future__ import annotations

from tests.unit.published import Wanted

#: Table → cells. The source has no tables; these are its numbers, grouped as it says them.
TABLES = {
    "headline": 1,
    "dflash-against-mtp": 3,
    "draft-efficiency": 6,
    "errors": 2,
    "elsewhere": 3,
    "attention-block": 1,
}


VALUES = [
    Wanted("headline", "speedup", {"concurrency": 1}, 1.9, "claimed"),
    Wanted("dflash-against-mtp", "output_throughput_change", {"concurrency": 1}, 8.5),
    Wanted("dflash-against-mtp", "output_throughput_change", {"concurrency": 8}, -7),
    Wanted("dflash-against-mtp", "output_throughput_change", {"concurrency": 32}, -26),
    Wanted("draft-efficiency", "accept_rate", {"speculation": "mtp"}, 66),
    Wanted("draft-efficiency", "drafted", {"speculation": "mtp"}, 3),
    Wanted("draft-efficiency", "accept_rate", {"speculation": "dflash"}, 25),
    Wanted("draft-efficiency", "accept_length", {"speculation": "dflash"}, 3.7),
    Wanted("draft-efficiency", "drafted", {"speculation": "dflash"}, 11),
    Wanted("errors", "failed_requests", {"model": "nvidia/Qwen3.6-35B-A3B-NVFP4"}, 0),
    Wanted("elsewhere", "accepted", {"by": "D. Vassallo"}, 4, "claimed"),
    Wanted("elsewhere", "drafted", {"by": "D. Vassallo"}, 15, "claimed"),
    Wanted("elsewhere", "gain_over_mtp", {"gpu": "B200"}, [12, 18], "claimed"),
    Wanted("attention-block", "attention_block_size", {"speculation": "none"}, 1072),
]
#: Issues and pull requests of vLLM that the source cites.
ISSUES = [39273, 38300, 46105, 43626, 41884, 41190]

"""Every fix that a plan prints as ``key=value`` is applied, and the plan made again.

A fix mends what it stands under, and brings no refusal that was not there before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.test_plan_truth import CATALOG, HERETIC, SOME_DIGEST, plan

from roost.errors import UsageError
from roost.plan.finding import Finding
from roost.plan.planner import Plan
from roost.settings import parse_assignments

#: An image for hardware that a recipe has none for, by the engine's style.
IMAGES = {
    "vllm": {"image": f"vllm/vllm-openai@{SOME_DIGEST}", "engine_version": "0.33.0"},
    "sglang": {"image": f"lmsysorg/sglang@{SOME_DIGEST}", "engine_version": "0.5.23"},
    "environment": {},
}
GRID: list[dict[str, Any]] = [
    {},
    {"kv_cache_bytes": 1},
    {"kv_cache_bytes": 2**30},
    {"kv_cache_bytes": 2**40},
    {"kv_cache_bytes": 2**28, "max_num_seqs": 512},
    {"kv_cache_dtype": "bfloat16", "max_num_seqs": 64, "max_model_len": 190_000},
    {"max_num_seqs": 16},
    {"max_num_seqs": 4096},
    {"max_num_batched_tokens": 32_768},
    {"max_num_batched_tokens": 400_000},
    {"max_num_batched_tokens": 64, "max_num_seqs": 128},
    {"max_num_batched_tokens": 65_536, "max_num_seqs": 512},
    {"gpu_memory_utilization": 0.05},
    {"gpu_memory_utilization": 0.3},
    {"gpu_memory_utilization": 1.0},
    {"gpu_memory_utilization": 1.0, "max_num_batched_tokens": 200_000},
    {"tensor_parallel": 1},
    {"tensor_parallel": 2},
    {"tensor_parallel": 3},
    {"tensor_parallel": 8},
    {"max_model_len": 10_000_000},
    {"max_model_len": 10_000_000, "kv_cache_bytes": 2**31},
    {"attention_backend": "flashinfer"},
    {"attention_backend": "auto"},
    {"drafter_attention_backend": "FLASHINFER"},
    {"attention_backend": "FLASHINFER", "drafter_attention_backend": "FLASHINFER"},
    {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8"},
    {"attention_backend": "TRITON_ATN", "moe_backend": "triton"},
    {"num_speculative_tokens": 40, "enforce_eager": True},
]


def offered(finding: Finding) -> Iterator[dict[str, Any]]:
    """The settings of each alternative that is ready to paste."""
    for way in re.split(r",? or ", finding.fix):
        pairs = way.removeprefix("set ").split(" and ")
        if all(re.fullmatch(r"[a-z_]+=[^\s=…]+", pair) for pair in pairs):
            yield parse_assignments(pairs).model_dump(exclude_none=True)


def said(made: Plan) -> list[str]:
    return [one.id for one in made.findings]


def refused(made: Plan) -> set[str]:
    return {one.id for one in made.findings if one.severity == "error"}


def made(recipe: str, hardware: str, choice: str, settings: dict[str, Any]) -> Plan:
    style = CATALOG.engines[CATALOG.recipes[recipe].engine].style
    return plan(recipe, hardware, choice, **IMAGES[style] | settings)


@pytest.mark.parametrize("hardware", sorted(CATALOG.hardware))
@pytest.mark.parametrize("recipe", sorted(CATALOG.recipes))
def test_a_printed_fix_mends_what_it_is_printed_for(recipe: str, hardware: str) -> None:
    wrong = []
    for choice in CATALOG.recipes[recipe].speculation:
        for settings in GRID:
            try:
                before = made(recipe, hardware, choice, settings)
            except UsageError:
                continue  # such an engine or choice has no such setting
            for finding in before.findings:
                for change in offered(finding):
                    after = made(recipe, hardware, choice, settings | change)
                    again = said(after).count(finding.id) >= said(before).count(finding.id)
                    new = refused(after) - refused(before)
                    if finding.id in {"flashinfer-mixed-window", "cudagraph-piecewise"}:
                        # With the fix there are full graphs. Where memory is short as it is they
                        # may be too much, and that is then said.
                        new -= {"out-of-memory", "max-num-seqs"}
                    if again or new:
                        wrong.append((choice, settings, finding.id, change, again, new))
    assert not wrong


def test_fixes_of_the_grid_are_found() -> None:
    """Else the test above would pass of a sentence that changed its form."""
    seen = set()
    for settings in GRID:
        for recipe, hardware, choice in (
            (HERETIC, "rtx5070ti-x2", "dflash"),
            (HERETIC, "rtx5090", "dflash"),
            (HERETIC, "gb10", "dflash"),
            (HERETIC, "h200", "dflash"),
        ):
            for finding in made(recipe, hardware, choice, settings).findings:
                seen |= {(finding.id, name) for change in offered(finding) for name in change}
    assert {
        ("out-of-memory", "kv_cache_bytes"),
        ("out-of-memory", "max_num_batched_tokens"),
        ("out-of-memory", "max_num_seqs"),
        ("out-of-memory", "enforce_eager"),
        ("out-of-memory", "tensor_parallel"),
        ("out-of-memory", "gpu_memory_utilization"),
        ("utilization-too-high", "gpu_memory_utilization"),
        ("kv-too-small", "kv_cache_bytes"),
        ("kv-too-small", "max_model_len"),
        ("max-num-seqs", "max_num_seqs"),
        ("context-beyond-model", "max_model_len"),
        ("too-few-gpus", "tensor_parallel"),
        ("flashinfer-mixed-window", "drafter_attention_backend"),
    } <= seen

"""SGLang's split of a GPU's memory, against what SGLang's own functions return.

The golden figures were computed with ``_handle_max_mamba_cache`` and ``resolve_max_num_reqs`` of
0.5.19 and 0.5.23, which agree, given stubs for everything around them.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.plan_cases import DRAFTER, GB10, GIB, H200, NVFP4, RTX5070TI, case, contents

from roost.errors import UsageError
from roost.plan import sglang
from roost.plan.case import Case, Load

#: One state of 30 layers: 32 heads of 128 by 128 in float32, and 3 columns of 8192 in BF16.
STATE = 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
#: FP8: 10 layers of 2 heads of 256; a drafter of 6 layers of 8 heads of 128 more.
TOKEN = 2 * 2 * 256 * 10
TOKEN_DRAFTED = TOKEN + 2 * 8 * 128 * 6


@pytest.mark.parametrize(
    ("gib", "draft_tokens", "running", "strategy", "token", "slots", "tokens", "requests"),
    [
        (100, 0, None, "extra_buffer", TOKEN, 788, 5_524_528, 157),
        (100, 10, 48, "extra_buffer", TOKEN_DRAFTED, 259, 2_622_618, 48),
        (40, 5, 8, "no_buffer", TOKEN_DRAFTED, 116, 1_443_476, 8),
        (40, 5, 8, "extra_buffer_lazy", TOKEN_DRAFTED, 137, 1_383_454, 8),
        (40, 0, 16, None, 2 * TOKEN, 16, 2_043_704, 16),
        (40, 5, 16, None, TOKEN_DRAFTED, 16, 1_614_967, 16),
    ],
)
def test_memory_is_shared_out_as_sglang_does(
    gib: int,
    draft_tokens: int,
    running: int | None,
    strategy: Any,
    token: int,
    slots: int,
    tokens: int,
    requests: int,
) -> None:
    pools = sglang.share_out(
        gib * GIB,
        state_bytes=STATE,
        token_bytes=token,
        draft_tokens=draft_tokens,
        running=running,
        strategy=strategy,
        context=262_144,
    )
    assert (pools.state_slots, pools.requests) == (slots, requests)
    # SGLang reckons in GiB as floating-point numbers.
    assert pools.tokens == pytest.approx(tokens, abs=1)


def source_002(machine: Any = GB10, **given: Any) -> Case:
    """The command of source 002: ten draft tokens, one of them certain."""
    return case(
        machine,
        load=Load(contents=contents(NVFP4, vision=True), source="shape"),
        drafter=DRAFTER,
        drafter_load=Load(disk_bytes=772_800_512, source="source 000"),
        **{
            "method": "dflash",
            "kv_cache_dtype": "fp8_e4m3",
            "num_speculative_tokens": 9,
            "mamba_cache_dtype": "float32",
            "gpu_memory_utilization": None,
            "max_num_seqs": None,
            "max_num_batched_tokens": None,
            **given,
        },
    )


def test_the_command_of_source_002_fits() -> None:
    for machine in (GB10, H200):
        split = sglang.make(source_002(machine), version="0.5.23")
        assert split.fits
        assert not split.said
        assert split.state_bytes_per_slot == STATE
        assert split.kv_bytes_per_token == TOKEN_DRAFTED
        assert split.slots_per_request == 5
        # Source 002 measured up to eight requests at a time.
        assert split.max_running_requests >= 8
        assert all(term.kind != "measured" for term in split.terms)


def test_half_the_state_doubles_the_slots_nearly() -> None:
    full = sglang.make(source_002(), version="0.5.23")
    half = sglang.make(source_002(mamba_cache_dtype="bfloat16"), version="0.5.23")
    assert half.state_bytes_per_slot == 30 * (32 * 128 * 128 * 2 + 8192 * 3 * 2)
    assert 1.8 * full.state_slots < half.state_slots < 2 * full.state_slots


def test_cells_without_a_drafter_are_the_targets_alone() -> None:
    plain = sglang.make(source_002(method=None), version="0.5.23")
    mtp = sglang.make(source_002(method="mtp", num_speculative_tokens=3), version="0.5.23")
    assert plain.kv_bytes_per_token == TOKEN
    assert mtp.kv_bytes_per_token == TOKEN * 11 // 10


def test_a_vision_tower_costs_its_weights_and_a_cache() -> None:
    def left(**given: Any) -> int:
        split = sglang.make(
            source_002(prefix_caching=False, max_num_seqs=8, **given), version="0.5.23"
        )
        return split.kv_pool_tokens * split.kv_bytes_per_token

    # 446.6 million parameters in BF16, and 100 MiB.
    without = left(gpu_memory_utilization=0.5, language_model_only=True)
    assert without - left(gpu_memory_utilization=0.5) == pytest.approx(
        893_200_000 + 100 * 2**20, abs=2 * TOKEN_DRAFTED
    )


def test_weights_too_large_are_refused_with_a_fraction_that_does() -> None:
    refused = sglang.make(source_002(gpu_memory_utilization=0.2), version="0.5.23")
    assert [refusal.id for refusal in refused.refusals] == ["out-of-memory"]
    enough = float(refused.refusals[0].fix.removeprefix("gpu_memory_utilization="))
    assert sglang.make(source_002(gpu_memory_utilization=enough), version="0.5.23").fits
    nowhere = sglang.make(source_002(RTX5070TI), version="0.5.23")
    assert nowhere.refusals[0].fix == "more memory, or smaller weights"


@pytest.mark.parametrize(
    ("machine", "given", "version", "fraction"),
    [
        # 143155 MiB: 512 + 1.5 x 8192 + 128 + 2 x 256 + 8 x 58 MiB are left out.
        (H200, {}, "0.5.23", (143_155 - 13_904) / 143_155),
        # A small chunk does not go below 10 GiB on a card of that size.
        (H200, {"max_num_batched_tokens": 2048}, "0.5.23", (143_155 - 10_240) / 143_155),
        # A card below 20 GiB: chunks of 2048, 8 sequences, 42 prefill sizes.
        (RTX5070TI, {}, "0.5.23", (15_852 - 512 - 3072 - 128 - 16 - 8 * 42) / 15_852),
        (RTX5070TI, {"enforce_eager": True}, "0.5.23", (15_852 - 512 - 3072 - 128) / 15_852),
        # Below 35 GiB the defaults changed between the two versions that were read.
        (
            H200.model_copy(update={"total_bytes": 32_000 * 2**20}),
            {},
            "0.5.19",
            (32_000 - 512 - 3072 - 128 - 48 - 8 * 42) / 32_000,
        ),
        (
            H200.model_copy(update={"total_bytes": 32_000 * 2**20}),
            {"max_num_seqs": 4},
            "0.5.23",
            (32_000 - 512 - 6144 - 128 - 8 - 8 * 50) / 32_000,
        ),
    ],
)
def test_the_fraction_is_sglangs_own_choice(
    machine: Any, given: dict[str, Any], version: str, fraction: float
) -> None:
    found = sglang.default_fraction(source_002(machine, **given), version)
    assert found == pytest.approx(fraction, abs=0.0006)


def test_a_kv_type_without_arithmetic_is_asked_about() -> None:
    with pytest.raises(UsageError, match="nvfp4"):
        sglang.make(source_002(kv_cache_dtype="nvfp4"), version="0.5.23")


@given(st.floats(0.3, 0.99), st.integers(1, 16), st.sampled_from(["no_buffer", "extra_buffer"]))
def test_the_terms_never_exceed_what_is_available(
    fraction: float, depth: int, strategy: Any
) -> None:
    split = sglang.make(
        source_002(gpu_memory_utilization=fraction, num_speculative_tokens=depth),
        version="0.5.23",
        strategy=strategy,
    )
    total = sum(term.bytes for term in split.terms)
    assert not split.fits or total <= GB10.available_bytes


def test_the_strategy_is_read_from_the_command() -> None:
    flag = "--mamba-radix-cache-strategy"
    assert sglang.strategy_of(["serve", flag, "no_buffer"]) == "no_buffer"
    assert sglang.strategy_of([f"{flag}=extra_buffer_lazy"]) == "extra_buffer_lazy"
    for auto in ([], [flag, "auto"], [flag]):
        assert sglang.strategy_of(auto) == "extra_buffer"


def test_what_is_left_and_what_a_request_takes() -> None:
    split = sglang.make(source_002(), version="0.5.19")
    total = sum(term.bytes for term in split.terms)
    assert split.free_bytes == GB10.available_bytes - total
    # Five slots, and one state for each of ten draft tokens.
    assert split.state_bytes_per_request == 15 * split.state_bytes_per_slot
    assert split.kv_cache_bytes == split.kv_pool_tokens * split.kv_bytes_per_token

"""The KV pool: figures that engines printed, refusals, and what must hold for any input.

The golden figures are lines of real logs or a source's own text, never output of the code.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.plan_configs import dflash, qwen35_35b

from roost.errors import RefusedError, UsageError
from roost.plan.architecture import Architecture, Attention, Drafter, Gdn
from roost.plan.memory import (
    KvPool,
    KvTooSmallError,
    MixedDrafterError,
    PageSizeMismatchError,
    SplitDrafterError,
    TooManySequencesError,
    kv_pool,
    pool_refusals,
    require_servable,
)
from roost.plan.rules import EngineRules, rules_for

GIB = 2**30
TARGET = Architecture.from_config(qwen35_35b())
TARGET_8 = Architecture.from_config(qwen35_35b(layers=8))
DRAFTER = Drafter.from_config(dflash(kv_heads=8, window=4096))
OLD_DRAFTER = Drafter.from_config(dflash(kv_heads=4, window=None))
NIGHTLY = "0.23.1rc1.dev968+g2c17d33f4"

LONG = {"max_model_len": 262_144, "kv_cache_bytes": 8 * GIB}
#: Two cards of 16 GB with a drafter, source 000; the logs of 0.24.0 repeat it on one card.
SHORT = {
    "max_model_len": 131_072,
    "kv_cache_bytes": 3_200_000_000,
    "max_num_batched_tokens": 2048,
    "kv_dtype": "fp8",
    "num_speculative_tokens": 4,
}


def pool(
    target: Architecture = TARGET,
    drafter: Drafter | None = None,
    *,
    version: str = "0.24.0",
    rules: EngineRules | None = None,
    **arguments: Any,
) -> KvPool:
    given: dict[str, Any] = {
        "tensor_parallel": 1,
        "kv_dtype": "auto",
        "mamba_cache_dtype": "auto",
        "num_speculative_tokens": 0,
        "max_num_batched_tokens": 8192,
        "prefix_caching": False,
        **LONG,
        **arguments,
    }
    return kv_pool(target, drafter, rules=rules or rules_for(version), **given)


@pytest.mark.parametrize(
    ("said", "block", "page", "groups", "per_group", "blocks", "per_request", "tokens", "times"),
    [
        # Source 001: FP8 weights, BF16 KV, no drafter; the same line from 0.24.0.
        (pool(), 1056, 2_162_688, 4, 10, 397, 252, 412_980, "1.58"),
        # Source 000: two cards, FP8 KV, current drafter, a nightly that pads.
        (
            pool(TARGET, DRAFTER, version=NIGHTLY, tensor_parallel=2, **SHORT),
            *(2160, 2_211_840, 8, 6, 241, 91, 347_124, "2.65"),
        ),
        # Logs of 0.24.0 on one H200.
        (pool(kv_dtype="fp8"), 2096, 2_146_304, 4, 10, 400, 129, 812_849, "3.10"),
        (pool(TARGET, OLD_DRAFTER, **SHORT), 2160, 2_211_840, 8, 6, 241, 208, 151_867, "1.16"),
        (pool(TARGET_8, OLD_DRAFTER, **SHORT), 2160, 2_211_840, 7, 2, 723, 259, 365_888, "2.79"),
        # Utilisation 0.90 left 59.39 GiB.
        (
            pool(kv_cache_bytes=int(59.39 * GIB)),
            *(1056, 2_162_688, 4, 10, 2948, 252, 3_066_668, "11.70"),
        ),
        # Mode "align", from the engine's own functions.
        (pool(prefix_caching=True), 1056, 2_162_688, 4, 10, 397, 255, 408_122, "1.56"),
    ],
    ids=[
        *("source 001", "source 000", "FP8 KV", "old drafter", "eight layers", "utilisation"),
        "prefix caching",
    ],
)
def test_the_pool_that_the_engine_printed(
    said: KvPool,
    block: int,
    page: int,
    groups: int,
    per_group: int,
    blocks: int,
    per_request: int,
    tokens: int,
    times: str,
) -> None:
    assert (said.attention_block_size, said.page_size_bytes) == (block, page)
    assert (said.kv_groups, said.layers_per_group) == (groups, per_group)
    assert (said.num_blocks, said.blocks_per_request) == (blocks, per_request)
    assert said.kv_pool_tokens == tokens
    assert f"{said.max_concurrency:.2f}" == times
    assert said.estimated_max_model_len is None
    assert said.fits_one_request


@pytest.mark.parametrize(
    ("tensor_parallel", "kv_dtype", "speculative", "block"),
    [
        (1, "auto", 3, 1072),  # source 003, MTP with three tokens
        (2, "auto", 0, 1056),  # two H200s, 0.24.0
        (2, "fp8", 4, 2160),  # the same
    ],
)
def test_the_attention_block_that_the_engine_printed(
    tensor_parallel: int, kv_dtype: str, speculative: int, block: int
) -> None:
    drafter = TARGET.mtp_drafter() if speculative == 3 else None
    said = pool(
        TARGET,
        drafter,
        tensor_parallel=tensor_parallel,
        kv_dtype=kv_dtype,
        num_speculative_tokens=speculative,
    )
    assert said.attention_block_size == block


def test_groups_of_source_000_kind_by_kind() -> None:
    said = pool(TARGET, DRAFTER, version=NIGHTLY, tensor_parallel=2, **SHORT)
    assert said.gdn_state_bytes == 1_105_920
    rows = [(k.name, k.layers, k.of_drafter, k.groups, k.blocks_per_request) for k in said.kinds]
    assert rows == [
        ("gated delta", 30, 0, 5, 5),
        ("full attention", 10, 0, 2, 31),
        ("sliding window", 6, 6, 1, 4),
    ]
    assert [kind.block_size for kind in said.kinds] == [None, 4320, 2160]


def test_states_and_one_window_of_source_001() -> None:
    said = pool()
    assert said.gdn_state_bytes == 2_146_304
    # "5 GiB for one full window": the tokens alone; with states and padding the engine wants more.
    assert said.attention_bytes_per_token * 262_144 == 5 * GIB
    assert f"{said.bytes_for_one_request / GIB:.2f}" == "5.08"
    assert said.mamba_bytes_per_seq == 3 * 10 * 2_162_688


def test_float32_states_of_the_convolution_take_twice_their_room() -> None:
    more = pool(mamba_cache_dtype="float32").gdn_state_bytes - pool().gdn_state_bytes
    assert more == 8192 * 3 * 2


def test_a_state_without_a_type_of_its_own_takes_that_of_the_convolution() -> None:
    config = qwen35_35b()
    del config["text_config"]["mamba_ssm_dtype"]
    said = pool(Architecture.from_config(config))
    assert said.gdn_state_bytes == 2_146_304 - 32 * 128 * 128 * 2


def test_a_drafter_of_the_targets_shape_joins_its_groups() -> None:
    said = pool(TARGET, TARGET.mtp_drafter(), num_speculative_tokens=3)
    assert [(k.name, k.layers, k.of_drafter) for k in said.kinds] == [
        ("gated delta", 30, 0),
        ("full attention", 11, 1),
    ]


def test_fewer_kv_heads_than_gpus_are_replicated() -> None:
    assert pool(tensor_parallel=2).attention_bytes_per_token == 10 * 1024
    assert pool(tensor_parallel=4).attention_bytes_per_token == 10 * 1024


def test_drafter_with_a_larger_page_dies_on_engines_that_cannot_pad() -> None:
    """Sources 000 and 003, and a real start of 0.24.0: a bare AssertionError."""
    for version, fit in (("0.23.0", "divides 512"), ("0.24.0", "is at most 512")):
        with pytest.raises(PageSizeMismatchError) as error:
            pool(TARGET_8, DRAFTER, version=version, **SHORT)
        assert error.value.exit_code == 3
        assert "4,423,680 bytes is larger than the target's 2,211,840" in error.value.what
        assert "AssertionError" in error.value.why
        assert fit in error.value.fix
        assert error.value.values == {"drafter_page": 4_423_680, "target_page": 2_211_840}
    # The fix works: the older revision of that drafter, or an engine that pads.
    assert pool(TARGET_8, OLD_DRAFTER, **SHORT).num_blocks == 723
    assert pool(TARGET_8, DRAFTER, version="0.30.0", **SHORT).page_size_bytes == 4_423_680


def test_drafter_page_that_is_no_whole_part_of_the_targets() -> None:
    odd = OLD_DRAFTER.model_copy(update={"kv_heads": 3})
    with pytest.raises(PageSizeMismatchError, match="does not divide the largest, 2,211,840"):
        pool(TARGET, odd, version="0.23.0", **SHORT)
    padded = pool(TARGET, odd, version="0.24.0", **SHORT)
    assert padded.page_size_bytes == 2_211_840
    assert padded.kinds[2].block_size == 2160


@pytest.mark.parametrize(
    ("version", "page", "blocks", "per_request", "tokens", "longest"),
    [
        # From the functions of each release, given the configuration of source 000.
        ("0.25.1", 1_105_920, 482, 532, 118_753, 77_760),
        ("0.26.0", 1_105_920, 482, 660, 95_722, 7168),
        ("0.28.0", 1_105_920, 482, 660, 95_722, 7168),
        ("0.29.0", 1_105_920, 482, 660, 95_722, 7152),
        ("0.30.0", 2_211_840, 241, 92, 343_351, None),
        ("0.32.0", 2_211_840, 241, 92, 343_351, None),
    ],
)
def test_one_configuration_through_the_versions(
    version: str, page: int, blocks: int, per_request: int, tokens: int, longest: int | None
) -> None:
    said = pool(TARGET, DRAFTER, version=version, tensor_parallel=2, **SHORT)
    assert (said.attention_block_size, said.page_size_bytes) == (2160, page)
    assert (said.num_blocks, said.blocks_per_request) == (blocks, per_request)
    assert said.kv_pool_tokens == tokens
    assert said.estimated_max_model_len == longest


def test_a_window_ignored_or_honoured() -> None:
    windowed = OLD_DRAFTER.model_copy(
        update={"full_layers": 0, "sliding_layers": 6, "window": 4096}
    )
    ignored = pool(TARGET, windowed, version="0.24.0", **SHORT)
    assert ignored == pool(TARGET, OLD_DRAFTER, version="0.24.0", **SHORT)
    honoured = pool(TARGET, windowed, version=NIGHTLY, **SHORT)
    assert ignored.blocks_per_request - honoured.blocks_per_request == 61 - 4
    # 4095 tokens behind and 2385 in flight are just three blocks of 2160; one more starts a fourth.
    for batched, blocks in ((2385, 4), (2386, 5)):
        edge = pool(
            TARGET, windowed, version=NIGHTLY, **{**SHORT, "max_num_batched_tokens": batched}
        )
        assert edge.kinds[2].blocks_per_request == blocks
    # Two batches in flight: 4095 + 2 * 2048 tokens are four blocks of 2160, and one.
    assert pool(TARGET, windowed, version="0.32.0", **SHORT).kinds[2].blocks_per_request == 5
    # Blocks of 16 tokens grow to the common page where it is a whole multiple of theirs.
    small = pool(TARGET, windowed, version="0.26.0", **SHORT).kinds[2]
    assert (small.block_size, small.blocks_per_request) == (2160, 5)
    wide = windowed.model_copy(update={"head_dim": 320})
    assert pool(TARGET, wide, version="0.26.0", **SHORT).kinds[2].block_size == 864
    # Elsewhere they are padded: 16 tokens take a whole page.
    odd = windowed.model_copy(update={"head_dim": 224})
    small = pool(TARGET, odd, version="0.26.0", **SHORT).kinds[2]
    assert (small.block_size, small.blocks_per_request) == (16, 512 + 1)


@pytest.mark.parametrize(
    ("gated_delta", "attention", "per_group", "groups"),
    [
        (12, 13, 13, [1, 1]),  # the example of vLLM's own comment: 12 and 13 are padded to 13
        (12, 17, 17, [1, 1]),
        (12, 18, 12, [1, 2]),  # half as many again is no longer close
        (30, 10, 10, [3, 1]),
    ],
)
def test_layers_per_group(
    gated_delta: int, attention: int, per_group: int, groups: list[int]
) -> None:
    assert TARGET.gdn
    said = pool(
        TARGET.model_copy(
            update={
                "gdn": TARGET.gdn.model_copy(update={"layers": gated_delta}),
                "attention": TARGET.attention.model_copy(update={"layers": attention}),
            }
        )
    )
    assert said.layers_per_group == per_group
    assert [kind.groups for kind in said.kinds] == groups


def test_kv_too_small_for_one_request() -> None:
    said = pool(kv_cache_bytes=4 * GIB)
    assert not said.fits_one_request
    assert (said.num_blocks, said.blocks_per_request) == (198, 252)
    # "the estimated maximum model length is 205920", 0.24.0
    assert said.estimated_max_model_len == 205_920
    with pytest.raises(KvTooSmallError) as error:
        require_servable(said)
    assert error.value.fix == f"kv_cache_bytes={252 * 10 * 2_162_688}, or max_model_len=205920"
    assert error.value.values == {
        "kv_cache_bytes": 4 * GIB,
        "needed_bytes": 252 * 10 * 2_162_688,
        "max_model_len": 262_144,
        "longest_model_len": 205_920,
    }
    require_servable(pool(kv_cache_bytes=said.bytes_for_one_request))
    require_servable(pool(kv_cache_bytes=4 * GIB, max_model_len=205_920))


def test_a_block_that_stays_free_since_0_29() -> None:
    just = 252 * 10 * 2_162_688
    assert pool(version="0.28.0", kv_cache_bytes=just).fits_one_request
    said = pool(version="0.29.0", kv_cache_bytes=just)
    assert not said.fits_one_request
    assert said.bytes_for_one_request == just + 10 * 2_162_688
    with pytest.raises(KvTooSmallError, match="and 1 that stays free, and the pool has 252"):
        require_servable(said)
    # It counts in the pool all the same.
    assert said.max_concurrency == 1.0


def test_kv_too_small_for_anything() -> None:
    said = pool(kv_cache_bytes=3 * 10 * 2_162_688)
    assert said.estimated_max_model_len == 0
    with pytest.raises(KvTooSmallError) as error:
        require_servable(said)
    assert "max_model_len" not in error.value.fix


def test_more_sequences_than_blocks() -> None:
    """0.24.0: max_num_seqs (1024) exceeds available Mamba cache blocks (397)."""
    require_servable(pool(), max_num_seqs=397)
    with pytest.raises(TooManySequencesError) as error:
        require_servable(pool(), max_num_seqs=1024)
    assert error.value.fix == "max_num_seqs=397"
    assert error.value.values == {"max_num_seqs": 1024, "num_blocks": 397}


def test_a_drafter_dealt_out_to_several_groups() -> None:
    """0.24.0: All drafting layers should belong to the same kv cache group."""
    said = pool(TARGET_8, OLD_DRAFTER, **SHORT)
    assert said.splits_drafter
    with pytest.raises(SplitDrafterError) as error:
        require_servable(said)
    assert error.value.what == "the drafter's 6 layers lie in 3 KV groups"
    assert error.value.values == {
        "drafter_layers": 6,
        "drafter_groups": 3,
        "layers_per_group": 2,
    }
    assert not pool(TARGET, OLD_DRAFTER, **SHORT).splits_drafter
    assert pool(TARGET_8, OLD_DRAFTER, version="0.28.0", **SHORT).splits_drafter
    assert not pool(TARGET_8, OLD_DRAFTER, version="0.29.0", **SHORT).splits_drafter
    # Layers of the target's own layout are dealt out with the target's.
    many = TARGET.attention.model_copy(update={"layers": 60})
    same = Drafter(full_layers=2, kv_heads=2, head_dim=256)
    large = TARGET.model_copy(update={"attention": many})
    assert pool(large, same, **SHORT).splits_drafter
    # One layer is in one group, however many groups its kind has.
    assert not pool(large, same.model_copy(update={"full_layers": 1}), **SHORT).splits_drafter


def test_a_drafter_of_both_kinds() -> None:
    mixed = DRAFTER.model_copy(update={"full_layers": 1, "sliding_layers": 5, "kv_heads": 4})
    with pytest.raises(MixedDrafterError, match="mixes 5 sliding and 1 full attention layers"):
        pool(TARGET, mixed, version="0.25.1", **SHORT)
    with pytest.raises(MixedDrafterError):
        pool(TARGET, mixed, rules=rules_for("0.32.0", "cpu"), **SHORT)
    # Without windows there is one kind; later a runner takes several groups.
    assert len(pool(TARGET, mixed, version="0.24.0", **SHORT).kinds) == 3
    taken = pool(TARGET, mixed, version="0.26.0", **SHORT)
    assert [kind.name for kind in taken.kinds] == [
        *("gated delta", "full attention", "full attention", "sliding window")
    ]
    assert not taken.splits_drafter


def test_refusals_come_in_the_order_in_which_the_engine_dies() -> None:
    said = pool(TARGET_8, OLD_DRAFTER, **{**SHORT, "kv_cache_bytes": 2**30})
    found = [refusal.id for refusal in pool_refusals(said, max_num_seqs=1024)]
    assert found == ["kv-too-small", "drafter-kv-groups", "max-num-seqs"]


def test_states_that_prefill_hands_out_since_0_33() -> None:
    before = pool(version="0.32.0", prefix_caching=True)
    since = pool(version="0.33.0", prefix_caching=True)
    assert (before.attention_block_size, since.attention_block_size) == (1056, 1088)
    assert since.kinds[0].blocks_per_request == before.kinds[0].blocks_per_request + 1
    assert pool(version="0.33.0").attention_block_size == 1056


@pytest.mark.parametrize(
    ("target", "drafter", "arguments", "message"),
    [
        (TARGET, None, {"tensor_parallel": 3}, "3 does not divide 16 attention heads, 16 gated"),
        (
            TARGET,
            OLD_DRAFTER.model_copy(update={"kv_heads": 3}),
            {"tensor_parallel": 2, "num_speculative_tokens": 4},
            "2 does not divide 3 KV heads of the drafter",
        ),
    ],
)
def test_heads_that_gpus_cannot_share(
    target: Architecture, drafter: Drafter | None, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(RefusedError, match=message):
        pool(target, drafter, **arguments)


@pytest.mark.parametrize(
    ("drafter", "arguments", "message"),
    [
        (None, {"kv_dtype": "turboquant_4bit"}, "kv_cache_dtype 'turboquant_4bit': its layout"),
        (None, {"max_model_len": 0}, "max_model_len: must be from 1 to"),
        (None, {"kv_cache_bytes": 2**60}, "kv_cache_bytes: must be from 1 to"),
        (None, {"kv_cache_bytes": -1}, "kv_cache_bytes: must be from 1 to"),
        (None, {"tensor_parallel": 0}, "tensor_parallel: must be from 1 to"),
        (None, {"num_speculative_tokens": -1}, "num_speculative_tokens: must be from 0 to"),
        (None, {"max_num_batched_tokens": 0}, "max_num_batched_tokens: must be from 1 to"),
        (OLD_DRAFTER, {}, "a drafter, but num_speculative_tokens is 0"),
    ],
)
def test_arguments_without_an_answer(
    drafter: Drafter | None, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pool(TARGET, drafter, **arguments)


def test_auto_kv_type_of_a_checkpoint_that_names_one_is_asked_for() -> None:
    config = qwen35_35b()
    config["quantization_config"] = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    target = Architecture.from_config(config)
    with pytest.raises(UsageError, match="the checkpoint says kv_cache_quant_algo 'FP8'"):
        pool(target)
    assert pool(target, kv_dtype="fp8").kv_pool_tokens == 812_849


SMOL = Architecture(
    attention=Attention(layers=30, query_heads=9, kv_heads=3, head_dim=64),
    gdn=None,
    dtype="float32",
    context=8192,
)
SMOL_DRAFTER = Drafter(full_layers=1, kv_heads=3, head_dim=64)


@pytest.mark.parametrize(
    ("drafter", "kv_heads", "window", "block_bytes", "blocks", "per_request", "groups"),
    [
        # SmolLM2-135M in float32 with 1 GiB on the CPU engine: the functions of 0.32.0, and lines
        # of its logs. A drafter of the target's layout makes one layer more.
        (None, 0, None, 5_898_240, 182, 16, [("full attention", 30, 1)]),
        (SMOL_DRAFTER, 3, None, 6_094_848, 176, 16, [("full attention", 31, 1)]),
        # Of another layout it shares the group, at its own page.
        (SMOL_DRAFTER, 1, None, 5_963_776, 180, 16, [("full attention", 31, 1)]),
        # Sliding layers are a kind of their own, and the smaller one: 30 groups of one layer.
        (
            *(SMOL_DRAFTER, 3, 512, 196_608, 5461, 497),
            [("full attention", 30, 30), ("sliding window", 1, 1)],
        ),
    ],
)
def test_a_model_without_gated_delta_layers(
    drafter: Drafter | None,
    kv_heads: int,
    window: int | None,
    block_bytes: int,
    blocks: int,
    per_request: int,
    groups: list[tuple[str, int, int]],
) -> None:
    if drafter:
        drafter = drafter.model_copy(update={"kv_heads": kv_heads})
    if drafter and window:
        drafter = Drafter(full_layers=0, sliding_layers=1, window=window, kv_heads=3, head_dim=64)
    said = pool(
        SMOL,
        drafter,
        rules=rules_for("0.32.0", "cpu"),
        num_speculative_tokens=4 if drafter else 0,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        kv_cache_bytes=GIB,
        prefix_caching=True,
    )
    assert said.attention_block_size == 128
    assert said.block_bytes == block_bytes
    assert (said.num_blocks, said.blocks_per_request) == (blocks, per_request)
    assert [(kind.name, kind.layers, kind.groups) for kind in said.kinds] == groups
    assert (said.gdn_state_bytes, said.mamba_bytes_per_seq) == (0, 0)
    assert said.attention_bytes_per_token == 30 * 2 * 3 * 64 * 4
    # No states, so nothing limits the sequences.
    require_servable(said, max_num_seqs=100_000)


# What must hold whatever the model.

POWERS = st.sampled_from([1, 2, 4, 8, 16, 32])


@st.composite
def targets(draw: st.DrawFn) -> Architecture:
    kv_heads = draw(POWERS)
    return Architecture(
        attention=Attention(
            layers=draw(st.integers(1, 40)),
            query_heads=kv_heads * 4,
            kv_heads=kv_heads,
            head_dim=draw(st.sampled_from([64, 128, 256])),
        ),
        gdn=None
        if draw(st.integers(0, 3)) == 0
        else Gdn(
            layers=draw(st.integers(1, 90)),
            key_heads=draw(POWERS) * 4,
            value_heads=draw(POWERS) * 4,
            key_dim=draw(st.sampled_from([64, 128])),
            value_dim=draw(st.sampled_from([64, 128])),
            conv_kernel=draw(st.integers(1, 5)),
            state_dtype=draw(st.sampled_from([None, "float32", "bfloat16"])),
        ),
        dtype="bfloat16",
        context=262_144,
    )


@st.composite
def drafters(draw: st.DrawFn) -> Drafter | None:
    full = draw(st.integers(0, 8))
    sliding = draw(st.integers(0, 8))
    if full + sliding == 0:
        return None
    return Drafter(
        full_layers=full,
        sliding_layers=sliding,
        window=draw(st.integers(1, 8192)) if sliding else None,
        kv_heads=draw(POWERS),
        head_dim=draw(st.sampled_from([64, 128, 256])),
    )


ARGUMENTS = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 2, 4]),
        "kv_dtype": st.sampled_from(["auto", "fp8"]),
        "mamba_cache_dtype": st.sampled_from(["auto", "float32"]),
        "num_speculative_tokens": st.integers(1, 16),
        "max_model_len": st.integers(1, 300_000),
        "max_num_batched_tokens": st.integers(1, 16_384),
        "kv_cache_bytes": st.integers(1, 2**37),
        "prefix_caching": st.booleans(),
    }
)
RULES = st.builds(
    EngineRules,
    block_multiple=st.sampled_from([16, 128]),
    smallest_block=st.sampled_from([16, 32]),
    pads_gdn_page=st.just(True),
    pads_attention_page=st.just(True),
    drafter_window=st.sampled_from(["ignored", "smallest block", "attention block"]),
    mixed_drafter=st.just(True),
    drafter_groups=st.sampled_from(["one", "one if hybrid", "any"]),
    batches_in_flight=st.integers(1, 2),
    reserved_blocks=st.integers(0, 1),
    checkpoint_alignment=st.sampled_from([0, 64]),
    compared=st.just(False),
    source=st.just("drawn"),
)


@settings(max_examples=120)
@given(targets(), drafters(), ARGUMENTS, RULES, st.integers(0, 2**34))
def test_invariants(
    target: Architecture,
    drafter: Drafter | None,
    arguments: dict[str, Any],
    rules: EngineRules,
    more: int,
) -> None:
    said = pool(target, drafter, rules=rules, **arguments)

    # The block is the smallest whose page holds a state.
    token_bytes = said.attention_bytes_per_token // target.attention.layers
    assert said.attention_block_size % rules.block_multiple == 0
    step = rules.block_multiple
    if arguments["prefix_caching"] and target.gdn and target.gdn.key_dim == 128:
        step = max(step, rules.checkpoint_alignment)
    assert (
        (said.attention_block_size - step) * token_bytes
        < max(said.gdn_state_bytes, 1)
        <= said.attention_block_size * token_bytes
        <= said.page_size_bytes
    )

    # Every layer is in a group, no group is empty, no byte is spent twice.
    for kind in said.kinds:
        assert kind.groups * said.layers_per_group >= kind.layers
        assert (kind.groups - 1) * said.layers_per_group < kind.layers
    added = drafter.full_layers + drafter.sliding_layers if drafter else 0
    assert sum(kind.of_drafter for kind in said.kinds) == added
    assert 0 <= said.kv_cache_bytes - said.num_blocks * said.block_bytes < said.block_bytes
    assert said.block_bytes <= said.page_size_bytes * said.layers_per_group

    # More bytes never hold fewer tokens, a state more per sequence never more of them. Caching may
    # also take larger blocks, which divide the pool otherwise.
    richer = pool(
        target,
        drafter,
        rules=rules,
        **{**arguments, "kv_cache_bytes": arguments["kv_cache_bytes"] + more},
    )
    assert richer.kv_pool_tokens >= said.kv_pool_tokens
    cached = pool(target, drafter, rules=rules, **{**arguments, "prefix_caching": True})
    if cached.attention_block_size == said.attention_block_size:
        assert cached.kv_pool_tokens <= said.kv_pool_tokens

    # The bytes that one request needs will do, and one byte less will not.
    just = {**arguments, "kv_cache_bytes": said.bytes_for_one_request}
    assert pool(target, drafter, rules=rules, **just).fits_one_request
    just["kv_cache_bytes"] -= 1
    assert not pool(target, drafter, rules=rules, **just).fits_one_request


@settings(max_examples=80)
@given(targets(), drafters(), ARGUMENTS, RULES)
def test_the_estimated_length_is_the_longest_that_fits(
    target: Architecture, drafter: Drafter | None, arguments: dict[str, Any], rules: EngineRules
) -> None:
    said = pool(target, drafter, rules=rules, **arguments)
    longest = said.estimated_max_model_len
    assert (longest is None) == said.fits_one_request
    if longest is None:
        longest = arguments["max_model_len"]
    if longest:
        fitting = {**arguments, "max_model_len": longest}
        assert pool(target, drafter, rules=rules, **fitting).fits_one_request
    if not said.fits_one_request:
        longer = {**arguments, "max_model_len": longest + 1}
        assert not pool(target, drafter, rules=rules, **longer).fits_one_request


@settings(max_examples=80)
@given(targets(), drafters(), ARGUMENTS)
def test_an_engine_that_cannot_pad_refuses_or_agrees_with_one_that_can(
    target: Architecture, drafter: Drafter | None, arguments: dict[str, Any]
) -> None:
    strict = rules_for("0.23.0")
    able = strict.model_copy(update={"pads_gdn_page": True, "pads_attention_page": True})
    shards = arguments["tensor_parallel"]
    width = max(1, target.attention.kv_heads // shards) * target.attention.head_dim
    drafter_width = drafter and max(1, drafter.kv_heads // shards) * drafter.head_dim
    if target.gdn and drafter_width and width % drafter_width:
        fit = f"divides {width}," if drafter_width > width else "divides the target's,"
        with pytest.raises(PageSizeMismatchError) as error:
            pool(target, drafter, rules=strict, **arguments)
        assert fit in error.value.fix
    else:
        assert pool(target, drafter, rules=strict, **arguments) == pool(
            target, drafter, rules=able, **arguments
        )

"""The memory budget: what engines and people measured, refusals, and what must hold for any input.

Measured figures are those of ``catalog/calibration.yml``; nothing here was printed by the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.plan_cases import (
    DRAFTER,
    GB10,
    GIB,
    H200,
    MIB,
    NVFP4,
    OLD_DRAFTER,
    REFERENCE,
    RTX5070TI,
    TARGET,
    case,
    contents,
    drafter_bytes,
    parameters,
    source_000,
)
from tests.unit.plan_configs import qwen35_35b

from roost.catalog import builtin
from roost.catalog_schema import Default, Gpu, Hardware
from roost.errors import RoostError, UsageError
from roost.hosts import GpuFacts, HostFacts
from roost.plan import budget, calibration, machine
from roost.plan.architecture import Architecture
from roost.plan.case import Case, Load
from roost.plan.contents import Contents, Part
from roost.plan.effective import settled
from roost.plan.machine import Machine
from roost.plan.terms import activation_bytes_per_token, capture_sizes
from roost.plan.widths import Widths
from roost.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
POINTS = calibration.builtin()


# What was measured ------------------------------------------------------------------------------


class Row(NamedTuple):
    """A measured point, what the budget says of it, and how far the two may be apart."""

    point: str
    predicted: Callable[[], int]
    tolerance: float
    note: str = ""


def _weights(load: Load, **given: Any) -> Callable[[], int]:
    return lambda: budget.make(case(load=load, **given)).weights_bytes


def _headers(**given: Any) -> Load:
    return Load(contents=contents(**given), source="headers")


def _term(name: str, of: Callable[[], Case]) -> Callable[[], int]:
    return lambda: budget.make(of()).bytes_of(name)


def _graphs_of_several(number: int) -> Callable[[], int]:
    """For capture sizes that somebody chose by hand."""
    return lambda: POINTS.fits.graphs_several_gpus.at(number)


def _cut_with_drafter() -> int:
    planned = budget.make(
        case(
            load=_headers(layers=8),
            widths=REFERENCE.model_copy(update={"layers": 8}),
            architecture=Architecture.from_config(qwen35_35b(layers=8)),
            method="dflash",
            drafter=OLD_DRAFTER,
            drafter_load=Load(disk_bytes=drafter_bytes(4), source="shape"),
            num_speculative_tokens=4,
        )
    )
    return planned.weights_bytes + planned.drafter_bytes


def _drafter() -> int:
    return budget.make(
        case(
            method="dflash",
            drafter=OLD_DRAFTER,
            drafter_load=Load(disk_bytes=drafter_bytes(4), source="shape"),
            num_speculative_tokens=4,
        )
    ).drafter_bytes


def _eager() -> Case:
    return case(gpu_memory_utilization=0.9, enforce_eager=True)


def _fine_tuned() -> Case:
    return case(
        load=_headers(vision=True),
        method="dflash",
        drafter=DRAFTER,
        drafter_load=Load(disk_bytes=drafter_bytes(8), source="shape"),
        tensor_parallel=4,
        max_num_batched_tokens=40_000,
        num_speculative_tokens=4,
    )


def _many_tokens_on_gb10() -> Case:
    return case(
        GB10,
        load=_headers(bytes_of=NVFP4, vision=True),
        gpu_memory_utilization=0.8,
        max_num_batched_tokens=65_536,
        max_num_seqs=512,
    )


def _fp8_on_gb10() -> Case:
    return case(
        GB10,
        load=Load(loaded_bytes=POINTS.point("weights-fp8-vision").amount, source="source 001"),
        kv_cache_bytes=8 * GIB,
        gpu_memory_utilization=0.8,
    )


#: 196 blocks of 6 layers' pages make the 282k tokens of that row.
POOL_282K = 196 * 6 * 2_211_840

_BY_FIT = "the fit goes through it"
_SIZE_UNKNOWN = "the source names no size of its checkpoint"
ROWS = [
    Row("weights-bf16-text", _weights(_headers()), 0.001),
    Row("weights-bf16-text-tp2", _weights(_headers(), tensor_parallel=2), 0.001),
    Row("weights-bf16-vision", _weights(_headers(vision=True)), 0.001),
    Row(
        "weights-fp8-vision",
        _weights(Load(disk_bytes=37_700_000_000, source="source 001")),
        0.02,
        "from the download's size",
    ),
    Row("weights-nvfp4-text", _weights(_headers(bytes_of=NVFP4)), 0.001),
    Row("weights-bf16-text-8-layers-drafter", _cut_with_drafter, 0.005),
    Row("drafter-bf16", _drafter, 0.06, "0.04 GiB are not explained"),
    Row("drafter-disk", lambda: drafter_bytes(8), 0.002, "assumed sizes of its layers"),
    Row("activation-2048", _term("activation peak", source_000), 0.06, _BY_FIT),
    Row(
        "activation-8192",
        _term("activation peak", lambda: source_000(max_num_batched_tokens=8192)),
        0.03,
        _BY_FIT,
    ),
    Row("activation-40000", _term("activation peak", _fine_tuned), 0.15, "five times the tokens"),
    Row("graphs-86", _term("CUDA graphs", case), 0.01, _BY_FIT),
    Row(
        "graphs-4",
        _term(
            "CUDA graphs",
            lambda: source_000(tensor_parallel=1).model_copy(update={"machine": H200}),
        ),
        0.01,
        _BY_FIT,
    ),
    Row("graphs-4-tp2", _term("CUDA graphs", source_000), 0.01, _BY_FIT),
    Row(
        "graphs-9-tp2",
        _term("CUDA graphs", lambda: source_000(max_num_seqs=4)),
        0.01,
        _BY_FIT,
    ),
    Row("graphs-16-tp2", _graphs_of_several(16), 0.5, "the engine's own estimate"),
    Row("graphs-86-tp4", _term("CUDA graphs", lambda: case(tensor_parallel=4)), 0.01, _BY_FIT),
    Row(
        "kv-utilisation-090",
        lambda: budget.make(_eager()).kv_cache_bytes,
        0.01,
        "256 sequences assumed",
    ),
    Row(
        "kv-gb10-65536",
        lambda: budget.make(_many_tokens_on_gb10()).kv_cache_bytes,
        0.05,
        "eight times the tokens of the fit; weights by shape, default backend",
    ),
    Row(
        "unified-working-set",
        lambda: sum(term.bytes for term in budget.make(_fp8_on_gb10()).terms),
        0.01,
        _BY_FIT,
    ),
]

#: Free memory is a small rest of a large sum, so it is held to MiB: 3.2% of these cards.
FREE = [
    ("free-2-seqs", source_000),
    ("free-4-seqs", lambda: source_000(max_num_seqs=4)),
    ("free-282k", lambda: source_000(max_num_seqs=1, kv_cache_bytes=POOL_282K)),
]
FREE_TOLERANCE = 520 * MIB


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.point)
def test_measured_points_are_predicted(row: Row) -> None:
    measured = POINTS.point(row.point).amount
    assert row.predicted() == pytest.approx(measured, rel=row.tolerance)


@pytest.mark.parametrize(("point", "of"), FREE)
def test_free_memory_of_source_000_is_predicted(point: str, of: Callable[[], Case]) -> None:
    measured = POINTS.point(point).amount
    planned = budget.make(of())
    assert abs(planned.free_bytes - measured) <= FREE_TOLERANCE
    assert abs(planned.free_bytes - measured) <= planned.uncertainty_bytes


def test_differences_of_source_000_are_closer_than_its_sums() -> None:
    """What the unknown weights and context shift alike drops out."""
    two, four, long = (budget.make(of()).free_bytes for _, of in FREE)
    measured = [POINTS.point(name).amount for name, _ in FREE]
    assert two - four == pytest.approx(measured[0] - measured[1], abs=5 * MIB)
    assert long - two == pytest.approx(measured[2] - measured[0], abs=70 * MIB)


def _gib(amount: int) -> str:
    return f"{amount / GIB:.2f}"


def table() -> str:
    """The table of ``docs/memory.md``."""
    lines = ["| point | measured, GiB | predicted | error | |", "|---|---|---|---|---|"]
    for row in ROWS:
        measured, predicted = POINTS.point(row.point).amount, row.predicted()
        error = predicted / measured - 1
        lines.append(
            f"| `{row.point}` | {_gib(measured)} | {_gib(predicted)} | {error:+.1%} | {row.note} |"
        )
    for name, of in FREE:
        measured, predicted = POINTS.point(name).amount, budget.make(of()).free_bytes
        error = (predicted - measured) // MIB
        lines.append(
            f"| `{name}` | {_gib(measured)} | {_gib(predicted)} | {error:+} MiB | {_SIZE_UNKNOWN} |"
        )
    return "\n".join(lines)


def test_the_page_shows_these_predictions() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), f"put this into docs/memory.md:\n{table()}"


# Graphs -----------------------------------------------------------------------------------------


def test_capture_sizes_are_those_of_the_logs() -> None:
    # vLLM 0.24.0 on an H200: 51 piecewise and 35 full graphs with 256 sequences; two and two with
    # two sequences and K=4.
    piecewise, full = capture_sizes(
        max_num_seqs=256, num_speculative_tokens=0, max_num_batched_tokens=8192
    )
    assert (len(piecewise), len(full)) == (51, 35)
    assert piecewise[:5] == [1, 2, 4, 8, 16]
    assert piecewise[-3:] == [480, 496, 512]
    assert capture_sizes(max_num_seqs=2, num_speculative_tokens=4, max_num_batched_tokens=2048) == (
        [5, 10],
        [5, 10],
    )
    # vLLM 0.24.0 with one sequence and no speculation.
    assert capture_sizes(max_num_seqs=1, num_speculative_tokens=0, max_num_batched_tokens=8192)[
        0
    ] == [1, 2]


def test_graphs_depend_on_eager_and_on_the_backend() -> None:
    def graphs(**given: Any) -> int:
        return budget.make(source_000(**given)).bytes_of("CUDA graphs")

    assert graphs(enforce_eager=True) == 0
    assert graphs(drafter_attention_backend="FLASHINFER") < graphs()


@pytest.mark.parametrize("fit", [POINTS.fits.graphs_one_gpu, POINTS.fits.graphs_several_gpus])
def test_the_tolerance_of_graphs_covers_what_was_measured(fit: calibration.Fit) -> None:
    for point in POINTS.of(fit):
        predicted = fit.at(int(point.setting["graphs"]))
        assert abs(point.amount - predicted) <= fit.tolerance * predicted, point.id


def test_sixteen_sequences_on_two_cards_are_tight_and_not_refused() -> None:
    """86 graphs of such a model took 1.33 GiB on several GPUs, so 32 take less than that."""
    planned = budget.make(source_000(max_num_seqs=16))
    assert planned.bytes_of("CUDA graphs") < 0.75 * GIB
    assert planned.tight


@pytest.mark.parametrize("backend", ["FLASHINFER", "flashinfer", "FlashInfer"])
def test_a_backend_takes_graphs_however_it_is_spelled(backend: str) -> None:
    def graphs(**given: Any) -> int:
        return budget.make(source_000(**given)).bytes_of("CUDA graphs")

    assert graphs(attention_backend=backend) == graphs(attention_backend="FLASHINFER") < graphs()


def test_a_fix_is_the_setting_that_is_in_the_way() -> None:
    """A pool that must stay leaves the graphs to shrink, or the slice, or nothing."""

    def fix(need: int, **given: Any) -> str:
        planned = budget.make(source_000(**given), need=lambda _: need)
        return next(one.fix for one in planned.refusals if one.id == "out-of-memory")

    pinned = 3_200_000_000
    assert fix(pinned, max_num_seqs=64) == "max_num_seqs=16, or enforce_eager=true"
    assert fix(pinned, max_num_batched_tokens=16_384) == "max_num_batched_tokens=4096"
    one_card = fix(pinned, tensor_parallel=1)
    assert one_card == "tensor_parallel=2"
    alone = RTX5070TI.model_copy(update={"gpus": 1})
    nowhere = budget.make(source_000(tensor_parallel=1).model_copy(update={"machine": alone}))
    assert nowhere.refusals[0].fix.startswith("smaller weights, or more or larger GPUs")
    assert "weights, takes 21.03 GiB" in nowhere.refusals[0].fix


def test_a_pool_that_only_the_estimates_take_is_tight() -> None:
    """Of 0.9 of the card weights take nearly all; what is not exact decides if a pool is left."""

    def left(weights: int, need: int = 1) -> budget.Budget:
        load = Load(
            contents=Contents(
                language=Part(tensors=1, bytes=weights),
                embedding=Part(tensors=1, bytes=1),
                vision=Part(tensors=0),
            ),
            source="headers",
        )
        return budget.make(case(load=load), need=lambda _: need)

    room = math.ceil(0.9 * H200.total_bytes)
    empty = left(GIB)
    others = sum(t.bytes for t in empty.terms if t.name not in {"KV pool", "CUDA context"}) - GIB
    unsure = empty.pool_uncertainty_bytes
    assert unsure > 0
    for excess, tight in ((unsure // 2, True), (2 * unsure, False)):
        planned = left(room - others + excess)
        assert planned.kv_cache_bytes == 0
        assert (planned.fits, planned.tight) == (tight, tight)
    assert not left(room - others + unsure // 2, need=unsure).fits
    assert empty.fits
    assert not empty.tight


def test_no_share_of_memory_is_offered_that_is_not_free() -> None:
    full = H200.model_copy(update={"available_bytes": GIB // 4})
    planned = budget.make(case(full))
    assert "gpu_memory_utilization=0" not in " ".join(one.fix for one in planned.refusals)


# Parts that are loaded or not --------------------------------------------------------------------

FULL = Contents(
    language=Part(tensors=1, bytes=30 * GIB),
    embedding=Part(tensors=1, bytes=2 * GIB),
    vision=Part(tensors=1, bytes=1 * GIB),
    mtp=Part(tensors=1, bytes=2 * GIB),
)


def test_vision_and_mtp_count_only_where_they_are_loaded() -> None:
    def names(**given: Any) -> set[str]:
        load = Load(contents=FULL, source="headers")
        return {term.name for term in budget.make(case(load=load, **given)).terms}

    assert "vision tower" in names()
    assert "vision tower" not in names(language_model_only=True)
    assert "MTP head" not in names()
    assert "MTP head" in names(method="mtp", num_speculative_tokens=3)


def test_ranks_share_weights_but_not_routers_norms_and_tables() -> None:
    one = budget.make(case())
    two = budget.make(case(tensor_parallel=2))
    assert two.bytes_of("rotary table") == one.bytes_of("rotary table")
    # 40 routers of 2048 by 257 and 81 norms of 2048, in BF16.
    replicated = 2 * (40 * 2048 * 257 + 81 * 2048)
    assert two.bytes_of("weights") == (one.bytes_of("weights") + replicated) // 2


def test_a_printed_figure_of_one_gpu_is_split_like_headers() -> None:
    printed = budget.make(case()).weights_bytes
    load = Load(loaded_bytes=printed, source="log")
    assert (
        budget.make(case(load=load, tensor_parallel=2)).weights_bytes
        == budget.make(case(tensor_parallel=2)).weights_bytes
    )


def test_a_load_must_say_how_large_it_is() -> None:
    index_only = Contents(language=Part(tensors=5))
    with pytest.raises(ValidationError, match="nothing says how large"):
        Load(contents=index_only, source="index")


def test_terms_say_what_they_are() -> None:
    terms = {term.name: term for term in budget.make(source_000()).terms}
    assert terms["weights"].kind == "exact"
    assert terms["rotary table"].kind == "exact"
    assert terms["drafter"].kind == "estimate"
    assert terms["activation peak"].extrapolation is None
    assert "measured on" in (terms["kernels and libraries"].extrapolation or "")
    far = {term.name: term for term in budget.make(_many_tokens_on_gb10()).terms}
    assert "65,536 is above the largest measured, 40,000" in (
        far["activation peak"].extrapolation or ""
    )


def test_unknown_widths_are_assumed_and_said() -> None:
    planned = budget.make(case(widths_assumed=True))
    assert planned.free_bytes == budget.make(case()).free_bytes
    table_term = next(term for term in planned.terms if term.name == "rotary table")
    assert "assumed" in (table_term.extrapolation or "")


# Sizing the pool ---------------------------------------------------------------------------------


@given(st.floats(0.1, 1.0))
def test_utilisation_has_no_effect_on_a_pool_of_given_bytes(utilization: float) -> None:
    planned = budget.make(case(gpu_memory_utilization=utilization, kv_cache_bytes=8 * GIB))
    assert planned.kv_cache_bytes == 8 * GIB
    assert planned.free_bytes == budget.make(case(kv_cache_bytes=8 * GIB)).free_bytes


@pytest.mark.parametrize(
    ("free", "total", "utilization", "highest"),
    [
        # The line of a public report, and that of vLLM 0.24.0 on a busy H200.
        (74.9, 142.5, 0.9, 0.52),
        (58.34, 139.8, 0.97, 0.41),
    ],
)
@pytest.mark.parametrize("pinned", [None, 3_200_000_000])
def test_too_high_a_utilisation_is_refused_with_the_highest_that_starts(
    free: float, total: float, utilization: float, highest: float, pinned: int | None
) -> None:
    context = POINTS.fits.context_one_gpu.bytes
    busy = H200.model_copy(
        update={
            "total_bytes": int(total * GIB),
            "available_bytes": int(free * GIB) + context,
        }
    )
    small = Load(disk_bytes=GIB, source="small")
    planned = budget.make(
        case(busy, load=small, gpu_memory_utilization=utilization, kv_cache_bytes=pinned)
    )
    refusal = next(r for r in planned.refusals if r.id == "utilization-too-high")
    assert refusal.fix == f"gpu_memory_utilization={highest}"
    assert refusal.figures["highest_utilization"] == highest
    assert ("kv_cache_bytes" in refusal.why) is (pinned is not None)
    again = budget.make(
        case(busy, load=small, gpu_memory_utilization=highest, kv_cache_bytes=pinned)
    )
    assert again.fits


def test_the_servers_that_ran_are_not_refused() -> None:
    for ran in (source_000(), source_000(max_num_seqs=4), _eager(), _fp8_on_gb10()):
        assert budget.make(ran).fits
    spark = machine.from_profile(builtin().machine("gb10"))
    assert spark
    nvfp4 = Load(contents=contents(NVFP4), source="shape")
    assert budget.make(case(spark, load=nvfp4, gpu_memory_utilization=0.85)).fits
    # Source 001 says no utilisation. With the engine's default the start is narrow, and a machine
    # that was probed can be told no.
    narrow = budget.make(case(spark, load=nvfp4, gpu_memory_utilization=0.92))
    assert narrow.fits
    assert narrow.start
    assert narrow.start.margin_bytes < 0
    probed = budget.make(case(GB10, load=nvfp4, gpu_memory_utilization=0.92))
    assert [refusal.id for refusal in probed.refusals] == ["utilization-too-high"]


def test_8192_batched_tokens_do_not_fit_16_gb() -> None:
    planned = budget.make(source_000(max_num_batched_tokens=8192))
    assert [refusal.id for refusal in planned.refusals] == ["out-of-memory"]
    assert planned.refusals[0].figures["missing_bytes"] == -planned.free_bytes
    suggested = planned.refusals[0].fix.removeprefix("kv_cache_bytes=")
    smaller = budget.make(source_000(max_num_batched_tokens=8192, kv_cache_bytes=int(suggested)))
    assert smaller.free_bytes == 0
    assert smaller.tight


def test_weights_too_large_leave_no_pool() -> None:
    planned = budget.make(case(RTX5070TI))
    assert planned.kv_cache_bytes == 0
    assert [refusal.id for refusal in planned.refusals] == ["out-of-memory"]


def test_too_low_a_utilisation_leaves_no_pool_though_memory_is_free() -> None:
    planned = budget.make(case(gpu_memory_utilization=0.3))
    assert planned.free_bytes > 0
    assert [refusal.id for refusal in planned.refusals] == ["out-of-memory"]
    share = float(planned.refusals[0].fix.removeprefix("gpu_memory_utilization="))
    mended = budget.make(case(gpu_memory_utilization=share))
    assert mended.fits
    assert mended.kv_cache_bytes > 0


def test_the_logits_of_many_sequences_outweigh_a_small_slice() -> None:
    def peak(**given: Any) -> int:
        return budget.make(case(**given)).bytes_of("activation peak")

    small = {"max_num_batched_tokens": 2048}
    assert peak(max_num_seqs=1024, **small) > peak(max_num_seqs=256, **small)
    assert peak(max_num_seqs=1024, **small) > 1024 * 248_320 * 10


@pytest.mark.parametrize(
    "missing", ["max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"]
)
def test_settings_that_must_be_known_are_asked_for(missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        budget.make(case(**{missing: None}))


def test_without_a_gpu_only_bytes_size_the_pool() -> None:
    host = H200.model_copy(update={"kind": "host", "hardware": "cpu"})
    small = Load(disk_bytes=300_000_000, source="small")
    with pytest.raises(UsageError, match="kv_cache_bytes"):
        budget.make(case(host, load=small))
    planned = budget.make(case(host, load=small, kv_cache_bytes=GIB))
    assert planned.start is None
    assert {term.name for term in planned.terms} == {
        "weights",
        "rotary table",
        "KV pool",
        "activation peak",
    }


@given(
    tokens=st.integers(1, 200_000),
    sequences=st.integers(1, 4096),
    depth=st.integers(1, 16),
    ranks=st.sampled_from([1, 2, 4, 8]),
    utilization=st.floats(0.05, 1),
)
def test_terms_and_free_memory_add_up(
    tokens: int, sequences: int, depth: int, ranks: int, utilization: float
) -> None:
    planned = budget.make(
        case(
            method="ngram",
            num_speculative_tokens=depth,
            tensor_parallel=ranks,
            max_num_batched_tokens=tokens,
            max_num_seqs=sequences,
            gpu_memory_utilization=utilization,
        )
    )
    assert sum(term.bytes for term in planned.terms) + planned.free_bytes == H200.available_bytes
    more = budget.make(case(max_num_batched_tokens=tokens + 1, max_num_seqs=sequences))
    less = budget.make(case(max_num_batched_tokens=tokens, max_num_seqs=sequences))
    assert more.bytes_of("activation peak") >= less.bytes_of("activation peak")


# Defaults of the engine --------------------------------------------------------------------------


def test_defaults_fill_what_is_not_said() -> None:
    def default(value: float, **given: Any) -> Default:
        return Default(value=value, source="test", **given)

    engine = (
        builtin()
        .engines["vllm"]
        .model_copy(
            update={
                "defaults": {
                    "max_num_seqs": [default(1024, min_memory_gib=70), default(256)],
                    "gpu_memory_utilization": [
                        default(0.5, versions=">=9"),
                        default(0.92),
                    ],
                }
            }
        )
    )
    said = Settings(max_model_len=4096)

    def on(machine: Machine, settings: Settings = said) -> Settings:
        return settled(
            engine,
            settings,
            version="0.24.0",
            hardware=machine.hardware,
            gpu_bytes=machine.total_bytes,
        )

    large = on(H200)
    assert (large.max_num_seqs, large.gpu_memory_utilization) == (1024, 0.92)
    assert large.max_model_len == 4096
    assert on(RTX5070TI).max_num_seqs == 256
    assert on(H200, Settings(max_num_seqs=2)).max_num_seqs == 2


# Machines ----------------------------------------------------------------------------------------


def facts(*gpus: tuple[int | None, int | None], total: int | None = None) -> HostFacts:
    """What a probe saw: total and free MiB of each GPU."""
    return HostFacts.model_construct(
        gpus=[
            GpuFacts(
                index=n,
                name="GPU",
                memory_total_mib=whole,
                memory_free_mib=free,
                driver="580.1",
                compute_capability="12.0",
            )
            for n, (whole, free) in enumerate(gpus)
        ],
        gpu_message="nvidia-smi lists no GPU",
        memory_total_bytes=total,
        memory_available_bytes=total and total - GIB,
    )


def test_unified_memory_is_that_of_proc_meminfo() -> None:
    kib = 1024
    seen = facts((None, None), total=127_600_748 * kib).model_copy(
        update={"memory_available_bytes": 118_566_368 * kib}
    )
    found = machine.from_facts(seen, builtin().machine("gb10"))
    assert found.kind == "unified"
    assert _gib(found.total_bytes) == "121.69"
    assert _gib(found.available_bytes) == "113.07"


def test_two_cards_are_two_budgets_and_the_scarcest_decides() -> None:
    pair = builtin().machine("rtx5070ti-x2")
    found = machine.from_facts(facts((16_303, 15_000), (16_303, 7_133)), pair)
    assert found.gpus == 2
    assert found.total_bytes == (16_303 - 451) * MIB
    assert found.available_bytes == 7_133 * MIB
    mixed = machine.from_facts(facts((32_607, 32_000), (16_303, None)), pair)
    assert mixed.total_bytes == (16_303 - 451) * MIB


def test_facts_without_memory_are_one_line() -> None:
    pair = builtin().machine("rtx5070ti-x2")
    with pytest.raises(RoostError, match="saw no GPU"):
        machine.from_facts(facts(), pair)
    with pytest.raises(RoostError, match="1 of 2 GPUs"):
        machine.from_facts(facts((16_303, 16_000), (None, None)), pair)
    with pytest.raises(RoostError, match="MemTotal"):
        machine.from_facts(facts((None, None)), builtin().machine("gb10"))


def test_a_profile_is_an_idle_machine() -> None:
    spark = machine.from_profile(builtin().machine("gb10"))
    pair = machine.from_profile(builtin().machine("rtx5070ti-x2"))
    assert spark
    assert pair
    assert 113 <= spark.available_bytes / GIB < 114
    assert spark.uncertainty_bytes > 0
    assert pair.available_bytes == pair.total_bytes == RTX5070TI.total_bytes
    assert machine.from_profile(builtin().machine("cpu")) is None


def test_an_h200_by_its_row_of_nvidia_smi() -> None:
    profile = Hardware(
        id="h200",
        title="",
        gpu=Gpu(
            name="NVIDIA H200",
            count=1,
            compute_capability="9.0",
            memory="discrete",
            memory_mib=143_771,
            native_fp4=False,
        ),
        source="test",
    )
    found = machine.from_profile(profile)
    assert found
    assert f"{found.total_bytes / GIB:.1f}" == "139.8"


# Widths and calibration --------------------------------------------------------------------------


def test_widths_are_read_from_a_config() -> None:
    config = qwen35_35b()
    config["text_config"] |= {
        "hidden_size": 2048,
        "vocab_size": 248_320,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "rope_parameters": {"partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]},
    }
    assert Widths.from_config(config) == REFERENCE


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_experts": -1}, "num_experts"),
        ({"rope_parameters": []}, None),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"partial_rotary_factor": 3}}, "partial_rotary_factor"),
    ],
)
def test_widths_that_are_wrong_are_named(wrong: dict[str, Any], says: str | None) -> None:
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 100,
    } | wrong
    if says is None:
        assert Widths.from_config(config).rotary_dim == 16
        return
    with pytest.raises(RoostError, match=says):
        Widths.from_config(config)


def test_a_dense_model_needs_less_for_a_token() -> None:
    plain = case(
        widths=Widths(layers=30, hidden=576, vocabulary=49_152, intermediate=1536, rotary_dim=64),
        architecture=TARGET.model_copy(update={"gdn": None}),
    )
    # Hidden state and residual, and the three widths of its feed-forward layers or attention.
    assert activation_bytes_per_token(plain) == 2 * (2 * 576 + 256 * (3 * 16 + 2 * 2))


def test_what_the_driver_keeps_lies_between_measured_cards() -> None:
    assert POINTS.driver_reserve(8_000) == 451 * MIB
    assert POINTS.driver_reserve(16_303) == 451 * MIB
    assert 451 * MIB < POINTS.driver_reserve(24_564) < 494 * MIB
    assert POINTS.driver_reserve(143_771) == 616 * MIB
    assert POINTS.driver_reserve(500_000) == 616 * MIB


def test_a_fit_must_name_its_points() -> None:
    broken = POINTS.model_dump()
    broken["fits"]["non_torch"]["points"] = ["nowhere"]
    with pytest.raises(ValidationError, match="no point called nowhere"):
        calibration.Calibration.model_validate(broken)
    twice = POINTS.model_dump()
    twice["points"].append(twice["points"][0])
    with pytest.raises(ValidationError, match="two points are called"):
        calibration.Calibration.model_validate(twice)
    unit = POINTS.model_dump()["points"][0] | {"mib": 5}
    with pytest.raises(ValidationError, match="exactly one"):
        calibration.Point.model_validate(unit)


def test_a_drafter_of_unknown_size_is_counted_by_its_shape() -> None:
    """The repository of source 000's drafter has 771,751,936 bytes of weights."""
    planned = budget.make(
        case(method="dflash", drafter=DRAFTER, num_speculative_tokens=4, drafter_load=None)
    )
    term = next(term for term in planned.terms if term.name == "drafter")
    assert (term.bytes, term.kind) == (771_751_936, "estimate")
    assert term.uncertainty > 0.2 * term.bytes


def test_a_head_of_unknown_size_is_counted_by_its_shape() -> None:
    """A layer with experts and full attention, and two hidden states projected to one."""
    known = Load(loaded_bytes=21 * GIB, source="a log")
    planned = budget.make(case(load=known, method="mtp", num_speculative_tokens=3))
    of = parameters()
    layer = (of["experts"] + of["shared expert"]) / 40 + of["attention"] / 10
    head = planned.bytes_of("MTP head")
    assert head == pytest.approx(2 * (layer + 2 * 2048**2), rel=0.001)
    # Where headers were read, the head is known, and so is that there is none.
    assert not budget.make(case(method="mtp", num_speculative_tokens=3)).bytes_of("MTP head")
    assert not budget.make(case(load=known)).bytes_of("MTP head")


def test_what_is_missing_for_a_pool_is_said_of_the_share_it_comes_from() -> None:
    refusal = budget.make(case(gpu_memory_utilization=0.3)).refusals[0]
    assert "gpu_memory_utilization 0.3 leaves nothing for the KV pool" in refusal.summary
    assert refusal.figures["available_bytes"] == math.ceil(0.3 * H200.total_bytes)

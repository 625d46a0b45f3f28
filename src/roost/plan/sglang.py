"""How SGLang splits the memory of a GPU. Every figure here is an estimate.

Read in the sources of 0.5.19 and 0.5.23, and compared with no running server. SGLang keeps what
vLLM keeps in one pool in three: tokens of full attention, states of gated-delta layers, and the
states that speculation may have to go back to. ``mem_fraction_static`` (the neutral setting
``gpu_memory_utilization``) is the share of the memory that was free *before* loading which weights
and pools may take; the rest is left to activations and graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from roost.errors import UsageError
from roost.plan.architecture import ITEM_BYTES
from roost.plan.budget import Refusal, gib
from roost.plan.calibration import Calibration, builtin
from roost.plan.case import Case
from roost.plan.memory import gdn_state_bytes
from roost.plan.pool import layers_added
from roost.plan.terms import Term, before_loading, loaded
from roost.settings import Count, Strict
from roost.units import MIB
from roost.versions import within

Strategy = Literal["no_buffer", "extra_buffer", "extra_buffer_lazy"]

#: ``--mamba-full-memory-ratio``: memory of states to memory of tokens.
STATE_RATIO = 0.9
#: ``--max-running-requests`` where speculation is on and nothing is said.
_RUNNING_WITH_SPECULATION = 48
#: State slots of one running request without radix cache, and what each strategy adds to the three
#: that it takes with one.
_SLOTS_ALONE = 1
_SLOTS_BASE = 3
_SLOTS_MORE: dict[Strategy, int] = {"no_buffer": 0, "extra_buffer_lazy": 1, "extra_buffer": 2}
#: ``SGLANG_VLM_CACHE_SIZE_MB``.
_VISION_CACHE_MIB = 100

_KV_ITEM_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "bfloat16": 2}


class _Tier(NamedTuple):
    """Defaults on cards below so many MiB."""

    below: float
    chunk: int
    graphs: int
    graphs_many: int


_TIERS = (
    _Tier(20 * 1024, 2048, 8, 8),
    _Tier(35 * 1024, 4096, 48, 160),
    _Tier(60 * 1024, 4096, 32, 160),
    _Tier(160 * 1024, 8192, 256, 512),
    _Tier(math.inf, 16_384, 512, 512),
)
_TIER_35_BEFORE_0_5_20 = _Tier(35 * 1024, 2048, 24, 80)


class Split(Strict):
    """The memory of one GPU under SGLang; all estimates."""

    mem_fraction_static: float
    said: bool = Field(description="else it is SGLang's own choice for this card")
    terms: tuple[Term, ...]
    state_bytes_per_slot: Annotated[int, Field(ge=0)] = Field(description="all gated-delta layers")
    slots_per_request: Count
    state_slots: Annotated[int, Field(ge=0)]
    state_bytes_per_request: Annotated[int, Field(ge=0)] = Field(
        description="its slots, and the states that its drafts go back to"
    )
    kv_bytes_per_token: Count = Field(description="full-attention layers and the drafter's")
    kv_cache_bytes: Annotated[int, Field(ge=0)]
    kv_pool_tokens: Annotated[int, Field(ge=0)]
    max_running_requests: Annotated[int, Field(ge=0)]
    runtime_bytes: Annotated[int, Field(ge=0)] = Field(
        description="left for activations and CUDA graphs"
    )
    free_bytes: int = Field(
        description="left of what is available, beside that; negative: so much is missing"
    )
    refusals: tuple[Refusal, ...]

    @property
    def fits(self) -> bool:
        """Whether the pools hold at least one request."""
        return not self.refusals


def make(
    case: Case,
    *,
    version: str,
    strategy: Strategy = "extra_buffer",
    calibration: Calibration | None = None,
) -> Split:
    """Split a GPU's memory as SGLang would.

    Neutral settings stand for ``--mem-fraction-static`` (``gpu_memory_utilization``),
    ``--max-running-requests`` (``max_num_seqs``), ``--chunked-prefill-size``
    (``max_num_batched_tokens``), ``--mamba-ssm-dtype`` (``mamba_cache_dtype``) and, one less, for
    ``--speculative-num-draft-tokens``, which counts the token that is already certain.

    Args:
        case: Machine, model and settings.
        version: Of SGLang.
        strategy: ``--mamba-radix-cache-strategy``; ``auto`` comes out as ``extra_buffer`` where
            the scheduler overlaps, its default.
        calibration: Measured points; none: those that ship with roost.

    Raises:
        UsageError: A setting has no arithmetic here.
    """
    calibration = calibration or builtin()
    settings, machine = case.settings, case.machine
    before = before_loading(case, calibration)
    resident = loaded(case, calibration)
    at_start = max(0, machine.available_bytes - sum(term.bytes for term in before))
    fraction = settings.gpu_memory_utilization or default_fraction(case, version)
    runtime = round(at_start * (1 - fraction))
    rest = at_start - sum(term.bytes for term in resident) - runtime
    seeing = not settings.language_model_only and any(t.name == "vision tower" for t in resident)
    cache = _VISION_CACHE_MIB * MIB if seeing else 0
    rest -= cache

    state, per_token = _state_bytes(case), _token_bytes(case)
    drafts = case.depth + 1 if case.depth else 0
    pools = share_out(
        max(0, rest),
        state_bytes=state,
        token_bytes=per_token,
        draft_tokens=drafts,
        running=settings.max_num_seqs or (_RUNNING_WITH_SPECULATION if drafts else None),
        strategy=None if settings.prefix_caching is False else strategy,
        context=case.architecture.context,
    )
    refusals = []
    if not pools.requests:
        # One request needs its states and those to go back to, out of the states' part, and tokens.
        needed = (pools.slots_per_request + 1 + 2 * drafts) * state
        needed = math.ceil(needed * (1 + STATE_RATIO) / STATE_RATIO) + 2 * per_token
        refusals.append(_no_request(at_start, fraction, at_start - runtime - rest, needed))
    source = "sources of SGLang 0.5.19 and 0.5.23"
    amounts = {
        "gated-delta states": (pools.state_slots + 1) * state,
        "states to go back to": pools.snapshots * state,
        "KV pool": pools.tokens * per_token,
        "activations and CUDA graphs": runtime,
    }
    terms = (
        *before,
        *resident,
        *(
            Term(name=name, bytes=amount, kind="estimate", source=source)
            for name, amount in amounts.items()
            if amount
        ),
    )
    return Split(
        mem_fraction_static=fraction,
        said=settings.gpu_memory_utilization is not None,
        terms=terms,
        state_bytes_per_slot=state,
        slots_per_request=pools.slots_per_request,
        state_slots=pools.state_slots,
        state_bytes_per_request=(pools.slots_per_request + drafts) * state,
        kv_bytes_per_token=per_token,
        kv_cache_bytes=pools.tokens * per_token,
        kv_pool_tokens=pools.tokens,
        max_running_requests=pools.requests,
        runtime_bytes=runtime,
        free_bytes=machine.available_bytes - sum(term.bytes for term in terms),
        refusals=tuple(refusals),
    )


def _no_request(at_start: int, fraction: float, used: int, needed: int) -> Refusal:
    """The share for weights and pools is used up before one request fits."""
    least = math.ceil((used + needed) / max(1, at_start) * 100) / 100
    missing = max(1, used + needed - round(at_start * fraction))
    return Refusal(
        id="out-of-memory",
        summary=f"{gib(missing)} GiB are missing on each GPU for one request",
        why=f"weights and pools get {fraction} of the {gib(at_start)} GiB that are free before "
        f"loading; weights take {gib(used)}, one request takes {gib(needed)}",
        fix="more memory, or smaller weights" if least > 1 else f"gpu_memory_utilization={least}",
        figures={"missing_bytes": missing, "available_bytes": at_start, "rest_bytes": used},
    )


def strategy_of(command: Sequence[str]) -> Strategy:
    """The radix cache's strategy that a command line asks for, else what ``auto`` comes out as."""
    words = [part for word in command for part in word.split("=", 1)]
    given = dict(pairwise(words)).get("--mamba-radix-cache-strategy")
    return next((one for one in _SLOTS_MORE if one == given), "extra_buffer")


class Pools(NamedTuple):
    """What memory is shared out to."""

    slots_per_request: int
    state_slots: int
    snapshots: int
    tokens: int
    requests: int


def share_out(
    rest: int,
    *,
    state_bytes: int,
    token_bytes: int,
    draft_tokens: int,
    running: int | None,
    strategy: Strategy | None,
    context: int,
) -> Pools:
    """Share memory out to states, to states that a rejected draft goes back to, and to tokens.

    Args:
        rest: Bytes for all of them.
        state_bytes: Of one state in all gated-delta layers; 0: the model has none.
        token_bytes: Of one token.
        draft_tokens: Checked in one step, the certain one included; 0: no speculation.
        running: Requests at a time; none: SGLang chooses.
        strategy: Of the radix cache; none: it is off, and a request keeps one state.
        context: Of the model, tokens.
    """
    each = _SLOTS_ALONE if strategy is None else _SLOTS_BASE + _SLOTS_MORE[strategy]
    slots = snapshots = 0
    if state_bytes:
        slots = _state_slots(rest, state_bytes, draft_tokens, each, running, strategy)
        # One more in each pool is padding.
        if draft_tokens:
            snapshots = (min(running or 0, slots // each) + 1) * draft_tokens
        rest -= (slots + 1 + snapshots) * state_bytes
    tokens = max(0, rest // token_bytes)
    requests = running or max(2048, min(4096, tokens * 512 // context))
    requests = min(requests, tokens // 2)
    if state_bytes:
        requests = min(requests, slots // each)
    return Pools(each, slots, snapshots, tokens, requests)


def _state_slots(
    rest: int,
    state: int,
    draft_tokens: int,
    each: int,
    running: int | None,
    strategy: Strategy | None,
) -> int:
    """Without radix cache as many as run, else as many as the states' part of the memory holds."""
    if strategy is None and running is not None:
        return running
    part = rest * STATE_RATIO / (1 + STATE_RATIO)
    if draft_tokens:
        slots = (part - state * (1 + draft_tokens)) // (state * (1 + draft_tokens / each))
    else:
        slots = (part - state) // state
    return max(0, int(slots))


def default_fraction(case: Case, version: str) -> float:
    """``mem_fraction_static`` where it is not said: all but what SGLang expects to need running.

    It reserves 1.5 MiB for each token of a prefill chunk, 2 MiB for each sequence that decoding
    graphs are captured for, 8 MiB for each size of prefill graphs, and 10 GiB at least on cards
    above 60 GiB. A vision tower lowers it further, which is not modelled.
    """
    memory = case.machine.total_bytes / MIB
    tier = next(tier for tier in _TIERS if memory < tier.below)
    if tier.below == _TIER_35_BEFORE_0_5_20.below and within(version, "<0.5.20"):
        tier = _TIER_35_BEFORE_0_5_20
    chunk = case.settings.max_num_batched_tokens or tier.chunk
    sequences = tier.graphs if case.ranks < 4 else tier.graphs_many
    if case.settings.max_num_seqs and not within(version, "<0.5.20"):
        sequences = min(sequences, case.settings.max_num_seqs)
    reserved = 512 + 1.5 * max(chunk, 2048) + case.ranks / 8 * 1024
    if not case.settings.enforce_eager:
        reserved += 2 * sequences + 8 * len(prefill_graph_sizes(chunk))
    if memory > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((memory - reserved) / memory, 3)


def prefill_graph_sizes(most: int) -> list[int]:
    """Token counts that SGLang captures prefill graphs for."""
    sizes = [
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, most + 1, 512),
    ]
    return [size for size in sizes if size <= most]


def _state_bytes(case: Case) -> int:
    """One state of all gated-delta layers. Speculation keeps whole copies, not longer ones."""
    gdn = case.architecture.gdn
    if gdn is None:
        return 0
    chosen = case.settings.mamba_cache_dtype
    dtype = gdn.state_dtype or "float32" if chosen in (None, "auto") else chosen
    return gdn.layers * gdn_state_bytes(
        gdn.model_copy(update={"state_dtype": dtype}),
        "bfloat16",
        tensor_parallel=case.ranks,
        mamba_cache_dtype="auto",
        num_speculative_tokens=0,
    )


def _token_bytes(case: Case) -> int:
    architecture, settings = case.architecture, case.settings
    chosen = settings.kv_cache_dtype or "auto"
    item = ITEM_BYTES[architecture.dtype] if chosen == "auto" else _KV_ITEM_BYTES.get(chosen)
    if item is None:
        raise UsageError(
            f"kv_cache_dtype {chosen[:40]!a}: its layout has no arithmetic here",
            fix="known are auto, " + ", ".join(_KV_ITEM_BYTES),
        )
    attention = architecture.attention
    heads = max(1, attention.kv_heads // case.ranks)
    per_token = 2 * heads * attention.head_dim * item * attention.layers
    drafter = layers_added(architecture, case.method, case.drafter)
    if drafter:
        layers = drafter.full_layers + drafter.sliding_layers
        per_token += 2 * max(1, drafter.kv_heads // case.ranks) * drafter.head_dim * item * layers
    return per_token

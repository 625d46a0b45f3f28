"""The KV pool of a model in vLLM, to the token.

Such an engine keeps one pool of equal blocks per GPU. A block is one *page* for each layer of a
group; every group of every request draws its blocks from the same pool. Full attention needs
blocks for all tokens of a request, a sliding window for what it can see and what is in flight, a
gated-delta layer for its state alone. :func:`kv_pool` repeats the engine's own steps, in integers
wherever the engine uses integers. ``docs/planner.md`` derives them with worked examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from roost.errors import RefusedError, UsageError
from roost.plan.architecture import ITEM_BYTES, Architecture, Attention, Drafter, Dtype, Gdn
from roost.plan.rules import EngineRules
from roost.settings import Count, Strict

NonNegative = Annotated[int, Field(ge=0)]

# KV data types whose layout is plain: keys and values, one item each.
_KV_ITEM_BYTES: dict[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}

# Larger arguments are mistakes.
_MOST_TOKENS = 2**31 - 1
_MOST_BYTES = 2**50

_NO_ROOM = "smaller weights, or more or larger GPUs: no room is left for a pool of use"

# What FlashInfer's gated-delta prefill, which hands out states, asks of the keys (vLLM 0.33).
_CHECKPOINT_KEY_DIM = 128


class PoolRefusedError(RefusedError):
    """The engine dies at start-up, and the configuration alone says so.

    Attributes:
        id: Which refusal this is.
        values: The figures in its sentences, by name: bytes, tokens or counts.
    """

    id: ClassVar[str]

    def __init__(self, what: str, *, why: str, fix: str, values: dict[str, int]) -> None:
        super().__init__(what, why=why, fix=fix)
        self.values = values


class PageSizeMismatchError(PoolRefusedError):
    """The engine cannot bring the pages of target and drafter to one size."""

    id = "kv-page-size"


class MixedDrafterError(PoolRefusedError):
    """This engine version takes no drafter with both sliding and full attention."""

    id = "mixed-drafter"


class SplitDrafterError(PoolRefusedError):
    """The drafter's layers come to lie in several KV groups, which the engine does not take."""

    id = "drafter-kv-groups"


class KvTooSmallError(PoolRefusedError):
    """The pool does not hold one request of ``max_model_len``."""

    id = "kv-too-small"


class TooManySequencesError(PoolRefusedError):
    """``max_num_seqs`` is above the blocks for gated-delta states."""

    id = "max-num-seqs"


class LayerKind(Strict):
    """Layers that share a KV layout, and how the engine groups them."""

    name: Literal["gated delta", "full attention", "sliding window"]
    layers: Count
    of_drafter: NonNegative = Field(description="how many of the layers are the drafter's")
    groups: Count
    block_size: Count | None = Field(description="tokens a block holds; none: a state, no tokens")
    blocks_per_request: Count = Field(description="of one group, at max_model_len")

    @property
    def groups_with_drafter(self) -> int:
        """Groups that hold layers of the drafter: layers are dealt out to groups in turn."""
        return min(self.of_drafter, self.groups)


class KvPool(Strict):
    """A KV pool as the engine lays it out, per GPU."""

    max_model_len: Count
    kv_cache_bytes: Count
    attention_block_size: Count = Field(
        description="tokens; of a hybrid model, as in the engine's line `Setting attention block "
        "size to`"
    )
    page_size_bytes: Count = Field(
        description="of one block in one layer, after unification; the largest where pages differ"
    )
    block_bytes: Count = Field(description="of one block in all layers of a group")
    kv_groups: Count
    layers_per_group: Count
    num_blocks: NonNegative
    blocks_per_request: Count = Field(description="at max_model_len, over all groups")
    reserved_blocks: NonNegative = Field(description="that one request must leave free")
    max_concurrency: float = Field(description="requests of max_model_len at a time")
    kv_pool_tokens: NonNegative = Field(
        description="as in the engine's line `GPU KV cache size`; an engine that cannot hold one "
        "request dies before it prints one"
    )
    gdn_state_bytes: NonNegative = Field(description="of one state in one layer, before padding")
    mamba_bytes_per_seq: NonNegative = Field(
        description="what the gated-delta groups of one request take out of the pool"
    )
    attention_bytes_per_token: Count = Field(
        description="keys and values in the target's full-attention layers"
    )
    bytes_for_one_request: Count = Field(description="pool that holds one max_model_len request")
    estimated_max_model_len: NonNegative | None = Field(
        description="where one request does not fit: the longest that would; 0: none"
    )
    splits_drafter: bool = Field(
        description="the engine dies of a drafter whose layers lie in several groups"
    )
    kinds: tuple[LayerKind, ...]

    @property
    def fits_one_request(self) -> bool:
        """Whether a request of ``max_model_len`` can be served at all."""
        return self.num_blocks >= self.blocks_per_request + self.reserved_blocks


class _Spec(NamedTuple):
    """KV layout of attention layers on one GPU; layers of one spec share groups."""

    kv_heads: int
    head_dim: int
    window: int | None

    def bytes_per_token(self, item_bytes: int) -> int:
        return 2 * self.kv_heads * self.head_dim * item_bytes


class _Layers(NamedTuple):
    """Layers of one spec: how many, and how many of them the drafter adds."""

    target: int
    drafter: int

    @property
    def total(self) -> int:
        return self.target + self.drafter


class _Groups(NamedTuple):
    """Groups of one spec, and the tokens that one of their blocks holds."""

    layers: _Layers
    number: int
    block: int


class _Layout(NamedTuple):
    """The groups of all layers: what a request takes out of the pool."""

    page: int
    block_bytes: int
    per_group: int
    gdn_groups: int
    states: int
    attention: dict[_Spec, _Groups]
    in_flight: int

    def blocks_of(self, spec: _Spec, length: int) -> int:
        """Blocks that one group of a spec takes for a request of so many tokens."""
        block = self.attention[spec].block
        if spec.window is None:
            return _ceil(length, block)
        # One more: a window need not begin where a block does.
        return _ceil(min(spec.window - 1 + self.in_flight, length), block) + 1

    def blocks(self, length: int) -> int:
        """Blocks that all groups together take for a request of so many tokens."""
        return self.gdn_groups * self.states + sum(
            groups.number * self.blocks_of(spec, length) for spec, groups in self.attention.items()
        )


def kv_pool(
    target: Architecture,
    drafter: Drafter | None,
    *,
    tensor_parallel: int,
    kv_dtype: str,
    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"],
    num_speculative_tokens: int,
    max_model_len: int,
    max_num_batched_tokens: int,
    kv_cache_bytes: int,
    prefix_caching: bool,
    rules: EngineRules,
) -> KvPool:
    """The KV pool that the engine would build.

    Args:
        target: The model.
        drafter: What speculation adds: a DFlash drafter, the model's own
            (:meth:`~roost.plan.architecture.Architecture.mtp_drafter`), or none.
        tensor_parallel: GPUs that share the model, and the drafter with it.
        kv_dtype: ``auto`` (the target's), ``bfloat16``, ``float16``, ``fp8``, ``fp8_e4m3``, …
        mamba_cache_dtype: Of the convolution state; ``auto`` is the target's.
        num_speculative_tokens: 0 without speculation. N-gram speculation has them and no drafter.
        max_model_len: Tokens.
        max_num_batched_tokens: Tokens of one prefill slice.
        kv_cache_bytes: Of one GPU.
        prefix_caching: On makes the engine keep one more state per sequence.
        rules: What the engine's version does.

    Raises:
        UsageError: An argument is out of range, or has no arithmetic.
        RefusedError: The heads cannot be shared by so many GPUs.
        MixedDrafterError: This engine version dies on this drafter.
        PageSizeMismatchError: This engine version dies on this pair of target and drafter.
    """
    _in_range("tensor_parallel", tensor_parallel, 1, 1024)
    _in_range("num_speculative_tokens", num_speculative_tokens, 0, 1024)
    _in_range("max_model_len", max_model_len, 1, _MOST_TOKENS)
    _in_range("max_num_batched_tokens", max_num_batched_tokens, 1, _MOST_TOKENS)
    _in_range("kv_cache_bytes", kv_cache_bytes, 1, _MOST_BYTES)
    if drafter is not None:
        _check_drafter(drafter, num_speculative_tokens, rules)
    require_shares(target, drafter, tensor_parallel)

    gdn = target.gdn
    item = _kv_item_bytes(kv_dtype, target)
    token_bytes = _spec(target.attention, tensor_parallel).bytes_per_token(item)
    state = 0
    block = rules.block_multiple
    checkpoints = False
    if gdn is not None:
        state = gdn_state_bytes(
            gdn,
            target.dtype,
            tensor_parallel=tensor_parallel,
            mamba_cache_dtype=mamba_cache_dtype,
            num_speculative_tokens=num_speculative_tokens,
        )
        checkpoints = (
            prefix_caching and rules.checkpoint_alignment > 0 and gdn.key_dim == _CHECKPOINT_KEY_DIM
        )
        if checkpoints:
            block = math.lcm(block, rules.checkpoint_alignment)
        # The block grows until one page of attention holds one state; the state is padded to it.
        block *= _ceil(state, token_bytes * block)
    layout = _lay_out(
        _layers(target, drafter, tensor_parallel, rules),
        gdn,
        block=block,
        gdn_page=block * token_bytes,
        states=1 + num_speculative_tokens + prefix_caching + checkpoints,
        item=item,
        in_flight=rules.batches_in_flight * max_num_batched_tokens,
        rules=rules,
    )

    num_blocks = kv_cache_bytes // layout.block_bytes
    per_request = layout.blocks(max_model_len)
    usable = num_blocks - rules.reserved_blocks
    # The engine multiplies in floating point and truncates, which can be a token less than the
    # same in integers.
    concurrency = num_blocks / per_request
    longest = None
    if usable < per_request:
        longest = _longest(max_model_len, lambda length: layout.blocks(length) <= usable)
    kinds = tuple(_kinds(layout, gdn, max_model_len))
    return KvPool(
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache_bytes,
        attention_block_size=block,
        page_size_bytes=layout.page,
        block_bytes=layout.block_bytes,
        kv_groups=sum(kind.groups for kind in kinds),
        layers_per_group=layout.per_group,
        num_blocks=num_blocks,
        blocks_per_request=per_request,
        reserved_blocks=rules.reserved_blocks,
        max_concurrency=concurrency,
        kv_pool_tokens=int(concurrency * max_model_len),
        gdn_state_bytes=state,
        mamba_bytes_per_seq=layout.block_bytes * layout.gdn_groups * layout.states,
        attention_bytes_per_token=token_bytes * target.attention.layers,
        bytes_for_one_request=layout.block_bytes * (per_request + rules.reserved_blocks),
        estimated_max_model_len=longest,
        splits_drafter=sum(kind.groups_with_drafter for kind in kinds) > 1
        and _wants_one_group(drafter, gdn, rules),
        kinds=kinds,
    )


def require_servable(pool: KvPool, *, max_num_seqs: int | None = None) -> None:
    """Refuse a pool that the engine would not start with, as :func:`pool_refusals` finds it.

    Raises:
        PoolRefusedError: The first that the engine would come to.
    """
    for refusal in pool_refusals(pool, max_num_seqs=max_num_seqs):
        raise refusal


def pool_refusals(
    pool: KvPool,
    *,
    max_num_seqs: int | None = None,
    room: int = _MOST_BYTES,
    context: int = _MOST_TOKENS,
) -> Iterator[PoolRefusedError]:
    """What the engine would die of with this pool, in the order in which it would.

    Args:
        pool: From :func:`kv_pool`.
        max_num_seqs: As set, or as the engine defaults to on the device (1024 on cards of 70 GiB
            and more). ``None`` leaves it out, which is right for eager execution and on a CPU:
            only the capture of CUDA graphs asks for it (vLLM 0.24.0, after its line on the size
            of the pool).
        room: Bytes of the largest pool that there is memory for: no fix asks for more.
        context: Of the model, tokens: no fix asks for more.
    """
    if not pool.fits_one_request:
        yield _too_small(pool, room, context)
    if pool.splits_drafter:
        groups = sum(kind.groups_with_drafter for kind in pool.kinds)
        layers = sum(kind.of_drafter for kind in pool.kinds)
        yield SplitDrafterError(
            f"the drafter's {layers} layers lie in {groups} KV groups",
            why=f"groups have {pool.layers_per_group} layers, and this engine stops with "
            "`All drafting layers should belong to the same kv cache group`",
            fix=f"take a drafter of at most {pool.layers_per_group} layers whose KV heads or "
            "head_dim are not the target's, vLLM from 0.29 on a GPU, or no drafter",
            values={
                "drafter_layers": layers,
                "drafter_groups": groups,
                "layers_per_group": pool.layers_per_group,
            },
        )
    stateful = any(kind.name == "gated delta" for kind in pool.kinds)
    if stateful and max_num_seqs is not None and max_num_seqs > pool.num_blocks:
        enough = max(max_num_seqs * pool.block_bytes, pool.bytes_for_one_request)
        fixes = [f"max_num_seqs={pool.num_blocks}"] if pool.num_blocks else []
        if not fixes and enough <= room:
            fixes = [f"kv_cache_bytes={enough}"]
        yield TooManySequencesError(
            f"max_num_seqs {max_num_seqs:,} is above the {pool.num_blocks:,} blocks of the KV pool",
            why="every sequence needs a block for its gated-delta state",
            fix=", or ".join(fixes) or _NO_ROOM,
            values={"max_num_seqs": max_num_seqs, "num_blocks": pool.num_blocks},
        )


def _too_small(pool: KvPool, room: int, context: int) -> KvTooSmallError:
    longest = pool.estimated_max_model_len or 0
    fixes = []
    # Beyond its own context the model is refused whatever the pool holds.
    if pool.max_model_len <= context and pool.bytes_for_one_request <= room:
        fixes.append(f"kv_cache_bytes={pool.bytes_for_one_request}")
    if longest:
        fixes.append(f"max_model_len={min(longest, context)}")
    blocks = f"{pool.blocks_per_request:,} blocks of {pool.block_bytes:,} bytes"
    if pool.reserved_blocks:
        blocks += f" and {pool.reserved_blocks:,} that stays free"
    return KvTooSmallError(
        f"the KV pool of {pool.kv_cache_bytes:,} bytes does not hold one request of "
        f"{pool.max_model_len:,} tokens",
        why=f"it takes {blocks}, and the pool has {pool.num_blocks:,}",
        fix=", or ".join(fixes) or _NO_ROOM,
        values={
            "kv_cache_bytes": pool.kv_cache_bytes,
            "needed_bytes": pool.bytes_for_one_request,
            "max_model_len": pool.max_model_len,
            "longest_model_len": longest,
        },
    )


def gdn_state_bytes(
    gdn: Gdn,
    dtype: Dtype,
    *,
    tensor_parallel: int,
    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"],
    num_speculative_tokens: int,
) -> int:
    """Bytes of one sequence's state in one gated-delta layer on one GPU, before padding.

    The recurrent state is a key by value matrix for each value head. The convolution keeps its
    last inputs, and one more for each token that speculation may have to take back.
    """
    conv_dtype = dtype if mamba_cache_dtype == "auto" else mamba_cache_dtype
    state_dtype = gdn.state_dtype or conv_dtype
    recurrent = gdn.value_heads // tensor_parallel * gdn.key_dim * gdn.value_dim
    channels = 2 * gdn.key_heads * gdn.key_dim + gdn.value_heads * gdn.value_dim
    inputs = gdn.conv_kernel - 1 + num_speculative_tokens
    return (
        recurrent * ITEM_BYTES[state_dtype]
        + channels // tensor_parallel * inputs * ITEM_BYTES[conv_dtype]
    )


def _in_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name}: must be from {least:,} to {most:,}")


def _check_drafter(drafter: Drafter, num_speculative_tokens: int, rules: EngineRules) -> None:
    if not num_speculative_tokens:
        raise UsageError(
            "a drafter, but num_speculative_tokens is 0",
            fix="set num_speculative_tokens, or leave the drafter out",
        )
    if _is_mixed(drafter, rules) and not rules.mixed_drafter:
        raise MixedDrafterError(
            f"the drafter mixes {drafter.sliding_layers} sliding and {drafter.full_layers} full "
            "attention layers",
            why="this engine stops with `mixed sliding/full attention` while it loads the drafter",
            fix="take a drafter of one kind, vLLM from 0.26 on a GPU, or no drafter",
            values={
                "sliding_layers": drafter.sliding_layers,
                "full_layers": drafter.full_layers,
            },
        )


def _is_mixed(drafter: Drafter, rules: EngineRules) -> bool:
    """Whether the engine sees two kinds of attention in a drafter."""
    both = drafter.sliding_layers > 0 and drafter.full_layers > 0
    return both and rules.drafter_window != "ignored"


def _wants_one_group(drafter: Drafter | None, gdn: Gdn | None, rules: EngineRules) -> bool:
    """Whether all layers of the drafter must lie in one group."""
    if drafter is None or rules.drafter_groups == "any":
        return False
    if rules.drafter_groups == "one":
        return True
    # A mixed drafter makes such an engine choose the model runner that takes several.
    return gdn is not None and not _is_mixed(drafter, rules)


def require_shares(target: Architecture, drafter: Drafter | None, tensor_parallel: int) -> None:
    """Refuse numbers of heads that the GPUs cannot share evenly, as the engines do.

    Raises:
        RefusedError: Naming each kind of head.
    """
    counts = {"attention heads": target.attention.query_heads}
    if target.gdn is not None:
        counts["gated-delta key heads"] = target.gdn.key_heads
        counts["gated-delta value heads"] = target.gdn.value_heads
    uneven = [f"{n} {name}" for name, n in counts.items() if n % tensor_parallel]
    kv_heads = {"KV heads": target.attention.kv_heads}
    if drafter is not None:
        kv_heads["KV heads of the drafter"] = drafter.kv_heads
    for name, heads in kv_heads.items():
        # Fewer heads than GPUs are replicated, if that comes out even.
        if max(heads, tensor_parallel) % min(heads, tensor_parallel):
            uneven.append(f"{heads} {name}")
    if uneven:
        raise RefusedError(
            f"tensor_parallel {tensor_parallel} does not divide " + ", ".join(uneven),
            fix="choose a tensor_parallel that divides them",
        )


def _kv_item_bytes(kv_dtype: str, target: Architecture) -> int:
    if kv_dtype == "auto":
        if target.kv_cache_declared:
            raise UsageError(
                f"kv_cache_dtype auto is not clear: the checkpoint says {target.kv_cache_declared}",
                why="engine versions differ in whether they heed it",
                fix="set kv_cache_dtype to fp8 or bfloat16",
            )
        return ITEM_BYTES[target.dtype]
    if kv_dtype not in _KV_ITEM_BYTES:
        raise UsageError(
            f"kv_cache_dtype {kv_dtype[:40]!a}: its layout has no arithmetic here",
            fix="known are auto, " + ", ".join(_KV_ITEM_BYTES),
        )
    return _KV_ITEM_BYTES[kv_dtype]


def _spec(layers: Attention | Drafter, tensor_parallel: int, window: int | None = None) -> _Spec:
    return _Spec(max(1, layers.kv_heads // tensor_parallel), layers.head_dim, window)


def _layers(
    target: Architecture, drafter: Drafter | None, tensor_parallel: int, rules: EngineRules
) -> dict[_Spec, _Layers]:
    """Attention layers by layout; a drafter of the target's layout joins the target's groups."""
    specs = {_spec(target.attention, tensor_parallel): _Layers(target.attention.layers, 0)}
    if drafter is None:
        return specs
    window = None if rules.drafter_window == "ignored" else drafter.window
    for count, reach in ((drafter.full_layers, None), (drafter.sliding_layers, window)):
        if count:
            spec = _spec(drafter, tensor_parallel, reach)
            known = specs.get(spec, _Layers(0, 0))
            specs[spec] = known._replace(drafter=known.drafter + count)
    return specs


def _lay_out(
    specs: dict[_Spec, _Layers],
    gdn: Gdn | None,
    *,
    block: int,
    gdn_page: int,
    states: int,
    item: int,
    in_flight: int,
    rules: EngineRules,
) -> _Layout:
    """Pages and groups of all layers.

    Args:
        specs: The attention layers, the target's first.
        gdn: The gated-delta layers, if any.
        block: The attention block, tokens.
        gdn_page: Bytes of a padded state.
        states: That one request takes in each gated-delta group.
        item: Bytes of a key or value.
        in_flight: Tokens that a sliding window keeps blocks for beside its own.
    """
    if gdn is None and all(spec.window is None for spec in specs):
        # Everything needs blocks for the same tokens: one group, whatever its layers' pages.
        pages = {spec: block * spec.bytes_per_token(item) for spec in specs}
        both = _Layers(*(sum(counts) for counts in zip(*specs.values(), strict=True)))
        return _Layout(
            page=max(pages.values()),
            block_bytes=sum(pages[spec] * layers.total for spec, layers in specs.items()),
            per_group=both.total,
            gdn_groups=0,
            states=0,
            attention={next(iter(specs)): _Groups(both, 1, block)},
            in_flight=in_flight,
        )
    page, block_of = _unify(specs, block, None if gdn is None else gdn_page, item, rules)
    gdn_layers = 0 if gdn is None else gdn.layers
    counts = [layers.total for layers in specs.values()]
    per_group = _layers_per_group([gdn_layers, *counts] if gdn_layers else counts)
    return _Layout(
        page=page,
        block_bytes=page * per_group,
        per_group=per_group,
        gdn_groups=_ceil(gdn_layers, per_group),
        states=states,
        attention={
            spec: _Groups(layers, _ceil(layers.total, per_group), block_of[spec])
            for spec, layers in specs.items()
        },
        in_flight=in_flight,
    )


def _kinds(layout: _Layout, gdn: Gdn | None, max_model_len: int) -> Iterator[LayerKind]:
    if gdn is not None:
        yield LayerKind(
            name="gated delta",
            layers=gdn.layers,
            of_drafter=0,
            groups=layout.gdn_groups,
            block_size=None,
            blocks_per_request=layout.states,
        )
    for spec, groups in layout.attention.items():
        yield LayerKind(
            name="full attention" if spec.window is None else "sliding window",
            layers=groups.layers.total,
            of_drafter=groups.layers.drafter,
            groups=groups.number,
            block_size=groups.block,
            blocks_per_request=layout.blocks_of(spec, max_model_len),
        )


def _unify(
    specs: dict[_Spec, _Layers], block: int, gdn_page: int | None, item: int, rules: EngineRules
) -> tuple[int, dict[_Spec, int]]:
    """The one page size, bytes, and the tokens that a block of each spec then holds.

    A smaller page of attention reaches the largest by holding more tokens where that takes a whole
    ratio, else by padding; a state only by padding.
    """
    small = rules.drafter_window == "smallest block"
    natural = {spec: rules.smallest_block if spec.window and small else block for spec in specs}
    pages = {spec: natural[spec] * spec.bytes_per_token(item) for spec in specs}
    page = max(pages.values())
    if gdn_page is not None and page > gdn_page and not rules.pads_gdn_page:
        widest = max(pages, key=lambda spec: pages[spec])
        fit = "is at most" if rules.pads_attention_page else "divides"
        raise PageSizeMismatchError(
            f"the drafter's KV page of {page:,} bytes is larger than the target's {gdn_page:,}",
            why="this engine cannot pad a gated-delta page and stops, mostly with a bare "
            "AssertionError, in unify_kv_cache_spec_page_size",
            fix="take a drafter (or an older revision of it) whose KV heads per GPU times head_dim "
            f"{fit} {gdn_page // (2 * item * natural[widest])}, vLLM from "
            f"{'0.30' if widest.window else '0.26'}, or no drafter",
            values={"drafter_page": page, "target_page": gdn_page},
        )
    block_of = {}
    for spec, size in pages.items():
        if page % size == 0:
            block_of[spec] = natural[spec] * (page // size)
        elif rules.pads_attention_page:
            block_of[spec] = natural[spec]
        else:
            raise PageSizeMismatchError(
                f"a KV page of {size:,} bytes does not divide the largest, {page:,}",
                why="this engine can only scale an attention page by a whole number",
                fix="take a drafter (or an older revision of it) whose KV heads per GPU times "
                "head_dim divides the target's, vLLM from 0.24 on a GPU or 0.29 on a CPU, or no "
                "drafter",
                values={"smaller_page": size, "largest_page": page},
            )
    return page, block_of


def _layers_per_group(counts: list[int]) -> int:
    """The engine's choice: the smallest kind's layers, or the largest's where they are close."""
    least, most = min(counts), max(counts)
    return most if 2 * most < 3 * least else least


def _longest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest length up to ``most`` that fits, 0 for none; longer never needs less."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)

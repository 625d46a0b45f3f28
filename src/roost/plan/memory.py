"""The KV pool of a hybrid model (gated-delta and full-attention layers) in vLLM, to the token.

Such an engine keeps one pool of equal blocks per GPU. A block is one *page* for each layer of a
group; every group of every request draws its blocks from the same pool. Full attention needs
blocks for all tokens of a request, a sliding window for what it can see and what is in flight, a
gated-delta layer for its state alone. :func:`kv_pool` repeats the engine's own steps, in integers
wherever the engine uses integers. ``docs/planner.md`` derives them with worked examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

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

# Beyond these an argument is a mistake, and a figure computed from it would hide it.
_MOST_TOKENS = 2**31 - 1
_MOST_BYTES = 2**50


class PageSizeMismatchError(RefusedError):
    """The engine cannot bring the pages of target and drafter to one size: it dies at start-up."""

    id = "kv-page-size"


class KvTooSmallError(RefusedError):
    """The pool does not hold one request of ``max_model_len``: the engine dies at start-up."""

    id = "kv-too-small"


class TooManySequencesError(RefusedError):
    """``max_num_seqs`` is above the blocks for gated-delta states: the engine dies at start-up."""

    id = "max-num-seqs"


class LayerKind(Strict):
    """Layers that share a KV layout, and how the engine groups them."""

    name: Literal["gated delta", "full attention", "sliding window"]
    layers: Count
    of_drafter: NonNegative = Field(description="how many of the layers are the drafter's")
    groups: Count
    block_size: Count | None = Field(description="tokens a block holds; none: a state, no tokens")
    blocks_per_request: Count = Field(description="of one group, at max_model_len")


class KvPool(Strict):
    """A KV pool as the engine lays it out, per GPU."""

    max_model_len: Count
    kv_cache_bytes: Count
    attention_block_size: Count = Field(
        description="tokens, as in the engine's line `Setting attention block size to`"
    )
    page_size_bytes: Count = Field(description="of one block in one layer, after unification")
    kv_groups: Count
    layers_per_group: Count
    num_blocks: NonNegative
    blocks_per_request: Count = Field(description="at max_model_len, over all groups")
    max_concurrency: float = Field(description="requests of max_model_len at a time")
    kv_pool_tokens: NonNegative = Field(
        description="as in the engine's line `GPU KV cache size`; an engine that cannot hold one "
        "request dies before it prints one"
    )
    gdn_state_bytes: Count = Field(description="of one state in one layer, before padding")
    mamba_bytes_per_seq: Count = Field(
        description="what the gated-delta groups of one request take out of the pool"
    )
    attention_bytes_per_token: Count = Field(
        description="keys and values in the target's full-attention layers"
    )
    bytes_for_one_request: Count = Field(description="pool that holds one max_model_len request")
    estimated_max_model_len: NonNegative | None = Field(
        description="where one request does not fit: the longest that would; 0: none"
    )
    kinds: tuple[LayerKind, ...]

    @property
    def fits_one_request(self) -> bool:
        """Whether a request of ``max_model_len`` can be served at all."""
        return self.num_blocks >= self.blocks_per_request


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

    number: int
    block: int


class _Layout(NamedTuple):
    """The groups of all layers: what a request takes out of the pool."""

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
        target: The model; it must have gated-delta layers.
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
        PageSizeMismatchError: This engine version dies on this pair of target and drafter.
    """
    _in_range("tensor_parallel", tensor_parallel, 1, 1024)
    _in_range("num_speculative_tokens", num_speculative_tokens, 0, 1024)
    _in_range("max_model_len", max_model_len, 1, _MOST_TOKENS)
    _in_range("max_num_batched_tokens", max_num_batched_tokens, 1, _MOST_TOKENS)
    _in_range("kv_cache_bytes", kv_cache_bytes, 1, _MOST_BYTES)
    gdn = target.gdn
    if gdn is None:
        raise UsageError(
            "the model has no gated-delta layers",
            why="this arithmetic is that of hybrid models",
        )
    if drafter is not None and not num_speculative_tokens:
        raise UsageError(
            "a drafter, but num_speculative_tokens is 0",
            fix="set num_speculative_tokens, or leave the drafter out",
        )
    _check_shares(target.attention, gdn, drafter, tensor_parallel)

    item = _kv_item_bytes(kv_dtype, target)
    token_bytes = _spec(target.attention, tensor_parallel).bytes_per_token(item)
    state = gdn_state_bytes(
        gdn,
        target.dtype,
        tensor_parallel=tensor_parallel,
        mamba_cache_dtype=mamba_cache_dtype,
        num_speculative_tokens=num_speculative_tokens,
    )
    # The block grows until one page of attention holds one state; the state is padded to it.
    block = rules.block_multiple * _ceil(state, token_bytes * rules.block_multiple)
    specs = _specs(target, drafter, tensor_parallel, rules)
    page, block_of = _unify(specs, block, token_bytes, item, rules)
    per_group = _layers_per_group([gdn.layers, *(layers.total for layers in specs.values())])
    layout = _Layout(
        gdn_groups=_ceil(gdn.layers, per_group),
        states=(2 if prefix_caching else 1) + num_speculative_tokens,
        attention={
            spec: _Groups(_ceil(layers.total, per_group), block_of[spec])
            for spec, layers in specs.items()
        },
        in_flight=rules.batches_in_flight * max_num_batched_tokens,
    )

    block_bytes = page * per_group
    num_blocks = kv_cache_bytes // block_bytes
    per_request = layout.blocks(max_model_len)
    # The engine multiplies in floating point and truncates, which can be a token less than the
    # same in integers.
    concurrency = num_blocks / per_request
    longest = None
    if num_blocks < per_request:
        longest = _longest(max_model_len, lambda length: layout.blocks(length) <= num_blocks)
    kinds = (
        LayerKind(
            name="gated delta",
            layers=gdn.layers,
            of_drafter=0,
            groups=layout.gdn_groups,
            block_size=None,
            blocks_per_request=layout.states,
        ),
        *(
            LayerKind(
                name="full attention" if spec.window is None else "sliding window",
                layers=layers.total,
                of_drafter=layers.drafter,
                groups=layout.attention[spec].number,
                block_size=block_of[spec],
                blocks_per_request=layout.blocks_of(spec, max_model_len),
            )
            for spec, layers in specs.items()
        ),
    )
    return KvPool(
        max_model_len=max_model_len,
        kv_cache_bytes=kv_cache_bytes,
        attention_block_size=block,
        page_size_bytes=page,
        kv_groups=sum(kind.groups for kind in kinds),
        layers_per_group=per_group,
        num_blocks=num_blocks,
        blocks_per_request=per_request,
        max_concurrency=concurrency,
        kv_pool_tokens=int(concurrency * max_model_len),
        gdn_state_bytes=state,
        mamba_bytes_per_seq=block_bytes * layout.gdn_groups * layout.states,
        attention_bytes_per_token=token_bytes * target.attention.layers,
        bytes_for_one_request=block_bytes * per_request,
        estimated_max_model_len=longest,
        kinds=kinds,
    )


def require_servable(pool: KvPool, *, max_num_seqs: int | None = None) -> None:
    """Refuse a pool that the engine would not start with.

    Args:
        pool: From :func:`kv_pool`.
        max_num_seqs: As set, or as the engine defaults to on the device (1024 on cards of 70 GiB
            and more); ``None`` leaves it out.

    Raises:
        KvTooSmallError: One request of ``max_model_len`` does not fit.
        TooManySequencesError: More sequences than blocks; vLLM 0.24.0 says so after its line on
            the size of the pool, when it captures CUDA graphs.
    """
    if not pool.fits_one_request:
        longest = pool.estimated_max_model_len
        raise KvTooSmallError(
            f"the KV pool of {pool.kv_cache_bytes:,} bytes does not hold one request of "
            f"{pool.max_model_len:,} tokens",
            why=f"it takes {pool.blocks_per_request:,} blocks of "
            f"{pool.page_size_bytes * pool.layers_per_group:,} bytes, and the pool has "
            f"{pool.num_blocks:,}",
            fix=f"kv_cache_bytes={pool.bytes_for_one_request}"
            + (f", or max_model_len={longest}" if longest else ""),
        )
    if max_num_seqs is not None and max_num_seqs > pool.num_blocks:
        raise TooManySequencesError(
            f"max_num_seqs {max_num_seqs:,} is above the {pool.num_blocks:,} blocks of the KV pool",
            why="every sequence needs a block for its gated-delta state",
            fix=f"max_num_seqs={pool.num_blocks}",
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


def _check_shares(
    attention: Attention, gdn: Gdn, drafter: Drafter | None, tensor_parallel: int
) -> None:
    """Whether every GPU gets a whole share of the heads, as the engine demands."""
    counts = {
        "attention heads": attention.query_heads,
        "gated-delta key heads": gdn.key_heads,
        "gated-delta value heads": gdn.value_heads,
    }
    uneven = [f"{n} {name}" for name, n in counts.items() if n % tensor_parallel]
    kv_heads = {"KV heads": attention.kv_heads}
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


def _specs(
    target: Architecture, drafter: Drafter | None, tensor_parallel: int, rules: EngineRules
) -> dict[_Spec, _Layers]:
    """Attention layers by layout; a drafter of the target's layout joins the target's groups."""
    specs = {_spec(target.attention, tensor_parallel): _Layers(target.attention.layers, 0)}
    if drafter is None:
        return specs
    window = drafter.window if rules.honours_drafter_window else None
    for count, reach in ((drafter.full_layers, None), (drafter.sliding_layers, window)):
        if count:
            spec = _spec(drafter, tensor_parallel, reach)
            known = specs.get(spec, _Layers(0, 0))
            specs[spec] = known._replace(drafter=known.drafter + count)
    return specs


def _unify(
    specs: dict[_Spec, _Layers], block: int, token_bytes: int, item: int, rules: EngineRules
) -> tuple[int, dict[_Spec, int]]:
    """The one page size, bytes, and the tokens that a block of each spec then holds.

    A smaller page reaches the largest by holding more tokens, which takes a whole ratio; a state
    only by padding.
    """
    natural = {spec: block * spec.bytes_per_token(item) for spec in specs}
    page = max(natural.values())
    gdn_page = block * token_bytes
    if page > gdn_page and not rules.pads_gdn_page:
        raise _mismatch(
            f"the drafter's KV page of {page:,} bytes is larger than the target's {gdn_page:,}",
            "this engine cannot pad a gated-delta page and stops with a bare AssertionError",
            token_bytes,
            item,
        )
    block_of = {}
    for spec, size in natural.items():
        if page % size == 0:
            block_of[spec] = block * (page // size)
        elif rules.pads_attention_page:
            block_of[spec] = block
        else:
            raise _mismatch(
                f"a KV page of {size:,} bytes does not divide the largest, {page:,}",
                "this engine can only scale an attention page by a whole number",
                token_bytes,
                item,
            )
    return page, block_of


def _mismatch(what: str, why: str, token_bytes: int, item: int) -> PageSizeMismatchError:
    width = token_bytes // (2 * item)
    return PageSizeMismatchError(
        what,
        why=why,
        fix="take a drafter (or an older revision of it) whose KV heads per GPU times head_dim "
        f"divide {width}, an engine that pads such pages (vLLM 0.26 pads gated-delta pages, 0.32 "
        "attention pages too), or no drafter",
    )


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

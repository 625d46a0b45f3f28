"""The terms of a budget: each thing that takes memory on a GPU, computed or estimated by itself.

Each term says what it is: *exact* has a closed form, *measured* is a figure an engine printed,
*estimate* is a formula with a calibrated constant, which then says how far it is from the points it
was fitted to. ``docs/memory.md`` derives the terms and compares them with what was measured.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Annotated, Literal

from pydantic import Field

from roost.plan.architecture import ITEM_BYTES, Attention, Drafter, Gdn
from roost.plan.calibration import Calibration, Fit, distance
from roost.plan.case import Case
from roost.plan.widths import Widths
from roost.settings import Strict, backend_name

Kind = Literal["exact", "measured", "estimate"]

#: Token positions in one chunk of the gated-delta kernels.
_CHUNK = 64
#: A repository holds more than is loaded; a vision tower left out is 4% of a 4-bit model of 35B.
_DISK_TOLERANCE = 0.05
#: An MTP head stored in four bits is a little over a quarter of what it is in sixteen.
_HEAD_TOLERANCE = 0.7
#: A drafter of known shape whose size nobody states: its feed-forward width is assumed. Chosen by
#: roost, not fitted.
_SHAPE_TOLERANCE = 0.25
#: Largest batch that a CUDA graph is captured for, by default.
_MOST_CAPTURED = 512


class Term(Strict):
    """One thing that takes memory on a GPU."""

    name: str
    bytes: Annotated[int, Field(ge=0)]
    kind: Kind
    source: str
    extrapolation: str | None = Field(
        None, description="how far from a measured point; none: not at all"
    )
    uncertainty: Annotated[int, Field(ge=0)] = Field(0, description="bytes it may be off by")


#: Names of the terms that are the target, and of those that are its drafter.
WEIGHTS = ("weights", "vision tower", "MTP head", "rotary table")
DRAFTER = ("drafter", "drafter's fused projections", "drafter's rotary table")


def bytes_of(terms: Iterable[Term], names: Container[str]) -> int:
    """Bytes of all terms with one of these names."""
    return sum(term.bytes for term in terms if term.name in names)


def before_loading(case: Case, calibration: Calibration) -> list[Term]:
    """What is taken before an engine loads anything."""
    return [*context(case, calibration), *host_reserve(case, calibration)]


def loaded(case: Case, calibration: Calibration) -> list[Term]:
    """What stays on a rank once the model is loaded."""
    return [*_weights(case), *_drafter(case), *_libraries(case, calibration)]


def capture_sizes(
    *, max_num_seqs: int, num_speculative_tokens: int, max_num_batched_tokens: int
) -> tuple[list[int], list[int]]:
    """Batch sizes that vLLM captures CUDA graphs for: piecewise ones, and full ones for decoding.

    As ``_set_cudagraph_sizes`` of vLLM's configuration has it. By default sizes go up to twice the
    tokens of a decoding step. With speculation each is rounded up to whole steps of ``1 + K``
    tokens.
    """
    step = 1 + num_speculative_tokens
    most = min(max_num_seqs * step * 2, _MOST_CAPTURED, max_num_batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)]
    sizes = [size for size in sizes if size <= most]
    if max_num_batched_tokens <= most:
        sizes.append(max_num_batched_tokens)
    most = max(sizes)
    if step > 1:
        sizes = [_up(size, step) for size in sizes]
        sizes = [size for size in sizes if size <= most] or [step]
    piecewise = sorted(set(sizes))
    full = [size for size in piecewise if step <= size <= max_num_seqs * step]
    return piecewise, full


def activation_bytes_per_token(case: Case) -> int:
    """What one token of a prefill slice takes at the peak of the forward pass, on one rank.

    Alive together are: the hidden state and the residual; the hidden states that a drafter reads;
    the workspace of the expert layers, which the engine keeps once it has grown; and the
    intermediate results of the widest layer.
    """
    widths = case.widths
    item = ITEM_BYTES[case.architecture.dtype]
    taps = case.drafter_taps if case.method == "dflash" else 0
    elements = (2 + taps) * widths.hidden + _expert_workspace(case, widths)
    layers = [_attention_width(case.architecture.attention), 3 * widths.intermediate]
    if case.architecture.gdn:
        layers.append(_gdn_width(case.architecture.gdn))
    return item * (elements + max(layers) // case.ranks)


def _expert_workspace(case: Case, widths: Widths) -> int:
    """Elements per token in the two buffers of the expert layers (``workspace_shapes`` of vLLM)."""
    inner = widths.expert_intermediate // case.ranks
    tops = widths.experts_per_token
    if not tops:
        return 0
    if case.settings.moe_backend == "humming":
        return max(widths.hidden, tops * inner) + tops * max(widths.hidden, 2 * inner)
    return tops * (max(inner, widths.hidden) + max(2 * inner, widths.hidden))


def _attention_width(attention: Attention) -> int:
    """Elements per token: queries with their gate, keys and values, and the output."""
    return attention.head_dim * (3 * attention.query_heads + 2 * attention.kv_heads)


def _gdn_width(gdn: Gdn) -> int:
    """Elements per token of the chunked gated-delta kernels, in items of the model's type."""
    keys, values = gdn.key_heads * gdn.key_dim, gdn.value_heads * gdn.value_dim
    projections = 2 * keys + 2 * values
    convolved = 2 * keys + values
    # w and u, the corrected values and the output.
    inner = 4 * values
    states = gdn.value_heads * gdn.key_dim * gdn.value_dim // _CHUNK
    # A triangle of chunk by chunk for each head in float32, and its inverse in the model's type.
    triangles = 3 * gdn.value_heads * _CHUNK
    return projections + convolved + inner + states + triangles


def context(case: Case, calibration: Calibration) -> list[Term]:
    """What CUDA takes for a process, and NCCL with several GPUs; nothing without a GPU."""
    if case.machine.kind == "host":
        return []
    several = case.ranks > 1
    fits = calibration.fits
    fit = fits.context_several_gpus if several else fits.context_one_gpu
    name = "CUDA context and NCCL" if several else "CUDA context"
    return [_fitted(case, calibration, name, fit, fit.bytes, {"tensor_parallel": case.ranks})]


def _libraries(case: Case, calibration: Calibration) -> list[Term]:
    if case.machine.kind == "host":
        return []
    fit = calibration.fits.non_torch
    return [_fitted(case, calibration, "kernels and libraries", fit, fit.bytes, {})]


def _weights(case: Case) -> list[Term]:
    widths, load = case.widths, case.target
    item = ITEM_BYTES[case.architecture.dtype]
    replicated = item * widths.replicated_parameters
    positions = case.architecture.context * (4 if widths.three_positions else 1)
    assumed = "widths of Qwen3.5-35B-A3B assumed" if case.widths_assumed else None
    table = Term(
        name="rotary table",
        bytes=positions * widths.rotary_dim * item,
        kind="exact",
        source="context, rotary dimension and type; every rank holds it",
        extrapolation=assumed,
    )
    if contents := load.sized:
        text = (contents.language.bytes or 0) + (contents.embedding.bytes or 0)
        terms = [_sharded("weights", text, replicated, case, "exact", load.source), table]
        if contents.vision.bytes and not case.settings.language_model_only:
            terms.append(
                _sharded("vision tower", contents.vision.bytes, 0, case, "exact", load.source)
            )
        if contents.mtp.bytes and case.method == "mtp":
            terms.append(_sharded("MTP head", contents.mtp.bytes, 0, case, "exact", load.source))
        return terms
    if load.loaded_bytes is not None:
        alone = max(0, load.loaded_bytes - table.bytes)
        weights = _sharded("weights", alone, replicated, case, "measured", load.source)
    else:
        weights = _sharded(
            "weights", load.disk_bytes or 0, replicated, case, "estimate", load.source
        )
    return [weights, table, *_head_by_shape(case)]


def _head_by_shape(case: Case) -> list[Term]:
    """The MTP head where nothing says how large it is, and no measured figure has it in it.

    A layer of the target with its own experts, and the projection of two hidden states to one.
    """
    widths, attention = case.widths, case.architecture.attention
    if case.method != "mtp" or not case.architecture.mtp_layers:
        return []
    heads = 3 * attention.query_heads + 2 * attention.kv_heads  # queries carry a gate of their size
    inner = widths.intermediate + (widths.experts + 1) * widths.expert_intermediate
    layer = widths.hidden * (heads * attention.head_dim + 3 * inner + 2 * widths.hidden)
    amount = ITEM_BYTES[case.architecture.dtype] * layer * case.architecture.mtp_layers
    return [
        _by_shape("MTP head", amount, case, _HEAD_TOLERANCE, "it may be stored in fewer bits"),
    ]


def _drafter_by_shape(drafter: Drafter, case: Case) -> Term:
    """A DFlash drafter where nothing says how large it is: layers as the known ones have them."""
    hidden = case.widths.hidden
    layers = drafter.full_layers + drafter.sliding_layers
    attention = 2 * hidden * 2 * hidden + 2 * hidden * drafter.kv_heads * drafter.head_dim
    feed_forward = 3 * hidden * 3 * hidden
    amount = layers * (attention + feed_forward) + case.drafter_taps * hidden**2
    return _by_shape(
        "drafter",
        ITEM_BYTES[case.architecture.dtype] * amount,
        case,
        _SHAPE_TOLERANCE,
        "feed-forward three hidden states wide, as in z-lab/Qwen3.6-35B-A3B-DFlash",
    )


def _by_shape(name: str, amount: int, case: Case, tolerance: float, assumed: str) -> Term:
    share = _ceil(amount, case.ranks)
    return Term(
        name=name,
        bytes=share,
        kind="estimate",
        source="its shape, in the model's type",
        extrapolation=assumed,
        uncertainty=round(tolerance * share),
    )


def _drafter(case: Case) -> list[Term]:
    load, drafter = case.drafter_load, case.drafter
    if case.method != "dflash" or drafter is None:
        return []
    widths = case.widths
    item = ITEM_BYTES[case.architecture.dtype]
    table = Term(
        name="drafter's rotary table",
        bytes=case.architecture.context * drafter.head_dim * item,
        kind="exact",
        source="as the target's context; every rank holds it",
    )
    heads = 2 * max(1, drafter.kv_heads // case.ranks) * drafter.head_dim
    layers = drafter.full_layers + drafter.sliding_layers
    copy = Term(
        name="drafter's fused projections",
        bytes=item * layers * heads * widths.hidden,
        kind="exact",
        source="a second copy of its key and value projections, in one tensor for all layers",
    )
    if load is None:
        return [_drafter_by_shape(drafter, case), copy, table]
    # Its own embedding and output head are not in it: it uses the target's.
    sized = load.sized.bytes if load.sized else None
    kind: Kind = "exact" if sized else ("measured" if load.loaded_bytes else "estimate")
    alone = sized or (
        load.loaded_bytes - table.bytes if load.loaded_bytes else load.disk_bytes or 0
    )
    projection = item * case.drafter_taps * widths.hidden**2
    return [_sharded("drafter", max(0, alone), projection, case, kind, load.source), copy, table]


def _sharded(name: str, amount: int, replicated: int, case: Case, kind: Kind, source: str) -> Term:
    """Weights that ranks share equally, except for a part that each of them holds in full."""
    replicated = min(replicated, amount) if case.ranks > 1 else 0
    share = _ceil(amount - replicated, case.ranks) + replicated
    on_disk = kind == "estimate"
    return Term(
        name=name,
        bytes=share,
        kind=kind,
        source=source if case.ranks == 1 else f"{source}; a share of {case.ranks}",
        extrapolation="the size on disk counts parts that are not loaded" if on_disk else None,
        uncertainty=round(_DISK_TOLERANCE * share) if on_disk else 0,
    )


def activation(case: Case, calibration: Calibration) -> Term:
    """The peak of a forward pass over the largest batch, which a profiling pass measures."""
    tokens = case.settings.max_num_batched_tokens or 0
    sequences = case.settings.max_num_seqs or 0
    widths = case.widths
    workspace = ITEM_BYTES[case.architecture.dtype] * _expert_workspace(case, widths) * tokens
    # Logits in the model's type, once more in float32, and their probabilities.
    logits = min(sequences, tokens) * widths.vocabulary * (ITEM_BYTES[case.architecture.dtype] + 8)
    fit = calibration.fits.activation_fixed
    peak = max(activation_bytes_per_token(case) * tokens, workspace + logits) + fit.bytes
    quantities = {"max_num_batched_tokens": tokens, "tensor_parallel": case.ranks}
    return _fitted(case, calibration, "activation peak", fit, peak, quantities)


def graphs(case: Case, calibration: Calibration) -> list[Term]:
    """What captured CUDA graphs take; nothing in eager execution or without a GPU."""
    settings = case.settings
    if settings.enforce_eager or case.machine.kind == "host":
        return []
    piecewise, full = capture_sizes(
        max_num_seqs=settings.max_num_seqs or 1,
        num_speculative_tokens=case.depth,
        max_num_batched_tokens=settings.max_num_batched_tokens or 1,
    )
    backends = {settings.attention_backend, settings.drafter_attention_backend}
    if case.depth and "FLASHINFER" in map(backend_name, backends):
        # Such a backend takes the engine down to piecewise graphs when it speculates.
        full = []
    number = len(piecewise) + len(full)
    fits = calibration.fits
    fit = fits.graphs_several_gpus if case.ranks > 1 else fits.graphs_one_gpu
    return [_fitted(case, calibration, "CUDA graphs", fit, fit.at(number), {"graphs": number})]


def host_reserve(case: Case, calibration: Calibration) -> list[Term]:
    """What the engine's processes take of the host's memory, where that is the GPU's too."""
    if case.machine.kind != "unified":
        return []
    fit = calibration.fits.host_processes
    return [_fitted(case, calibration, "host reserve", fit, fit.bytes, {})]


def _fitted(
    case: Case,
    calibration: Calibration,
    name: str,
    fit: Fit,
    amount: int,
    quantities: dict[str, int],
) -> Term:
    points = calibration.of(fit)
    beyond = distance(points, hardware=case.machine.hardware, quantities=quantities)
    # Away from its measured points a fit may be off by twice as much.
    tolerance = fit.tolerance * (2 if beyond else 1)
    return Term(
        name=name,
        bytes=amount,
        kind="estimate",
        source="calibrated: " + ", ".join(dict.fromkeys(point.source for point in points)),
        extrapolation="; ".join(word for word in (beyond, fit.note) if word) or None,
        uncertainty=round(min(1, tolerance) * amount),
    )


def _up(amount: int, unit: int) -> int:
    return _ceil(amount, unit) * unit


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)

"""What the KV pool buys: context, requests at a time, and speculation depth, traded for each other.

One pool serves all three. A deeper speculation (K) makes every gated-delta state larger and keeps
more of them, which also changes the block and page sizes, so each depth is laid out anew by
:func:`~roost.plan.pool.lay_out`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from roost.errors import RefusedError, RoostError, UsageError
from roost.plan import budget
from roost.plan.case import Case
from roost.plan.memory import KvPool
from roost.plan.pool import lay_out
from roost.plan.rules import EngineRules
from roost.settings import Count, Strict

DEPTHS = (0, 2, 4, 8, 16)
#: Kinds of figure that are drawn, by their files' suffixes.
SUFFIXES = (".png", ".svg")
CONTEXTS = (8_192, 16_384, 32_768, 65_536, 131_072, 262_144)

Amount = Annotated[int, Field(ge=0)]


class Cell(Strict):
    """How many requests of one length the pool serves at a time."""

    context: Count = Field(description="tokens of each request")
    requests: Amount = Field(description="whole requests; 0: not even one")
    reason: str | None = Field(None, description="why not even one, or why not asked")


class Row(Strict):
    """One speculation depth."""

    depth: Amount = Field(description="tokens drafted a step (K); 0: no speculation")
    kv_cache_bytes: Amount
    attention_block_size: Amount = Field(description="tokens; 0: no pool")
    longest: Amount = Field(description="largest single context, at most the model's, tokens")
    cells: tuple[Cell, ...]
    refused: str | None = Field(None, description="why this depth does not run at all")


class Frontier(Strict):
    """The table of a machine and a model."""

    machine: str
    model_context: Count
    rows: tuple[Row, ...]


def frontier(
    case: Case,
    rules: EngineRules,
    *,
    depths: Sequence[int] = DEPTHS,
    contexts: Sequence[int] = CONTEXTS,
) -> Frontier:
    """The frontier of a case: its settings, with depth and context varied.

    ``max_num_seqs`` and ``max_model_len`` of the settings are not varied: they set the graphs and
    the buffers, the cells say what the pool would hold.

    Args:
        case: Machine, model and settings; without a speculation method only depth 0 is laid out.
        rules: Of the engine's version.
        depths: Speculation depths, K.
        contexts: Lengths of a request, tokens.

    Raises:
        UsageError: A setting that the arithmetic needs is not said.
    """
    chosen = [depth for depth in depths if case.method or not depth]
    return Frontier(
        machine=case.machine.hardware,
        model_context=case.architecture.context,
        rows=tuple(_row(case, rules, depth, contexts) for depth in chosen),
    )


def _row(case: Case, rules: EngineRules, depth: int, contexts: Sequence[int]) -> Row:
    varied = _at_depth(case, depth)
    planned = budget.make(varied)
    size = planned.kv_cache_bytes
    if planned.refusals:
        return _none(depth, size, contexts, planned.refusals[0].summary)
    if not size:
        return _none(depth, size, contexts, "by the estimates nothing is left for a pool")
    longest = case.architecture.context
    try:
        pool = _pool(varied, rules, longest, size)
    except (RefusedError, UsageError) as error:
        return _none(depth, size, contexts, error.what)
    if not pool.fits_one_request:
        longest = pool.estimated_max_model_len or 0
    return Row(
        depth=depth,
        kv_cache_bytes=size,
        attention_block_size=pool.attention_block_size,
        longest=longest,
        cells=tuple(_cell(varied, rules, context, size, longest) for context in contexts),
    )


def _cell(case: Case, rules: EngineRules, context: int, size: int, longest: int) -> Cell:
    if context > case.architecture.context:
        return Cell(context=context, requests=0, reason="longer than the model's own context")
    pool = _pool(case, rules, context, size)
    requests = pool.num_blocks // pool.blocks_per_request
    if not requests:
        reason = f"the pool holds one request of {longest:,} tokens at most"
        return Cell(context=context, requests=0, reason=reason)
    return Cell(context=context, requests=requests)


def _at_depth(case: Case, depth: int) -> Case:
    if not depth:
        return case.model_copy(update={"method": None, "drafter": None, "drafter_load": None})
    settings = case.settings.model_copy(update={"num_speculative_tokens": depth})
    return case.model_copy(update={"settings": settings})


def _none(depth: int, size: int, contexts: Sequence[int], why: str) -> Row:
    return Row(
        depth=depth,
        kv_cache_bytes=size,
        attention_block_size=0,
        longest=0,
        cells=tuple(Cell(context=context, requests=0, reason=why) for context in contexts),
        refused=why,
    )


def _pool(case: Case, rules: EngineRules, context: int, size: int) -> KvPool:
    return lay_out(
        case.architecture,
        case.drafter,
        case.settings,
        method=case.method,
        kv_cache_bytes=size,
        rules=rules,
        max_model_len=context,
    )


def plot(table: Frontier, path: Path, *, title: str = "") -> None:
    """Draw a frontier: requests at a time over their length, a line for each depth.

    Args:
        table: From :func:`frontier`.
        path: Of the figure; its suffix says the kind (.png, .svg).
        title: Above the figure.

    Raises:
        UsageError: No figure of that kind can be drawn.
        RoostError: The file cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"--plot {path}: its suffix is no kind of figure",
            fix="end it in " + " or ".join(SUFFIXES),
        )
    # Seconds of import that a plan without a figure must not pay.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for row, marker in zip(table.rows, "osD^vP*X", strict=False):
        label = "no speculation" if not row.depth else f"K = {row.depth}"
        points = [(cell.context, cell.requests) for cell in row.cells if cell.requests]
        if not points:
            axes.plot([], [], " ", label=f"{label}: does not run")
            continue
        label += f", one request up to {_tokens(row.longest)}"
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=7, linewidth=2, label=label)
    contexts = [cell.context for cell in table.rows[0].cells]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(contexts, [_tokens(context) for context in contexts])
    most = max((cell.requests for row in table.rows for cell in row.cells), default=0) or 1
    ticks = [2**n for n in range(most.bit_length() + 1)]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens of each request", fontsize=13)
    axes.set_ylabel("requests at a time", fontsize=13)
    axes.set_title(title or f"What the KV pool buys on {table.machine}", fontsize=15)
    axes.tick_params(labelsize=12)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=12)
    try:
        figure.savefig(path)
    except OSError as error:
        raise RoostError(f"{path}: cannot be written", why=error.strerror or str(error)) from None


def _tokens(amount: int) -> str:
    return f"{amount // 1024}k" if amount >= 1024 else str(amount)

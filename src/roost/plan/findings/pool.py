"""Memory: the KV pool, the budget around it, and what the user gets for it."""

from __future__ import annotations

from collections.abc import Iterator

from roost.plan.budget import gib
from roost.plan.finding import Finding
from roost.plan.remedies import written
from roost.plan.subject import Subject


def obstacles(s: Subject) -> Iterator[Finding]:
    """What kept the arithmetic from a result."""
    yield from s.obstacles


def refusals(s: Subject) -> Iterator[Finding]:
    """Why the engine would refuse to start for want of memory."""
    divided = s.budget or s.split
    for refusal in divided.refusals if divided else ():
        yield Finding(
            id=refusal.id,
            severity="error",
            summary=refusal.summary,
            why=refusal.why,
            fix=refusal.fix,
            source=s.machine.source if s.machine else "",
        )


def tight(s: Subject) -> Iterator[Finding]:
    """Whether it fits is within the uncertainty of the estimates."""
    if s.budget is None or not s.budget.tight:
        return
    if not s.budget.kv_cache_bytes:
        yield Finding(
            id="memory-tight",
            severity="warning",
            summary="gpu_memory_utilization leaves nothing for the KV pool, by estimates that may "
            f"be off by {gib(s.budget.pool_uncertainty_bytes)} GiB",
            why="activation peak and CUDA graphs are calibrated, not computed; if they take less, "
            "the pool holds a request",
            source="docs/memory.md",
        )
    else:
        yield Finding(
            id="memory-tight",
            severity="warning",
            summary=f"{gib(abs(s.budget.free_bytes))} GiB are "
            f"{'left' if s.budget.free_bytes >= 0 else 'missing'}, by estimates that may be off by "
            f"{gib(s.budget.uncertainty_bytes)} GiB",
            why="activation peak and CUDA graphs are calibrated, not computed",
            source="docs/memory.md",
        )


def shorter_than_asked(s: Subject) -> Iterator[Finding]:
    """SGLang starts with a pool of any size, and shortens what it takes."""
    length = s.context
    if s.split is None or s.split.refusals or length is None:
        return
    longest = s.split.kv_pool_tokens - 1
    if longest < length:
        own = s.target.architecture.context if s.target.architecture else longest
        fix = f"max_model_len={min(longest, own)}"
        if length <= own:
            fix += ", or a higher gpu_memory_utilization"
        yield Finding(
            id="kv-below-context",
            severity="warning",
            summary=f"the KV pool holds about {longest:,} tokens, and requests may have {length:,}",
            why="SGLang takes no request longer than its pool, whatever the context is set to",
            fix=fix,
            source="sources of SGLang 0.5.14 to 0.5.23",
        )


def prefill_slice(s: Subject) -> Iterator[Finding]:
    """Every slice must hold at least one token of each sequence."""
    tokens, sequences = s.settings.max_num_batched_tokens, s.settings.max_num_seqs
    if tokens is not None and sequences is not None and tokens < sequences:
        tries = [{"max_num_batched_tokens": value} for value in (max(2048, sequences), sequences)]
        larger = next((one for one in tries if s.fits_with(one)), None)
        fixes = [written(one) for one in (larger, {"max_num_seqs": tokens}) if one]
        yield Finding(
            id="batched-tokens-below-sequences",
            severity="error",
            summary=f"max_num_batched_tokens {tokens} is less than max_num_seqs {sequences}",
            why="every sequence takes a token of each step, and the engine refuses to start",
            fix=", or ".join(fixes),
            source="logs of vLLM 0.24.0",
        )


def other_format(s: Subject) -> Iterator[Finding]:
    """What the same bytes hold in the model's own type, where the cache is halved to FP8."""
    if s.pool is None or s.pool_in_model_type is None:
        return
    plain = s.pool_in_model_type
    fits = plain.num_blocks >= plain.blocks_per_request
    yield Finding(
        id="kv-in-model-type",
        severity="info",
        summary=f"with a {s.target.architecture.dtype if s.target.architecture else ''} KV cache "
        f"the same {plain.kv_cache_bytes:,} bytes hold {plain.kv_pool_tokens:,} tokens, "
        + (
            f"{plain.max_concurrency:.2f} requests of {plain.max_model_len:,}"
            if fits
            else f"too few for one request of {plain.max_model_len:,}"
        ),
        why=f"FP8 holds {s.pool.kv_pool_tokens:,}. Whether a long context needs it is a matter of "
        "this arithmetic: source 000 says that 128k on 16 GB cards does",
        source="roost.plan.memory",
    )


def unused(s: Subject) -> Iterator[Finding]:
    """A pool for more requests than are ever served at once."""
    sequences = s.resolved.settings.max_num_seqs
    if s.pool is None or sequences is None or s.resolved.settings.kv_cache_bytes is None:
        return
    if s.pool.max_concurrency > 1.5 * sequences:
        given, architecture = s.settings.prefix_caching, s.target.architecture
        # Where nothing is said, vLLM has it on but for models with gated-delta layers.
        cached = given if given is not None else architecture is None or architecture.gdn is None
        enough = sequences * s.pool.bytes_for_one_request
        yield Finding(
            id="pool-beyond-use",
            severity="info",
            summary=f"the pool holds {s.pool.max_concurrency:.2f} requests of full length, and "
            f"{sequences} are served at once",
            why="memory beyond that buys prefix cache, and nothing else"
            if cached
            else "prefix caching is off, so memory beyond that buys nothing",
            fix=f"kv_cache_bytes={enough}",
            source="source 001",
        )


CHECKS = (obstacles, refusals, tight, shorter_than_asked, prefill_slice, other_format, unused)

"""Whether the engine's counters agree with what its harness counted."""

from __future__ import annotations

from roost.errors import RoostError
from roost.measure import metrics
from roost.measure.harness import HarnessResult
from roost.measure.points import Speculation

#: Fraction by which the counters may differ from what the harness counted: the engine still counts
#: a token or two of a request whose stream has ended.
UNEXPLAINED = 0.01


def judge(
    result: HarnessResult, before: metrics.Reading, after: metrics.Reading
) -> tuple[list[str], Speculation | None]:
    """Why a repetition does not count, and what its counters say of speculation."""
    marks = []
    if result.failed:
        reasons = [request.error for request in result.requests if request.error]
        why = f": {' '.join(reasons[0].split())[-120:]}" if reasons else ""
        marks.append(f"{result.failed} of {len(result.requests)} requests failed{why}")
    try:
        change = metrics.delta(before, after)
    except RoostError as error:
        return [*marks, f"{error.what} ({error.why})"], None
    if not result.failed and (mark := _unexplained(result, change)):
        marks.append(mark)
    found = change.speculation
    if found is None:
        return marks, None
    return marks, Speculation(
        drafts=found.drafts,
        draft_tokens=found.draft_tokens,
        accepted=found.accepted,
        per_position=list(found.per_position),
    )


def _unexplained(result: HarnessResult, change: metrics.Reading) -> str:
    """How the counters contradict the harness; empty where they agree."""
    allowed = UNEXPLAINED * result.total_output_tokens
    counted = f"the engine generated {change.generated_tokens:.0f} tokens"
    more = change.generated_tokens - result.total_output_tokens
    if change.block is not None:
        # SGLang: its harness does not see the token that ends an answer and is no text.
        allowed = max(allowed, result.completed)
    # Requests first: another client's long prompt may take seconds and bring a single token.
    if change.requests is not None and (others := change.requests - result.completed):
        counted = f"the engine finished {change.requests:.0f} requests"
        return f"{_who(others)}: {counted}, the harness sent {result.completed}"
    if abs(more) > allowed:
        return f"{_who(more)}: {counted}, the harness's requests took {result.total_output_tokens}"
    return _others_prompts(result, change)


def _others_prompts(result: HarnessResult, change: metrics.Reading) -> str:
    """Prompts that the harness did not send, or nothing.

    A long one takes seconds, and its request may still be running, or be given up by its client, so
    that neither requests nor generated tokens tell of it. Fewer tokens are no sign: an engine need
    not count what it found in its cache.
    """
    lengths = [request.prompt_tokens for request in result.requests]
    # A token before every prompt may be the engine's own, and unknown to the harness.
    allowed = UNEXPLAINED * sum(lengths) + len(lengths)
    if not all(lengths) or change.prompt_tokens - sum(lengths) <= allowed:
        return ""
    return (
        f"{_who(1)}: the engine read {change.prompt_tokens:.0f} tokens of prompts, the harness's "
        f"had {sum(lengths)}"
    )


def _who(more: float) -> str:
    return "another client was served" if more > 0 else "the counters are not its own"

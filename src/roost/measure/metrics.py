"""vLLM's /metrics: exact counters, and what two readings say about the time between them.

Names are compared whole: every counter has a ``_created`` sibling that holds a Unix time and a
per-position sibling, and a prefix would take them all. Figures come from differences between two
readings, never from a cumulative value: a counter remembers everything since the engine's start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from roost.errors import RoostError
from roost.onhost.counters import ACCEPTED as _ACCEPTED
from roost.onhost.counters import DRAFTS as _DRAFTS

_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = "vllm:generation_tokens_total"
_PROMPT = "vllm:prompt_tokens_total"


@dataclass(frozen=True)
class SpecCounters:
    """Speculation so far, or between two readings; summed over all engines (data parallel).

    Attributes:
        drafts: Verification steps that had a draft.
        draft_tokens: Proposed tokens, over all drafts.
        accepted: Proposed tokens that the target confirmed.
        per_position: Accepted tokens by position in the draft, first position first.
    """

    drafts: float
    draft_tokens: float
    accepted: float
    per_position: tuple[float, ...] = ()

    @property
    def accept_length(self) -> float | None:
        """Tokens per step, bonus included: 1 + accepted/drafts; none without drafts."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def accept_rate(self) -> float | None:
        """Fraction of the proposed tokens that were accepted; none without proposals."""
        return self.accepted / self.draft_tokens if self.draft_tokens else None

    @property
    def per_position_rates(self) -> tuple[float, ...]:
        """Fraction of the drafts whose n-th token was accepted (unconditional)."""
        return tuple(value / self.drafts for value in self.per_position) if self.drafts else ()


@dataclass(frozen=True)
class Reading:
    """One reading of /metrics, or the difference of two.

    Attributes:
        prompt_tokens: Tokens prefilled.
        generated_tokens: Tokens generated.
        speculation: None where the engine does not speculate; it then has no such families.
    """

    prompt_tokens: float
    generated_tokens: float
    speculation: SpecCounters | None


def parse(text: str) -> Reading:
    """Read the exposition text of one engine process.

    Raises:
        RoostError: It is not Prometheus text, or has none of vLLM's counters.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _PER_POSITION:
                    at = int(sample.labels["position"])
                    positions[at] = positions.get(at, 0.0) + sample.value
                elif sample.name in {_DRAFTS, _DRAFT_TOKENS, _ACCEPTED, _GENERATED, _PROMPT}:
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise RoostError("/metrics is not Prometheus text", why=str(error)) from None
    if _GENERATED not in sums or not all(math.isfinite(value) for value in sums.values()):
        raise RoostError("/metrics has no usable vLLM counters", why=f"{_GENERATED} is not there")
    speculation = None
    if _DRAFTS in sums:
        speculation = SpecCounters(
            drafts=sums[_DRAFTS],
            draft_tokens=sums.get(_DRAFT_TOKENS, 0.0),
            accepted=sums.get(_ACCEPTED, 0.0),
            per_position=tuple(
                positions.get(at, 0.0) for at in range(max(positions, default=-1) + 1)
            ),
        )
    return Reading(sums.get(_PROMPT, 0.0), sums[_GENERATED], speculation)


def delta(before: Reading, after: Reading) -> Reading:
    """What happened between two readings of the same engine.

    Raises:
        RoostError: A counter went down or vanished: the engine restarted in between, and nothing
            can be said about that time.
    """
    if (before.speculation is None) != (after.speculation is None):
        raise _restarted("speculation was switched on or off")
    speculation = None
    if before.speculation is not None and after.speculation is not None:
        first, last = before.speculation, after.speculation
        if len(first.per_position) > len(last.per_position):
            raise _restarted("drafts are shorter than before")
        padded = first.per_position + (0.0,) * (len(last.per_position) - len(first.per_position))
        speculation = SpecCounters(
            drafts=last.drafts - first.drafts,
            draft_tokens=last.draft_tokens - first.draft_tokens,
            accepted=last.accepted - first.accepted,
            per_position=tuple(b - a for a, b in zip(padded, last.per_position, strict=True)),
        )
    change = Reading(
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        generated_tokens=after.generated_tokens - before.generated_tokens,
        speculation=speculation,
    )
    if any(value < 0 for value in _values(change)):
        raise _restarted("a counter went down")
    return change


def _values(reading: Reading) -> Iterable[float]:
    yield reading.prompt_tokens
    yield reading.generated_tokens
    if spec := reading.speculation:
        yield from (spec.drafts, spec.draft_tokens, spec.accepted, *spec.per_position)


def _restarted(why: str) -> RoostError:
    return RoostError(
        "the engine restarted between two readings of /metrics",
        why=why,
        fix="look for the reason in its log, then measure again",
    )

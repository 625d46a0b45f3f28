"""Engines' /metrics: exact counters, and what two readings say about the time between them.

Names are compared whole: every counter has a ``_created`` sibling that holds a Unix time and a
per-position sibling, and a prefix would take them all. Figures come from differences between two
readings, never from a cumulative value: a counter remembers everything since the engine's start.

SGLang counts verification steps and generated tokens, not drafts; what was proposed and accepted
follows from them. Its gauges of accept length are of the last logging interval and of no use here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from prometheus_client.parser import text_string_to_metric_families

from roost.errors import RoostError
from roost.onhost import counters
from roost.onhost.counters import ACCEPTED as _ACCEPTED
from roost.onhost.counters import DRAFTS as _DRAFTS
from roost.onhost.counters import GENERATED as _SGLANG_GENERATED
from roost.onhost.counters import REQUESTS as _SGLANG_REQUESTS
from roost.onhost.counters import STEPS as _SGLANG_STEPS

_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = "vllm:generation_tokens_total"
_PROMPT = "vllm:prompt_tokens_total"
#: Finished requests by how they ended, aborted ones too: vLLM 0.24 and 0.32 have it.
_REQUESTS = "vllm:request_success_total"

_SGLANG_PROMPT = "sglang:prompt_tokens_total"
#: A gauge: tokens of one block of drafts, the one that it starts from (the anchor) included.
_SGLANG_BLOCK = "sglang:spec_num_draft_tokens"
#: A draft has fewer positions: from here on they are refused, for each up to the highest is kept.
_LONGEST_DRAFT = 1024
#: Another value means that the engine was restarted, even if it has overtaken its old counters:
#: vLLM's start time, and the seconds that each phase of SGLang's start took (0.5.17 to 0.5.23; its
#: pages are put together from several processes' files, and have no start time).
_STARTS = {"process_start_time_seconds", "sglang:startup_time_seconds"}
_READ = {
    _DRAFTS,
    _DRAFT_TOKENS,
    _ACCEPTED,
    _GENERATED,
    _PROMPT,
    _REQUESTS,
    _SGLANG_STEPS,
    _SGLANG_GENERATED,
    _SGLANG_PROMPT,
    _SGLANG_REQUESTS,
}


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
        block: SGLang's tokens of one block of drafts, anchor included; 0: not said yet. None with
            vLLM, which counts draft tokens itself.
        requests: Finished requests; none where the engine does not count them. SGLang counts a
            request and its tokens when it ends, and its own health checks not at all.
        start: What this start of the engine alone has; empty: it says nothing of the kind.
    """

    prompt_tokens: float
    generated_tokens: float
    speculation: SpecCounters | None
    block: float | None = None
    requests: float | None = None
    start: tuple[float, ...] = ()


def parse(text: str) -> Reading:
    """Read the exposition text of one engine process.

    Raises:
        RoostError: It is not Prometheus text, or has none of the counters of vLLM or SGLang.
    """
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    blocks, starts, of_sglang = [0.0], list[float](), False
    try:
        for family in text_string_to_metric_families(text):
            of_sglang |= family.name.startswith("sglang:")
            for sample in family.samples:
                if sample.name == _PER_POSITION:
                    at = int(sample.labels["position"])
                    positions[at] = positions.get(at, 0.0) + sample.value
                elif sample.name in _READ:
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                elif sample.name == _SGLANG_BLOCK:
                    blocks.append(sample.value)
                elif sample.name in _STARTS:
                    starts.append(sample.value)
    except (ValueError, KeyError, IndexError) as error:
        raise RoostError("/metrics is not Prometheus text", why=str(error)) from None
    if not all(map(math.isfinite, (*sums.values(), *positions.values(), *blocks, *starts))):
        raise RoostError("/metrics has no usable counters", why="a counter is no finite number")
    if not all(0 <= at < _LONGEST_DRAFT for at in positions):
        raise RoostError("/metrics has no usable counters", why="a draft has no such position")
    if of_sglang:
        return replace(_sglang(sums, max(blocks)), start=tuple(sorted(starts)))
    if _GENERATED not in sums:
        raise RoostError("/metrics has no usable counters", why=f"{_GENERATED} is not there")
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
    return Reading(
        prompt_tokens=sums.get(_PROMPT, 0.0),
        generated_tokens=sums[_GENERATED],
        speculation=speculation,
        requests=sums.get(_REQUESTS),
        start=tuple(sorted(starts)),
    )


def _sglang(sums: dict[str, float], block: float) -> Reading:
    """What SGLang's counters come to; a family appears with its first sample."""
    reading = Reading(
        prompt_tokens=sums.get(_SGLANG_PROMPT, 0.0),
        generated_tokens=sums.get(_SGLANG_GENERATED, 0.0),
        speculation=None,
        block=block,
        requests=sums.get(_SGLANG_REQUESTS, 0.0),
    )
    steps = sums.get(_SGLANG_STEPS, 0.0)
    return replace(reading, speculation=_from_steps(steps, reading, block)) if steps else reading


def _from_steps(steps: float, reading: Reading, block: float) -> SpecCounters:
    """Drafts by SGLang's verification steps, all of which count when a request ends, so readings
    around whole requests agree. The anchor, which each block starts from, is no proposal.
    """
    return SpecCounters(
        drafts=steps,
        draft_tokens=steps * max(0.0, block - 1),
        accepted=counters.accepted_in_steps(
            steps, reading.generated_tokens, reading.requests or 0.0
        ),
    )


def delta(before: Reading, after: Reading) -> Reading:
    """What happened between two readings of the same engine.

    Raises:
        RoostError: A counter went down or vanished, or the process is another one: the engine
            restarted in between, and nothing can be said about that time.
    """
    if before.start and after.start and before.start != after.start:
        raise _restarted("another start of it answers")
    change = Reading(
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        generated_tokens=after.generated_tokens - before.generated_tokens,
        speculation=None,
        block=after.block,
        requests=None
        if before.requests is None or after.requests is None
        else after.requests - before.requests,
        start=after.start,
    )
    if after.block is None:
        change = replace(change, speculation=_between(before.speculation, after.speculation))
    elif after.speculation is not None:
        steps = after.speculation.drafts - (before.speculation.drafts if before.speculation else 0)
        change = replace(change, speculation=_from_steps(steps, change, after.block))
    elif before.speculation is not None:
        raise _restarted("it has not speculated yet, and had before")
    if any(value < 0 for value in _values(change)):
        raise _restarted("a counter went down")
    return change if after.block is None else _agreeing(change)


def _between(first: SpecCounters | None, last: SpecCounters | None) -> SpecCounters | None:
    """The difference of vLLM's counters, which are there from the start or never."""
    if first is None and last is None:
        return None
    if first is None or last is None:
        raise _restarted("speculation was switched on or off")
    if len(first.per_position) > len(last.per_position):
        raise _restarted("drafts are shorter than before")
    padded = first.per_position + (0.0,) * (len(last.per_position) - len(first.per_position))
    return SpecCounters(
        drafts=last.drafts - first.drafts,
        draft_tokens=last.draft_tokens - first.draft_tokens,
        accepted=last.accepted - first.accepted,
        per_position=tuple(b - a for a, b in zip(padded, last.per_position, strict=True)),
    )


def _agreeing(change: Reading) -> Reading:
    """SGLang's difference with what was accepted as a number that can be.

    It is computed from other counters. A step of each request may have brought no token of its
    answer, where it had begun when the answer ended: then nothing was accepted.

    Raises:
        RoostError: The steps brought fewer tokens than that explains.
    """
    spec, requests = change.speculation, change.requests or 0.0
    if spec is None or spec.accepted >= 0:
        return change
    if -spec.accepted > requests:
        raise RoostError(
            "the engine's counters contradict each other",
            why=f"{spec.drafts:.0f} verification steps of {requests:.0f} requests brought "
            f"{change.generated_tokens:.0f} tokens, and each brings one at least",
            fix="measure again while nothing else asks the engine; if it stays, this version "
            "counts in a way that roost does not know",
        )
    return replace(change, speculation=replace(spec, accepted=0.0))


def _values(reading: Reading) -> Iterable[float]:
    """What was counted; of SGLang's drafts what was accepted is not."""
    yield reading.prompt_tokens
    yield reading.generated_tokens
    yield reading.requests or 0.0
    if spec := reading.speculation:
        yield from (spec.drafts, spec.draft_tokens, *spec.per_position)
        if reading.block is None:
            yield spec.accepted


def _restarted(why: str) -> RoostError:
    return RoostError(
        "the engine restarted between two readings of /metrics",
        why=why,
        fix="look for the reason in its log, then measure again",
    )

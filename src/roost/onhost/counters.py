"""The counters that say what speculation gains, read exactly.

Names are compared whole: each has a ``_created`` sibling that holds a Unix time. Here stand those
that both a host's own gate and a benchmark go by, and what follows from them.
"""

from __future__ import annotations

import re

#: vLLM: verification steps that had a draft, and proposed tokens that the target confirmed.
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
#: SGLang: verification steps, generated tokens and requests, each counted when a request has ended
#: and before its answer is sent; a family is there from its first sample on (sources of 0.5.13 to
#: 0.5.23).
STEPS = "sglang:spec_verify_calls_total"
GENERATED = "sglang:generation_tokens_total"
REQUESTS = "sglang:num_requests_total"


def total(exposition: str, name: str) -> float | None:
    """A counter's value in Prometheus text, summed over its labels; none if it is not there."""
    sample = re.compile(rf"^{re.escape(name)}(?:\{{.*\}})?[ \t]+(\S+)", re.MULTILINE)
    values = [float(found) for found in sample.findall(exposition)]
    return sum(values) if values else None


def accepted_in_steps(steps: float, generated: float, requests: float) -> float:
    """Accepted tokens, where an engine counts steps and not drafts.

    A request's first token comes out of its prefill; every step after that gives one token of the
    target's own and those of its proposals that were accepted. What was accepted beyond the end of
    an answer is not generated and not counted: an accept length from it is a little low.
    """
    return generated - requests - steps


def accept_length(before: str, after: str) -> float | None:
    """Tokens per step between two readings, bonus included: 1 + Δaccepted/Δdrafts.

    None where nothing was drafted, where there are no such counters, or where they went down (the
    engine restarted in between).
    """
    if "sglang:" in before and total(after, STEPS) is not None:
        steps, generated, requests = (
            (total(after, name) or 0.0) - (total(before, name) or 0.0)
            for name in (STEPS, GENERATED, REQUESTS)
        )
        if steps <= 0 or generated < 0 or requests < 0:
            return None
        return 1 + accepted_in_steps(steps, generated, requests) / steps
    readings = [total(text, name) for text in (before, after) for name in (DRAFTS, ACCEPTED)]
    if any(value is None for value in readings):
        return None
    drafts_before, accepted_before, drafts, accepted = (value or 0.0 for value in readings)
    if drafts <= drafts_before or accepted < accepted_before:
        return None
    return 1 + (accepted - accepted_before) / (drafts - drafts_before)

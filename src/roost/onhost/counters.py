"""The two counters that say what speculation gains, read exactly.

Names are compared whole: each has a ``_created`` sibling that holds a Unix time.
"""

from __future__ import annotations

import re

#: vLLM: verification steps that had a draft, and proposed tokens that the target confirmed.
DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


def total(exposition: str, name: str) -> float | None:
    """A counter's value in Prometheus text, summed over its labels; none if it is not there."""
    sample = re.compile(rf"^{re.escape(name)}(?:\{{.*\}})?[ \t]+(\S+)", re.MULTILINE)
    values = [float(found) for found in sample.findall(exposition)]
    return sum(values) if values else None


def accept_length(before: str, after: str) -> float | None:
    """Tokens per step between two readings, bonus included: 1 + Δaccepted/Δdrafts.

    None where nothing was drafted, where there are no such counters, or where they went down (the
    engine restarted in between).
    """
    readings = [total(text, name) for text in (before, after) for name in (DRAFTS, ACCEPTED)]
    if any(value is None for value in readings):
        return None
    drafts_before, accepted_before, drafts, accepted = (value or 0.0 for value in readings)
    if drafts <= drafts_before or accepted < accepted_before:
        return None
    return 1 + (accepted - accepted_before) / (drafts - drafts_before)

"""What a check is, and how findings of the preflight become checks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from roost import preflight
from roost.hosts import HostFacts

Severity = Literal["fail", "warn", "unknown", "ok"]
WORST_FIRST: dict[Severity, int] = {"fail": 0, "warn": 1, "unknown": 2, "ok": 3}
_OF_PREFLIGHT: dict[preflight.Severity, Severity] = {
    "error": "fail",
    "warning": "warn",
    "info": "ok",
}


class Check(BaseModel):
    """One check of one host.

    ``why`` and ``fix`` are empty where nothing is wrong.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    severity: Severity
    saw: str
    wants: str
    why: str = ""
    fix: str = ""


def of_preflight(found: preflight.Finding) -> Check:
    """A finding of the preflight as a check."""
    return Check(
        id=found.id,
        severity=_OF_PREFLIGHT[found.severity],
        saw=found.saw,
        wants=found.wants,
        why=found.why,
        fix=found.fix,
    )


def has_gpu(facts: HostFacts) -> bool:
    """Whether there is an NVIDIA GPU, working or not."""
    return facts.gpu_trouble != "missing" or facts.condition.driver_module is not None


def judged(name: str, bad: Severity | None, *, saw: str, wants: str, why: str, fix: str) -> Check:
    """A check that is either good, or bad for a reason.

    Args:
        name: Its id.
        bad: How bad it is; none: it is good, so ``why`` and ``fix`` are left out.
        saw: What was seen.
        wants: What is wanted.
        why: Why it is bad.
        fix: What to do about that.
    """
    if bad is None:
        return Check(id=name, severity="ok", saw=saw, wants=wants)
    return Check(id=name, severity=bad, saw=saw, wants=wants, why=why, fix=fix)


def unseen(name: str, wants: str, saw: str) -> Check:
    """A check that could not be made; ``saw`` says why."""
    return Check(id=name, severity="unknown", saw=saw, wants=wants)

"""A finding: one thing that speaks against a deployment, or that its user should know."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from roost.plan import names
from roost.printable import printable

Severity = Literal["error", "warning", "info"]
Verdict = Literal["ok", "warn", "refuse"]
#: It may quote a config or an index, which say what they like.
Text = Annotated[str, AfterValidator(printable)]

#: The command that plans with what a revision really holds.
TO_READ = "roost plan … --hub URL, or --models DIR"

_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


class Finding(BaseModel):
    """What was found, why it matters, and the setting that mends it."""

    model_config = ConfigDict(frozen=True)

    id: Annotated[str, AfterValidator(names.known)] = Field(
        description="stable: `roost_accept_findings` names it"
    )
    severity: Severity
    summary: Text
    why: Text
    fix: Text = Field(
        "", description="ready to paste, where a setting mends it; empty: nothing to do"
    )
    source: Text
    date: dt.date | None = Field(None, description="of a fact that was looked up, not computed")
    accepted: bool = Field(False, description="the user said to go on all the same")

    def text(self) -> str:
        """The finding as a person reads it."""
        lines = [f"{self.id}: {self.summary}", f"  why: {self.why}"]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        dated = f" ({self.date})" if self.date else ""
        return "\n".join([*lines, f"  source: {self.source}{dated}"])


def verdict(findings: Iterable[Finding]) -> Verdict:
    """``refuse`` for an error that nobody accepted, ``warn`` for a warning or an accepted error."""
    worst: Verdict = "ok"
    for finding in findings:
        if finding.severity == "error" and not finding.accepted:
            return "refuse"
        if finding.severity != "info":
            worst = "warn"
    return worst


def ordered(findings: Iterable[Finding], accept: Iterable[str] = ()) -> list[Finding]:
    """Errors first, otherwise as found; those whose id the user accepts are marked."""
    accepted = set(accept)
    return sorted(
        (
            one.model_copy(update={"accepted": True})
            if one.id in accepted and one.severity == "error"
            else one
            for one in findings
        ),
        key=lambda one: (_ORDER[one.severity], one.accepted),
    )

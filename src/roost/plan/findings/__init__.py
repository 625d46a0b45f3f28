"""The findings: each module looks at one side of a deployment, each function at one question."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from roost.plan.finding import Finding
from roost.plan.findings import backends, flags, known, machine, pool, published, weights
from roost.plan.subject import Subject

Check = Callable[[Subject], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    *known.CHECKS,
    *machine.CHECKS,
    *weights.CHECKS,
    *flags.CHECKS,
    *backends.CHECKS,
    *pool.CHECKS,
    *published.CHECKS,
)


def find(subject: Subject, *, preflighted: bool = False) -> list[Finding]:
    """Every finding, in the order of the checks.

    Args:
        subject: What is planned.
        preflighted: Whether a preflight judges the host itself, so that nothing is said twice.
    """
    checks = CHECKS if preflighted else (*machine.HOST_CHECKS, *CHECKS)
    return [finding for check in checks for finding in check(subject)]

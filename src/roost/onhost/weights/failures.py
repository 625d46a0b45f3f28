"""What can go wrong with a snapshot, as the module's result and its user are told of it."""

from __future__ import annotations


class SnapshotError(Exception):
    """Something to tell the user: a reason for programs, two sentences for people.

    Args:
        reason: One of the module's ``reason`` values.
        saw: What was seen, with what and where.
        fix: What to do.
        outage: It may pass by itself, so trying again makes sense.
        wait: Seconds that the hub asks to be left alone for.
    """

    def __init__(
        self,
        reason: str,
        saw: str,
        fix: str,
        *,
        outage: bool = False,
        wait: float | None = None,
    ) -> None:
        self.reason = reason
        self.outage = outage
        self.wait = wait
        super().__init__(f"{saw}. {fix}.")

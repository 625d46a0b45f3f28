"""Errors that are meant for a person.

Everything a user can get wrong ends in one of these: what happened, why, and what to do about it.
The command line prints the three parts and exits with :attr:`RoostError.exit_code`; a traceback is
always a defect of roost itself.
"""

from __future__ import annotations

from roost.printable import printable


class RoostError(Exception):
    """Something the user can act on; what comes from elsewhere may stand in it as it is.

    Args:
        what: One sentence with the place it happened in (file and key, host, URL).
        why: The cause, where it is known and not already in ``what``.
        fix: What to do next, ready to paste where that is possible.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = map(printable, (what, why, fix))
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"why: {self.why}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "\n  ".join(parts)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback, so that notebooks speak like the command."""
        return [str(self)]


class UnansweredError(RoostError):
    """A service was asked, and nothing came back: so it may be with the next question."""


class UsageError(RoostError):
    """The command or its arguments make no sense: nothing was attempted."""

    exit_code = 2


class RefusedError(RoostError):
    """The plan refuses: it would not run, so nothing was fetched or changed."""

    exit_code = 3

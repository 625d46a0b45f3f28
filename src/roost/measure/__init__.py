"""What an endpoint does, measured from outside: answers, streams, counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost.measure.frames import Frames


def load_runs(root: Any = "runs", **options: Any) -> Frames:
    """Every kept run as data frames; :func:`roost.measure.frames.load_runs` says what it takes."""
    # Imported late: only data frames need pandas.
    from roost.measure import frames

    return frames.load_runs(root, **options)

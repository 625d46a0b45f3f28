"""How long what may pass by itself is waited for."""

from __future__ import annotations

import threading

from .failures import SnapshotError

#: Seconds; the first pause before another try.
PAUSE = 1.0


class Patience:
    """Of all transfers of one run together.

    Args:
        retries: How often in a row something is tried again.
        max_wait: Longest pause, seconds, that a hub may ask for.
    """

    def __init__(self, retries: int, max_wait: int) -> None:
        self.retries = retries
        self.max_wait = max_wait
        #: Set when one transfer has failed for good, which ends the others.
        self.stopped = threading.Event()

    def may_try_again(self, failure: SnapshotError, failures: int) -> bool:
        """Wait as long as makes sense, unless the failure is final."""
        pause = PAUSE * 2 ** (failures - 1) if failure.wait is None else failure.wait
        if not failure.outage or failures > self.retries or pause > self.max_wait:
            return False
        return not self.stopped.wait(pause)

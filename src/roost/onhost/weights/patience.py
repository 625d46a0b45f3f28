"""How long to wait for failures that may pass by themselves."""

from __future__ import annotations

import threading

from .failures import SnapshotError

#: Seconds; the first pause before another try.
PAUSE = 1.0


class Patience:
    """The retries that all transfers of one run share.

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
        """Whether a failure is worth another try; if so, first waits as long as makes sense."""
        pause = PAUSE * 2 ** (failures - 1) if failure.wait is None else failure.wait
        if not failure.outage or failures > self.retries or pause > self.max_wait:
            return False
        return not self.stopped.wait(pause)

"""Signals that end a process, as interruptions that it can clean up after."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Being told to end, and the end of the terminal, are interruptions like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        # To whoever handles it at the moment; within a playbook that is ansible-runner.
        os.kill(os.getpid(), signal.SIGTERM)

    handlers = {signal.SIGTERM: interrupt, signal.SIGHUP: pass_on}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        # Started by nohup, to outlive its terminal.
        del handlers[signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

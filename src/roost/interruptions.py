"""Signals that end a process, turned into exceptions, so that it can clean up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

#: Seconds in which a process that was told to end is not told again.
_CLEANING_UP_S = 10.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP (the terminal is gone) are interruptions like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    handlers = {signal.SIGTERM: interrupt, signal.SIGHUP: _pass_on}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        # Started by nohup, to outlive its terminal.
        del handlers[signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP end the process only after it has cleaned up, as Ctrl-C does.

    Only those that would end it at once: who handles or ignores one already has a reason. In a
    thread of its own nothing can be promised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    told: list[tuple[int, float]] = []

    def leave(number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if told and now - told[-1][1] < _CLEANING_UP_S:
            # Told twice, it still cleans up.
            return
        told.append((number, now))
        raise SystemExit(128 + number)

    handlers = {signal.SIGTERM: leave, signal.SIGHUP: _pass_on}
    taken = [one for one in handlers if signal.getsignal(one) == signal.SIG_DFL]
    for one in taken:
        signal.signal(one, handlers[one])
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)
    if told:
        # It came while something was being collected, where exceptions are only printed.
        raise SystemExit(128 + told[0][0])


def _pass_on(_number: int, _frame: FrameType | None) -> None:
    # To whoever handles it at the moment; within a playbook that is ansible-runner.
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def terminable() -> Iterator[None]:
    """A polite kill cleans up just as Ctrl-C does."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

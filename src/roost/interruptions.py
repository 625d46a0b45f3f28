"""Signals that end a process, turned into exceptions, so that it can clean up."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP (the terminal is gone) are interruptions like Ctrl-C."""

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

"""A polite kill ends a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal

import pytest

from roost.interruptions import terminable


def test_a_polite_kill_unwinds_and_what_was_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    cleaned: list[bool] = []
    with pytest.raises(SystemExit, match="143"):
        _killed(cleaned)
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def _killed(cleaned: list[bool]) -> None:
    with terminable():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(True)

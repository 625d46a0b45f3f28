"""A polite kill ends a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from roost.interruptions import cleaning_up, interruptible, terminable

BOTH = (signal.SIGTERM, signal.SIGHUP)


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


@pytest.fixture
def usual() -> Iterator[None]:
    """Signals as a process has them that begins."""
    before = [signal.signal(number, signal.SIG_DFL) for number in BOTH]
    yield
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("number", BOTH)
def test_what_would_end_it_at_once_lets_it_clean_up(number: signal.Signals) -> None:
    cleaned: list[bool] = []

    def work() -> None:
        with cleaning_up():
            try:
                os.kill(os.getpid(), number)
            finally:
                # Whoever ends several processes may tell one of them twice.
                os.kill(os.getpid(), signal.SIGTERM)
                cleaned.append(True)

    with pytest.raises(SystemExit, match="143"):
        work()
    assert cleaned == [True]
    assert [signal.getsignal(one) for one in BOTH] == [signal.SIG_DFL] * 2


class Collected:
    """Is told to end while it is being collected, where Python only prints exceptions."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("usual")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("again", "heard"), [(None, "in the end"), (1.0, "in the end"), (60.0, "at once")]
)
def test_a_signal_that_was_lost_is_heard(
    again: float | None, heard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next one, unless that comes while it may still be cleaning up; else in the end."""
    went_on: list[str] = []

    def work() -> None:
        with cleaning_up():
            one = Collected()
            del one
            went_on.append("at once")
            if again is not None:
                later = time.monotonic() + again
                monkeypatch.setattr(time, "monotonic", lambda: later)
                os.kill(os.getpid(), signal.SIGTERM)
            went_on.append("in the end")

    with pytest.raises(SystemExit, match="143"):
        work()
    assert went_on[-1] == heard


@pytest.mark.usefixtures("usual")
def test_whoever_takes_a_signal_keeps_it() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with cleaning_up():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    with interruptible():
        before = signal.getsignal(signal.SIGTERM)
        with cleaning_up():
            assert signal.getsignal(signal.SIGTERM) is before


def test_in_a_thread_of_its_own_it_changes_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with cleaning_up():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]

"""Progress of several hosts on a terminal: each in its line, and nothing said is lost in it."""

from __future__ import annotations

import io
import itertools

import pytest
from rich.console import Console

from roost import progress


def test_a_terminal_has_one_line_for_each_host_under_way() -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=40, highlight=False)
    display = progress.Display(console)
    with display.live:
        display.say("spark-01", "[##..]  50% smoke: point 1 of 2")
        display.say("spark-02", "[....]   0% smoke: point 1 of 2, warm-up")
        both = terminal.getvalue()
        with display.aside("spark-01"):
            before = len(terminal.getvalue())
            console.print("spark-01 is done")
            alone = terminal.getvalue()[before:]
        before = len(terminal.getvalue())
        display.say("spark-02", "[##..]  50% smoke: point 2 of 2")
        rest = terminal.getvalue()[before:]
    # Cut to the terminal's width, so that a line is a line.
    assert "spark-02: [....]   0% smoke: point 1 of…" in both
    assert "spark-01: [##..]  50% smoke: point 1 of" in both
    assert alone == "spark-01 is done\n"
    assert "spark-02: [##..]  50% smoke: point 2 of" in rest
    assert "spark-01" not in rest


def test_elsewhere_it_is_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown() as display:
        display.say("spark-01", "point 1 of 2")
        with display.aside("spark-01"):
            print("spark-01 is done")
    said = capsys.readouterr()
    assert (said.err, said.out) == ("spark-01: point 1 of 2\n", "spark-01 is done\n")


def test_what_passes_is_said_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=4)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock) / 2)
    lines = progress.Lines()
    for at in range(12):
        lines.pass_by("lock", f"asking {at} of 12")
    said = capsys.readouterr().err.splitlines()
    assert said == ["lock: asking 5 of 12", "lock: asking 11 of 12"]

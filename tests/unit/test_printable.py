"""What comes from elsewhere cannot write over a terminal."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from roost import doctor_cli, fleet, probing
from roost.cli import cli
from roost.doctor import Check
from roost.errors import RoostError, UsageError
from roost.plan.finding import Finding
from roost.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m\tand\nplain", "red\tand\nplain"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("over\rwritten\r\n", "over\\rwritten\n"),
        ("gone\x08\x7f\x9b2J", "gone\\x08\\x7f\\x9b2J"),
        ("exe.\u202egnp", "exe.\\u202egnp"),
        ("naïve …→ 😀 日本", "naïve …→ 😀 日本"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_what_is_printable_stays_so(text: str) -> None:
    once = printable(text)
    assert printable(once) == once
    assert not {*once} & {"\x1b", "\r", "\x08", "\x9b"}


def test_errors_and_findings_quote_nothing_that_acts() -> None:
    error = UsageError("a\x1b[2J", why="b\x07", fix="c\r")
    assert str(error) == "a\n  why: b\\x07\n  fix: c\\r"
    found = Finding(
        id="shards-missing", severity="error", summary="a\x1b]0;b\x07", why="c", source="d\x1b"
    )
    assert found.text() == "shards-missing: a\\x1b]0;b\\x07\n  why: c\n  source: d\\x1b"


def test_an_error_comes_whole_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(RoostError("a", why="b", fix="c")))  # noqa: S301
    assert (error.what, error.why, error.fix) == ("a", "b", "c")


ACTS = "saw \x1b]0;title\x07 it"


def test_what_hosts_say_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = tmp_path / "hosts.yml"
    listing.write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    check = Check(id="x", severity="fail", saw=ACTS, wants="", why="", fix="")
    examined = doctor_cli.Examined("here", checks=[check])
    monkeypatch.setattr(doctor_cli, "_examine", lambda *_: examined)
    monkeypatch.setattr(probing, "describe", lambda *_: ACTS)
    monkeypatch.setattr(fleet, "ask", lambda *_, **__: ({}, {"here": ACTS}))
    for verb in ("doctor", "probe", "status"):
        said = CliRunner().invoke(cli, [verb, "-i", str(listing)]).output
        assert "saw \\x1b]0;title\\x07 it" in said, verb
        assert "\x1b" not in said

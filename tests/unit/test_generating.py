"""How modules that generate pages answer a wrong command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost.generating import target
from roost.reference import render

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("given", [[], ["a", "b"], ["--spam"]])
def test_anything_but_a_path_is_answered_with_the_usage(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        target("roost.spam", "docs/spam.md", given)
    assert ended.value.code == 2
    assert "usage: python -m roost.spam [-h] PATH" in capsys.readouterr().err


def test_help_is_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        target("roost.spam", "docs/spam.md", ["--help"])
    assert ended.value.code == 0
    assert "docs/spam.md" in capsys.readouterr().out
    assert target("roost.spam", "docs/spam.md", ["x.md"]) == Path("x.md")


@pytest.mark.parametrize("file", ["src/roost/reference.py", "src/roost/pages.py"])
def test_the_generators_ask_for_a_path(file: str) -> None:
    assert "sys.argv" not in (ROOT / file).read_text(encoding="utf-8")


def test_the_reference_names_the_command_that_works() -> None:
    assert "`python -m roost.reference docs/reference.md`" in render()

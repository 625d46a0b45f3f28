"""Where a path leads that somebody gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost import root
from roost.errors import UsageError
from roost.measure.benchmark import planning


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a file in it, seen from its notebooks."""
    for folder in ("playbooks", "notebooks", "kept"):
        (tmp_path / folder).mkdir()
    for file in ("deploy.yml", "kept/a"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path / "notebooks")
    return tmp_path


def test_what_is_there_is_found_from_here_and_from_the_root(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert root.first_place("kept/a") == checkout / "kept" / "a"
    assert root.first_place("../kept/a") == Path("../kept/a")
    assert root.first_place(checkout / "kept" / "a") == checkout / "kept" / "a"
    # A message names what was given.
    assert root.first_place("kept/b") == Path("kept/b")
    (checkout / "notebooks" / "kept").mkdir()
    (checkout / "notebooks" / "kept" / "a").touch()
    assert root.first_place("kept/a") == Path("kept/a")
    monkeypatch.setenv("HOME", str(checkout))
    assert root.first_place("~/kept/a") == checkout / "kept" / "a"


def test_the_home_of_nobody_is_one_message() -> None:
    with pytest.raises(UsageError, match="~nobody-here/x: no such home directory"):
        root.first_place("~nobody-here/x")


def test_prompts_are_found_from_a_notebook_and_from_the_root(checkout: Path) -> None:
    (checkout / "kept" / "mine.jsonl").write_text('{"prompt": "Count to ten."}\n')
    for given in ("kept/mine.jsonl", "../kept/mine.jsonl"):
        planned = planning.plan("smoke", given)
        assert {prompt.text for cell in planned.cells for prompt in cell.prompts} == {
            "Count to ten."
        }
    with pytest.raises(UsageError, match=r"^kept/other: cannot be read"):
        planning.plan("smoke", "kept/other")

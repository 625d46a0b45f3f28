"""Where a path leads that somebody gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost import root


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

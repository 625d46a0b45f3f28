"""Documentation that would otherwise drift."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from tests.playbooks import faults

from roost import reference
from roost.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_reference_is_generated_from_the_code() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == reference.render(), "run: python -m roost.reference docs/reference.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_verb_is_documented() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    context = click.Context(cli)
    for verb in cli.list_commands(context):
        assert f"roost {verb}" in text, f"no page shows `roost {verb}`"
        command = cli.get_command(context, verb)
        assert command
        assert command.help


def test_faults_are_those_that_the_tests_make() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert page == faults.renewed(page), "run: python -m tests.playbooks.faults docs/reliability.md"

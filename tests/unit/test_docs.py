"""Documentation that would otherwise drift."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import click
import nbformat
import papermill.engines  # noqa: F401  # before roost's engine, see there
import pytest
import yaml
from tests.playbooks import faults

from roost import papermill_engine, reference
from roost.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_reference_is_generated_from_the_code() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == reference.render(), "run: python -m roost.reference docs/reference.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s:]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(file), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """What a link may name in a page: its headings, as GitHub spells them."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> list[str]:
    """Command lines of roost in a page's blocks, without comments and what is piped into them."""
    blocks = "".join(re.findall(r"(?ms)^```\w*\n(.*?)^```", text)).replace("\\\n", " ")
    lines = re.findall(r"(?m)^(?:\$ )?(?:.*\| )?(roost .*?)(?: +#.*)?$", blocks)
    return [line.replace("[", " ").replace("]", " ").replace("…", " ") for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_that_they_are_shown_with(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        words, command, context = shlex.split(line)[1:], cli, None
        if words[0] == "--catalog":
            words = words[2:]
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            context = click.Context(command, context)
            command, words = command.get_command(context, words[0]), words[1:]
            assert command, f"{page.name}: no such verb: {line}"
        # Files that are not here, and what is left out of a line, are no fault of the page.
        with contextlib.suppress(click.BadParameter, click.exceptions.Exit):
            command.make_context(line, words, context)


def papermill_lines(text: str) -> list[list[str]]:
    """Words of each command line that runs a notebook, after ``papermill``."""
    lines = re.findall(r"^(?:    )?papermill (notebooks/.*)$", text, re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_papermill_lines_are_taken_by_their_notebooks(page: Path) -> None:
    for notebook, out, *options in papermill_lines(page.read_text(encoding="utf-8")):
        given: dict[str, object] = {}
        while options:
            kind, value = options[:2]
            assert kind in {"-p", "-y"}
            given |= {value: options[2]} if kind == "-p" else yaml.safe_load(value)
            options = options[3 if kind == "-p" else 2 :]
        assert out == "OUT.ipynb"
        nb = nbformat.read(ROOT / notebook, as_version=4)
        papermill_engine.check_parameters(notebook, nb, given)


def test_the_front_page_runs_every_notebook() -> None:
    lines = papermill_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {line[0] for line in lines} == {
        str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb")
    }


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

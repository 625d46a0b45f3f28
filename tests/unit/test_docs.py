"""Documentation that would otherwise drift."""

from __future__ import annotations

import contextlib
import functools
import re
import shlex
from pathlib import Path

import click
import nbformat
import papermill.engines  # noqa: F401  # before roost's engine, see there
import pytest
import yaml
from tests.playbooks import faults

from roost import papermill_engine, reference, site
from roost.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: What acts, and what tries it: pages speak of these.
CODE = ("src", "roles", "playbooks", "plugins", "inventory", "notebooks", "scripts", "benchmarks")
TESTS = ("tests",)

#: An inventory of the reader's own, which docs/gateway.md shows.
OWN = "inventory/fleet"

#: Of other programs, the reader's, or put together in the code: rightly nowhere in what acts.
OTHERS = {
    *("any_errors_fatal", "max_fail_percentage", "max_model_length"),
    *("abort_requests", "estimate_cache", "estimate_vram", "extract_model_info"),
    *("spec_accept_rate", "draft_window_size", "max_total_num_tokens"),
    *("forward_local", "oom_score", "job_name", "rule_files", "scrape_configs", "static_configs"),
    *("answer_capital", "answer_sum", "reasoning_parser", "tool_parser"),
    *("drafter_text", "target_text", "vault_alice_key", "ROOST_MIRROR_KEY"),
    *("--block-size", "--num-gpu-blocks-override", "--execute", "--forks", "--link", "--prefer"),
    *("--ctdir", "--ctorigdstport"),
}


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


def code(page: Path) -> list[str]:
    """What a page has in its blocks, line by line without comments, and between backticks."""
    text = page.read_text(encoding="utf-8")
    block = r"(?ms)^ *```\w*\n(.*?)^ *```"
    lines = "".join(re.findall(block, text)).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`([^`]+)`", re.sub(block, "", text))
    return [
        *(re.sub(r"(^| +)#.*", "", line) for line in lines),
        *(" ".join(span.split()) for span in spans),
    ]


def commands(page: Path) -> list[str]:
    """Command lines of roost in a page, without what is piped into them."""
    lines = re.findall(r"(?m)(?:^|\$ |[|;] )(?:time )?(roost [^|;\n]*)", "\n".join(code(page)))
    return [line.replace("[", " ").replace("]", " ").replace("…", " ") for line in lines]


@functools.cache
def words_of_the_code() -> frozenset[str]:
    """Every name and every option in what acts; of what tries it, the files' names too."""
    found: set[str] = set()
    acts = [ROOT / "ansible.cfg", *(file for it in CODE for file in (ROOT / it).rglob("*"))]
    tries = [file for it in TESTS for file in (ROOT / it).rglob("*")]
    for file in acts:
        if file.suffix in {".py", ".yml", ".j2", ".sh", ".ipynb", ".cfg"}:
            text = file.read_text(encoding="utf-8")
            found |= set(re.findall(r"--[a-z][a-z-]*[a-z]|\w+", text))
    found |= {file.stem for file in (*acts, *tries)}
    return frozenset(found)


def options(command: click.Command, context: click.Context | None = None) -> set[str]:
    """The options of a command and of those within it."""
    context = click.Context(command, context)
    found = {option for taken in command.get_params(context) for option in taken.opts}
    found |= {option for taken in command.get_params(context) for option in taken.secondary_opts}
    if isinstance(command, click.Group):
        for verb in command.list_commands(context):
            inner = command.get_command(context, verb)
            assert inner
            found |= options(inner, context)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_options_that_they_are_shown_with(page: Path) -> None:
    for line in commands(page):
        words, command, context = shlex.split(line)[1:], cli, None
        if words[:1] == ["--catalog"]:
            words = words[2:]
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            context = click.Context(command, context)
            command, words = command.get_command(context, words[0]), words[1:]
            assert command, f"{page.name}: no such verb: {line}"
        if isinstance(command, click.Group) and not words:
            continue
        # Files that are not here, and what is left out of a line, are no fault of the page.
        with contextlib.suppress(click.BadParameter, click.BadOptionUsage, click.exceptions.Exit):
            command.make_context(line, words, context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_playbooks_take_what_they_are_shown_with(page: Path) -> None:
    for line in code(page):
        for playbook in re.findall(r"ansible-playbook (\S+\.yml)", line):
            assert (ROOT / playbook).is_file(), f"{page.name}: no such playbook: {line}"
            imported = ROOT / "playbooks" / Path(playbook).name
            for name in re.findall(r"-e (\w+)=", line):
                text = imported.read_text(encoding="utf-8")
                assert name in text, f"{page.name}: {imported.name} has no {name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_and_names_are_those_of_the_code(page: Path) -> None:
    known = words_of_the_code() | options(cli) | OTHERS
    known |= set(site.known_variables())
    spelled = r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w…-])|\b(?:[a-z]+(?:_[a-z0-9]+)+|ROOST_[A-Z_]+)\b"
    found = {word: said for said in code(page) for word in re.findall(spelled, said)}
    assert {word: said for word, said in found.items() if word not in known} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_are_there(page: Path) -> None:
    targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
    for said in code(page):
        for target in re.findall(r"\bmake ([a-z-]+)", said):
            assert target in targets, f"{page.name}: no such target: {said}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_checkout_are_there(page: Path) -> None:
    folders = "|".join((*CODE, *TESTS, "docs"))
    for said in code(page):
        for path in re.findall(rf"(?<![\w/.~-])((?:{folders})/[\w./*-]*\w)", said):
            if path.startswith(OWN) and "gateway.md" in page.read_text(encoding="utf-8"):
                continue
            assert list(ROOT.glob(path)), f"{page.name}: {path} is not there: {said}"


def test_the_inventory_that_is_not_there_is_shown() -> None:
    page = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
    assert f"# {OWN}/hosts.yml\n" in page


def test_every_page_is_reached_from_the_front_page() -> None:
    reached, ahead = set(), [PAGES[0]]
    while ahead:
        page = ahead.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in re.findall(r"\]\(([^)\s:#]+)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            if target.is_dir():
                ahead += target.glob("*.md")
            elif target.suffix == ".md":
                ahead.append(target)
    assert set(PAGES) - reached == set()


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

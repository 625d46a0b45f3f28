"""Follows docs/adding-a-recipe.md as a newcomer would: its files written, its commands run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from roost import lock
from roost.site import from_variables

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-recipe.md"
TEXT = PAGE.read_text(encoding="utf-8")
RECIPE = "example-35b-nvfp4-dflash"
NOBODY = "http://127.0.0.1:9"


class Step(NamedTuple):
    """A fenced block, and the last line of prose before it."""

    said: str
    language: str
    text: str


STEPS = [
    Step(*found.groups())
    for found in re.finditer(r"([^\n]*)\n\n```(\w+)\n(.*?)```", TEXT, re.DOTALL)
]


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """One command of the page, where neither hub nor registry can be reached."""
    words = shlex.split(command)
    if words[0] == "roost":
        words = [sys.executable, "-m", "roost.cli", *words[1:]]
    if "lock" in words:
        words += ["--registry", NOBODY]
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "HF_ENDPOINT": NOBODY},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The page followed to its end: where, and what each command printed."""
    folder = tmp_path_factory.mktemp("newcomer")
    printed = {}
    for step in STEPS:
        if file := re.match(r"`(own/\S+\.yml)`(, further)?:", step.said):
            with (folder / file[1]).open("a" if file[2] else "x", encoding="utf-8") as target:
                target.write(step.text)
        elif step.language == "sh":
            for command in step.text.splitlines():
                done = run(command, folder)
                # Only what asks hub and registry may fail, and says so.
                failed = done.returncode == 1 and "cannot be reached" in done.stderr
                assert done.returncode == 0 or ("lock" in command and failed), done.stderr
                assert "Traceback" not in done.stderr
                printed[command] = done.stdout
    return folder, printed


def test_every_block_is_followed_or_known() -> None:
    assert [step.language for step in STEPS] == [
        "sh",
        "yaml",
        "yaml",
        "sh",
        "text",
        "sh",
        "yaml",
        "sh",
        "yaml",
    ]


def test_the_recipe_is_listed_shown_and_complete(followed: tuple[Path, dict[str, str]]) -> None:
    _, printed = followed
    table = printed["roost --catalog own recipes"]
    assert any(line.startswith(RECIPE) and "yes" in line for line in table.splitlines())
    docker = printed[f"roost --catalog own show {RECIPE} --on gb10"]
    assert "vllm/vllm-openai:v0.26.0" in docker
    assert '"num_speculative_tokens":4' in docker
    plain = printed[f"roost --catalog own show {RECIPE} --on gb10 --speculation none --format argv"]
    assert "--speculative-config" not in plain
    plan = printed[f"roost --catalog own plan {RECIPE} --on gb10"]
    assert "KV pool:" in plan
    assert "untested" not in plan
    details = json.loads(printed[f"roost --catalog own recipes {RECIPE} --json"])
    assert details["hardware"]["gb10"] == "verified"
    assert len(details["details"]["figures"][0]["rows"]) == 2


def test_the_mistake_reads_as_the_page_says(
    followed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    folder, _ = followed
    (tmp_path / "own" / "recipes").mkdir(parents=True)
    written = (folder / "own" / "recipes" / f"{RECIPE}.yml").read_text()
    (tmp_path / "own" / "recipes" / f"{RECIPE}.yml").write_text(
        written.replace("max_model_len:", "max_model_length:")
    )
    done = run("roost --catalog own recipes", tmp_path)
    (shown,) = (step.text for step in STEPS if step.language == "text")
    assert done.stderr.splitlines()[0].replace(f"{tmp_path}/", "") == "roost: " + shown.strip()


def test_the_lock_is_read_by_a_deploy(followed: tuple[Path, dict[str, str]]) -> None:
    folder, _ = followed
    variables = yaml.safe_load(STEPS[-1].text)
    given = from_variables("spark-01", variables)
    assert given.recipe == RECIPE
    # Nobody answered, and the recipe pins nothing in full: there is nothing to lock.
    assert lock.read(given.lock_path(folder)) == lock.Lock()

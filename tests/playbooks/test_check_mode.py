"""``--check --diff`` before anything is installed: it shows what would happen, and none is done."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.playbooks.playbook import ROOT, Play, deploy, inventory, state
from tests.unit.deployments import ORNITH
from tests.unit.source_000 import (
    AUTHOR_COMMAND,
    AUTHOR_DIGEST,
    AUTHOR_ENV,
    AUTHOR_IPC,
    AUTHOR_PUBLISHED,
    DRAFTER,
    flags,
)
from tests.unit.source_000 import MODEL as TARGET

from roost.lab.fixtures import SharedLab

pytestmark = pytest.mark.lab

DIGEST = AUTHOR_DIGEST["gb10"]


def launch(play: Play) -> list[str]:
    """The docker command that a run in check mode showed, as words."""
    shown = re.search(
        r"^TASK \[llm_server : Show what would run\].*?msg: \|-\n(.*?)\n\n",
        play.output,
        re.MULTILINE | re.DOTALL,
    )
    assert shown, play.output
    return shell_words(textwrap.dedent(shown[1]))


def shell_words(text: str) -> list[str]:
    """A command over several lines, as a shell reads it (shlex keeps escaped line ends)."""
    return shlex.split(text.replace("\\\n", " "))


def options(words: list[str]) -> list[tuple[str, str]]:
    """Options and their values, in their order; what is no option counts as one without a name."""
    found = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        takes_value = word.startswith("-") and rest and not rest[0].startswith("-")
        found.append((word, rest.pop(0)) if takes_value else (word, ""))
    return found


def split(words: list[str]) -> tuple[list[tuple[str, str]], str, list[str]]:
    """A docker command as its options, its image, and what follows it."""
    serve = words.index("serve")
    return options(words[2 : serve - 1]), words[serve - 1], words[serve:]


def test_a_clean_host_is_shown_everything_and_left_alone(
    lab: SharedLab, tmp_path: Path, standin_lock: str, standins: dict[str, str]
) -> None:
    host = lab.host("gb10", docker=False)
    where = inventory(
        tmp_path / "inventory", lab.lab, [host], roost_recipe=ORNITH, roost_lock_file=standin_lock
    )
    before = state(host)
    play = deploy(where, "--check", "--diff")
    assert play.code == 0, play.output
    assert state(host) == before
    assert "would install: docker.io, python3-requests" in play.output
    assert f"would pull {lab.lab.site.registry}/vllm/vllm-openai@{DIGEST}" in play.output
    for repo, commit in standins.items():
        assert re.search(
            rf"after: {re.escape(repo)}@{commit[:12]}\S* on "
            rf"{re.escape(lab.lab.site.hub_url)}, [\d,]+ bytes to fetch",
            play.output,
        )
    assert re.search(r"^\+ +\d+ model-00001-of-00001\.safetensors$", play.output, re.MULTILINE)
    assert launch(play)[:3] == ["docker", "run", "-d"]


def test_the_spark_inventory_launches_the_quick_start_of_its_source(
    lab: SharedLab, tmp_path: Path, standin_lock: str, standins: dict[str, str]
) -> None:
    host = lab.host("gb10")
    # inventory/spark as it is; beside it only where this spark-01 is and what it can reach.
    reached: dict[str, Any] = lab.lab.inventory()["all"]["vars"]
    here = {
        **{name: value for name, value in reached.items() if name.startswith("ansible_")},
        "roost_hub_endpoint": lab.lab.site.hub_url,
        "ansible_host": str(host.address),
        "roost_lock_file": standin_lock,
    }
    beside = tmp_path / "lab.yml"
    beside.write_text(yaml.safe_dump({"all": {"hosts": {"spark-01": here}}}))
    before = state(host)
    play = deploy(ROOT / "inventory" / "spark", "-i", str(beside), "--check")
    assert play.code == 0, play.output
    assert state(host) == before

    docker, image, engine = split(launch(play))

    # What of Docker's options is the author's, and what roost says differently.
    assert image == f"vllm/vllm-openai@{DIGEST}"  # nightly moves; the card names this digest
    models = "/var/lib/roost/models"
    target = f"{models}/{TARGET.replace('/', '--')}/{standins[TARGET]}"
    drafter = f"{models}/{DRAFTER.replace('/', '--')}/{standins[DRAFTER]}"
    theirs = [
        ("-d", ""),
        ("--gpus", "all"),
        ("--ipc", AUTHOR_IPC["gb10"]),
        ("--entrypoint", "vllm"),
        *(("-e", f"{name}={value}") for name, value in AUTHOR_ENV["gb10"].items()),
        # The author mounts a cache and one directory: the container fetches the drafter. Here it
        # fetches nothing, and both revisions are mounted.
        ("-v", f"{target}:/model:ro"),
        ("-v", f"{drafter}:/drafter:ro"),
        # On loopback instead of every address.
        ("-p", f"127.0.0.1:{AUTHOR_PUBLISHED}"),
    ]
    added = [
        ("--name", "roost-llm"),
        ("--pids-limit", "4096"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--log-opt", "max-size=50m"),
        ("--log-opt", "max-file=3"),
        ("--label", f"roost.recipe={ORNITH}"),
        ("--label", "roost.hardware=gb10"),
        ("--label", "roost.speculation=dflash"),
        ("--label", f"roost.model={TARGET}@{standins[TARGET]}"),
        ("--label", f"roost.drafter={DRAFTER}@{standins[DRAFTER]}"),
        ("-e", "HF_HUB_OFFLINE=1"),
        ("-e", "VLLM_NO_USAGE_STATS=1"),
    ]
    assert sorted(docker) == sorted(theirs + added)

    # The engine's own options: all of theirs, the drafter by its mount, and a name to be asked by.
    assert engine[:2] == ["serve", "/model"]
    expected = {**AUTHOR_COMMAND["gb10"], "--served-model-name": "ornith-1.0-35b"}
    speculative = {**expected["--speculative-config"], "model": "/drafter"}
    assert flags(engine[2:]) == {**expected, "--speculative-config": speculative}

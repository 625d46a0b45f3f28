"""Choices of speculation against each other, on a deployed lab host with the real engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.notebooks.conftest import Deployed
from tests.notebooks.readme import Checkout
from tests.playbooks.playbook import ROOT

from roost import runs
from roost.measure import choices, compare, points

pytestmark = [pytest.mark.lab, pytest.mark.engine]

#: The drafter was trained on it.
PROMPT = {"prompt": "Explain what an LRU cache is.", "category": "learned"}


def test_three_choices_are_one_command_and_the_host_is_back(
    deployed: Deployed, tmp_path: Path
) -> None:
    checkout = Checkout(tmp_path, deployed.where, deployed.host.name)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps(PROMPT))
    before = release(deployed)
    program = Path(sys.executable).with_name("roost")
    command = [program, "compare", "--deploy", "dflash,ngram,none", "-i", checkout.inventory]
    command += ["--host", "spark-01", "--suite", "smoke", "--prompts", prompts]
    command += ["--runs", checkout.runs, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert release(deployed) == before
    assert deployed.host.exec(["readlink", "/var/lib/roost/releases/held"]).returncode != 0

    (outcome,) = json.loads(done.stdout)
    result = runs.read(Path(outcome["run"]))
    assert result.failed == []
    found = {run.result.speculation: run for run in compared(checkout.runs)}
    assert set(found) == {"dflash", "ngram", "none"}
    # The verdict agrees with the counters: what is faster than without drafts had some accepted.
    cells = choices.shared(list(found.values()))
    for one in choices.recommend(cells):
        if one.choice not in {None, "none"}:
            (cell,) = found[one.choice].benchmark.cells
            steps = choices.tokens_per_step(cell)
            assert steps is not None
            assert steps.value > 1.05
    (cell,) = found["dflash"].benchmark.cells
    length = points.metric("accept_length").estimate(cell)
    assert length is not None
    assert length.value > 1.05
    ids = [check.id for check in result.checks]
    assert {"recommend learned-c1", "counters learned-c1 dflash"} <= set(ids)

    # The faster of two is not worse than the other one.
    speed = points.metric("output_throughput")
    throughput = {name: speed.estimate(run.benchmark.cells[0]) for name, run in found.items()}
    slow, fast = sorted(("dflash", "none"), key=lambda name: throughput[name].value)  # type: ignore[union-attr]
    before_it = set(checkout.runs.iterdir())
    done = checkout.run("compare", BASELINE=found[slow].name, OTHER=found[fast].name)
    assert done.returncode == 0, done.stderr
    (folder,) = set(checkout.runs.iterdir()) - before_it
    whole = [f"run {found[name].name}" for name in (slow, fast)]
    held = [check.id for check in runs.read(folder).checks if check.ok]
    assert sorted(held) == sorted([*whole, "learned-c1"])


def release(deployed: Deployed) -> str:
    """Id of the release in place."""
    return deployed.host.exec(["readlink", "/var/lib/roost/releases/current"]).stdout.strip()


def compared(folder: Path) -> list[compare.Compared]:
    """The benchmarks among the runs."""
    kept = [path.parent for path in folder.glob("*/benchmark.json")]
    return compare.load(sorted(kept))

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

# Four starts of the engine and twelve loads: minutes, and more on a machine with other work.
pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(1800)]

#: The drafter was trained on the one, and has never seen the like of the other.
PROMPTS = [
    {"prompt": "Explain what an LRU cache is.", "category": "learned"},
    {"prompt": "Who wrote Hamlet?", "category": "unseen"},
]


def test_three_choices_are_one_command_and_the_host_is_back(
    deployed: Deployed, tmp_path: Path
) -> None:
    checkout = Checkout(tmp_path, deployed.where, deployed.host.name)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps(prompt)}\n" for prompt in PROMPTS))
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
    # The verdict of each kind agrees with the counters: what is faster than without drafts had some
    # accepted.
    cells = choices.shared(list(found.values()))
    by_kind = {name: {cell.id: cell for cell in run.benchmark.cells} for name, run in found.items()}
    kinds = {"learned-c1", "unseen-c1"}
    for one in choices.recommend(cells):
        if one.point in kinds and one.choice not in {None, "none"}:
            steps = choices.tokens_per_step(by_kind[one.choice][one.point])
            assert steps is not None
            assert steps.value > 1.05
    learned, unseen = (
        points.metric("accept_length").estimate(by_kind["dflash"][kind]) for kind in sorted(kinds)
    )
    assert learned is not None
    assert unseen is not None
    assert learned.value > 1.05
    assert learned.value > unseen.value
    ids = {check.id for check in result.checks}
    assert {f"recommend {kind}" for kind in kinds} <= ids
    assert {f"counters {kind} dflash" for kind in kinds} <= ids

    # The faster of two is not worse than the other one.
    speed = points.metric("output_throughput")
    throughput = {name: speed.estimate(cells["learned-c1"]) for name, cells in by_kind.items()}
    slow, fast = sorted(("dflash", "none"), key=lambda name: throughput[name].value)  # type: ignore[union-attr]
    before_it = set(checkout.runs.iterdir())
    done = checkout.run("compare", BASELINE=found[slow].name, OTHER=found[fast].name)
    (folder,) = set(checkout.runs.iterdir()) - before_it
    checks = runs.read(folder).checks
    # Of what the drafter has never seen it may be the slower one, and then that is said.
    assert (done.returncode == 0) == all(check.ok for check in checks), done.stderr
    whole = [f"run {found[name].name}" for name in (slow, fast)]
    held = [check.id for check in checks if check.ok]
    assert {*whole, "learned-c1"} <= set(held)


def release(deployed: Deployed) -> str:
    """Id of the release in place."""
    return deployed.host.exec(["readlink", "/var/lib/roost/releases/current"]).stdout.strip()


def compared(folder: Path) -> list[compare.Compared]:
    """The benchmarks among the runs."""
    kept = [path.parent for path in folder.glob("*/benchmark.json")]
    return compare.load(sorted(kept))

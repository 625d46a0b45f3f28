"""Deployments against each other, on a lab host with the real engine: choices of speculation, and
settings.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.notebooks.conftest import Deployed
from tests.notebooks.readme import Checkout
from tests.playbooks.playbook import ROOT

from roost import experiment, releases, runs
from roost import inventory as inventories
from roost.deployment import from_variables
from roost.launch.container import CONTAINER
from roost.measure import choices, compare, points
from roost.tuning import concluding

pytestmark = [pytest.mark.lab, pytest.mark.engine]

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
    assert not holding(deployed)

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


def test_settings_are_searched_by_the_line_of_the_readme(
    deployed: Deployed, tmp_path: Path
) -> None:
    checkout = Checkout(tmp_path, deployed.where, deployed.host.name)
    before, command = release(deployed), list(deployed.deployment().spec.command)
    done = checkout.run("tune")
    assert done.returncode == 0, done.stderr
    assert release(deployed) == before
    assert not holding(deployed)
    serves = deployed.host.exec(["docker", "inspect", CONTAINER]).stdout
    assert json.loads(serves)[0]["Config"]["Cmd"] == command

    (file,) = checkout.runs.glob(f"*/{concluding.SNIPPET}")
    result = runs.read(file.parent)
    checks = {check.id: check.observed for check in result.checks}
    # One of the line's two values is what the host has already.
    assert checks["points"].startswith("2 measured, 0 failed, 0 refused")
    notes = experiment.Notes.model_validate_json((file.parent / experiment.FILE).read_text())
    tried = {one.name: one for one in notes.tried}
    assert {name: one.settings["max_num_seqs"] for name, one in tried.items()} == {
        "present": 4,
        "sequences 2": 2,
    }
    for name, one in tried.items():
        assert one.run is not None
        measured = points.read(Path(one.run))
        assert measured.complete
        figure = result.figures[f"{name}.c1.throughput"]
        raw = [
            json.loads((Path(one.run) / repetition.raw).read_text())["output_throughput"]
            for cell in measured.cells
            for repetition in cell.repetitions
        ]
        assert min(raw) <= figure.value <= max(raw)

    # The snippet where docs/tune.md has it go: the planner takes it, for that very release.
    variables = checkout.inventory / "host_vars"
    variables.mkdir()
    (variables / "spark-01.yml").write_text(file.read_text())
    program = Path(sys.executable).with_name("roost")
    plan = [program, "plan", "-i", checkout.inventory]
    planned = subprocess.run(plan, cwd=ROOT, capture_output=True, text=True, check=False)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    host = inventories.load(checkout.inventory).host("spark-01")
    chosen = releases.release(from_variables(host.name, host.variables, ROOT))
    assert chosen["id"] == tried[checks["chosen"]].release


def release(deployed: Deployed) -> str:
    """Id of the release in place."""
    return deployed.host.exec(["readlink", "/var/lib/roost/releases/current"]).stdout.strip()


def holding(deployed: Deployed) -> str:
    """Id of the release that the host is to keep for an experiment; empty without one."""
    return deployed.host.exec(["readlink", "/var/lib/roost/releases/held"]).stdout.strip()


def compared(folder: Path) -> list[compare.Compared]:
    """The benchmarks among the runs."""
    kept = [path.parent for path in folder.glob("*/benchmark.json")]
    return compare.load(sorted(kept))

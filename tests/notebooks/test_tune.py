"""The search for settings on a lab host: real deploys and planner, the stand-in as the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.notebooks.conftest import Deployed
from tests.playbooks.playbook import ROOT, deploy, inventory

from roost import fleet, tuning
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab

pytestmark = [pytest.mark.lab, pytest.mark.engine]


def test_more_sequences_are_found_and_the_real_engine_serves_again(
    deployed: Deployed, lab: SharedLab, tmp_path: Path
) -> None:
    # One seat of the stand-in serves four users one after the other, four serve them together.
    settings = {
        "image": standin_image(lab.lab.cache, print),
        "extra_args": ["--standin-tokens-per-second=1000"],
        "max_num_seqs": 1,
    }
    where = inventory(
        tmp_path / "site",
        lab.lab,
        [deployed.host],
        roost_recipe="smollm2-135m",
        roost_lock_file=str(lab.lab.lock_file),
        roost_settings=settings,
    )
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"Say {n}."}) for n in range(8)))
    before = release(deployed)
    program = Path(sys.executable).with_name("roost")
    command = [program, "tune", "-i", where, "--host", deployed.host.name, "--suite", "matrix"]
    command += ["--prompts", prompts, "--vary", "max_num_seqs=4", "--vary"]
    command += ["max_model_len=2048,1000000", "--users", "4", "--runs", tmp_path / "runs", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert release(deployed) == before

    (outcome,) = json.loads(done.stdout)
    checks = {check["id"]: check for check in outcome["result"]["checks"]}
    assert checks["points"]["observed"].startswith("2 measured, 0 failed, 2 refused")
    assert "context 1000000: context-beyond-model" in checks["points"]["why"]
    assert checks["chosen"]["observed"] == "sequences 4"
    snippet = Path(outcome["run"]) / tuning.SNIPPET
    written = yaml.safe_load(snippet.read_text())
    assert written == {"roost_settings": {**settings, "max_num_seqs": 4}}
    # As it is, for the very deploy that it is meant for.
    play = deploy(where, "--check", "--tags", "preflight", "-e", f"@{snippet}")
    assert play.code == 0, play.output
    found, _ = fleet.ask("status", "Read the releases", where)
    assert found[deployed.host.name]["engine"]["healthy"]


def release(deployed: Deployed) -> str:
    """Id of the release in place."""
    return deployed.host.exec(["readlink", "/var/lib/roost/releases/current"]).stdout.strip()

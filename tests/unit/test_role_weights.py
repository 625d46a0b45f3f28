"""The role looks for weights, run by Ansible on this machine, with a hub that is down."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.unit.deployments import deployment
from tests.unit.plays import ansible

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: model_store, tasks_from: begin.yml}
"""


def play(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    weights = deployment(folder, model_dir=str(folder / "models")).model_dump(mode="json")
    variables = {
        "model_store_weights": weights["weights"],
        "model_store_endpoint": "http://127.0.0.1:9",
    }
    (folder / "vars.json").write_text(json.dumps(variables))
    (folder / "play.yml").write_text(PLAY)
    return ansible(
        *("-i", "localhost,", "-c", "local", str(folder / "play.yml")),
        *("-e", f"@{folder / 'vars.json'}", *options),
    )


def test_a_hub_that_is_down_is_no_obstacle_in_check_mode(tmp_path: Path) -> None:
    done = play(tmp_path, "--check")
    assert done.returncode == 0, done.stdout
    assert "changed=1" in done.stdout


def test_otherwise_it_fails_before_anything_is_installed(tmp_path: Path) -> None:
    done = play(tmp_path)
    assert done.returncode != 0
    assert "the hub cannot be reached" in done.stdout
    assert "Prepare the hub" not in done.stdout

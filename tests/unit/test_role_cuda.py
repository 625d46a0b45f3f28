"""The role's own tasks that try CUDA, run by Ansible on this machine with a Docker of two lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.deployments import deployment
from tests.unit.processes import working

ROOT = Path(__file__).parents[2]
JOB = "4321.8765"
CARD = {"name": "NVIDIA GeForce RTX 5070 Ti", "free": 15 << 30, "total": 16 << 30}


def play(folder: Path, says: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``cuda.yml`` where ``docker run`` prints this; what it was asked is kept beside."""
    tools = folder / "bin"
    tools.mkdir()
    docker = tools / "docker"
    docker.write_text(
        f"#!/bin/sh\necho \"$@\" > {folder}/argv\ncat > {folder}/stdin\necho '{json.dumps(says)}'\n"
    )
    docker.chmod(0o755)
    variables = {
        "llm_server_deployment": deployment(folder, "rtx5070ti-x2", allow_unlocked=True).model_dump(
            mode="json"
        ),
        "__llm_server_awaited": {"skipped": True},
        "llm_server_beside": [{"name": "org/model", "job": str(folder / JOB), "path": "/x"}],
    }
    (folder / "vars.json").write_text(json.dumps(variables))
    (folder / "play.yml").write_text(
        "- hosts: localhost\n"
        "  gather_facts: false\n"
        "  tasks:\n"
        "    - ansible.builtin.import_role: {name: llm_server, tasks_from: cuda.yml}\n"
    )
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("ansible-playbook")),
            *("-i", "localhost,", "-c", "local", str(folder / "play.yml")),
            *("-e", f"@{folder / 'vars.json'}"),
            *("-e", f"ansible_python_interpreter={sys.executable}", *options),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_says_what_it_saw(tmp_path: Path) -> None:
    with working(JOB) as process:
        done = play(tmp_path, {"driver": 13010, "devices": [CARD, CARD]})
        assert process.poll() is None
    assert done.returncode == 0, done.stdout
    assert "CUDA starts in the image: NVIDIA GeForce RTX 5070 Ti with 15.0 of" in done.stdout
    assert (
        (tmp_path / "argv").read_text().startswith("run --rm --interactive --network none --gpus")
    )
    assert "cuDevicePrimaryCtxRetain" in (tmp_path / "stdin").read_text()
    assert "changed=0" in done.stdout


def test_it_fails_with_the_cause(tmp_path: Path) -> None:
    text = "forward compatibility was attempted on non supported HW"
    with working(JOB) as process:
        done = play(tmp_path, {"call": "cuInit", "code": 804, "name": "CUDA_ERROR_X", "text": text})
        assert process.wait(10) == -9
    assert done.returncode != 0
    assert done.stdout.count("fatal:") == 1
    assert "cause: the driver is older than CUDA in the image" in done.stdout
    assert "upgrade the driver" in done.stdout


def test_in_check_mode_nothing_is_run(tmp_path: Path) -> None:
    done = play(tmp_path, {}, "--check")
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "argv").exists()

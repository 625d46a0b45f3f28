"""The role's own tasks that try CUDA, run by Ansible on this machine with a Docker of two lines."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.unit import plays
from tests.unit.deployments import deployment
from tests.unit.processes import job_name, working

JOB = job_name()
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
    wanted = deployment(folder, "rtx5070ti-x2", allow_unlocked=True)
    variables = {
        "llm_server_deployment": wanted.model_dump(mode="json"),
        "__llm_server_awaited": {"skipped": True},
        "llm_server_beside": [{"name": "org/model", "job": str(folder / JOB), "path": "/x"}],
    }
    return plays.tasks(
        ["cuda.yml"], folder, variables, *options, PATH=f"{tools}:{os.environ['PATH']}"
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
        assert process.wait(60) == -9
    assert done.returncode != 0
    assert done.stdout.count("fatal:") == 1
    assert "cause: the driver is older than CUDA in the image" in done.stdout
    assert "upgrade the driver" in done.stdout


def test_in_check_mode_nothing_is_run(tmp_path: Path) -> None:
    done = play(tmp_path, {}, "--check")
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "argv").exists()

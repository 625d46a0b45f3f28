"""The role's own tasks after a pull that ended, run by Ansible on this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit import plays
from tests.unit.deployments import deployment
from tests.unit.processes import job_name, working

JOB, BESIDE = job_name(), job_name()
STARTED = {"started": True, "finished": False}


def play(
    folder: Path,
    result: dict[str, Any],
    beside: dict[str, Any] | None = None,
    tasks: Sequence[str] = ("image.yml",),
) -> subprocess.CompletedProcess[str]:
    """Run tasks of the role after background jobs that left such records.

    Args:
        folder: For everything.
        result: What the pull left.
        beside: What the job left that goes on beside it.
        tasks: Their files.
    """
    jobs = folder / "jobs"
    jobs.mkdir()
    (jobs / JOB).write_text(json.dumps(result))
    if beside:
        (jobs / BESIDE).write_text(json.dumps(beside))
    wanted = deployment(folder).model_dump(mode="json")
    wanted["other_images"] = "take another"
    variables = {
        "llm_server_deployment": wanted,
        "__llm_server_pull": {"ansible_job_id": JOB, "results_file": str(jobs / JOB)},
        "llm_server_beside": [
            {"name": "org/model", "job": str(jobs / BESIDE), "path": str(folder / "x")}
        ]
        if beside
        else [],
    }
    return plays.tasks(
        tasks,
        folder,
        variables,
        ANSIBLE_ASYNC_DIR=str(jobs),
        ANSIBLE_FILTER_PLUGINS=str(plays.ROOT / "plugins" / "filter"),
    )


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("manifest for x@sha256:1 not found: manifest unknown", "take another"),
        ("toomanyrequests: You have reached your pull rate limit", "log in on the host"),
    ],
)
def test_a_failed_pull_is_one_message_with_its_cause(tmp_path: Path, said: str, fix: str) -> None:
    done = play(tmp_path, {"failed": True, "msg": f"Error pulling image: {said}", "finished": 1})
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.count("fatal:") == 1
    text = " ".join(done.stdout.split())
    assert said in text
    assert fix in text


def test_a_pull_that_came_is_forgotten(tmp_path: Path) -> None:
    done = play(tmp_path, {"changed": True, "image": {"Id": "x"}, "finished": 1})
    assert done.returncode == 0, done.stdout + done.stderr
    assert list((tmp_path / "jobs").iterdir()) == []


def test_an_image_that_does_not_come_ends_the_weights_too(tmp_path: Path) -> None:
    with working(BESIDE) as process:
        done = play(tmp_path, {"failed": True, "msg": "no", "finished": 1}, beside=STARTED)
        assert process.wait(60) == -9
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.count("fatal:") == 1
    assert not (tmp_path / "jobs" / BESIDE).exists()


def test_weights_that_fail_first_are_not_waited_for(tmp_path: Path) -> None:
    """Whoever waits for them says so; CUDA is not tried in an image that is not there."""
    failed = {"failed": True, "msg": "gated", "finished": 1}
    with working(JOB):
        done = play(tmp_path, STARTED, beside=failed, tasks=("image.yml", "cuda.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipping: [localhost]" in done.stdout.partition("Try CUDA in the image")[2]
    assert (tmp_path / "jobs" / JOB).exists()

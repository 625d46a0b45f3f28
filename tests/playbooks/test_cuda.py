"""CUDA is tried in the image before the weights come.

On a host that plays two cards Docker hands out GPUs, and the stand-in for NVIDIA's hook puts no
libcuda into the container: what a broken toolkit does too, and the real program meets it for real.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbooks.playbook import deploy, inventory
from tests.unit.deployments import ORNITH

from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab

pytestmark = pytest.mark.lab


def test_an_image_in_which_cuda_does_not_start_costs_no_weights(
    artefacts: Artefacts,  # noqa: ARG001  # the stand-in stands on the engine's base
    lab: SharedLab,
    standin_lock: str,
    tmp_path: Path,
) -> None:
    host = lab.host("rtx5070ti-x2")
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        roost_hardware="rtx5070ti-x2",
        roost_recipe=ORNITH,
        roost_lock_file=standin_lock,
        roost_settings={"image": standin_image(lab.lab.cache, print)},
        # What a plan says of an image that nobody knows.
        roost_accept_findings=[],
    )
    play = deploy(where)
    message = play.refusal(host)
    assert "CUDA does not start in" in message
    assert "dlopen: libcuda.so.1: cannot open shared object file" in message
    assert "cause: the container has no libcuda" in message
    assert "nvidia-ctk runtime configure" in message
    assert host.exec(["ls", "/var/lib/roost/models"]).stdout == ""
    assert host.exec(["docker", "ps", "--all", "--quiet"]).stdout == ""

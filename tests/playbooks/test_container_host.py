"""A host without Docker gets one, and keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbooks.playbook import deploy, inventory
from tests.unit.deployments import ORNITH

from roost.lab.fixtures import SharedLab

pytestmark = pytest.mark.lab


def test_docker_is_installed_once_and_started_at_every_boot(
    lab: SharedLab, tmp_path: Path, standin_lock: str
) -> None:
    host = lab.host("gb10", docker=False, fresh=True)
    where = inventory(
        tmp_path / "inventory", lab.lab, [host], roost_recipe=ORNITH, roost_lock_file=standin_lock
    )
    play = deploy(where, "--tags", "container_host")
    assert play.code == 0, play.output
    assert host.exec(["docker", "info"]).returncode == 0
    assert host.exec(["systemctl", "is-enabled", "docker"]).stdout.strip() == "enabled"
    assert host.exec(["/usr/bin/python3", "-c", "import requests"]).returncode == 0
    # Now that there is Docker to ask with, the registry is asked for the image, which no lab has.
    # In check mode one that does not answer is no obstacle.
    again = deploy(
        where,
        "--tags",
        "container_host",
        "--check",
        roost_registry_mirror=f"{lab.lab.spec.gateway.ip}:1",
    )
    assert again.code == 0, again.output
    assert again.changed == {host.name: 0}

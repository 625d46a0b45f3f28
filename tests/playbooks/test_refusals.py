"""What cannot work is refused with one clear message, and the host stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.playbooks.playbook import Play, deploy, inventory, state
from tests.unit.deployments import ORNITH, write_lock

from roost.lab.fixtures import SharedLab
from roost.lab.hosts import SUDO_USER, Host

pytestmark = pytest.mark.lab

SMOLLM = {"roost_recipe": "smollm2-135m"}
GPU = {"roost_recipe": ORNITH}


@pytest.fixture
def lock_file(tmp_path: Path) -> str:
    path = tmp_path / "roost.lock.yml"
    write_lock(path)
    return str(path)


@contextmanager
def unchanged(host: Host) -> Iterator[None]:
    before = state(host)
    yield
    assert state(host) == before


def refused(play: Play, host: Host) -> str:
    """The message of a host that was refused before anything was changed."""
    assert play.code != 0, play.output
    assert play.changed == {host.name: 0}
    return play.refusal(host)


def test_an_unreachable_host(lab: SharedLab, tmp_path: Path, lock_file: str) -> None:
    host = lab.host("cpu")
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=lock_file,
    )
    nobody = str(lab.lab.spec.subnet[250])
    with unchanged(host):
        play = deploy(where, ansible_host=nobody, roost_lock_file=lock_file)
    message = refused(play, host)
    assert play.unreachable == {host.name: 1}
    assert nobody in message
    assert "No route to host" in message


@pytest.mark.parametrize(
    ("profile", "properties", "variables", "overrides", "says"),
    [
        pytest.param(
            "cpu",
            {"sudo_user": True},
            {**SMOLLM, "ansible_user": SUDO_USER, "ansible_become_password": "not it"},
            {},
            ["Incorrect sudo password"],
            id="wrong password for become",
        ),
        pytest.param(
            "gb10",
            {"driver": "570.86.10"},
            GPU,
            {},
            [
                "driver: saw driver 570.86.10; wants 580 or newer",
                "install NVIDIA driver 580",
            ],
            id="old driver",
        ),
        pytest.param(
            "gb10",
            {"gpu_runtime": False},
            GPU,
            {},
            ["gpu_runtime: saw no NVIDIA runtime in Docker", "nvidia-ctk runtime configure"],
            id="no GPU runtime in Docker",
        ),
        pytest.param(
            "cpu",
            {"disk_mb": 64},
            GPU,
            {"roost_hardware": "gb10"},
            ["the NVIDIA driver is not installed", "correct roost_hardware for this host"],
            id="another machine",
        ),
        pytest.param(
            "cpu",
            {"docker": False},
            {**SMOLLM, "roost_install_docker": False},
            {},
            ["docker: saw no Docker", "roost_install_docker: false"],
            id="Docker missing and forbidden",
        ),
        pytest.param(
            "cpu",
            {"disk_mb": 64},
            {**SMOLLM, "roost_port": 22},
            {},
            ["port: saw port 22 is taken", "set roost_port"],
            id="port taken",
        ),
        pytest.param(
            "cpu",
            {"disk_mb": 64},
            SMOLLM,
            {},
            ["disk: saw", "free on /var/lib/roost", "set roost_model_dir"],
            id="disk too small for the weights",
        ),
    ],
)
def test_a_host_that_cannot_run_it(
    lab: SharedLab,
    tmp_path: Path,
    lock_file: str,
    profile: str,
    properties: dict[str, Any],
    variables: dict[str, Any],
    overrides: dict[str, Any],
    says: list[str],
) -> None:
    host = lab.host(profile, **properties)
    where = inventory(
        tmp_path / "inventory", lab.lab, [host], roost_lock_file=lock_file, **variables
    )
    with unchanged(host):
        message = refused(deploy(where, **overrides), host)
    assert [text for text in says if text not in message] == [], message

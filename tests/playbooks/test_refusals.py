"""What cannot work is refused with one clear message, and the host stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.playbooks.playbook import Play, deploy, inventory, state
from tests.unit.deployments import ORNITH, write_lock

from roost.lab.fixtures import SharedLab
from roost.lab.hosts import SUDO_USER, Host

pytestmark = pytest.mark.lab


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


# -- the way to the host


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


def test_a_wrong_password_for_become(lab: SharedLab, tmp_path: Path, lock_file: str) -> None:
    host = lab.host("cpu", sudo_user=True)
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        ansible_user=SUDO_USER,
        ansible_become_password="not it",
        roost_recipe="smollm2-135m",
        roost_lock_file=lock_file,
    )
    with unchanged(host):
        message = refused(deploy(where), host)
    assert "Incorrect sudo password" in message


# -- the machine


def test_an_old_driver(lab: SharedLab, tmp_path: Path, lock_file: str) -> None:
    host = lab.host("gb10", driver="570.86.10")
    where = inventory(
        tmp_path / "inventory", lab.lab, [host], roost_recipe=ORNITH, roost_lock_file=lock_file
    )
    with unchanged(host):
        message = refused(deploy(where), host)
    assert "driver: saw driver 570.86.10; wants 580 or newer" in message
    assert "install NVIDIA driver 580" in message


def test_docker_without_a_gpu_runtime(lab: SharedLab, tmp_path: Path, lock_file: str) -> None:
    host = lab.host("gb10", gpu_runtime=False)
    where = inventory(
        tmp_path / "inventory", lab.lab, [host], roost_recipe=ORNITH, roost_lock_file=lock_file
    )
    with unchanged(host):
        message = refused(deploy(where), host)
    assert "gpu_runtime: saw no NVIDIA runtime in Docker" in message
    assert "nvidia-ctk runtime configure" in message


def test_a_host_that_is_another_machine(lab: SharedLab, tmp_path: Path, lock_file: str) -> None:
    host = lab.host("cpu", disk_mb=64)
    where = inventory(
        tmp_path / "inventory", lab.lab, [host], roost_recipe=ORNITH, roost_lock_file=lock_file
    )
    with unchanged(host):
        message = refused(deploy(where, roost_hardware="gb10"), host)
    assert "the NVIDIA driver is not installed" in message
    assert "correct roost_hardware for this host" in message


def test_no_docker_where_none_may_be_installed(
    lab: SharedLab, tmp_path: Path, lock_file: str
) -> None:
    host = lab.host("cpu", docker=False)
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=lock_file,
        roost_install_docker=False,
    )
    with unchanged(host):
        message = refused(deploy(where), host)
    assert "docker: saw no Docker" in message
    assert "roost_install_docker: false" in message


def test_a_taken_port(lab: SharedLab, tmp_path: Path, lock_file: str) -> None:
    host = lab.host("cpu", disk_mb=64)
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=lock_file,
        roost_port=22,
    )
    with unchanged(host):
        message = refused(deploy(where), host)
    assert "port: saw port 22 is taken" in message
    assert "set roost_port" in message


def test_a_disk_too_small_for_the_weights(lab: SharedLab, tmp_path: Path, lock_file: str) -> None:
    host = lab.host("cpu", disk_mb=64)
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=lock_file,
    )
    with unchanged(host):
        message = refused(deploy(where), host)
    assert "disk: saw" in message
    assert "free on /var/lib/roost" in message
    assert "set roost_model_dir" in message

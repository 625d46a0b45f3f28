"""`roost deploy`'s way to Ansible: ansible-runner with sudo's password and without a host."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbooks.playbook import inventory, state
from tests.unit.deployments import write_lock

from roost import fleet
from roost.errors import RoostError
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import SUDO_PASSWORD, SUDO_USER, Host

pytestmark = pytest.mark.lab


@pytest.fixture
def host(lab: SharedLab) -> Host:
    return lab.host("cpu", sudo_user=True)


@pytest.fixture
def where(lab: SharedLab, host: Host, tmp_path: Path) -> Path:
    lock = tmp_path / "roost.lock.yml"
    write_lock(lock)
    return inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        ansible_user=SUDO_USER,
        roost_recipe="smollm2-135m",
        roost_lock_file=str(lock),
    )


def test_sudo_s_password_is_answered_at_the_prompt(
    host: Host, where: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = state(host)
    right = fleet.run_playbook("deploy", where, check=True, become_password=SUDO_PASSWORD)
    said = capfd.readouterr().out
    # The lock of this test is made up, so the hub refuses it; that was asked with sudo.
    assert (right.hosts, right.unreachable) == ([host.name], [])
    assert "cannot run smollm2-135m; nothing was changed." in said
    assert SUDO_PASSWORD not in said
    wrong = fleet.run_playbook("deploy", where, check=True, become_password="wrong")
    assert not wrong.ok
    assert wrong.failed == [host.name]
    assert "Incorrect sudo password" in capfd.readouterr().out
    assert state(host) == before


def test_a_limit_that_matches_no_host_is_no_success(where: Path) -> None:
    with pytest.raises(RoostError, match="no host matches 'nobody'"):
        fleet.run_playbook("deploy", where, limit="nobody", check=True)

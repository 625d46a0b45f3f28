"""``roost probe`` as a whole process, against real hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.playbooks.playbook import inventory_document

from roost import site
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import SUDO_USER

pytestmark = pytest.mark.lab

ORNITH = "ornith-1.0-35b-heretic-nvfp4-dflash"


@dataclass
class Fleet:
    """An inventory of three hosts that answer and one address where nobody does."""

    inventory: Path
    names: dict[str, str]


@pytest.fixture
def fleet(lab: SharedLab, tmp_path: Path) -> Fleet:
    hosts = {profile: lab.host(profile) for profile in ("gb10", "rtx5070ti-x2", "cpu")}
    names = {profile: host.name for profile, host in hosts.items()}
    document = inventory_document(lab.lab, {host.name: host for host in hosts.values()})
    # A port of the lab's own bridge that nothing listens on.
    gone = {"ansible_host": str(lab.lab.spec.gateway.ip), "ansible_port": 9}
    document["all"]["hosts"]["gone"] = gone
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(document))
    return Fleet(path, names)


def probe(*words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home)} if home else None
    return subprocess.run(
        [sys.executable, "-m", "roost.cli", "probe", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_a_fleet_is_told_apart_and_one_lost_host_stops_nobody(fleet: Fleet) -> None:
    done = probe("-i", str(fleet.inventory), "--json")
    rows = {row["host"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {*fleet.names.values(), "gone"}
    for profile, name in fleet.names.items():
        assert rows[name]["error"] is None
        assert rows[name]["hardware"] == profile
        assert ("smollm2-135m" if profile == "cpu" else ORNITH) in rows[name]["recipes"]
    spark = rows[fleet.names["gb10"]]["facts"]
    assert spark["gpus"][0]["memory_total_mib"] is None
    assert spark["memory_total_bytes"] == 127600748 * 1024
    assert rows["gone"]["facts"] is None
    assert "Connection refused" in rows["gone"]["error"]
    assert done.returncode == 1
    assert done.stderr == "roost: 1 of 4 not probed: gone\n"


def test_people_get_an_account_and_an_inventory(fleet: Fleet) -> None:
    names = [fleet.names["gb10"], fleet.names["rtx5070ti-x2"]]
    done = probe("-i", str(fleet.inventory), *names)
    assert done.returncode == 0, done.stderr
    account, text = done.stderr, done.stdout
    assert text.startswith("---\n")
    assert "memory is unified, shared with the CPU: 121.7 GiB (MemTotal)" in account
    assert account.count("memory 16303 MiB, 16291 free") == 2
    assert "N/A" not in account
    entries = yaml.safe_load(text)["all"]["hosts"]
    assert list(entries) == names
    for name in names:
        # Several recipes run on a GB10: which one it is to be is for its owner to say.
        chosen = {"roost_recipe": ORNITH} | entries[name]
        checked = site.from_variables(name, chosen)
        assert fleet.names[checked.hardware] == name
        assert checked.recipe == ORNITH


def test_a_destination_is_reached_as_ssh_would_and_left_as_it_was(
    lab: SharedLab, tmp_path: Path
) -> None:
    host = lab.host()
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text(
        f"Host desk\n  HostName {host.address}\n  User root\n  IdentityFile {lab.lab.key}\n"
        f"  IdentitiesOnly yes\n  UserKnownHostsFile {lab.lab.known_hosts}\n"
    )
    look = "find / -xdev -newer /run/before -not -path '/var/log*' -not -path '/run*'"
    host.exec(["touch", "/run/before"])
    done = probe("desk", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert host.exec(["sh", "-c", look]).stdout == ""
    host.exec(["touch", "/root/changed"])
    assert "/root/changed" in host.exec(["sh", "-c", look]).stdout
    entry = yaml.safe_load(done.stdout.partition("---\n")[2])["all"]["hosts"]["desk"]
    # Address and key stay ~/.ssh/config's; who logged in is what the host said.
    assert entry == {
        "ansible_host": "desk",
        "ansible_user": "root",
        "roost_hardware": "cpu",
        "roost_recipe": "smollm2-135m",
    }


def test_no_root_is_needed(lab: SharedLab, tmp_path: Path) -> None:
    host = lab.host("gb10", sudo_user=True)
    config = tmp_path / ".ssh" / "config"
    config.parent.mkdir()
    config.write_text(
        f"IdentityFile {lab.lab.key}\nIdentitiesOnly yes\n"
        f"UserKnownHostsFile {lab.lab.known_hosts}\n"
    )
    done = probe(f"{SUDO_USER}@{host.address}:22", home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installed; this user may not ask it, a deploy does with sudo" in done.stderr
    assert "GPU runtime  NVIDIA's, for Docker" in done.stderr
    entry = yaml.safe_load(done.stdout.partition("---\n")[2])["all"]["hosts"][str(host.address)]
    assert (entry["ansible_user"], entry["ansible_port"]) == (SUDO_USER, 22)
    assert entry["roost_hardware"] == "gb10"

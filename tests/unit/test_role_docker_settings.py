"""Docker's settings are added to, never written over: the role's own tasks, run by Ansible here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plays import ansible

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="writes as root: needs root")

REGISTRY = "10.0.0.1:5000"
PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: container_host, tasks_from: registries.yml}
"""
#: Of Docker only what the tasks ask: whether it can check a file, and whether this one is right.
DOCKERD = """#!/bin/sh
case $1 in
--help) echo "$DOCKERD_HELP" ;;
--validate) grep -q no-such-directive "${2#--config-file=}" &&
    { echo "the following directives don't match any configuration option" >&2; exit 1; }
    echo validated >>"$SAID" ;;
*) echo "unknown flag: $1" >&2; exit 125 ;;
esac
"""
SYSTEMCTL = """#!/bin/sh
case $1 in
show) printf 'LoadState=loaded\\nActiveState=active\\n' ;;
reload) echo reloaded >>"$SAID" ;;
esac
"""


class Host:
    """This machine with a Docker that is two scripts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = folder / "docker" / "daemon.json"
        self.settings.parent.mkdir()
        self.said = folder / "said"
        for name, script in (("dockerd", DOCKERD), ("systemctl", SYSTEMCTL)):
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        (folder / "play.yml").write_text(PLAY)

    def play(
        self, *words: str, dockerd: str = "  --validate  Validate daemon configuration and exit"
    ) -> subprocess.CompletedProcess[str]:
        self.said.write_text("")
        variables = {
            "container_host_plain_registry": REGISTRY,
            "__container_host_settings": str(self.settings),
        }
        return ansible(
            *("-i", "localhost,", "-c", "local", str(self.folder / "play.yml")),
            *("-e", json.dumps(variables), *words),
            PATH=f"{self.folder}:{os.environ['PATH']}",
            DOCKERD_HELP=dockerd,
            SAID=str(self.said),
        )

    @property
    def held(self) -> Any:
        return json.loads(self.settings.read_text())

    def backups(self) -> list[str]:
        return [path.read_text() for path in self.settings.parent.glob("daemon.json.*~")]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def changes(done: subprocess.CompletedProcess[str]) -> bool:
    assert done.returncode == 0, done.stdout
    return "changed=0" not in done.stdout


def test_a_host_without_settings_gets_them_once(host: Host) -> None:
    assert changes(host.play("--check"))
    assert not host.settings.exists()
    assert host.said.read_text() == ""
    assert changes(host.play())
    assert host.held == {"insecure-registries": [REGISTRY]}
    assert host.said.read_text() == "validated\nreloaded\n"
    # Nothing is done twice, nor asked of Docker.
    for words in ([], ["--check"]):
        assert not changes(host.play(*words))
        assert host.said.read_text() == ""


def test_what_the_site_set_stays_and_is_kept_beside(host: Host) -> None:
    held = {"data-root": "/srv/Döcker", "insecure-registries": ["a:1"], "runtimes": {"n": {}}}
    host.settings.write_text(json.dumps(held))
    host.settings.chmod(0o600)
    assert changes(host.play())
    assert host.held == {**held, "insecure-registries": ["a:1", REGISTRY]}
    assert list(host.held) == list(held)
    assert host.settings.stat().st_mode & 0o777 == 0o600
    assert host.backups() == [json.dumps(held)]


def test_an_empty_file_that_a_link_leads_to_is_written_where_it_is(host: Host) -> None:
    elsewhere = host.folder / "elsewhere.json"
    elsewhere.write_text("")
    elsewhere.chmod(0o600)
    host.settings.symlink_to(elsewhere)
    assert changes(host.play())
    assert host.settings.is_symlink()
    assert elsewhere.stat().st_mode & 0o777 == 0o600
    assert json.loads(elsewhere.read_text()) == {"insecure-registries": [REGISTRY]}


@pytest.mark.parametrize("words", [[], ["--check"]])
def test_what_docker_could_not_read_is_left_alone(host: Host, words: list[str]) -> None:
    host.settings.write_text('{"debug": true,}')
    done = host.play(*words)
    assert done.returncode == 2
    assert f"localhost: {host.settings} cannot be read, and was left as it is" in done.stdout
    assert "why: it is not JSON: " in done.stdout
    assert f"fix: mend it on the host (python3 -m json.tool {host.settings}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert host.settings.read_text() == '{"debug": true,}'
    assert host.said.read_text() == ""


def test_settings_that_docker_refuses_are_not_put_in_place(host: Host) -> None:
    host.settings.write_text('{"no-such-directive": 1}')
    done = host.play()
    assert done.returncode == 2
    assert "match any configuration option" in done.stdout
    assert host.settings.read_text() == '{"no-such-directive": 1}'
    assert host.said.read_text() == ""


@pytest.mark.parametrize("there", [True, False])
def test_a_docker_that_cannot_check_is_not_asked_to(host: Host, there: bool) -> None:
    if not there:  # a daemon that is not on the path of a login
        (host.folder / "dockerd").unlink()
    assert changes(host.play(dockerd="  --config-file string"))
    assert host.held == {"insecure-registries": [REGISTRY]}
    assert host.said.read_text() == "reloaded\n"

"""What the watchdog's role makes of its variables, by Ansible on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.plays import ROOT, ansible

PLAY = f"""
- hosts: localhost
  gather_facts: false
  vars_files: ["{ROOT}/roles/watchdog/vars/main.yml"]
  vars:
    __watchdog_program: {{changed: false}}
    __watchdog_unit: {{changed: false}}
    watchdog_seen: {{watchdog_runs: false, watchdog_at_boot: false}}
  tasks:
    - ansible.builtin.debug:
        msg: "{{{{ __watchdog_state }}}}, as wanted: {{{{ __watchdog_as_wanted | bool }}}}"
"""


@pytest.mark.parametrize(
    ("given", "made_of_it"),
    [
        ("watchdog_enabled=false", "stopped, as wanted: True"),
        (json.dumps({"watchdog_enabled": False}), "stopped, as wanted: True"),
        ("watchdog_enabled=true", "started, as wanted: False"),
    ],
)
def test_switched_off_on_the_command_line_it_is_off(
    tmp_path: Path, given: str, made_of_it: str
) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    done = ansible("-i", "localhost,", "-c", "local", str(tmp_path / "play.yml"), "-e", given)
    assert f"msg: '{made_of_it}'" in done.stdout, done.stdout + done.stderr

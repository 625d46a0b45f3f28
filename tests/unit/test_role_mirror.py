"""The mirror's own look at a bundle, run by Ansible on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.plays import ROOT, ansible

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: needs root")

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: mirror, tasks_from: bundle.yml}
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle as it is packed, of three files."""
    folder = tmp_path / "bundle"
    lines = []
    for name in ("hub/org/name/resolve/0/model.safetensors", "registry/x", "roost.lock.yml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
        lines.append(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))
    return folder


def play(folder: Path) -> subprocess.CompletedProcess[str]:
    variables = {
        "mirror_bundle": str(folder),
        "mirror_directory": str(folder.parent),
        "__mirror_user": "root",
    }
    (folder.parent / "play.yml").write_text(PLAY)
    return ansible(
        *("-i", "localhost,", "-c", "local", str(folder.parent / "play.yml")),
        *("-e", json.dumps(variables)),
    )


def test_a_bundle_that_is_whole_is_taken(bundle: Path) -> None:
    done = play(bundle)
    assert done.returncode == 0, done.stdout


def _lacks_a_file(bundle: Path) -> str:
    (bundle / "registry/x").unlink()
    return "registry/x: FAILED open or read"


def _has_another(bundle: Path) -> str:
    (bundle / "hub/org/name/resolve/0/model.safetensors").write_text("other")
    return "model.safetensors: FAILED"


def _lacks_the_list(bundle: Path) -> str:
    (bundle / "SHA256SUMS").unlink()
    return "is no bundle, or one that was not finished"


def _has_half_of_the_list(bundle: Path) -> str:
    lines = (bundle / "SHA256SUMS").read_text().splitlines(keepends=True)
    (bundle / "SHA256SUMS").write_text("".join(lines[:2]))
    return "SHA256SUMS on localhost was copied half"


@pytest.mark.parametrize(
    "breaks", [_lacks_a_file, _has_another, _lacks_the_list, _has_half_of_the_list]
)
def test_one_that_is_not_is_refused(bundle: Path, breaks: Callable[[Path], str]) -> None:
    message = breaks(bundle)
    done = play(bundle)
    assert done.returncode != 0
    text = " ".join(done.stdout.split())
    assert message in text


@pytest.mark.parametrize(
    ("listens", "asked"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("10.0.0.11", "10.0.0.11"),
        ("[::]", "::1"),
        ("[fd00::11]", "fd00::11"),
    ],
)
def test_where_it_is_asked_whether_it_answers(tmp_path: Path, listens: str, asked: str) -> None:
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles" / "mirror" / "vars" / "main.yml")],
        "vars": {"mirror_listen": listens},
        "tasks": [{"ansible.builtin.debug": {"msg": "asked at <{{ __mirror_answers_at }}>"}}],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    done = ansible("-i", "localhost,", "-c", "local", str(tmp_path / "play.yml"))
    assert f"asked at <{asked}>" in done.stdout

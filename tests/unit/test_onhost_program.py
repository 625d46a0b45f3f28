"""The watchdog's program as it comes to a host: through Ansible, for the host's own Python."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.plugins import ROOT, task

from roost import hosts, programs


def put(dest: Path, *options: str) -> dict[str, Any]:
    """Run the module as a task does."""
    return task("onhost_program", {"dest": str(dest)}, *options)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("program") / "lib" / "onhost"
    assert put(dest, "--check")["changed"]
    assert not dest.exists()
    assert put(dest)["changed"]
    return dest


def test_the_controller_knows_what_is_in_it(program: Path) -> None:
    here = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in program.iterdir()}
    assert programs.watchdog() == here


def test_the_probe_looks_where_the_role_puts_it() -> None:
    defaults = yaml.safe_load((ROOT / "roles/watchdog/defaults/main.yml").read_text())
    assert f"find {defaults['watchdog_program_dir']}/onhost -type f" in hosts.probe_script()


def test_the_hosts_own_python_runs_it_from_there(program: Path) -> None:
    done = subprocess.run(
        ["/usr/bin/python3", "-s", "-B", "-m", "onhost.watchdog", "--help"],
        cwd=program.parent,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--floor-mib" in done.stdout


def test_what_it_needs_is_there_and_nothing_else(program: Path) -> None:
    names = {path.name for path in program.iterdir()}
    assert names >= {"__init__.py", "watchdog.py", "vigil.py", "redaction.py", "store.py"}
    # The transaction comes with its module, when there is something to do.
    assert not names & {"transaction.py", "gate.py"}
    for path in program.iterdir():
        assert path.read_text() == (ROOT / "src/roost/onhost" / path.name).read_text()


def test_a_second_time_changes_nothing_and_strangers_go(program: Path) -> None:
    assert not put(program)["changed"]
    (program / "gone.py").write_text("an older roost had this")
    (program / "vigil.py").write_text("")
    assert put(program, "--check")["changed"]
    assert put(program)["changed"]
    assert not (program / "gone.py").exists()
    assert (program / "vigil.py").read_text()

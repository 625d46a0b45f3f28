"""The module that reads what serves on a host, where something of it is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from tests.unit.deployments import deployment
from tests.unit.fake_machine import FakeMachine, fake_machine
from tests.unit.plugins import load

import roost
import roost.onhost
from roost import releases
from roost.onhost import NAME, logs, machine, redaction, store, trial
from roost.onhost.store import Store

PARTS = (logs, machine, redaction, store, trial)


@pytest.fixture
def release_facts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which finds what it imports where Ansible puts it."""
    monkeypatch.setitem(sys.modules, "ansible.module_utils.roost", roost)
    monkeypatch.setitem(sys.modules, "ansible.module_utils.roost.onhost", roost.onhost)
    for part in PARTS:
        monkeypatch.setitem(sys.modules, f"ansible.module_utils.{part.__name__}", part)
    return load("modules", "release_facts")


def facts(
    module: ModuleType,
    host: FakeMachine,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    **given: str,
) -> dict[str, Any]:
    module.Machine = lambda: host  # type: ignore[attr-defined]
    given |= {"directory": str(folder / "releases"), "watchdog": str(folder / "watchdog")}
    with patch_module_args(given), pytest.raises(SystemExit):
        module.main()
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_an_endpoint_whose_key_is_gone_is_one_message(
    release_facts: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fake_machine() as host:
        monkeypatch.setattr(host, "has_image", lambda _: True)
        made = deployment(tmp_path, api_key="a-key-of-tests", port=host.engine.port)
        release = releases.release(made)
        release["files"]["deployment.json"]["spec"]["secrets"][0]["source"] = "/nowhere/key"
        (tmp_path / "releases").mkdir()
        place = Store(str(tmp_path / "releases"))
        for name, content in release["files"].items():
            place.write(content, release["id"], name)
        place.point("current", release["id"])
        host.made(NAME, release["id"])
        host.start(NAME)
        said = facts(release_facts, host, tmp_path, capsys)
    assert said["failed"]
    assert said["msg"] == (
        "the key of the endpoint cannot be read: [Errno 2] No such file or directory: "
        "'/nowhere/key'; a deploy writes it again"
    )


def test_what_is_there_to_stay_and_what_served_before_have_names(
    release_facts: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And so is what serves, which an experiment may only have tried."""
    (tmp_path / "releases").mkdir()
    place = Store(str(tmp_path / "releases"))
    for name in ("older", "served", "tried"):
        place.write({"of": name}, name, "release.json")
        place.served(name)
    place.point("current", "tried")
    place.point("previous", "older")

    def chosen(wanted: str) -> tuple[str, str]:
        found = facts(release_facts, host, tmp_path, capsys, release=wanted)["chosen"]
        return found["id"], found["files"]["release.json"]["of"]

    with fake_machine() as host:
        monkeypatch.setattr(host, "has_image", lambda _: True)
        assert chosen("lasting") == chosen("current") == ("tried", "tried")
        assert chosen("before") == chosen("previous") == ("older", "older")
        place.point("held", "served")
        assert chosen("lasting") == chosen("before") == ("served", "served")
        assert chosen("previous") == ("older", "older")
        assert chosen("current") == ("tried", "tried")

"""Plugins of the playbooks, loaded as Ansible does: by path, from no package."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import roost
import roost.onhost

ROOT = Path(__file__).parents[2]


def load(kind: str, name: str) -> ModuleType:
    """``plugins/<kind>/<name>.py`` as a module."""
    path = ROOT / "plugins" / kind / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"plugin_{kind}_{name}", path)
    assert spec
    assert spec.loader
    # What Ansible carries to a host along with a module.
    sys.modules.setdefault("ansible.module_utils.roost", roost)
    sys.modules.setdefault("ansible.module_utils.roost.onhost", roost.onhost)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def task(module: str, arguments: dict[str, Any], *options: str) -> dict[str, Any]:
    """What a module returns that Ansible carries to this machine's own Python and runs there."""
    # A host has nothing of the package but what is carried there.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("ansible"), "localhost", "-i", "localhost,"),
            *("-c", "local", "-m", module, "-a", json.dumps(arguments), *options),
        ],
        cwd=ROOT,
        env={**inherited, "ANSIBLE_STDOUT_CALLBACK": "json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (play,) = json.loads(done.stdout)["plays"]
    found: dict[str, Any] = play["tasks"][0]["hosts"]["localhost"]
    return found

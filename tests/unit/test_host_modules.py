"""What modules say of their options is what they take, and where they look has one home."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from roost import hosts
from roost.onhost import RELEASES, WATCHDOG_STATE

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))

#: What documentation and specification both say of an option.
SAID = ("type", "elements", "choices", "default", "required")

#: In a process of its own: there, what is shipped with a module has another name.
PROGRAM = """
import importlib.util, json, sys
import roost, roost.onhost
sys.modules["ansible.module_utils.roost"] = roost
sys.modules["ansible.module_utils.roost.onhost"] = roost.onhost
said = {}
for name, path in zip(sys.argv[1::2], sys.argv[2::2]):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    def asked(*_, argument_spec, **__):
        said[name] = {"documented": module.DOCUMENTATION, "takes": argument_spec}
        raise SystemExit
    if hasattr(module, "AnsibleDockerClient"):  # which adds what all modules of Docker take
        module.AnsibleDockerClient.__init__ = asked
    module.AnsibleModule = asked
    try:
        module.main()
    except SystemExit:
        pass
print(json.dumps(said))
"""


@cache
def said() -> dict[str, dict[str, Any]]:
    """Of each module, its documentation and its argument specification."""
    words = [word for name in MODULES for word in (name, f"plugins/modules/{name}.py")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_module_takes_what_it_documents(name: str) -> None:
    documented = yaml.safe_load(said()[name]["documented"])
    assert documented["module"] == name
    options, takes = (
        {
            option: {key: value[key] for key in SAID if key in value}
            for option, value in given.items()
        }
        for given in (documented["options"], said()[name]["takes"])
    )
    assert options == takes


def test_where_releases_and_the_watchdogs_state_are_has_one_home() -> None:
    """Roles, programs of the shell and systemd cannot ask the package."""
    takes = {name: it["takes"] for name, it in said().items()}
    assert takes["rollout_lease"]["directory"]["default"] == RELEASES
    assert takes["hf_snapshot"]["releases"]["default"] == RELEASES
    assert takes["release_facts"]["watchdog"]["default"] == WATCHDOG_STATE
    for role in ("llm_server", "watchdog"):
        text = (ROOT / "roles" / role / "vars" / "main.yml").read_text(encoding="utf-8")
        assert yaml.safe_load(text)[f"__{role}_releases_dir"] == RELEASES
    probe = hosts.probe_script()
    assert f" cd {RELEASES} && " in probe
    assert f" cat {WATCHDOG_STATE}/state.json\n" in probe
    unit = ROOT / "roles" / "watchdog" / "templates" / "roost-watchdog.service.j2"
    lines = unit.read_text(encoding="utf-8")
    assert f" --state {WATCHDOG_STATE} " in lines
    # systemd makes it, below /var/lib.
    assert f"StateDirectory={Path(WATCHDOG_STATE).relative_to('/var/lib')}\n" in lines

"""Plugins of the playbooks, loaded as Ansible does: by path, from no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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

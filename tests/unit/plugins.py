"""Plugins of the playbooks, loaded as Ansible does: by path, from no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def load(kind: str, name: str) -> ModuleType:
    """``plugins/<kind>/<name>.py`` as a module."""
    path = ROOT / "plugins" / kind / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"plugin_{kind}_{name}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The beginning of programs that run a module of ``plugins/modules`` as it is on a host.

In a process of its own: there, what is shipped with a module has another name.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

#: Leaves ``module``, a store as ``place``, and parts of the package by their names.
#: Arguments: the module's file, and a store's two folders.
LOADS = """
import importlib.util, json, os, signal, sys
import roost, roost.onhost
from roost.onhost import lease, machine, store, transaction, trial
sys.modules["ansible.module_utils.roost"] = roost
sys.modules["ansible.module_utils.roost.onhost"] = roost.onhost
for shipped in (lease, machine, store, transaction, trial):
    sys.modules["ansible.module_utils." + shipped.__name__] = shipped
spec = importlib.util.spec_from_file_location("tested", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
place = store.Store(sys.argv[2], sys.argv[3])
"""


def module(name: str) -> Path:
    """A module's file."""
    return ROOT / "plugins" / "modules" / f"{name}.py"

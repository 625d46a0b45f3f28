"""Whom the module that stops an engine heeds, and what becomes of an experiment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.unit import shipped

PROGRAM = """
stopped, said = [], []
transaction.halt = lambda *_: stopped.append(1) or True
class Module:
    def __init__(self, **_):
        self.params = {"directory": "", "turn_timeout": 0, "who": "tester", **given}
    def exit_json(self, **told):
        said.append({"changed": told["changed"], "stopped": len(stopped),
                     "lease": lease.has(place, taken["owner"])})
        raise SystemExit
    def fail_json(self, **told):
        said.append({"msg": told["msg"], "stopped": len(stopped)})
        raise SystemExit
module.AnsibleModule = Module
module.stores.Store = lambda _: place
rolls = {"owner": "a1", "who": "ann@desk", "inventory": "/fleet", "wanted": "x-1"}
tune = {"owner": "t1", "who": "ann@desk", "inventory": "/fleet", "experiment": "tune"}
for taken in (rolls, tune):
    lease.take(place, taken, take_over=True)
    for despite in (False, True):
        given = {"despite_lease": despite}
        try:
            module.main()
        except SystemExit:
            place.end_turn()
print(json.dumps(said))
"""


def test_a_stop_heeds_others_and_ends_an_experiment_that_it_overrules(tmp_path: Path) -> None:
    """Which would have the engine serve again; a rollout's lease stays until that has ended."""
    command = [sys.executable, "-c", shipped.LOADS + PROGRAM, shipped.module("engine_stop")]
    command += [tmp_path / "releases", tmp_path / "runtime"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused, stopped, refused_too, stopped_too = json.loads(done.stdout)
    assert refused["stopped"] == 0
    assert refused["msg"].startswith("it takes part in a rollout (ann@desk rolls out /fleet")
    assert stopped == {"changed": True, "stopped": 1, "lease": True}
    assert refused_too["msg"].startswith("it takes part in an experiment (ann@desk tries")
    assert stopped_too == {"changed": True, "stopped": 2, "lease": False}

"""The module's own part: work in a process apart, whatever becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.unit import shipped

PROGRAM = """
transaction.abandon = lambda machine, store, wanted, what: {"outcome": "abandoned", "what": what}
place.take_turn("tester", 0)
wanted = trial.Wanted("x-1", "roost-llm-1", "id", {}, {})

%s

print(json.dumps({**module.apart(place, wanted, doing), "kept": place.outcome()}))
"""

FOLLOWS = """
doing = lambda machine, store, wanted: {"outcome": "serves", "release": wanted.id}
module.apart(place, wanted, doing)
print(json.dumps({name: module.outcome_of(place, name) for name in ("x-1", "x-2")}))
sys.exit()
"""


#: What the module says to those who deploy by hand, and to the rollout that has the host.
HELD = """
place.end_turn()
lease.take(place, {"owner": "a1", "who": "ann@desk", "inventory": "/fleet", "wanted": "x-1"})
asked = {
    "release": {"id": "x-1", "container": "roost-llm-1", "deployment": {}, "files": {}},
    "container": "id", "directory": "", "who": "tester", "turn_timeout": 0, "answer_timeout": 1,
    "restart": False, "going_back": False, "rollout": "", "despite_lease": False, "follow": False,
}
places = []
def make(_):
    places.append(Store(sys.argv[2], sys.argv[3]))
    return places[-1]
Store, module.stores.Store = store.Store, make
module.apart = lambda _, wanted, __: {"outcome": "tried" if wanted.tries else "serves"}
said = []
own, despite = {"rollout": "a1"}, {"despite_lease": True}
tune = {"owner": "t1", "who": "ann@desk", "inventory": "/fleet", "experiment": "tune"}
back = {"rollout": "t1", "going_back": True}
for given in [{}, {"rollout": "b2"}, {"follow": True}, own, despite, tune, {"rollout": "t1"}, back,
              {}, despite, None, own, {}]:
    if given is tune:  # which has the host from now on
        lease.take(place, tune, take_over=True)
        continue
    if given is None:  # and now nobody
        lease.end_experiment(place)
        continue
    class Module:
        def __init__(self, **_):
            self.params = {**asked, **given}
        def exit_json(self, **found):
            whose = (found.get("lease") or {}).get("who")
            said.append([found["outcome"], whose, found.get("changed")])
            raise StopIteration
    module.AnsibleModule = Module
    try:
        module.main()
    except StopIteration:
        pass
    places.pop().end_turn()  # as the end of the module's process would
print(json.dumps(said))
sys.exit()
"""


def apart(folder: Path, doing: str) -> Any:
    (folder / "releases").mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-c", shipped.LOADS + PROGRAM % textwrap.dedent(doing)),
            *(shipped.module("engine_release"), str(folder / "releases"), str(folder / "run")),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_outcome_comes_back_and_is_kept_for_who_lost_the_connection(tmp_path: Path) -> None:
    doing = """
        def doing(machine, store, wanted):
            print("not into the module's answer")
            return {"outcome": "serves", "apart": os.getpid() != parent}
        parent = os.getpid()
    """
    found = apart(tmp_path, doing)
    assert found["outcome"] == "serves"
    assert found["kept"] == {"outcome": "serves", "apart": True}


def test_a_defect_of_ours_leaves_no_host_without_its_engine(tmp_path: Path) -> None:
    doing = """
        def doing(machine, store, wanted):
            raise KeyError("a defect")
    """
    found = apart(tmp_path, doing)
    assert found["outcome"] == "abandoned"
    assert found["what"] == "KeyError: 'a defect' (a defect of roost)"


def test_a_killed_process_is_ended_by_the_one_that_waits(tmp_path: Path) -> None:
    doing = """
        def doing(machine, store, wanted):
            os.kill(os.getpid(), signal.SIGKILL)
    """
    found = apart(tmp_path, doing)
    assert found["outcome"] == "abandoned"
    assert "was killed" in found["what"]


def test_who_lost_the_connection_gets_no_outcome_of_another_release(tmp_path: Path) -> None:
    found = apart(tmp_path, FOLLOWS)
    assert found == {"x-1": {"outcome": "serves", "release": "x-1"}, "x-2": None}


def test_a_host_that_takes_part_in_a_rollout_is_changed_by_that_alone(tmp_path: Path) -> None:
    by_hand, others, lost, own, despite, tried, back, *rest = apart(tmp_path, HELD)
    assert by_hand == others == ["held", "ann@desk", False]
    # Who lost the connection asks for what was begun, whoever has the host since.
    assert lost[0] == "unknown"
    assert own[0] == despite[0] == "serves"
    # What an experiment deploys is not there to stay, but for what it goes back to.
    assert (tried[0], back[0]) == ("tried", "serves")
    by_hand, despite, over, free = rest
    assert by_hand == ["held", "ann@desk", False]
    assert (despite[0], free[0]) == ("serves", "serves")
    # Who had the host, and has it no more, does not change it.
    assert over == ["held", None, False]


def test_the_work_outlives_whoever_waits_for_it(tmp_path: Path) -> None:
    doing = f"""
        import time
        def doing(machine, store, wanted):
            while not os.path.exists({str(tmp_path / "done")!r}):
                time.sleep(0.01)
            return {{"outcome": "serves"}}
        # The module's process dies as when its connection is lost.
        fork = os.fork
        def fork_and_die():
            pid = fork()
            if pid:
                os._exit(0)
            return pid
        os.fork = fork_and_die
    """
    with pytest.raises(json.JSONDecodeError):
        apart(tmp_path, doing)
    from roost.onhost.store import Store

    store = Store(str(tmp_path / "releases"), str(tmp_path / "run"))
    assert str(store.holder()).startswith("tester, since ")
    (tmp_path / "done").touch()
    store.take_turn("next", 300)
    assert store.outcome() == {"outcome": "serves"}

"""``playbooks/start.yml`` and ``rollback.yml``: which release they have serve, and what they say.

Its own tasks up to the choice, which is where they end here; what is on the host is made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit import plays
from tests.unit.test_releases import KEPT, LEASE, facts

CURRENT, HELD, OLDER = "r-0123456789ab", "r-cdef01234567", "r-89abcdef0123"
#: A host that has what is asked for, and tells as the real module does.
MODULE = """#!/usr/bin/python
import json, sys
WANT_JSON = None
wanted = json.load(open(sys.argv[1]))["release"]
facts = json.load(open({facts!r}))
current, held = facts["current"], facts["held"]
before = held if held and held != current else facts["previous"]
release = {{"lasting": held or current, "before": before}}.get(wanted, wanted)
chosen = {{"id": release, "files": {{"deployment.json": {{}}}}}}
print(json.dumps({{**facts, "changed": False, "chosen": chosen}}))
"""


def start(folder: Path, known: dict[str, Any], **variables: Any) -> str:
    """What a start says, up to the moment that it would change something."""
    (started,) = yaml.safe_load((plays.ROOT / "playbooks" / "start.yml").read_text())
    assert started["ansible.builtin.import_playbook"] == "rollback.yml"
    return rollback(folder, known, **started["vars"], **variables)


def rollback(folder: Path, known: dict[str, Any], **variables: Any) -> str:
    """And what a rollback does."""
    library = folder / "library"
    library.mkdir(exist_ok=True)
    (folder / "facts.json").write_text(json.dumps(known))
    (library / "release_facts.py").write_text(MODULE.format(facts=str(folder / "facts.json")))
    (play,) = yaml.safe_load((plays.ROOT / "playbooks" / "rollback.yml").read_text())
    *before, serves = play["tasks"]
    assert serves["ansible.builtin.import_role"]["tasks_from"] == "serve.yml"
    shown = serves["vars"]["llm_server_release"].replace("release }}", "release.id }}")
    tasks = [*before, {"ansible.builtin.debug": {"msg": f"serves: {shown}"}}]
    written = {"hosts": "spark-01", "gather_facts": False, "tasks": tasks}
    (folder / "play.yml").write_text(json.dumps([written]))
    done = plays.ansible(
        *("-i", "spark-01,", "-c", "local", str(folder / "play.yml")),
        *("-e", json.dumps(variables)),
        ANSIBLE_LIBRARY=f"{library}:{plays.ROOT / 'plugins' / 'modules'}",
    )
    assert (done.returncode == 0) is ("serves: " in done.stdout), done.stdout + done.stderr
    return " ".join(done.stdout.split())


def test_what_an_experiment_that_was_killed_has_tried_does_not_come_to_stay(tmp_path: Path) -> None:
    kept = [{**each, "missing": []} for each in KEPT]
    said = start(tmp_path, facts(releases=kept, held=HELD))
    assert f"serves: {HELD}" in said
    assert f"{CURRENT} was only tried" in said
    said = start(tmp_path, facts(releases=kept))
    assert f"serves: {CURRENT}" in said
    assert "tried" not in said


def test_a_rollback_goes_no_further_back_than_an_experiment_that_was_killed(tmp_path: Path) -> None:
    kept = [{"id": name, "missing": []} for name in (CURRENT, HELD, OLDER)]
    known = facts(releases=kept, previous=OLDER)
    assert f"serves: {OLDER}" in rollback(tmp_path, known)
    said = rollback(tmp_path, {**known, "held": HELD})
    assert f"serves: {HELD}" in said
    assert f"{CURRENT} was only tried" in said
    # Who names a release means it.
    said = rollback(tmp_path, {**known, "held": HELD}, rollback_to=OLDER)
    assert f"serves: {OLDER}" in said
    assert "tried" not in said


@pytest.mark.parametrize("despite", [False, True])
def test_one_that_may_be_under_way_is_ended_only_where_that_is_meant(
    tmp_path: Path, despite: bool
) -> None:
    kept = [{**each, "missing": []} for each in KEPT]
    lease = {**LEASE, "experiment": "tune"}
    known = facts(releases=kept, held=HELD, rollout=lease)
    said = start(tmp_path, known, **({"despite_lease": True} if despite else {}))
    assert (f"serves: {HELD}" in said) is despite
    assert ("takes part in an experiment (ann@desk tries deployments (tune)" in said) is not despite

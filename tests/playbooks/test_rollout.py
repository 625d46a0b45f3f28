"""Rollouts over hosts of a lab behind a gateway, with the stand-in engine.

Real hosts, HAProxy, playbooks, notebooks and load; the larger one is `make bench-rollout`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import takewhile

import pytest
from tests.playbooks import rolling
from tests.playbooks.playbook import ROOT, Running
from tests.playbooks.rolling import Fleet
from tests.playbooks.standins import until

from roost.lab.build import Artefacts
from roost.lab.fixtures import SharedLab
from roost.rollout import record, report

pytestmark = pytest.mark.lab

#: Of a release whose trial is looked for from here.
SLOW_START = "start-seconds=10"


@pytest.fixture(scope="module")
def fleet(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Fleet:
    return rolling.fleet(shared_lab, tmp_path_factory.mktemp("rollout"), 2)


def test_killed_gone_on_with_and_taken_back_under_load_no_request_is_lost(fleet: Fleet) -> None:
    with fleet.load(requests=240, rate=1.5) as (load, times):
        fleet.wants("log=second", SLOW_START)
        begin_and_kill(fleet)
        runs = {"rollout_suite": "smoke", "rollout_brief": True, "rollout_runs": str(fleet.runs)}
        play = Running(fleet.inventory, playbook="playbooks/rollout.yml", **runs).end()
        assert play.code == 0, play.output
        assert "going on with" in play.output
        assert fleet.serving() == ["second", "second"]
        # Its own gate asks five times, so only the notebooks see it die.
        fleet.wants("log=third", "dies-at-request=6")
        stopped = fleet.roll_out()
        assert fleet.serving() == ["second", "second"]
    assert load.wrong == []

    assert load.between(times["begun"], times["ended"]) >= 200

    folder = min(path.parent for path in fleet.runs.glob(f"*/{record.FILE}"))
    done = record.read(folder)
    assert report.capacity(done).lowest == 0.5
    for host in done.hosts.values():
        assert set(host.runs) == {"before", "verify", "benchmark"}
        assert (folder / host.runs["verify"] / "executed.ipynb").is_file()
        assert "accept length 1.00 of what it was" in host.compared
    canary, other = (stopped.hosts[host.name] for host in fleet.hosts)
    assert (stopped.verdict, canary.verdict, other.verdict) == ("stopped", "back", "waiting")
    # What the rollout before has measured is what this one compares with.
    assert "before" not in canary.runs


def test_another_controller_is_refused_and_can_take_over(fleet: Fleet) -> None:
    before = fleet.serving()
    fleet.wants("log=unjudged", SLOW_START)
    begin_and_kill(fleet)
    canary = fleet.hosts[0].name
    for playbook, said in {
        "deploy.yml": "nothing was changed.",
        "playbooks/rollback.yml": "takes part in a rollout",
        "playbooks/return.yml": "is being changed and judged by a rollout",
    }.items():
        by_hand = Running(fleet.inventory, "--limit", canary, playbook=playbook).end()
        assert by_hand.code != 0
        assert f"rolls out {fleet.inventory}, since 20" in by_hand.output
        assert said in by_hand.output
        assert "-e despite_lease=true" in by_hand.output
    elsewhere = replace(fleet, inventory=fleet.inventory.parent / "elsewhere" / "inventory")
    shutil.copytree(fleet.inventory, elsewhere.inventory)
    elsewhere.wants("log=faulty", "exit=1")
    refused = elsewhere.roll_out()
    assert refused.verdict == "refused"
    assert "left to somebody else, and nothing was changed" in refused.reason
    assert f"rolls out {fleet.inventory}, since 20" in refused.reason
    # The host has ended by itself what the killed one began; no notebook has judged it.
    stopped = elsewhere.roll_out(take_over=True)
    canary, other = (stopped.hosts[host.name] for host in fleet.hosts)
    assert (stopped.verdict, canary.verdict, other.verdict) == ("stopped", "back", "waiting")
    assert fleet.serving() == before
    for host in fleet.hosts:
        lease = host.exec(["test", "-e", "/var/lib/roost/releases/rollout.json"])
        assert lease.returncode == 1


def test_what_an_experiment_tries_gets_no_clients_requests(fleet: Fleet) -> None:
    before, name = fleet.serving(), fleet.hosts[0].name
    words = ["compare", "--deploy", "dflash,none", "-i", str(fleet.inventory), "--host", name]
    words += ["--suite", "smoke", "--runs", str(fleet.runs)]
    command = [sys.executable, "-m", "roost.cli", *words]
    with fleet.load(requests=150, rate=1) as (load, _):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    # A benchmark that others' requests came into would not be believed.
    assert done.returncode == 0, done.stdout + done.stderr
    assert load.wrong == []
    assert fleet.serving() == before
    # It has its requests again: there is nothing to be given back.
    play = Running(fleet.inventory, "--limit", name, playbook="playbooks/return.yml").end()
    assert (play.code, play.changed) == (0, {name: 0}), play.output


def begin_and_kill(fleet: Fleet) -> None:
    """The controller goes down while the canary judges the new release."""
    options = ["--suite", "smoke", "--brief", "--runs", str(fleet.runs)]
    command = [sys.executable, "-m", "roost.cli", "rollout", "-i", str(fleet.inventory), *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout
        said = list(takewhile(lambda line: line != "  deploying\n", child.stdout))
        begun = ["test", "-e", "/var/lib/roost/releases/transaction.json"]
        try:
            until(lambda: fleet.hosts[0].exec(begun).returncode == 0)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL, said
    assert f"batch 1 of 2: {fleet.hosts[0].name}\n" in said

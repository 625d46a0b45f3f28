"""Rollouts under constant streaming load: what is lost, how much serves meanwhile, seconds a host.

Four lab hosts with the stand-in engine behind a gateway; load by vLLM's own generator. One rollout
to a good release, then one to each release that misbehaves, which must stop at the canary. Then two
hosts with the real engine: from the worse drafter to the good one, and back. At last rollbacks by
hand of one host with the real engine, beside the time that it takes to start.

``make bench-rollout``; the figures are in docs/reliability.md. Needs root.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.playbooks import rolling
from tests.playbooks.playbook import ROOT, Running, inventory
from tests.playbooks.rolling import Fleet
from tests.playbooks.unasked import unasked

from roost.lab.build import Artefacts
from roost.lab.fixtures import SharedLab
from roost.lab.lab import WORSE_DRAFTER
from roost.rollout import report, run
from roost.rollout.record import Rollout

pytestmark = [pytest.mark.lab, pytest.mark.timeout(3600)]

FIGURES = ROOT / "runs" / "bench-rollout.json"
#: Of one host, one after the other.
ROLLBACKS = 5
#: What each misbehaving release of the stand-in does, and what the report must say of it.
MISBEHAVING = {
    "crashes at start, with a log": (
        ["log=torch.OutOfMemoryError: CUDA out of memory.", "exit=1"],
        "the GPU ran out of memory",
    ),
    "never gets healthy": (["never-healthy"], "did not answer 200 within 20 s"),
    "says that it failed, and hangs": (
        ["never-healthy", "log=ERROR EngineCore failed to start."],
        "the engine gave up",
    ),
    "dies at the first request": (["dies-at-request=1"], "at the first request"),
    "dies after its own gate": (["dies-at-request=6"], "did not pass"),
    "answers wrongly": (["answer=nonsense"], "answers wrongly"),
    "generates no token": (["wedged"], "it is wedged (no-tokens)"),
    "is much slower": (["tokens-per-second=20"], "too slow"),
    "accepts half the drafts": (["accepted=1"], "accepts too few drafts"),
}


@pytest.fixture(scope="module")
def fleet(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Fleet:
    return rolling.fleet(shared_lab, tmp_path_factory.mktemp("rollout"), 4, ready_timeout=20)


def keep(name: str, figures: dict[str, Any]) -> None:
    """Add figures to the file of all of them, and show them."""
    FIGURES.parent.mkdir(exist_ok=True)
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    kept[name] = figures
    FIGURES.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"\n{name}: {json.dumps(figures, indent=1)}")


def described(done: Rollout) -> dict[str, Any]:
    """What is worth knowing of a rollout."""
    until = done.finished or done.started
    found = report.capacity(done)
    out = [report.out_seconds(host, until) for host in done.hosts.values() if host.out]
    deploys = [host.seconds.get("deploy", 0.0) for host in done.hosts.values() if host.out]
    return {
        "verdict": done.verdict,
        "seconds": round((until - done.started).total_seconds()),
        "hosts changed": len(out),
        "out of service, seconds a host": [round(one) for one in out],
        "deploy, seconds a host": [round(one) for one in deploys],
        "lowest capacity": found.lowest,
        "mean capacity": round(found.mean, 3),
    }


def test_a_good_release_under_load(fleet: Fleet) -> None:
    fleet.wants("log=second")
    with fleet.load(requests=3000, rate=4) as (load, times):
        done = fleet.roll_out()
    assert done.ok, done.reason
    assert fleet.serving() == ["second"] * 4
    during = load.between(times["begun"], times["ended"])
    figures = {
        **described(done),
        "requests": len(load.started),
        "requests during the rollout": during,
        "failed or truncated": len(load.wrong),
        "median latency, seconds": round(statistics.median(load.latencies), 2),
        "longest latency, seconds": round(max(load.latencies), 2),
    }
    keep("a good release", figures)
    assert load.wrong == []
    assert during >= 1000
    assert not load.ended_early


def test_each_misbehaving_release_stops_at_the_canary(fleet: Fleet) -> None:
    before = fleet.serving()
    with fleet.load(requests=2400, rate=3) as (load, times):
        for name, (standin, says) in MISBEHAVING.items():
            log = [] if any(word.startswith("log=") for word in standin) else ["log=faulty"]
            fleet.wants(*log, *standin)
            done = fleet.roll_out()
            assert done.verdict == "stopped"
            assert says in done.reason
            verdicts = [done.hosts[host.name].verdict for host in fleet.hosts]
            assert verdicts == ["back", *["waiting"] * (len(verdicts) - 1)]
            assert fleet.serving() == before
            keep(name, described(done))
    during = load.between(times["begun"], times["ended"])
    whole = {"requests": during, "failed or truncated": len(load.wrong)}
    keep("all misbehaving releases", {**whole, "ended early": load.ended_early})
    assert load.wrong == []


@pytest.mark.engine
def test_the_real_engine_and_its_drafters(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has both drafters
    shared_lab: SharedLab,
    tmp_path: Path,
) -> None:
    hosts = [shared_lab.host("cpu", fresh=True) for _ in range(2)]
    where = inventory(
        tmp_path / "inventory",
        shared_lab.lab,
        hosts,
        roost_recipe="smollm2-135m",
        roost_lock_file=str(shared_lab.lab.lock_file),
    )

    def wants(**variables: Any) -> None:
        document = yaml.safe_load((where / "hosts.yml").read_text())
        document["all"]["vars"].update(variables)
        (where / "hosts.yml").write_text(yaml.safe_dump(document))

    def roll_out() -> Rollout:
        _, done = run.run(where, suite="smoke", brief=True, runs_dir=tmp_path / "runs", say=print)
        return done

    wants(roost_settings={"drafter_revision": WORSE_DRAFTER}, roost_min_accept_length=1)
    play = Running(where).end()
    assert play.code == 0, play.output
    wants(roost_settings={})
    better = roll_out()
    keep("the real engine, to the better drafter", described(better))
    assert better.ok, better.reason
    wants(roost_settings={"drafter_revision": WORSE_DRAFTER})
    worse = roll_out()
    keep("the real engine, to the worse drafter", described(worse))
    assert worse.verdict == "stopped"
    assert "accepts too few drafts" in worse.reason
    assert [worse.hosts[host.name].verdict for host in hosts] == ["back", "waiting"]


@pytest.mark.engine
def test_rollbacks_with_the_real_engine(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    lab: SharedLab,
    tmp_path: Path,
) -> None:
    host = lab.host("cpu", fresh=True)
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=str(lab.lab.lock_file),
    )
    for settings in ({}, {"max_num_seqs": 3}):
        play = Running(where, roost_settings=settings).end()
        assert play.code == 0, play.output
    rounds = []
    with unasked(lab.lab) as calls:
        for _ in range(ROLLBACKS):
            begun = time.monotonic()
            play = Running(where, playbook="playbooks/rollback.yml").end()
            seconds = time.monotonic() - begun
            assert play.code == 0, play.output
            assert play.changed[host.name]
            kept = host.exec(["cat", "/var/lib/roost/releases/current/gate.json"]).stdout
            proved = json.loads(kept)["figures"]
            engine = proved["ready_seconds"] + proved["warm_up_seconds"]
            rounds.append({"whole": seconds, "engine": engine, "rest": seconds - engine, **proved})
    keep("rollbacks with the real engine", {"rounds": rounds, "asked for something": calls})
    assert calls == []

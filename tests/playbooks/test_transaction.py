"""A deploy is a transaction: faults of the engine and of the controller, on a real host.

Real hosts, Docker, systemd and playbooks; the engine is the lab's stand-in, which misbehaves on
command (what the real one does wrong is in test_deploy.py). Each test begins with some good
release serving, and ends with one. :func:`fault` names what it is a test of: the table in
docs/reliability.md is made of that.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from tests.playbooks.faults import BACK, BY_ITSELF, fault
from tests.playbooks.playbook import Running
from tests.playbooks.standins import RELEASES, TRIAL, Site, ask, until
from tests.playbooks.unasked import unasked

from roost import fleet
from roost.lab.fixtures import SharedLab
from roost.launch.container import CONTAINER

pytestmark = pytest.mark.lab

#: What serves after a fault.
NEXT_RUN = "the release before; the next run goes on"
GIVEN_UP = "nothing after so many starts, with the reason; the next deploy starts it"


# The engine


@pytest.mark.parametrize(
    ("standin", "overrides", "says"),
    [
        pytest.param(
            ["log=torch.OutOfMemoryError: CUDA out of memory.", "exit=1"],
            {},
            ["ended with exit code 1 before it was healthy", "cause: the GPU ran out of memory"],
            id="crashes at start",
            marks=fault("engine", "crashes at start, with a log", BACK),
        ),
        pytest.param(
            ["never-healthy"],
            {"roost_ready_timeout": 10},
            [
                "the engine runs, but http://127.0.0.1:8000/health did not answer 200 within 10 s",
                "cause: it started, logged no error, and never got healthy (never-healthy)",
            ],
            id="never healthy",
            marks=fault("engine", "never gets healthy", BACK),
        ),
        pytest.param(
            ["never-healthy", "log=ERROR EngineCore failed to start."],
            {},
            ["the engine gave up: ERROR EngineCore failed to start."],
            id="fatal line",
            marks=fault("engine", "says in its log that it failed, and hangs", BACK),
        ),
        pytest.param(
            ["dies-at-request=1"],
            {},
            ["the engine ended with exit code 0 at the first request", "(ended-silently)"],
            id="dies at the first request",
            marks=fault("engine", "is healthy, and dies at the first request", BACK),
        ),
        pytest.param(
            ["wedged"],
            {},
            ["cause: healthy, and generates no tokens: it is wedged (no-tokens)"],
            id="wedged",
            marks=fault("engine", "is healthy, and generates no token", BACK),
        ),
        pytest.param(
            # Far below half of what the release before comes to on a machine with other work.
            ["tokens-per-second=40"],
            {"roost_speed_floor": 0.5},
            ["it is healthy, but is too slow", "tokens/s: 0.5 of the", "(slower)"],
            id="slow",
            marks=fault("engine", "is much slower than the release before", BACK),
        ),
        pytest.param(
            ["accepted=1"],
            {},
            ["it is healthy, but accepts too few drafts", "saw 2.00", "(fewer-drafts-accepted)"],
            id="half the accept length",
            marks=fault("engine", "accepts half the drafts", BACK),
        ),
        pytest.param(
            ["accepted=1", "counts-as=sglang"],
            {},
            ["it is healthy, but accepts too few drafts", "saw 2.00", "(fewer-drafts-accepted)"],
            id="half the accept length, by SGLang's counters",
            marks=fault("engine", "accepts half the drafts, counted as SGLang does", BACK),
        ),
    ],
)
def test_a_faulty_engine_is_replaced_by_the_one_before(
    site: Site, standin: list[str], overrides: dict[str, Any], says: list[str]
) -> None:
    with site.unchanged() as before:
        play = site.deploy(*standin, **overrides)
    assert play.code != 0
    message = play.refusal(site.host)
    assert [text for text in says if text not in message] == [], message
    assert f"serves now: {before} again (healthy, with right answers)" in message
    # The host keeps what the controller made of it.
    kept = json.loads(site.sh(f"cat {RELEASES}/last-failed/diagnosis.json"))
    assert f"cause: {kept['findings'][0]['title']}" in message


@pytest.mark.parametrize(
    ("act", "says"),
    [
        pytest.param(
            "docker update --memory 64m --memory-swap 64m",
            [
                "(the kernel killed it for memory)",
                "cause: the kernel killed",
                "(killed-for-memory)",
            ],
            id="memory",
            marks=fault("engine", "takes more memory than its container may", BACK),
        ),
        pytest.param(
            "docker kill",
            ["ended with exit code 137", "cause: somebody killed the engine (SIGKILL)"],
            id="killed",
            marks=fault("engine", "is killed by hand while it is on trial", BACK),
        ),
    ],
)
def test_an_engine_that_is_killed_on_trial(site: Site, act: str, says: list[str]) -> None:
    with site.unchanged() as before:
        # It takes the memory when it has started, and by then must have less.
        run = site.begin("start-seconds=20", "holds-mib=200")
        run.reaches(TRIAL)
        until(site.on_trial)
        site.sh(f"{act} {site.on_trial()}")
        play = run.end()
    assert play.code != 0
    message = play.refusal(site.host)
    assert [text for text in says if text not in message] == [], message
    assert f"serves now: {before} again (healthy, with right answers)" in message


@fault("engine", "crashes after so many requests", "the same release, started after 5 s")
@fault("engine", "its container is removed by hand", "nothing until the next deploy makes it again")
def test_a_crash_while_it_serves_and_a_container_that_is_gone(site: Site) -> None:
    # The gate asks nine times at most.
    assert site.deploy("dies-at-request=12").code == 0
    until(lambda: not ask(site.host))
    until(lambda: "Paris" in ask(site.host))
    site.sh(f"docker rm --force {CONTAINER}")
    play = site.deploy()
    assert play.code == 0, play.output
    site.serving()
    site.rests()


@fault("engine", "crashes while it serves", "the same release, started after 5 s")
@fault("engine", "crashes while it serves, and cannot start any more", GIVEN_UP)
def test_a_crash_is_followed_by_so_many_starts_and_no_more(site: Site) -> None:
    config = site.sh("ls /var/lib/roost/models/*Instruct/*/config.json").strip()
    site.sh(f"mv {config} /tmp/config.json; docker kill {CONTAINER}")
    until(lambda: "failed" in site.sh(f"systemctl is-active {CONTAINER} || true"))
    status = Running(site.inventory, playbook="playbooks/status.yml").end().output
    gave_up = "was given up after several starts (exit code 1: FileNotFoundError"
    assert gave_up in " ".join(status.split())
    assert "cause: " in status
    # Deployed again, it has all its attempts again (in this inventory: two starts).
    site.sh(f"mv /tmp/config.json {config}")
    repaired = site.deploy("log=repaired")
    assert repaired.code == 0
    assert "first found that what served was dead" in repaired.output
    site.sh(f"docker kill {CONTAINER}")
    until(lambda: "Paris" in ask(site.host))
    site.rests()


# The controller


@pytest.mark.parametrize("task", ["llm_server : Have the container roost-llm-", TRIAL])
@fault("controller", "killed before the swap", NEXT_RUN)
def test_a_controller_that_is_killed_before_the_swap(site: Site, task: str) -> None:
    """Before the new container is made, or when it is there."""
    standin = f"log=killed-before-{'swap' if task == TRIAL else 'making'}"
    before, command = site.current, site.serving()
    killed = site.begin(standin, killed_before=task).end()
    assert killed.code == -signal.SIGKILL, killed.output
    assert (site.current, site.serving(), site.begun()) == (before, command, False)
    made = site.sh(f"docker ps --all --quiet --filter 'name=^/?{CONTAINER}-'").split()
    assert len(made) == (task == TRIAL)
    play = site.deploy(standin)
    assert play.code == 0, play.output
    assert f"--standin-{standin}" in site.serving()
    site.rests()


@fault("controller", "killed while the new release is on trial", BY_ITSELF)
def test_a_controller_that_is_killed_during_the_trial(site: Site) -> None:
    standin = ["log=killed-during", "start-seconds=15"]
    run = site.begin(*standin)
    run.reaches(TRIAL)
    until(site.begun)
    run.kill()
    # The host ends what has begun by itself; the next run waits for that.
    play = site.deploy(*standin)
    assert play.code == 0, play.output
    assert "--standin-log=killed-during" in site.serving()
    site.rests()


@fault("controller", "killed after the swap", "the new release; the next run finds it")
def test_a_controller_that_is_killed_before_it_can_say_so(site: Site) -> None:
    killed = site.begin("log=killed-after", killed_before="llm_server : Explain it").end()
    assert killed.code == -signal.SIGKILL, killed.output
    assert "--standin-log=killed-after" in site.serving()
    site.rests()
    assert site.deploy("log=killed-after").changed == {site.host.name: 0}


@fault("controller", "two deploys at once to one host", "each in its turn; the last one's")
def test_two_deploys_at_once_take_turns(site: Site) -> None:
    # The one's trial takes longer than the other can be behind it.
    runs = {name: site.begin(f"log={name}", "start-seconds=25") for name in ("one", "two")}
    plays = {name: run.end() for name, run in runs.items()}
    for play in plays.values():
        assert play.code == 0, play.output
    waited = "first waited for another deploy of this host"
    (last,) = [name for name, play in plays.items() if waited in play.output]
    assert f"--standin-log={last}" in site.serving()
    site.rests()


# Going back


def test_a_rollback_fetches_nothing(site: Site, lab: SharedLab) -> None:
    before = site.current
    assert site.deploy("log=newer").code == 0
    newer = site.current
    # How long it takes is in `make bench-rollout`, with an engine that takes time to start.
    with unasked(lab.lab) as calls:
        assert fleet.run_playbook("rollback", site.inventory).ok
    assert calls == []
    assert (site.current, site.sh(f"readlink {RELEASES}/previous").strip()) == (before, newer)
    assert "--standin-log=newer" not in site.serving()
    found, failed = fleet.ask("status", "Read the releases", site.inventory)
    assert failed == {}
    facts = found[site.host.name]
    assert (facts["current"], facts["previous"]) == (before, newer)
    assert facts["engine"]["healthy"]
    # By name, of one that is not kept.
    unknown = site.begin(playbook="playbooks/rollback.yml", rollback_to="r-1").end()
    assert unknown.changed == {site.host.name: 0}
    assert "release r-1 is not kept on this host; nothing was changed" in unknown.refusal(site.host)
    assert site.current == before

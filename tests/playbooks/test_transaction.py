"""A deploy is a transaction: faults of engine, controller, network and host, on a real host.

Real hosts, Docker, systemd and playbooks; the engine is the lab's stand-in, which misbehaves on
command (what the real one does wrong is in test_deploy.py). Each test begins with some good
release serving, and ends with one. :func:`fault` names what it is a test of: the table in
docs/reliability.md is made of that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.playbooks.faults import BACK, fault
from tests.playbooks.playbook import Play, Running
from tests.playbooks.standins import RELEASES, TRIAL, Site, ask, standin_site, until

from roost import fleet
from roost.lab.build import Artefacts
from roost.lab.fixtures import SharedLab
from roost.launch import CONTAINER

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

#: What serves after a fault, besides ``BACK``.
BY_ITSELF = "the new release: the host goes on by itself"
NEXT_RUN = "the release before; the next run goes on"
GIVEN_UP = "nothing after so many starts, with the reason; the next deploy starts it"


@pytest.fixture(scope="module")
def deployed(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Site:
    folder = tmp_path_factory.mktemp("transaction")
    site = standin_site(shared_lab, folder / "inventory", llm_server_start_attempts=2)
    play = site.begin(tags="all").end()
    assert play.code == 0, play.output
    return site


@pytest.fixture
def site(deployed: Site) -> Site:
    """The site with a good release serving, whatever the test before did."""
    if "Paris" not in ask(deployed.host):
        assert deployed.deploy().code == 0
    return deployed


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
            ["tokens-per-second=150"],
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
        run = site.begin("start-seconds=3", "holds-mib=200")
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


# The controller and the network


@pytest.mark.parametrize(
    ("task", "standin"),
    [
        pytest.param(
            "llm_server : Have the container roost-llm-",
            ["log=killed-before"],
            id="before",
            marks=fault("controller", "killed before the swap", NEXT_RUN),
        ),
        pytest.param(
            TRIAL,
            ["log=killed-during", "start-seconds=3"],
            id="during",
            marks=fault("controller", "killed while the new release is on trial", BY_ITSELF),
        ),
    ],
)
def test_a_killed_controller_and_the_next_run(site: Site, task: str, standin: list[str]) -> None:
    before = site.serving()
    run = site.begin(*standin)
    run.reaches(task)
    time.sleep(1)
    run.kill()
    if task != TRIAL:
        assert site.serving() == before
    # The host ends what has begun by itself; the next run waits for that, if it must.
    play = site.deploy(*standin)
    assert play.code == 0, play.output
    assert f"--standin-{standin[0]}" in site.serving()
    site.rests()


@fault("network", "the SSH connection is lost while a good release is on trial", BY_ITSELF)
def test_a_lost_connection(site: Site) -> None:
    run = site.begin("log=third", "start-seconds=4")
    run.reaches(TRIAL)
    until(site.begun)
    site.host.exec(["pkill", "-f", "^sshd: root@"])
    play = run.end()
    assert play.code == 0, play.output
    assert "UNREACHABLE" in play.output
    assert "healthy after" in play.output
    assert "--standin-log=third" in site.serving()
    site.rests()


@fault("controller", "killed after the swap", "the new release; the next run finds it")
def test_a_controller_that_is_killed_before_it_can_say_so(site: Site) -> None:
    run = site.begin("log=killed-after")
    run.reaches("llm_server : Explain it")
    run.kill()
    assert "--standin-log=killed-after" in site.serving()
    site.rests()
    assert site.deploy("log=killed-after").changed == {site.host.name: 0}


def impatient(folder: Path) -> dict[str, Any]:
    """Settings with which a connection of its own gives up within seconds instead of minutes."""
    return {
        "ansible_control_path_dir": str(folder),
        "ansible_ssh_args": "-o ControlMaster=auto -o ServerAliveInterval=1",
        "ansible_timeout": 2,
        "llm_server_reconnect_timeout": 1,
    }


@fault("network", "the host is cut off before the swap", "the release before, untouched")
def test_a_host_that_cannot_be_reached(site: Site, tmp_path: Path) -> None:
    with site.unchanged():
        site.host.cut()
        try:
            play = site.deploy("log=not-reached", **impatient(tmp_path))
        finally:
            site.host.join()
    assert play.unreachable == {site.host.name: 1}


def cut_off_in_the_middle(site: Site, folder: Path, *standin: str) -> Play:
    """Deploy, with the cable pulled from the trial's begin to its end."""
    run = site.begin("start-seconds=4", *standin, **impatient(folder))
    run.reaches(TRIAL)
    until(site.begun)
    site.host.cut()
    try:
        play = run.end()
        until(lambda: not site.begun())
    finally:
        site.host.join()
    assert play.code != 0
    assert "the connection was lost while a release was judged" in play.output
    assert "The host goes on by itself" in play.output
    return play


@fault("network", "the host is cut off while a faulty release is on trial", BACK)
def test_a_host_that_is_cut_off(site: Site, tmp_path: Path) -> None:
    with site.unchanged():
        cut_off_in_the_middle(site, tmp_path, "answer=nonsense")
    # Nobody was there to explain it; whoever asks later is told.
    status = Running(site.inventory, playbook="playbooks/status.yml").end().output
    assert "cause: healthy, and answers wrongly (wrong-answers)" in " ".join(status.split())


@fault("network", "the host is cut off while a good release passes", BY_ITSELF)
def test_a_host_that_is_cut_off_and_goes_on(site: Site, tmp_path: Path) -> None:
    cut_off_in_the_middle(site, tmp_path, "log=apart")
    assert "--standin-log=apart" in site.serving()
    site.rests()


@fault("controller", "two deploys at once to one host", "each in its turn; the last one's")
def test_two_deploys_at_once_take_turns(site: Site) -> None:
    runs = {name: site.begin(f"log={name}", "start-seconds=4") for name in ("one", "two")}
    plays = {name: run.end() for name, run in runs.items()}
    for play in plays.values():
        assert play.code == 0, play.output
    waited = "first waited for another deploy of this host"
    (last,) = [name for name, play in plays.items() if waited in play.output]
    assert f"--standin-log={last}" in site.serving()
    site.rests()


# The host


@fault("host", "reboots while the new release is on trial", BACK)
def test_a_reboot_in_the_middle(site: Site) -> None:
    with site.unchanged() as before:
        run = site.begin("start-seconds=50")
        run.reaches(TRIAL)
        until(site.begun)
        site.host.stop()
        site.host.start()
        site.host.wait()
        # Even before anybody comes back to it.
        until(lambda: "Paris" in ask(site.host))
        play = run.end()
    assert play.code != 0
    assert "the host went down in the middle of it" in play.output
    assert f"serves now: {before} again (healthy, with right answers)" in play.output


@fault("host", "reboots while a release serves", "the same release, started at boot")
def test_a_reboot_brings_the_engine_back(site: Site) -> None:
    site.host.stop()
    site.host.start()
    site.host.wait()
    until(lambda: "Paris" in ask(site.host))


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


@fault("host", "Docker is stopped while the new release is on trial", BACK)
def test_docker_stopped_in_the_middle(site: Site) -> None:
    with site.unchanged() as before:
        run = site.begin("start-seconds=50")
        run.reaches(TRIAL)
        until(site.begun)
        site.sh("systemctl stop docker.socket docker.service")
        play = run.end()
    assert play.code != 0
    message = play.refusal(site.host)
    assert f"serves now: {before} again (healthy, with right answers)" in message


@fault("host", "Docker is stopped before the swap", "the new release: the deploy starts Docker")
@fault("host", "Docker is stopped and started again", "the same release, started with Docker")
def test_docker_stopped_before_and_after(site: Site) -> None:
    stop = "systemctl stop docker.socket docker.service"
    site.sh(stop)
    play = site.deploy("log=docker-was-stopped", tags="container_host,llm_server")
    assert play.code == 0, play.output
    assert "doctor: docker: saw" not in play.output
    assert "--standin-log=docker-was-stopped" in site.serving()
    site.sh(f"{stop}; systemctl start docker")
    until(lambda: "Paris" in ask(site.host))
    site.rests()


@contextmanager
def small_disk(site: Site) -> Iterator[None]:
    """A file system of its own for the records, with little room."""
    site.sh(
        f"cp -a {RELEASES} /tmp/kept; mount -t tmpfs -o size=600k,mode=755 tmpfs {RELEASES}; "
        f"cp -a /tmp/kept/. {RELEASES}/"
    )
    try:
        yield
    finally:
        site.sh(f"umount {RELEASES}; rm -rf /tmp/kept")


FILL = f"dd if=/dev/zero of={RELEASES}/filler bs=4k; true"


@fault("host", "its disk is full before the swap", "the release before, untouched")
def test_a_full_disk_stops_it_before_the_swap(site: Site) -> None:
    with site.unchanged(), small_disk(site):
        site.sh(FILL)
        play = site.deploy("log=no-room")
    assert play.code != 0
    message = play.refusal(site.host)
    assert "was not tried: its record cannot be written" in message
    assert "No space left on device" in message
    assert "(disk-full)" in message


@fault("host", "its disk fills up while the new release is on trial", BACK)
def test_a_disk_that_fills_up_in_the_middle(site: Site) -> None:
    with site.unchanged() as before, small_disk(site):
        run = site.begin("log=no-room-left", "start-seconds=3")
        run.reaches(TRIAL)
        until(site.begun)
        site.sh(FILL)
        play = run.end()
    assert play.code != 0
    message = play.refusal(site.host)
    assert "No space left on device" in message
    assert "(disk-full)" in message
    assert f"serves now: {before} again (healthy, with right answers)" in message


@fault("host", "its disk fills up during a download", "the release before; the next run goes on")
def test_a_disk_that_fills_up_during_a_download(site: Site) -> None:
    models = "/srv/models"
    wanted = {"tags": "model_store", "roost_model_dir": models}
    site.sh(f"mkdir -p {models} && mount -t tmpfs -o size=4g tmpfs {models}")
    try:
        with site.unchanged():
            run = site.begin(**wanted)
            run.reaches("model_store : Begin to fetch weights that are missing")
            # As if something else had taken all the rest of it.
            site.sh(
                f"used() {{ df -k --output=used {models} | tail -n 1; }}; "
                "while [ $(used) -lt 20000 ]; do sleep 0.02; done; "
                f"until mount -o remount,size=$(($(used) + 9000))k {models}; do :; done"
            )
            play = run.end()
        assert play.code != 0
        message = play.refusal(site.host)
        assert f"the disk of {models}" in message
        assert "free space and deploy again to go on from it" in message
        site.sh(f"mount -o remount,size=4g {models}")
        again = site.deploy(**wanted)
        assert again.code == 0, again.output
    finally:
        site.sh(f"umount {models}")


#: For Python on a host: a year is missing from its clock.
SLOW_CLOCK = """\
import time
now, broken_down = time.time, time.gmtime
time.time = lambda: now() - 365 * 86400
time.gmtime = lambda seconds=None: broken_down(time.time() if seconds is None else seconds)
"""


@fault("host", "its clock is a year behind", "the new release, in its place among the others")
def test_a_clock_that_is_a_year_behind(site: Site) -> None:
    before = site.current
    packages = "/usr/lib/python3/dist-packages"
    site.sh(f"cat >{packages}/slow_clock.py <<'EOF'\n{SLOW_CLOCK}EOF")
    site.sh(f"echo import slow_clock >{packages}/slow_clock.pth")
    try:
        play = site.deploy("log=last-year")
    finally:
        site.sh(f"rm {packages}/slow_clock.*")
    assert play.code == 0, play.output
    found, _ = fleet.ask("status", "Read the releases", site.inventory)
    facts = found[site.host.name]
    assert (facts["current"], facts["previous"]) == (site.current, before)
    assert [each["id"] for each in facts["releases"]][:2] == [site.current, before]
    first, second = (each["times"]["last_served"] for each in facts["releases"][:2])
    assert first < second


# Going back


def test_a_rollback_fetches_nothing_and_is_quick(site: Site, lab: SharedLab) -> None:
    before = site.current
    assert site.deploy("log=newer").code == 0
    newer = site.current
    lab.lab.hub.stop()
    lab.lab.registry.stop()
    started = time.monotonic()
    assert fleet.run_playbook("rollback", site.inventory).ok
    assert time.monotonic() - started < 60
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

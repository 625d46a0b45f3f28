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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.playbooks.faults import BACK, fault
from tests.playbooks.playbook import Play, Running, inventory

from roost import fleet
from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.launch import CONTAINER

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

#: The task that has the host swap and judge.
TRIAL = "llm_server : Have it serve, or what served before"
RELEASES = "/var/lib/roost/releases"

#: What serves after a fault, besides ``BACK``.
BY_ITSELF = "the new release: the host goes on by itself"
NEXT_RUN = "the release before; the next run goes on"
GIVEN_UP = "nothing after so many starts, with the reason; the next deploy starts it"


@dataclass
class Site:
    """A host with a release of the stand-in on it."""

    host: Host
    inventory: Path
    image: str

    def begin(
        self,
        *standin: str,
        playbook: str = "deploy.yml",
        tags: str = "llm_server",
        **overrides: Any,
    ) -> Running:
        """Begin to deploy a release whose engine does these things."""
        words = [f"--standin-{word}" for word in ("needs=/model/config.json", *standin)]
        settings = {"image": self.image, "extra_args": words}
        if playbook == "deploy.yml":
            overrides = {"roost_settings": settings, **overrides}
            # After the first time, Docker and the weights are there.
            return Running(self.inventory, "--tags", tags, playbook=playbook, **overrides)
        return Running(self.inventory, playbook=playbook, **overrides)

    def deploy(self, *standin: str, **overrides: Any) -> Play:
        return self.begin(*standin, **overrides).end()

    def sh(self, script: str) -> str:
        done = self.host.exec(["sh", "-c", script])
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def current(self) -> str:
        """Id of the release that is in place."""
        return self.sh(f"readlink {RELEASES}/current").strip()

    def serving(self) -> list[str]:
        """The command line of the engine that is in place and answers rightly."""
        assert "Paris" in ask(self.host)
        inspected = self.sh(f"docker inspect {CONTAINER}")
        command: list[str] = json.loads(inspected)[0]["Config"]["Cmd"]
        return command

    def begun(self) -> bool:
        """Whether a release is on trial, or being put in place."""
        return self.host.exec(["test", "-e", f"{RELEASES}/transaction.json"]).returncode == 0

    @contextmanager
    def unchanged(self) -> Iterator[str]:
        """The same release serves before and after, and nothing of another one is left."""
        before, command = self.current, self.serving()
        yield before
        assert (self.current, self.serving()) == (before, command)
        self.rests()

    def rests(self) -> None:
        """Nothing of a swap is left."""
        assert self.sh("docker ps --all --format '{{.Names}}'").split() == [CONTAINER]
        assert not self.begun()


def ask(host: Host) -> str:
    """What the endpoint answers, asked past Ansible; empty if nothing answers."""
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    script = (
        "import sys, urllib.request as u; print(u.urlopen(u.Request("
        "'http://127.0.0.1:8000/v1/chat/completions', sys.stdin.buffer.read())).read().decode())"
    )
    done = host.exec(["python3", "-c", script], text_in=json.dumps(body))
    if done.returncode != 0:
        return ""
    text: str = json.loads(done.stdout)["choices"][0]["message"]["content"]
    return text


def until(true: Any, seconds: float = 30) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module")
def deployed(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Site:
    shared_lab.lab.registry.start()
    image = standin_image(shared_lab.lab.cache, print)
    host = shared_lab.host("cpu", fresh=True)
    where = inventory(
        tmp_path_factory.mktemp("transaction") / "inventory",
        shared_lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=str(shared_lab.lab.lock_file),
        roost_ready_timeout=60,
        llm_server_start_attempts=2,
    )
    site = Site(host, where, image)
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
            ["the engine runs, but http://127.0.0.1:8000/health did not answer 200 within 10 s"],
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
            ["the engine ended with exit code 0 at the first request"],
            id="dies at the first request",
            marks=fault("engine", "is healthy, and dies at the first request", BACK),
        ),
        pytest.param(
            ["wedged"],
            {},
            ["it is healthy, but answers wrongly", "the answer was ''"],
            id="wedged",
            marks=fault("engine", "is healthy, and generates no token", BACK),
        ),
        pytest.param(
            ["tokens-per-second=150"],
            {"roost_speed_floor": 0.5},
            ["it is healthy, but is too slow", "tokens/s: 0.5 of the"],
            id="slow",
            marks=fault("engine", "is much slower than the release before", BACK),
        ),
        pytest.param(
            ["accepted=1"],
            {},
            ["it is healthy, but accepts too few drafts", "saw 2.00"],
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


@fault("network", "the host is cut off while a faulty release is on trial", BACK)
def test_a_host_that_is_cut_off(site: Site, tmp_path: Path) -> None:
    impatient = {
        # A connection of its own, which gives up within seconds instead of minutes.
        "ansible_control_path_dir": str(tmp_path),
        "ansible_ssh_args": "-o ControlMaster=auto -o ServerAliveInterval=1",
        "ansible_timeout": 2,
        "llm_server_reconnect_timeout": 5,
    }
    with site.unchanged():
        run = site.begin("start-seconds=4", "answer=nonsense", **impatient)
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
    # Deployed again, it has all its attempts again (in this inventory: two starts).
    site.sh(f"mv /tmp/config.json {config}")
    assert site.deploy("log=repaired").code == 0
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


@fault("host", "its disk is full before the swap", "the release before, untouched")
def test_a_full_disk_stops_it_before_the_swap(site: Site) -> None:
    small = (
        f"cp -a {RELEASES} /tmp/kept; mount -t tmpfs -o size=600k,mode=755 tmpfs {RELEASES}; "
        f"cp -a /tmp/kept/. {RELEASES}/; dd if=/dev/zero of={RELEASES}/filler bs=4k; true"
    )
    with site.unchanged():
        site.sh(small)
        try:
            play = site.deploy("log=no-room")
        finally:
            site.sh(f"umount {RELEASES}; rm -rf /tmp/kept")
    assert play.code != 0
    message = play.refusal(site.host)
    assert "was not tried: its record cannot be written" in message
    assert "No space left on device" in message


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

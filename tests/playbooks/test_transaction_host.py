"""A deploy is a transaction: faults of the network and of the host, on a real host.

Real hosts, Docker, systemd and playbooks; the engine is the lab's stand-in, which misbehaves on
command (what the real one does wrong is in test_deploy.py). Each test begins with some good
release serving, and ends with one. :func:`fault` names what it is a test of: the table in
docs/reliability.md is made of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.playbooks.faults import BACK, BY_ITSELF, fault
from tests.playbooks.playbook import Play, Running
from tests.playbooks.standins import RELEASES, TRIAL, Site, ask, until
from tests.playbooks.unasked import unasked

from roost import fleet, releases
from roost.lab.fixtures import SharedLab
from roost.lab.pacing import paced

pytestmark = pytest.mark.lab


# The network


@fault("network", "the SSH connection is lost while a good release is on trial", BY_ITSELF)
def test_a_lost_connection(site: Site) -> None:
    run = site.begin("log=third", "start-seconds=15")
    run.reaches(TRIAL)
    until(site.begun)
    site.host.exec(["pkill", "-f", "^sshd: root@"])
    play = run.end()
    assert play.code == 0, play.output
    assert "UNREACHABLE" in play.output
    assert "healthy after" in play.output
    assert "--standin-log=third" in site.serving()
    site.rests()


def impatient(folder: Path) -> dict[str, Any]:
    """Settings with which a connection of its own gives up within seconds instead of minutes.

    Not sooner, or it would give up a host that only has much to do.
    """
    return {
        "ansible_control_path_dir": str(folder),
        "ansible_ssh_args": "-o ControlMaster=auto -o ServerAliveInterval=5 "
        "-o ServerAliveCountMax=2",
        "ansible_timeout": 15,
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
    run = site.begin("start-seconds=20", *standin, **impatient(folder))
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


@fault("network", "the host is cut off after the swap", "what it was swapped to, or back to")
def test_a_host_that_is_cut_off_afterwards(site: Site, tmp_path: Path) -> None:
    for number, standin in enumerate((["log=kept"], ["exit=1"])):
        run = site.begin(*standin, **impatient(tmp_path / str(number)))
        run.reaches("llm_server : Explain it")
        site.host.cut()
        try:
            play = run.end()
        finally:
            site.host.join()
        # It has said what it came to, and the controller what it comes from.
        assert (play.code == 0) is ("log=kept" in standin), play.output
        assert play.unreachable == {site.host.name: 0}
        assert "--standin-log=kept" in site.serving()
        site.rests()
    assert "was not kept: the engine ended with exit code 1" in play.output
    assert "again (healthy, with right answers)" in play.output
    assert site.deploy("log=kept").changed == {site.host.name: 0}


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


def test_a_stopped_engine_stays_so_over_a_reboot_and_is_started_again(
    site: Site, lab: SharedLab
) -> None:
    with site.unchanged() as before:
        play = site.begin(playbook="playbooks/stop.yml").end()
        assert (play.code, play.changed) == (0, {site.host.name: 1}), play.output
        assert not ask(site.host)
        again = site.begin(playbook="playbooks/stop.yml").end()
        assert (again.code, again.changed) == (0, {site.host.name: 0}), again.output
        site.host.stop()
        site.host.start()
        site.host.wait()
        until(lambda: site.sh("systemctl is-active docker || true") == "active\n")
        assert site.sh("docker ps --quiet") == ""
        found, _ = fleet.ask("status", "Read the releases", site.inventory)
        facts = found[site.host.name]
        assert facts["current"] == before
        assert releases.status(facts)[0].startswith(f"{before}: was stopped, and stays so")
        with unasked(lab.lab) as calls:
            assert fleet.run_playbook("start", site.inventory).ok
        assert calls == []
    site.host.stop()
    site.host.start()
    site.host.wait()
    until(lambda: "Paris" in ask(site.host))


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
        run = site.begin("log=no-room-left", "start-seconds=20")
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
def test_a_disk_that_fills_up_during_a_download(site: Site, lab: SharedLab) -> None:
    models, hub = "/srv/models", str(lab.lab.spec.gateway.ip)
    site.sh(f"mkdir -p {models} && mount -t tmpfs -o size=4g tmpfs {models}")
    try:
        # The weights take seconds, so that there is a middle of them.
        with paced(hub, lab.lab.spec.hub_port, 10e6) as port, site.unchanged():
            wanted = {"tags": "model_store", "roost_model_dir": models}
            wanted["roost_hub_endpoint"] = f"http://{hub}:{port}"
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
        again = site.deploy(**{**wanted, "roost_hub_endpoint": lab.lab.site.hub_url})
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

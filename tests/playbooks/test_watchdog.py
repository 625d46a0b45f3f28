"""The watchdog on a real host: what it ends, what it leaves alone, and what it stops in time.

Real hosts, Docker, systemd and playbooks; the engine is the lab's stand-in, which wedges on
command, and the host's /proc/meminfo is a file that the test writes.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from tests.playbooks.playbook import Running
from tests.playbooks.standins import TRIAL, Site, ask, standin_site, until

from roost.lab.build import Artefacts
from roost.lab.fixtures import SharedLab
from roost.launch.container import CONTAINER

pytestmark = pytest.mark.lab

STATE = "/var/lib/roost/watchdog/state.json"
FLOOR_MIB = 1000
#: A client that asks for something and leaves again.
CLIENT = (
    "import json, sys, urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:8000/v1/chat/"
    "completions', json.dumps({'messages': [{'role': 'user', 'content': sys.argv[1]}]}).encode()),"
    " timeout=float(sys.argv[2]))"
)


@pytest.fixture(scope="module")
def site(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Site:
    found = standin_site(
        shared_lab,
        tmp_path_factory.mktemp("watchdog") / "inventory",
        roost_memory_floor_mib=FLOOR_MIB,
        watchdog_interval=1,
        watchdog_frozen_seconds=5,
    )
    # Before the watchdog has a view of the file systems that is its own.
    found.sh("cp /proc/meminfo /run/meminfo; mount --bind /run/meminfo /proc/meminfo")
    play = found.begin(tags="all").end()
    assert play.code == 0, play.output
    return found


def state(site: Site) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(site.sh(f"cat {STATE}"))
    return found


def events(site: Site) -> list[str]:
    return [f"{one['what']} {one['why']}" for one in state(site)["events"]]


def request(site: Site, prompt: str, seconds: float) -> int:
    done = site.host.exec(["python3", "-c", CLIENT, prompt, str(seconds)])
    return int(done.returncode)


def status(site: Site) -> str:
    output = Running(site.inventory, playbook="playbooks/status.yml").end().output
    return " ".join(output.split())


def available(site: Site, mib: int) -> None:
    """Write down how much memory there is; in place, for the file is bound elsewhere."""
    site.sh(
        f"sed 's/^MemAvailable:.*/MemAvailable: {mib * 1024} kB/' /run/meminfo > /run/next; "
        "cat /run/next > /run/meminfo"
    )


def started(site: Site) -> str:
    return site.sh(f"docker inspect --format '{{{{.State.StartedAt}}}}' {CONTAINER}").strip()


def used(site: Site) -> tuple[float, int]:
    """What the watchdog has taken: seconds of CPU, and kB of memory."""
    pid = site.sh("systemctl show --value --property=MainPID roost-watchdog").strip()
    ticks = site.sh(f"cut -d' ' -f14,15 /proc/{pid}/stat").split()
    resident = site.sh(f"grep VmRSS /proc/{pid}/status").split()[1]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), int(resident)


def test_a_slow_engine_is_left_alone_and_a_wedged_one_comes_back(site: Site) -> None:
    before = started(site)
    begun, (seconds, _) = time.monotonic(), used(site)
    # A long prompt: no token for twice as long as a wedge may last.
    assert request(site, "stand-in: prefill 10", 120) == 0
    assert (started(site), events(site)) == (before, [])
    # Here it looks at the engine every second, by default every fifteenth.
    after, resident = used(site)
    assert after - seconds < 0.05 * (time.monotonic() - begun)
    assert resident < 40_000

    assert request(site, "stand-in: wedge", 1) != 0
    health = "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=60)"
    site.sh(f'python3 -c "{health}"')
    # Whoever asks now would be held too.
    until(lambda: started(site) != before)
    until(lambda: "Paris" in ask(site.host))
    assert events(site) == ["restarted frozen"]
    (event,) = state(site)["events"]
    assert event["said"].startswith("1 requests are held, and no token or block moved for ")
    kept = site.sh(f"cd {event['evidence']} && ls && cat roost-llm.log metrics.txt")
    assert "This is a stand-in" in kept
    assert "vllm:num_requests_running" in kept
    journal = site.sh("journalctl --unit roost-watchdog --output cat --no-pager")
    (line,) = [line for line in journal.splitlines() if line.startswith("{")]
    assert json.loads(line)["why"] == "frozen"


def test_below_the_floor_the_engine_is_stopped_until_the_next_deploy(site: Site) -> None:
    available(site, FLOOR_MIB - 100)
    until(lambda: state(site)["held"] is not None)
    time.sleep(7)  # after 5 s the unit would have started it again
    assert site.sh(f"docker inspect --format '{{{{.State.Running}}}}' {CONTAINER}") == "false\n"
    says = f"900 MiB of memory were available, the floor is {FLOOR_MIB} MiB"
    assert f"was stopped by the watchdog ({says})" in status(site)

    # What is short of memory now is refused. A release that eats it fails, and is said to have.
    assert "cannot run smollm2-135m; nothing was changed" in site.deploy().refusal(site.host)
    available(site, 20_000)
    run = site.begin("log=hungry", "start-seconds=60")
    run.reaches(TRIAL)
    available(site, FLOOR_MIB - 100)
    play = run.end()
    assert play.code != 0
    assert f"(the watchdog stopped it: {says})" in play.refusal(site.host)

    available(site, 20_000)
    play = site.deploy()
    assert play.code == 0, play.output
    assert "Paris" in ask(site.host)
    until(lambda: state(site)["held"] is None)


def test_a_second_deploy_changes_nothing(site: Site) -> None:
    play = site.begin(tags="watchdog").end()
    assert play.changed == {site.host.name: 0}


def test_what_was_changed_by_hand_is_put_right(site: Site) -> None:
    """Units are written only where the preflight saw others: so it has to see those."""
    site.sh("systemctl disable --now roost-watchdog")
    site.sh("chmod 0666 /etc/systemd/system/roost-watchdog.service")
    site.sh("echo '# mine' >> /etc/systemd/system/roost-llm.service")
    play = site.begin(tags="all").end()
    assert play.code == 0, play.output
    assert play.changed == {site.host.name: 3}, play.output  # two units, one start
    assert site.sh("systemctl is-active roost-watchdog; systemctl is-enabled roost-watchdog") == (
        "active\nenabled\n"
    )
    assert site.sh("stat -c %a /etc/systemd/system/roost-watchdog.service") == "644\n"
    assert "mine" not in site.sh("cat /etc/systemd/system/roost-llm.service")

"""A gateway before two hosts: deployed under load, and no request is lost.

Real hosts, HAProxy, Docker and playbooks; the engine is the lab's stand-in.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.playbooks.playbook import Play, Running, inventory
from tests.playbooks.standins import TRIAL

from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host

pytestmark = pytest.mark.lab

KEY = "for-clients-only"
#: Another release; it starts slowly enough to be looked at on trial.
SLOWER = ("tokens-per-second=100", "start-seconds=15")
WORDS = 40


@dataclass
class Load:
    """What became of streaming requests.

    Attributes:
        whole: How many came to their end with every word.
        lost: How the others ended.
    """

    whole: int = 0
    lost: list[str] = field(default_factory=list)


@dataclass
class Fleet:
    """A gateway and the hosts behind it."""

    gate: Host
    hosts: list[Host]
    inventory: Path
    image: str

    def begin(
        self, *standin: str, limit: str = "all", tags: str = "llm_server", **overrides: Any
    ) -> Running:
        """Begin to deploy a release of the stand-in that does these things."""
        words = [f"--standin-{word}" for word in ("needs=/model/config.json", *standin)]
        settings = {"image": self.image, "extra_args": words}
        options = ("--tags", tags, "--limit", limit)
        return Running(self.inventory, *options, roost_settings=settings, **overrides)

    def deploy(self, *standin: str, **options: Any) -> Play:
        return self.begin(*standin, **options).end()

    def configure(self, *options: str) -> Play:
        return Running(self.inventory, *options, playbook="playbooks/gateway.yml").end()

    def states(self) -> dict[str, str]:
        """Each host as the gateway sees it: UP, DOWN, DRAIN, …"""
        script = "echo 'show stat engines 4 -1' | python3 -c \"$1\""
        program = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); "
            "s.connect('/run/haproxy/admin.sock'); s.sendall(sys.stdin.buffer.read()); "
            "s.shutdown(1); print(b''.join(iter(lambda: s.recv(9999), b'')).decode())"
        )
        said = self.gate.exec(["sh", "-c", script, "sh", program]).stdout.lstrip("# ")
        header, *rows = [line.split(",") for line in said.splitlines() if line]
        return {row[1]: row[header.index("status")] for row in rows}

    def stream(self, words: int = WORDS, key: str = KEY) -> str:
        """One streaming request through the gateway; what went wrong, or nothing."""
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": words, "stream": True}
        connection = http.client.HTTPConnection(str(self.gate.address), 8080, timeout=300)
        headers = {"Authorization": f"Bearer {key}"}
        got, line = 0, b""
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            for line in answer:
                got += b'"content": "' in line and b'"role"' not in line
                if line.startswith(b"data: [DONE]"):
                    return "" if got == words else f"{got} words"
            return f"HTTP {answer.status}, {got} words, then {line!r}"
        except (OSError, http.client.HTTPException) as error:
            return f"{error!r} after {got} words"
        finally:
            connection.close()

    @contextmanager
    def load(self, clients: int = 4) -> Iterator[Load]:
        """Constant streaming load for as long as the block takes."""
        found, over, lock = Load(), threading.Event(), threading.Lock()

        def ask() -> None:
            while not over.is_set():
                wrong = self.stream()
                with lock:
                    found.whole += not wrong
                    found.lost += [wrong] if wrong else []

        threads = [threading.Thread(target=ask) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield found
        finally:
            over.set()
            for thread in threads:
                thread.join()


@pytest.fixture(scope="module")
def fleet(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Fleet:
    shared_lab.lab.registry.start()
    image = standin_image(shared_lab.lab.cache, print)
    gate = shared_lab.host("cpu", fresh=True, docker=False, gateway=True)
    hosts = [shared_lab.host("cpu", fresh=True, image=image) for _ in range(2)]
    where = inventory(
        tmp_path_factory.mktemp("gateway"),
        shared_lab.lab,
        [gate, *hosts],
        roost_recipe="smollm2-135m",
        roost_lock_file=str(shared_lab.lab.lock_file),
        roost_ready_timeout=180,
        roost_hub_client=False,  # the lab's hub needs none
        gateway_api_keys={"tests": KEY},
    )
    return Fleet(gate, hosts, where, image)


def test_a_fleet_is_deployed_under_load_and_no_request_is_lost(fleet: Fleet) -> None:
    one, two = fleet.hosts
    play = fleet.deploy(tags="all")
    assert play.code == 0, play.output
    assert sorted(play.changed) == [one.name, two.name]

    clean = fleet.configure("--check", "--diff")
    assert clean.code == 0, clean.output
    assert "would install: haproxy" in clean.output
    assert fleet.gate.exec(["test", "-e", "/etc/haproxy"]).returncode != 0
    first = fleet.configure()
    assert first.code == 0, first.output
    for options in ((), ("--check", "--diff")):
        again = fleet.configure(*options)
        assert (again.code, again.changed) == (0, {fleet.gate.name: 0}), again.output
    assert KEY not in first.output + clean.output
    # What HAProxy does not take does not take the place of what it runs with.
    wrong = fleet.configure("-e", "gateway_certificate=/nowhere.pem")
    assert "/nowhere.pem" in wrong.refusal(fleet.gate)
    assert fleet.stream() == ""

    with fleet.load() as load:
        # All at once: the last one that serves is kept, for the run after this.
        both = fleet.deploy(*SLOWER)
        assert sorted(both.failed.values()) == [0, 1], both.output
        kept, swapped = sorted(fleet.hosts, key=lambda host: -both.failed[host.name])
        assert "no other host would be left to serve" in both.refusal(kept)
        assert fleet.states() == {one.name: "UP", two.name: "UP"}

        # Killed in the middle: the host ends it by itself, and the next run has it served again.
        run = fleet.begin(*SLOWER)
        run.reaches(TRIAL)
        assert fleet.states() == {swapped.name: "UP", kept.name: "DRAIN"}, run.output
        fleet.gate.exec(["systemctl", "reload", "haproxy"])
        run.kill()
        after = fleet.deploy(*SLOWER)
        assert after.code == 0, after.output
        assert fleet.states() == {one.name: "UP", two.name: "UP"}

        # What does not pass is taken back, and the release before is served again.
        wrong = fleet.deploy("answer=nonsense", limit=one.name)
        assert wrong.failed == {one.name: 1}, wrong.output
        assert "was not kept" in wrong.refusal(one)
        assert fleet.states() == {one.name: "UP", two.name: "UP"}

        # And where nothing changes, nothing is drained.
        idle = fleet.deploy(*SLOWER)
        assert idle.changed == {one.name: 0, two.name: 0}, idle.output
        assert "Send it no more requests, and wait" not in idle.output
        time.sleep(1)
    assert load.lost == []
    assert load.whole > 100


def test_what_a_failed_run_has_written_is_read_by_the_next(fleet: Fleet) -> None:
    """Though that one has nothing to write: a key that was taken away must not stay good."""
    keys = json.dumps({"gateway_api_keys": {"tests": KEY, "others": f"{KEY}-2"}})
    assert fleet.configure().code == 0
    assert fleet.configure("-e", keys, "-e", "gateway_certificate=/nowhere.pem").code != 0
    assert fleet.stream(key=f"{KEY}-2").startswith("HTTP 401")
    after = fleet.configure("-e", keys)
    assert (after.code, after.changed[fleet.gate.name]) == (0, 2), after.output
    assert not fleet.stream(key=f"{KEY}-2").startswith("HTTP 401")

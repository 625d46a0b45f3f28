"""Draining and returning hosts of a real HAProxy, under load, over reloads and restarts."""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from tests.unit.gateways import Gateway, Stream, begin, gateway
from tests.unit.plugins import load
from tests.unit.servers import free_port

import roost.onhost
from roost.onhost import draining, haproxy
from roost.onhost.draining import Engine
from roost.onhost.haproxy import AbsentError, Haproxy

VLLM = Engine("/metrics", ["vllm:num_requests_running", "vllm:num_requests_waiting"])


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Gateway]:
    with gateway(tmp_path, 2, "tokens-per-second=50") as made:
        yield made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "PACE", 0.02)
    # An engine that is slow to say how many it has would be one that has none.
    monkeypatch.setattr(draining, "_METRICS_TIMEOUT", 60)


class Waiting:
    """What happens once whoever drains or readmits, on this thread, has waited a few times.

    Attributes:
        looks: How often that has looked.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], Any]) -> None:
        self.looks = 0
        self._then = then
        self._mine = threading.get_ident()
        self._look = draining._look
        monkeypatch.setattr(draining, "_look", self._looking)

    @property
    def over(self) -> bool:
        """Whether it has happened."""
        return self.looks >= 5

    def _looking(self, *of: Any) -> dict[str, haproxy.Server]:
        if threading.get_ident() == self._mine:
            self.looks += 1
            if self.looks == 5:
                self._then()
        return self._look(*of)


def drain(made: Gateway, name: str = "one", **options: Any) -> dict[str, Any]:
    given = {"timeout": 60, "late": "fail", "last": False, **options}
    return draining.drain(made.haproxy, name, given.pop("engine", VLLM), **given)


def readmit(made: Gateway, name: str = "one", timeout: float = 60) -> dict[str, Any]:
    return draining.readmit(made.haproxy, name, timeout=timeout)


def streams_to_both(made: Gateway) -> tuple[list[Stream], threading.Event]:
    """A stream on each host, which goes on when it is told to."""
    go_on = made.hold()
    found = begin(made, 2)
    assert [server.requests for server in made.haproxy.servers()] == [1, 1]
    return found, go_on


# -- draining


def test_what_runs_ends_and_nothing_new_comes(
    made: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = made.hold()
    streams = begin(made, 4, words=10)
    waiting = Waiting(monkeypatch, go_on.set)
    found = drain(made)
    assert (found["changed"], found["state"], found["failure"]) == (True, "drain", None)
    assert (found["requests"], found["engine_requests"]) == (0, 0)
    assert waiting.over
    before = len(made.engines.engines[0].bodies)
    assert before == 2
    assert {made.post()[0] for _ in range(6)} == {200}
    assert len(made.engines.engines[0].bodies) == before
    for stream in streams:
        stream.join()
    assert all(stream.whole and stream.words == 10 for stream in streams)
    again = drain(made)
    assert (again["changed"], again["state"]) == (False, "drain")


def test_requests_past_the_gateway_are_waited_for_too(
    made: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = made.engines.engines[0]
    engine.running = 3
    waiting = Waiting(monkeypatch, lambda: setattr(engine, "running", 0))
    found = drain(made)
    assert found["failure"] is None
    assert waiting.over


def test_a_count_that_has_stood_still_counts_nothing(
    made: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = made.engines.engines[0]
    engine.running = 1
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        # Tokens come for a while, and then no more: it was aborted, and nobody told the gauge.
        engine.tokens = min(int(now), 10)

    monkeypatch.setattr(draining, "PACE", 5.0)
    monkeypatch.setattr(draining, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    found = drain(made)
    assert (found["failure"], found["engine_requests"]) == (None, 1)
    assert found["seconds"] == 10.0 + draining.STALE


def test_an_engine_that_counts_nothing_is_haproxy_s_to_count(made: Gateway) -> None:
    assert drain(made, engine=Engine("/nothing", ["a:b"]))["failure"] is None
    readmit(made)
    made.engines.stop(0)
    assert drain(made)["failure"] is None


def test_late_requests_leave_the_host_where_it_was(made: Gateway) -> None:
    streams, go_on = streams_to_both(made)
    found = drain(made, timeout=0.2)
    assert (found["changed"], found["state"]) == (False, "ready")
    assert found["failure"] == (
        "its requests have not ended within 0.2 s: HAProxy counts 1, the engine 1"
    )
    assert made.server().state == "ready"
    go_on.set()
    for stream in streams:
        stream.join()
    assert all(stream.whole for stream in streams)


def test_or_are_cut_where_that_is_wanted(made: Gateway) -> None:
    streams, go_on = streams_to_both(made)
    found = drain(made, timeout=0.2, late="go_on")
    assert (found["changed"], found["state"], found["failure"]) == (True, "drain", None)
    assert found["requests"] == 1
    assert made.server().state == "drain"
    go_on.set()
    for stream in streams:
        stream.join()


def test_the_last_one_that_serves_is_kept(made: Gateway) -> None:
    assert drain(made, "two")["state"] == "drain"
    found = drain(made)
    assert (found["state"], found["failure"]) == ("ready", "no other host would be left to serve")
    assert "gateway_drain_last: true" in found["fix"]
    assert made.post()[0] == 200
    assert drain(made, last=True)["state"] == "drain"
    assert made.post()[0] == 503


def test_one_that_is_down_is_not_the_last_one(made: Gateway) -> None:
    assert drain(made, "two")["state"] == "drain"
    made.engines.stop(0)
    made.wait(lambda: not made.server().up)
    assert drain(made)["state"] == "drain"


def test_of_two_at_once_one_is_kept(made: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    look = draining._look

    def slowly(*of: Any) -> dict[str, haproxy.Server]:
        seen = look(*of)
        time.sleep(0.3)
        return seen

    monkeypatch.setattr(draining, "_look", slowly)
    found: dict[str, Any] = {}
    threads = [
        threading.Thread(target=lambda name=name: found.update({name: drain(made, name)}))
        for name in made.names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["state"] for one in found.values()) == ["drain", "ready"]


def test_where_no_gateway_is_there_is_nothing_to_wait_for(made: Gateway) -> None:
    assert drain(made, "nobody")["state"] == "absent"
    made.kill()
    for found in (drain(made), readmit(made)):
        assert (found["state"], found["changed"], found["failure"]) == ("absent", False, None)
    with pytest.raises(AbsentError, match=r"master\.sock"):
        made.haproxy.servers()


# -- returning


def test_it_is_served_again_when_its_check_passes(
    made: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain(made)
    made.engines.stop(0)
    made.wait(lambda: not made.server().up)
    waiting = Waiting(monkeypatch, lambda: made.engines.start(0))
    found = readmit(made)
    assert (found["changed"], found["state"], found["failure"]) == (True, "ready", None)
    assert waiting.over
    assert {made.post()[0] for _ in range(4)} == {200}
    assert len(made.engines.engines[0].bodies) >= 1
    again = readmit(made)
    assert (again["changed"], again["state"]) == (False, "ready")


def test_a_gateway_that_is_down_sends_it_requests_when_it_is_up_again(made: Gateway) -> None:
    drain(made)
    drain(made, "two", last=True)
    made.kill()
    found = readmit(made)
    assert (found["changed"], found["state"], found["failure"]) == (True, "absent", None)
    assert readmit(made)["changed"] is False
    made.start()
    assert (made.server().state, made.server("two").state) == ("ready", "drain")


def test_a_gateway_that_is_down_leaves_to_an_operator_what_is_an_operators(made: Gateway) -> None:
    made.haproxy.set("one", "maint")
    made.kill()
    assert readmit(made)["changed"] is False
    made.start()
    assert made.server().state == "maint"


def test_and_stays_out_while_it_does_not(made: Gateway) -> None:
    drain(made)
    made.engines.stop(0)
    made.wait(lambda: not made.server().up)
    found = readmit(made, timeout=0.3)
    assert (found["changed"], found["state"]) == (False, "drain")
    assert "127.0.0.1:" in found["failure"]
    assert "does not pass within 0.3 s: L4CON" in found["failure"]


def test_what_an_operator_has_taken_out_stays_out(made: Gateway) -> None:
    made.haproxy.set("one", "maint")
    assert drain(made)["state"] == "maint"
    made.engines.engines[0].running = 1
    late = drain(made, timeout=0.1)
    assert late["state"] == "maint"
    assert "have not ended" in late["failure"]
    assert readmit(made)["state"] == "maint"
    assert made.server().state == "maint"


# -- reloads and restarts


def test_streams_go_on_over_a_reload_and_are_waited_for(
    made: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, go_on = streams_to_both(made)
    made.reload()
    # Both belong to the old worker, of which the new one knows nothing.
    assert [server.requests for server in made.haproxy.servers()] == [1, 1]
    waiting = Waiting(monkeypatch, go_on.set)
    found = drain(made)
    assert found["failure"] is None
    assert waiting.over
    for stream in streams:
        stream.join()
    assert all(stream.whole and stream.words == 30 for stream in streams)


def test_drained_is_drained_over_a_reload_a_kill_and_another_port(made: Gateway) -> None:
    drain(made)
    made.kill()
    made.start()
    assert made.server().state == "drain"
    made.reload()
    assert (made.server().state, made.server("two").state) == ("drain", "ready")
    made.engines.stop(0)
    made.engines.ports[0] = free_port()
    made.engines.start(0)
    made.configure()
    made.reload()
    assert made.server().state == "drain"
    assert made.server().port == made.engines.ports[0]
    assert readmit(made)["state"] == "ready"
    made.reload()
    assert made.server().state == "ready"


def test_a_host_that_is_down_is_down_after_a_reload_too(made: Gateway) -> None:
    made.engines.engines[0].asked.standin_never_healthy = True
    made.wait(lambda: not made.server().up)
    made.reload()
    # Without its state it would be taken for well until it has failed often enough.
    assert not made.server().up


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer for a reload."""
    monkeypatch.setattr(haproxy, "_DEAF", 60)


@pytest.mark.usefixtures("slowly")
def test_a_reload_is_no_gateway_that_is_down(made: Gateway) -> None:
    """Its socket refuses for a moment; who drains would take that for nothing to wait for."""
    reload = threading.Thread(target=made.reload)
    reload.start()
    while reload.is_alive():
        assert made.haproxy.servers()
    reload.join()


def test_a_drain_that_a_reload_has_missed_is_set_again(
    made: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload reads the states, then the server is drained, then the new worker starts."""
    streams, go_on = streams_to_both(made)
    done = Haproxy.set

    def lost(haproxy: Haproxy, *_: str) -> list[str]:
        told = haproxy._workers()
        made.reload()
        monkeypatch.setattr(Haproxy, "set", done)
        return told

    monkeypatch.setattr(Haproxy, "set", lost)
    go_on.set()
    assert drain(made)["state"] == "drain"
    assert made.server().state == "drain"
    for stream in streams:
        stream.join()


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("before", ["ready", "drain"])
@pytest.mark.parametrize("reload", [False, True])
def test_whoever_has_it_served_again_ends_the_wait(
    made: Gateway, monkeypatch: pytest.MonkeyPatch, before: str, *, reload: bool
) -> None:
    """What waits may be what an interrupted deploy has left, which nobody knows of any more."""

    def back() -> None:
        if reload:
            made.reload()
            # The one that looks now may not have seen the new worker, the next one has.
            looks = waiting.looks
            made.wait(lambda: waiting.looks > looks + 2)
        readmit(made)

    streams, go_on = streams_to_both(made)
    made.haproxy.set("one", before)
    other = threading.Thread(target=back)
    waiting = Waiting(monkeypatch, other.start)
    found = drain(made)
    other.join()
    assert (found["changed"], found["state"]) == (False, "ready")
    assert found["failure"] == "somebody has had it served again meanwhile"
    assert made.server().state == "ready"
    go_on.set()
    for stream in streams:
        stream.join()


# -- no request is lost


def test_no_request_is_lost_while_hosts_come_and_go(tmp_path: Path) -> None:
    with gateway(tmp_path, 3, "tokens-per-second=200") as made:
        over = threading.Event()
        streams: list[Stream] = []

        def load() -> None:
            while not over.is_set():
                stream = Stream(made, words=20)
                streams.append(stream)
                stream.join()

        def loaded() -> None:
            """However slow the machine is, some begin and end meanwhile."""
            begun = len(streams)
            made.wait(lambda: len(streams) >= begun + 2 * len(clients))

        clients = [threading.Thread(target=load) for _ in range(6)]
        for client in clients:
            client.start()
        try:
            for number, name in enumerate(made.names):
                loaded()
                assert drain(made, name)["failure"] is None
                made.engines.stop(number)
                made.reload()
                made.engines.start(number)
                made.reload()
                loaded()
                assert readmit(made, name)["state"] == "ready"
        finally:
            over.set()
            for client in clients:
                client.join()
        lost = [stream for stream in streams if not stream.whole or stream.words != 20]
        assert not lost, [(stream.status, stream.words, stream.error) for stream in lost]


def test_no_request_on_a_kept_connection_is_lost_by_a_reload(tmp_path: Path) -> None:
    with gateway(tmp_path, 2, "tokens-per-second=2000") as made:
        over = threading.Event()
        ends: list[str] = []

        def load(pause: float) -> None:
            # As clients' libraries do: opened anew only when the last answer said that it closes.
            connection = made.connection()
            while not over.is_set():
                body = json.dumps({"messages": [{"content": "2+2"}], "max_tokens": 2})
                try:
                    connection.request("POST", "/v1/chat/completions", body)
                    answer = connection.getresponse()
                    answer.read()
                    ends.append(str(answer.status))
                except (OSError, http.client.HTTPException) as error:
                    ends.append(repr(error))
                    connection.close()
                time.sleep(pause)
            connection.close()

        def loaded() -> None:
            had = len(ends)
            made.wait(lambda: len(ends) >= had + 8)

        clients = [threading.Thread(target=load, args=(at / 100,)) for at in range(8)]
        for client in clients:
            client.start()
        try:
            for _ in range(6):
                loaded()
                made.reload()
            loaded()
        finally:
            over.set()
            for client in clients:
                client.join()
        assert set(ends) == {"200"}


# -- the module


@pytest.fixture
def gateway_server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which finds what it imports where Ansible puts it."""
    monkeypatch.setitem(sys.modules, "ansible.module_utils.roost", roost)
    monkeypatch.setitem(sys.modules, "ansible.module_utils.roost.onhost", roost.onhost)
    for name, part in (("draining", draining), ("haproxy", haproxy)):
        monkeypatch.setitem(sys.modules, f"ansible.module_utils.roost.onhost.{name}", part)
    return load("modules", "gateway_server")


def test_the_module_says_what_it_would_do_does_it_and_then_nothing(
    made: Gateway, gateway_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def module(state: str, *, check: bool = False) -> dict[str, Any]:
        arguments = {
            "name": "one",
            "state": state,
            "master": str(made.folder / "master.sock"),
            "config": str(made.config),
            "states": str(made.folder / "states"),
            "gauges": VLLM.gauges,
            "_ansible_check_mode": check,
        }
        with patch_module_args(arguments), pytest.raises(SystemExit):
            gateway_server.main()
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        return said

    runs = [True, False, False, True]
    found = [module("drained", check=check) for check in runs]
    assert [one["changed"] for one in found] == [True, True, False, False]
    assert [one["state"] for one in found] == ["ready", "drain", "drain", "drain"]
    found = [module("ready", check=check) for check in runs]
    assert [one["changed"] for one in found] == [True, True, False, False]
    assert [one["state"] for one in found] == ["drain", "ready", "ready", "ready"]
    assert made.server().state == "ready"
    drain(made, "two")
    failed = module("drained")
    assert failed["failed"]
    assert failed["msg"] == "no other host would be left to serve"

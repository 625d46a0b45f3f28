"""The gateway as a real HAProxy with the role's configuration: what it lets in, and where to."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateways import Gateway, Stream, begin, gateway

KEY, ENGINE_KEY = "the-door's-key", "the-engines'-key"


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Gateway]:
    with gateway(tmp_path, 2, "tokens-per-second=50") as made:
        yield made


def status(made: Gateway, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{made.status_port}{path}") as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"gateway_api_keys": {"alice": "a", "bob": "b"}},
        {"gateway_api_keys": {"alice": "a"}, "gateway_engine_key": "e"},
        {"gateway_engine_key": "e"},
        {"gateway_affinity": "header"},
        {"gateway_affinity": "cookie", "gateway_affinity_name": "session"},
        {"gateway_affinity": "prefix"},
        {"gateway_slowstart": 30, "gateway_paths": ["/v1/", "/generate"]},
        {"behind": {"servers": [{"name": "six", "address": "2001:db8::1", "port": 8000}]}},
    ],
)
def test_haproxy_takes_what_the_role_writes(tmp_path: Path, variables: dict[str, Any]) -> None:
    made = Gateway(tmp_path, _Nobody(), 8080, 8404, [], {})  # type: ignore[arg-type]
    made.configure(**variables)
    (tmp_path / "states").write_text("1\n")
    done = made.check()
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "WARNING" in line]
    # Debian's HAProxy says so of a file without servers, which is what a new gateway has.
    assert all("server state file" in line for line in warnings)


class _Nobody:
    ports: list[int] = []


# -- streaming


def test_tokens_arrive_as_the_engine_emits_them(plain: Gateway) -> None:
    arrived = threading.Semaphore(0)

    def in_turn() -> None:
        if not arrived.acquire(timeout=60):
            raise TimeoutError("the client has not got the word before this one")

    for engine in plain.engines.engines:
        engine.before_word = in_turn
    stream = Stream(plain, words=25)
    # A head, 25 words and an end; each is said when the client has the one before it.
    for said in range(26):
        plain.wait(lambda said=said: len(stream.times) > said)
        arrived.release()
    stream.join()
    assert (stream.whole, stream.words) == (True, 25)


@pytest.mark.parametrize(("limit", "silence", "answers"), [(3600, 1.6, 200), (1, 20, 504)])
def test_an_engine_may_be_silent_for_as_long_as_is_said(
    tmp_path: Path, limit: int, silence: float, answers: int
) -> None:
    with gateway(tmp_path, 1, gateway_silence_timeout=limit) as made:
        made.engines.engines[0].silence = silence
        assert made.post()[0] == answers


@pytest.mark.parametrize("silence", [0, 60])
def test_an_engine_is_told_when_its_client_hangs_up(plain: Gateway, silence: float) -> None:
    go_on = plain.hold()
    for engine in plain.engines.engines:
        engine.silence = silence
    connection = plain.connection()
    body = {"messages": [{"content": "x"}], "stream": True, "max_tokens": 100}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    plain.wait(lambda: sum(server.requests for server in plain.haproxy.servers()) == 1)
    connection.close()
    # At once, not when the engine says its next word.
    plain.idle()
    go_on.set()
    for engine in plain.engines.engines:
        engine.quiet.set()
    plain.wait(lambda: sum(engine.hung_up for engine in plain.engines.engines) == 1)


# -- the door


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Gateway]:
    keys = {"alice": KEY, "bob": "another"}
    with gateway(tmp_path, 1, gateway_api_keys=keys, gateway_engine_key=ENGINE_KEY) as made:
        yield made


def test_the_door_asks_for_a_key_and_shows_the_engine_its_own(door: Gateway) -> None:
    assert door.post()[0] == 401
    assert door.post(headers={"Authorization": "Bearer wrong"})[0] == 401
    assert door.post(headers={"Authorization": KEY})[0] == 401
    assert door.post(headers={"Authorization": f"Bearer {ENGINE_KEY}"})[0] == 401
    engine = door.engines.engines[0]
    assert engine.bodies == []
    assert door.post(headers={"Authorization": f"Bearer {KEY}"})[0] == 200
    assert len(engine.bodies) == 1
    # Its checks too: /v1/models asks for the key.
    assert set(engine.keys) == {f"Bearer {ENGINE_KEY}"}


def test_keys_and_prompts_are_nowhere_to_be_read(door: Gateway) -> None:
    secret = "xylophone"
    asked = {"messages": [{"role": "user", "content": secret}]}
    assert door.post(headers={"Authorization": f"Bearer {KEY}"}, **asked)[0] == 200
    assert door.get(f"/v1/models?about={secret}&key={KEY}")[0] == 401
    door.wait(lambda: " alice POST /v1/chat/completions 200 " in door.log.read_text())
    shown = door.log.read_text() + door.config.read_text() + status(door, "/metrics")
    shown += status(door, "/;csv") + (door.folder / "states").read_text()
    shown += Path(f"/proc/{door.haproxy._workers()[0]}/cmdline").read_text()
    shown += door.haproxy._send(f"@1 show map {door.folder}/keys.map")
    assert [text for text in (KEY, ENGINE_KEY, secret) if text in shown] == []


def test_without_keys_of_its_own_it_passes_the_client_s_on(plain: Gateway) -> None:
    plain.post(headers={"Authorization": "Bearer mine"})
    assert "Bearer mine" in {key for engine in plain.engines.engines for key in engine.keys}


def test_only_what_is_for_clients_gets_through(plain: Gateway) -> None:
    assert plain.get("/v1/models")[0] == 200
    assert plain.get("/metrics")[0] == 404
    assert plain.get("/version")[0] == 404
    assert plain.get("/health") == (200, "ok\n")


def test_statistics_and_metrics_are_on_a_port_of_their_own(plain: Gateway) -> None:
    plain.post()
    assert 'haproxy_server_http_responses_total{proxy="engines",server="one"' in status(
        plain, "/metrics"
    )
    assert "engines,two," in status(plain, "/;csv")


# -- which host


def test_the_least_busy_host_is_asked(plain: Gateway) -> None:
    go_on = plain.hold()
    streams = begin(plain, 6)
    assert [server.requests for server in plain.haproxy.servers()] == [3, 3]
    go_on.set()
    for stream in streams:
        stream.join()


def asked(made: Gateway) -> list[int]:
    """Requests that each engine got so far."""
    return [len(engine.bodies) for engine in made.engines.engines]


@pytest.mark.parametrize("kind", ["header", "cookie"])
def test_a_session_stays_with_its_host_and_moves_when_that_is_drained(
    tmp_path: Path, kind: str
) -> None:
    with gateway(tmp_path, 3, gateway_affinity=kind, gateway_affinity_name="session") as made:
        told = "session" if kind == "header" else "Cookie"
        value = "{}" if kind == "header" else "session={}"
        owner = {}
        for session in ("a", "b", "c", "d", "e", "f"):
            before = asked(made)
            for _ in range(4):
                assert made.post(headers={told: value.format(session)})[0] == 200
                made.idle()
            moved = [now - then for now, then in zip(asked(made), before, strict=True)]
            assert sorted(moved) == [0, 0, 4]
            owner[session] = moved.index(4)
        assert len(set(owner.values())) > 1
        name = made.names[owner["a"]]
        made.haproxy.set(name, "drain")
        for session, number in owner.items():
            before = asked(made)
            assert made.post(headers={told: value.format(session)})[0] == 200
            made.idle()
            moved = [now - then for now, then in zip(asked(made), before, strict=True)]
            # Only its own sessions have moved.
            assert (moved.index(1) == number) == (number != owner["a"])
        before = asked(made)
        made.haproxy.set(name, "ready")
        made.post(headers={told: value.format("a")})
        assert asked(made)[owner["a"]] == before[owner["a"]] + 1


def test_prompts_with_one_beginning_go_to_one_host(tmp_path: Path) -> None:
    variables = {"gateway_affinity": "prefix", "gateway_affinity_bytes": 200}
    with gateway(tmp_path, 3, **variables) as made:
        owners = set()
        for system in "abcdef":
            before = asked(made)
            for turn in range(3):
                messages = [
                    {"role": "system", "content": system * 300},
                    {"role": "user", "content": f"turn {turn} " + "x" * turn * 20_000},
                ]
                assert made.post(messages=messages)[0] == 200
                made.idle()
            moved = [now - then for now, then in zip(asked(made), before, strict=True)]
            assert sorted(moved) == [0, 0, 3]
            owners.add(moved.index(3))
        assert len(owners) > 1


@pytest.mark.parametrize(("spill", "where"), [(150, [0, 1, 1]), (300, [0, 0, 2])])
def test_the_second_request_at_once_of_a_session_is_above_an_average_that_is_low(
    tmp_path: Path, spill: int, where: list[int]
) -> None:
    variables = {"gateway_affinity": "header", "gateway_affinity_spill": spill}
    with gateway(tmp_path, 3, **variables) as made:
        go_on = made.hold()
        streams = begin(made, 2, headers={"x-session-id": "a"})
        assert sorted(asked(made)) == where
        go_on.set()
        for stream in streams:
            stream.join()


# -- hosts that fail


def test_a_refused_connection_is_no_lost_request(plain: Gateway) -> None:
    plain.engines.stop(0)
    # At once: no check has seen it yet.
    assert {plain.post()[0] for _ in range(10)} == {200}


def test_a_request_that_has_begun_is_never_sent_again(plain: Gateway) -> None:
    for engine in plain.engines.engines:
        engine.hangs_up = True
    assert plain.post()[0] == 502
    assert sum(asked(plain)) == 1


def test_a_host_that_serves_another_model_gets_nothing(plain: Gateway) -> None:
    plain.engines.engines[0].asked.served_model_name = "something-else"
    plain.wait(lambda: not plain.server("one").up)
    plain.engines.engines[1].asked.standin_never_healthy = True
    plain.wait(lambda: not plain.server("two").up)
    code, text = plain.post()
    assert (code, json.loads(text)["error"]["message"]) == (503, "no engine serves at the moment")
    assert plain.get("/health")[0] == 503
    assert plain.engines.engines[0].bodies == []


# -- TLS


def certify(folder: Path, name: str, *, ca: Path | None = None) -> Path:
    """A certificate with its key in one file: a CA, or one that this CA has signed."""
    pem, key = folder / f"{name}.pem", folder / f"{name}.key"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    argv += ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(pem)]
    if ca:
        argv += ["-addext", f"subjectAltName=DNS:{name}", "-CA", str(ca), "-CAkey", str(ca)]
    subprocess.run(argv, check=True, capture_output=True)
    pem.write_text(pem.read_text() + key.read_text())
    return pem


def test_clients_can_be_served_by_tls(tmp_path: Path) -> None:
    ca = certify(tmp_path, "authority")
    certificate = certify(tmp_path, "gate-01.example", ca=ca)
    with gateway(tmp_path, 1, gateway_certificate=certificate) as made:
        argv = ["curl", "-sS", "--cacert", str(ca), "--connect-to", f"::127.0.0.1:{made.port}"]
        url = f"https://gate-01.example:{made.port}/v1/models"
        done = subprocess.run([*argv, url], check=True, capture_output=True, text=True)
        assert json.loads(done.stdout)["data"][0]["id"] == "stand-in"


@pytest.mark.parametrize(("name", "up"), [("one", True), ("somebody-else", False)])
def test_engines_behind_tls_must_prove_who_they_are(tmp_path: Path, name: str, up: bool) -> None:
    ca = certify(tmp_path, "authority")
    certificate = certify(tmp_path, name, ca=ca)
    with gateway(tmp_path, 1) as made:
        made.engines.stop(0)
        made.engines._certificate = certificate
        made.engines.start(0)
        # A check has as long for its handshake as until the next one.
        made.quick = False
        made.configure(gateway_engine_ca=ca)
        made.reload()
        made.wait(lambda: made.server("one").check.startswith("L7OK" if up else "L6RSP"))
        made.wait(lambda: made.server("one").up == up)
        assert made.server("one").tls
        assert made.post()[0] == (200 if up else 503)

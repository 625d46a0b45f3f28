"""A real HAProxy on loopback with the role's configuration, and engine stand-ins behind it."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tests.unit.servers import free_port

from roost.lab.standins import engine_standin
from roost.onhost.haproxy import Haproxy, Server

ROLE = Path(__file__).parents[2] / "roles" / "gateway"
MODEL = "stand-in"


def program() -> str:
    """HAProxy; a test that needs it is skipped without, except in CI."""
    found = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have haproxy")
        pytest.skip("no haproxy here: apt-get install haproxy")
    return found


class StandIn(engine_standin.Engine):
    """A stand-in for an engine, whose requests can be looked at.

    Attributes:
        quiet: While it is not set, it is silent before its first word, for ``silence`` seconds.
        before_word: What it does before each word of a stream.
        hangs_up: It reads a request and closes the connection without an answer.
        bodies: What it was sent.
        keys: The keys it was sent.
        hung_up: Requests whose clients went away before the end.
    """

    def __init__(self, *standin: str) -> None:
        words = ["serve", "/model", f"--served-model-name={MODEL}"]
        words += [f"--standin-{word}" for word in standin]
        super().__init__(engine_standin.arguments(words))
        self.silence = 0.0
        self.quiet = threading.Event()
        self.before_word: Callable[[], Any] = lambda: None
        self.hangs_up = False
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.hung_up = 0

    def answer(self, body: dict[str, Any]) -> list[str]:
        self.bodies.append(body)
        if self.hangs_up:
            raise BrokenPipeError
        self.quiet.wait(self.silence)
        return super().answer(body)


def _handler(engine: StandIn) -> type[BaseHTTPRequestHandler]:
    base = engine_standin.handler(engine)

    class Handler(base):  # type: ignore[valid-type,misc]
        def do_POST(self) -> None:  # noqa: N802
            engine.keys.append(self.headers["Authorization"])
            try:
                super().do_POST()
            except OSError:
                engine.hung_up += 1
                raise

        def do_GET(self) -> None:  # noqa: N802
            if self.path == "/v1/models":
                engine.keys.append(self.headers["Authorization"])
            super().do_GET()

        def choice(self, said: dict[str, Any]) -> None:
            if "role" not in said.get("delta", ()):
                engine.before_word()
            super().choice(said)

    return Handler


class Engines:
    """Stand-ins on ports of their own, which can be stopped and started."""

    def __init__(self, count: int, *standin: str, certificate: Path | None = None) -> None:
        self.ports = [free_port() for _ in range(count)]
        self._standin = standin
        self._certificate = certificate
        self._servers: dict[int, tuple[ThreadingHTTPServer, threading.Thread]] = {}
        self.engines = [self.start(number) for number in range(count)]

    def start(self, number: int) -> StandIn:
        """Start one, as a new process would: with all counters at zero."""
        engine = StandIn(*self._standin)

        class Listening(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: Any) -> None:
                """Whoever has what they wanted goes away; HAProxy's checks do so at once."""

        server = Listening(("127.0.0.1", self.ports[number]), _handler(engine))
        if self._certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self._servers[number] = (server, thread)
        if len(getattr(self, "engines", [])) > number:
            self.engines[number] = engine
        return engine

    def stop(self, number: int) -> None:
        """Stop listening; what is being answered goes on."""
        server, thread = self._servers.pop(number)
        server.shutdown()
        thread.join()
        server.socket.close()

    def close(self) -> None:
        for number in list(self._servers):
            self.stop(number)


def render(behind: dict[str, Any], folder: Path, **variables: Any) -> str:
    """The role's configuration with its defaults, for paths in a folder and no user of its own."""
    given = {
        **yaml.safe_load((ROLE / "defaults" / "main.yml").read_text()),
        **yaml.safe_load((ROLE / "vars" / "main.yml").read_text()),
        "ansible_managed": "a test",
        "inventory_hostname": "gate-01",
        "gateway_behind": behind,
        "__gateway_keys": folder / "keys.map",
        "__gateway_engine_keys": folder / "engine.map",
        "__gateway_admin": folder / "admin.sock",
        "__gateway_states": folder / "states",
        **variables,
    }
    environment = Environment(  # noqa: S701  # this is no HTML
        loader=FileSystemLoader(ROLE / "templates"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    text = environment.get_template("haproxy.cfg.j2").render(given)
    # Only root can change what it is.
    return re.sub(r"^    (chroot|user|group) .*\n", "", text, flags=re.MULTILINE)


@dataclass
class Gateway:
    """A running HAProxy with its files."""

    folder: Path
    engines: Engines
    port: int
    status_port: int
    names: list[str]
    variables: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    #: Whether engines are asked many times a second how they are.
    quick: bool = True
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.folder / "log"

    @property
    def config(self) -> Path:
        return self.folder / "haproxy.cfg"

    @property
    def haproxy(self) -> Haproxy:
        folder = self.folder
        return Haproxy(str(folder / "master.sock"), str(self.config), str(folder / "states"))

    def configure(self, **variables: Any) -> None:
        """Write what the role would."""
        self.variables.update(variables)
        behind = {
            "served_name": MODEL,
            "health_path": "/health",
            "listed": f'"id": ?"{MODEL}"',
            "servers": [
                {"name": name, "address": "127.0.0.1", "port": port}
                for name, port in zip(self.names, self.engines.ports, strict=True)
            ],
        }
        given = {
            "gateway_port": self.port,
            "gateway_status_port": self.status_port,
            **self.variables,
        }
        text = render({**behind, **given.pop("behind", {})}, self.folder, **given)
        if self.quick:  # the same, quicker
            text = text.replace("inter 2s fastinter 500ms", "inter 100ms fastinter 50ms")
        self.config.write_text(text)
        digests = [
            f"{hashlib.sha256(key.encode()).hexdigest().upper()} {name}\n"
            for name, key in given.get("gateway_api_keys", {}).items()
        ]
        (self.folder / "keys.map").write_text("".join(digests))
        key = given.get("gateway_engine_key")
        (self.folder / "engine.map").write_text(f"engine {key}\n" if key else "")

    def check(self) -> subprocess.CompletedProcess[str]:
        """``haproxy -c``."""
        return subprocess.run(
            [program(), "-c", "-f", str(self.config)], capture_output=True, text=True, check=False
        )

    def start(self) -> None:
        """As systemd does: keep the states, then start."""
        self.haproxy.keep()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [program(), "-W", "-S", str(self.folder / "master.sock"), "-f", str(self.config)],
                stdout=log,
                stderr=log,
            )
        self.wait(lambda: bool(self.haproxy.servers()))

    def reload(self) -> None:
        """As systemd does: keep the states, then USR2."""
        assert self.process
        before = self.haproxy._workers()[0]
        self.haproxy.keep()
        self.process.send_signal(signal.SIGUSR2)
        self.wait(lambda: self.haproxy._workers()[0] != before)

    def kill(self) -> None:
        """End it at once, with all workers."""
        if self.process is None:
            return
        workers = self.haproxy._workers()
        self.process.kill()
        self.process.wait()
        for worker in workers:
            # One that a reload has left may have ended by itself.
            with suppress(ProcessLookupError):
                os.kill(int(worker), signal.SIGKILL)
        self.process = None

    def wait(self, holds: Any, seconds: float = 60.0) -> None:
        """Until something holds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if holds():
                    return
            except Exception:  # it is not there yet
                if time.monotonic() > deadline:
                    raise
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def server(self, name: str = "one") -> Server:
        return next(server for server in self.haproxy.servers() if server.name == name)

    def up(self) -> None:
        """Wait until all checks have passed."""
        self.wait(lambda: all(one.up and "L7OK" in one.check for one in self.haproxy.servers()))

    def idle(self) -> None:
        """Wait until it counts no request: a client has its answer a moment before that."""
        self.wait(lambda: all(server.requests == 0 for server in self.haproxy.servers()))

    def hold(self) -> threading.Event:
        """From now on streams say no word until this is set."""
        go_on = threading.Event()
        for engine in self.engines.engines:
            engine.before_word = go_on.wait
        return go_on

    def connection(self, timeout: float = 120) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def post(self, *, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, str]:
        """Status and text of a completion."""
        connection = self.connection()
        given = {"messages": [{"role": "user", "content": "2+2"}], "max_tokens": 2, **body}
        connection.request("POST", "/v1/chat/completions", json.dumps(given), headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
        connection = self.connection()
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@contextmanager
def gateway(
    folder: Path, count: int = 2, *standin: str, certificate: Path | None = None, **variables: Any
) -> Iterator[Gateway]:
    """A gateway before some stand-ins, all of which are up."""
    program()
    engines = Engines(count, *standin, certificate=certificate)
    names = ["one", "two", "three", "four", "five"][:count]
    made = Gateway(folder, engines, free_port(), free_port(), names, {})
    try:
        made.configure(**variables)
        made.start()
        made.up()
        yield made
    finally:
        made.kill()
        engines.close()


class Stream(threading.Thread):
    """One streaming request, on a thread of its own.

    Attributes:
        status: Of the answer.
        times: When each event came, in seconds since the request.
        whole: Whether it came to its end.
        error: What went wrong.
    """

    def __init__(self, to: Gateway, words: int = 20, headers: dict[str, str] | None = None) -> None:
        super().__init__()
        self._to = to
        self._headers = headers or {}
        self._body = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": words,
            "stream": True,
        }
        self.status = 0
        self.times: list[float] = []
        self.words = 0
        self.whole = False
        self.error = ""
        self.start()

    def run(self) -> None:
        begun = time.monotonic()
        connection = self._to.connection()
        try:
            body = json.dumps(self._body)
            connection.request("POST", "/v1/chat/completions", body, self._headers)
            answer = connection.getresponse()
            self.status = answer.status
            for line in answer:
                if line.startswith(b"data: "):
                    self.times.append(time.monotonic() - begun)
                    self.words += b'"content": "' in line and b'"role"' not in line
                    self.whole = line.startswith(b"data: [DONE]")
        except (OSError, http.client.HTTPException) as error:
            self.error = repr(error)
        finally:
            connection.close()

    def begun(self) -> None:
        """Wait for its first event."""
        self._to.wait(lambda: self.times)


def begin(to: Gateway, count: int, words: int = 30, **options: Any) -> list[Stream]:
    """Streams, each begun before the next one is asked for.

    Of two that come at the same moment neither is counted yet when a host is chosen for the other.
    """
    streams = []
    for _ in range(count):
        streams.append(Stream(to, words=words, **options))
        streams[-1].begun()
    return streams

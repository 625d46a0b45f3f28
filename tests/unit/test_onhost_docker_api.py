"""Docker's API over its socket: the daemon's half is a few canned answers."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from roost.onhost.docker_api import DockerApi
from roost.onhost.machine import MachineError


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Answers by path, and what it was asked."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        super().__init__(path, Handler)


class Handler(BaseHTTPRequestHandler):
    server: Daemon  # type: ignore[assignment]

    def answer(self) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        status, body = self.server.answers[self.path.partition("?")[0]]
        content = b"" if status == 204 else json.dumps(body).encode()
        self.send_response(status)
        if content:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):  # who asked does not wait for a 204's no content
            self.wfile.write(content)

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def address_string(self) -> str:
        return "a socket has none"

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(str(tmp_path / "docker.sock")) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


@pytest.fixture
def docker(daemon: Daemon) -> DockerApi:
    return DockerApi(str(daemon.server_address))


def test_a_container_is_inspected_or_is_not_there(daemon: Daemon, docker: DockerApi) -> None:
    daemon.answers = {
        "/containers/roost-llm/json": (200, {"Id": "abc"}),
        "/containers/x/json": (404, {"message": "No such container: x"}),
    }
    assert docker.inspect("roost-llm") == {"Id": "abc"}
    assert docker.inspect("x") is None


def test_running_containers_are_listed_by_name(daemon: Daemon, docker: DockerApi) -> None:
    rows = [{"Id": "a", "Names": ["/roost-llm"]}, {"Id": "b", "Names": ["/roost-llm-0a1b"]}]
    daemon.answers = {"/containers/json": (200, rows)}
    assert docker.running("roost-llm") == {"roost-llm": "a", "roost-llm-0a1b": "b"}
    (asked,) = daemon.asked
    wanted = {"filters": ['{"name": ["^/?roost-llm"]}']}
    assert parse_qs(urlsplit(asked.split()[1]).query) == wanted


@pytest.mark.parametrize("status", [204, 409])
def test_one_is_killed_or_ran_no_more(daemon: Daemon, docker: DockerApi, status: int) -> None:
    daemon.answers = {"/containers/roost-llm/kill": (status, {"message": "is not running"})}
    docker.kill("roost-llm")
    assert daemon.asked == ["POST /containers/roost-llm/kill"]


def test_a_daemon_in_trouble_or_away_is_told(daemon: Daemon, docker: DockerApi) -> None:
    daemon.answers = {"/containers/x/json": (500, {"message": "layer not found"})}
    with pytest.raises(MachineError, match="layer not found"):
        docker.inspect("x")
    with pytest.raises(MachineError, match="No such file or directory"):
        DockerApi("/nowhere/docker.sock").inspect("x")

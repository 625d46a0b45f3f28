"""Large files by the hub's own client, from Xet storage, with plain HTTP to fall back on."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.unit import faulty, snapshots
from tests.unit.faulty import Faulty
from tests.unit.snapshots import FIRST, SECOND, TOKEN, Site, hf_snapshot

from roost.onhost.weights import patience, xet
from roost.onhost.weights.download import Download


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Faulty]]:
    with snapshots.hub() as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, served: tuple[str, Faulty], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(patience, "PAUSE", 0.01)
    return snapshots.site(tmp_path, served)


def in_xet(app: ASGIApp, endpoint: str) -> ASGIApp:
    """A hub that says of its weights that they are in Xet storage."""

    async def through(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if "headers" in message and scope["path"].endswith(".safetensors"):
                link = f'<{endpoint}/xet-token>; rel="xet-auth"'
                more = [(b"x-xet-hash", b"0" * 64), (b"link", link.encode())]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        await app(scope, receive, with_headers)

    return through


def test_storage_that_falls_silent_is_left_for_http(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        storage = f"http://127.0.0.1:{silent.getsockname()[1]}"
        access = {
            "X-Xet-Cas-Url": storage,
            "X-Xet-Access-Token": "short-lived",
            "X-Xet-Token-Expiration": "4102444800",
        }
        site.hub.app = in_xet(site.hub.app, site.endpoint)
        site.hub.order("/xet-token", faulty.answer(200, access))

        def when_it_is_there(client: xet.Client) -> Iterator[str]:
            assert select.select([silent], [], [], 120)[0]
            client.stall_timeout = 1
            return arrived(client)

        # It takes long to begin on a busy machine, which is no silence of the storage.
        arrived = xet.Client.arrived
        monkeypatch.setattr(xet.Client, "arrived", when_it_is_there)
        outcome = site.ensure(token=TOKEN)
    assert outcome["bytes"] == site.bytes
    assert site.is_whole()
    assert len(site.hub.of("/xet-token")) == 1
    assert len(site.hub.of(FIRST)) == 1


#: Another host's way of using the client is no business of this one's.
SET_ON_THE_HOST = {
    "HF_TOKEN": "lies-about",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_CACHE": "{tmp_path}/elsewhere",
    "HF_XET_CACHE": "{tmp_path}/elsewhere",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def test_the_client_itself(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This hub has no Xet, and so the client fetches by HTTP: the rest is as with it.
    monkeypatch.setattr(xet, "is_offered", lambda *_: True)
    monkeypatch.setattr(Download, "by_http", only_small_ones(Download))
    for name, value in SET_ON_THE_HOST.items():
        monkeypatch.setenv(name, value.format(tmp_path=tmp_path))
    assert site.ensure(token=TOKEN)["bytes"] == site.bytes
    assert site.is_whole()
    assert {one.headers["authorization"] for one in site.hub.requests} == {f"Bearer {TOKEN}"}
    assert not (tmp_path / "elsewhere").exists()


def only_small_ones(fetching: Any) -> Any:
    download = fetching.by_http

    def checked(self: Any, files: list[Any]) -> Any:
        assert [file.path for file, _ in self.place.missing(files) if file.sha256] == []
        return download(self, files)

    return checked


def client(acts: str) -> str:
    """Another client: it gets the first file right, and then does this."""
    return f"""
import json, os, shutil, sys
job = json.loads(sys.stdin.readline())
def fetch(path):
    target = os.path.join(job["local_dir"], path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copy(os.path.join(os.environ["SOURCE"], path), target)
    return target
first, second = job["paths"]
fetch(first)
print(first, flush=True)
{acts}
"""


@pytest.mark.parametrize(
    "acts",
    [
        "os.kill(os.getpid(), 9)",
        "sys.exit(1)",
        "open(fetch(second), 'r+b').write(b'other'); print(second, flush=True)",
        "import time; print(flush=True); time.sleep(600)",
    ],
    ids=["killed", "fails", "wrong", "stalls"],
)
def test_whatever_befalls_the_client_http_does_the_rest(
    site: Site, monkeypatch: pytest.MonkeyPatch, acts: str
) -> None:
    monkeypatch.setenv("SOURCE", str(site.source))

    def impatient_after_the_first(client: xet.Client) -> Iterator[str]:
        for path in arrived(client):
            yield path
            client.stall_timeout = 1 if "sleep" in acts else 60

    arrived = xet.Client.arrived
    monkeypatch.setattr(xet.Client, "arrived", impatient_after_the_first)
    monkeypatch.setattr(xet, "PROGRAM", client(acts))
    site.hub.app = in_xet(site.hub.app, site.endpoint)
    site.ensure()
    assert site.is_whole()
    assert site.hub.of(FIRST) == []
    assert len(site.hub.of(SECOND)) == 1


def test_without_the_client_everything_comes_by_http(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xet.importlib.util, "find_spec", lambda *_: None)
    site.hub.app = in_xet(site.hub.app, site.endpoint)
    site.ensure()
    assert site.is_whole()
    assert len(site.hub.of(FIRST)) == 1


def test_the_client_ends_with_its_parent(site: Site, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        snapshot = hf_snapshot.Snapshot(site.params(endpoint=url, token=TOKEN))
        hub = snapshot.download().hub
        with xet.Client(snapshot.revision, hub, tmp_path, [FIRST]) as working:
            silent.settimeout(120)
            with silent.accept()[0]:  # it is at work
                assert working.process.poll() is None
                working.process.stdin.close()
                assert working.process.wait(timeout=60) == 1
    assert TOKEN not in " ".join(map(str, working.process.args))

"""A registry for as long as images are pushed, with a program in its place that only answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from starlette.responses import PlainTextResponse
from tests.unit.servers import serving

from roost import registry_server
from roost.errors import RoostError

#: Answers every address with what it was configured to be.
STAND_IN = f"""#!{sys.executable}
import http.server, json, pathlib, sys
config = pathlib.Path(sys.argv[2]).read_bytes()
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(config)
host, port = json.loads(config)["http"]["addr"].split(":")
http.server.HTTPServer((host, int(port)), Answers).serve_forever()
"""


#: Says why it does not, and ends.
DYING = f"""#!{sys.executable}
print("configuration error: no such driver")
raise SystemExit(3)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a program be what is called ``docker-registry``."""

    def install(text: str) -> None:
        program = tmp_path / "bin" / "docker-registry"
        program.parent.mkdir()
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))

    return install


def test_it_serves_this_machine_alone_and_ends(
    tmp_path: Path, installed: Callable[[str], None]
) -> None:
    installed(STAND_IN)
    with registry_server.serve(tmp_path / "new" / "storage") as place:
        config = json.loads(httpx2.get(f"http://{place}/v2/").content)
        assert config["storage"]["filesystem"]["rootdirectory"] == f"{tmp_path}/new/storage"
        assert place.startswith("127.0.0.1:")
    assert (tmp_path / "new" / "storage").is_dir()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://{place}/v2/")


def test_one_that_is_not_installed_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(RoostError, match="not installed") as caught,
        registry_server.serve(tmp_path / "storage"),
    ):
        pass
    assert caught.value.fix == "apt-get install docker-registry"


def test_one_that_ends_is_not_waited_for(tmp_path: Path, installed: Callable[[str], None]) -> None:
    installed(DYING)
    with pytest.raises(RoostError) as caught, registry_server.serve(tmp_path / "storage"):
        pass
    assert str(caught.value) == (
        "the registry has ended (exit status 3)\n  why: configuration error: no such driver"
    )


def test_whoever_has_its_port_is_not_taken_for_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("bind: address already in use\n")
    with serving(PlainTextResponse("mine")) as url:
        address, port = url.removeprefix("http://").split(":")
        with pytest.raises(RoostError, match=r"has ended \(exit status 1\)\n  why: bind: addr"):
            registry_server.wait(address, int(port), log, lambda: 1)

"""What a registry may answer: a real one, and a stand-in that answers badly."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from roost import registry_server
from roost.errors import RoostError
from roost.pins import Image
from roost.registry import GoneError, Registry

REPOSITORY = "org/engine"
ABSENT = "sha256:" + "f" * 64


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running registry, empty."""
    if not shutil.which("docker-registry"):
        pytest.skip("docker-registry is not installed")
    with registry_server.serve(tmp_path_factory.mktemp("registry")) as address:
        yield address


class Pushed:
    """An image of two architectures, without a layer worth the name."""

    def __init__(self, where: str, repository: str) -> None:
        self._url = f"http://{where}/v2/{repository}"
        self.platforms = {
            architecture: self._manifest(architecture) for architecture in ("amd64", "arm64")
        }
        entries: list[dict[str, Any]] = [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest,
                "size": 1,
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, digest in self.platforms.items()
        ]
        entries.append(
            {**entries[0], "platform": {"os": "unknown", "architecture": "unknown"}}  # attestation
        )
        kind = "application/vnd.oci.image.index.v1+json"
        self.digest = self._put(
            "1.0", kind, {"schemaVersion": 2, "mediaType": kind, "manifests": entries}
        )

    def _manifest(self, architecture: str) -> str:
        kind = "application/vnd.oci.image.manifest.v1+json"
        config = self._blob(json.dumps({"architecture": architecture, "os": "linux"}).encode())
        layer = self._blob(b"layer of " + architecture.encode())
        return self._put(
            architecture,
            kind,
            {
                "schemaVersion": 2,
                "mediaType": kind,
                "config": {**config, "mediaType": "application/vnd.oci.image.config.v1+json"},
                "layers": [{**layer, "mediaType": "application/vnd.oci.image.layer.v1.tar"}],
            },
        )

    def _blob(self, content: bytes) -> dict[str, Any]:
        begun = httpx2.post(f"{self._url}/blobs/uploads/", trust_env=False)
        digest = digest_of(content)
        target = httpx2.URL(begun.headers["Location"]).copy_merge_params({"digest": digest})
        httpx2.put(target, content=content, trust_env=False).raise_for_status()
        return {"digest": digest, "size": len(content)}

    def _put(self, tag: str, kind: str, document: dict[str, Any]) -> str:
        content = json.dumps(document).encode()
        httpx2.put(
            f"{self._url}/manifests/{tag}",
            content=content,
            headers={"Content-Type": kind},
            trust_env=False,
        ).raise_for_status()
        return digest_of(content)

    def remove(self, digest: str) -> None:
        httpx2.delete(f"{self._url}/manifests/{digest}", trust_env=False).raise_for_status()


def by_tag(repository: str = REPOSITORY, tag: str = "1.0") -> Image:
    return Image(repository=repository, tag=tag, engine_version="1")


def by_digest(digest: str, repository: str = REPOSITORY) -> Image:
    return Image(repository=repository, digest=digest, engine_version="1")


def test_a_tag_is_a_digest_for_each_architecture(where: str) -> None:
    pushed = Pushed(where, REPOSITORY)
    locked = Registry(REPOSITORY, f"http://{where}").resolve(by_tag())
    assert locked.digest == pushed.digest
    assert locked.platforms == ["amd64", "arm64"]
    assert locked.manifests == pushed.platforms
    assert locked.bytes == {name: len(f"layer of {name}") for name in ("amd64", "arm64")}


def test_an_image_of_one_architecture_has_no_index(where: str) -> None:
    pushed = Pushed(where, REPOSITORY)
    locked = Registry(REPOSITORY, f"http://{where}").resolve(by_tag(tag="arm64"))
    assert locked.digest == pushed.platforms["arm64"]
    assert locked.manifests == {"arm64": locked.digest}


def test_a_digest_that_was_removed_is_gone(where: str) -> None:
    repository = "org/nightly"
    pushed = Pushed(where, repository)
    registry = Registry(repository, f"http://{where}")
    assert registry.resolve(by_digest(pushed.digest, repository)).digest == pushed.digest
    pushed.remove(pushed.digest)
    with pytest.raises(GoneError, match="is gone from the registry") as caught:
        registry.resolve(by_digest(pushed.digest, repository))
    assert pushed.digest in caught.value.what


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (by_digest(ABSENT, "org/nobody"), "has no such repository"),
        (by_tag("org/nobody"), "has no such repository"),
        (by_tag(tag="2.0"), "has no such tag"),
    ],
)
def test_what_else_is_missing_is_told_apart(where: str, image: Image, message: str) -> None:
    Pushed(where, REPOSITORY)
    with pytest.raises(RoostError, match=message) as caught:
        Registry(image.repository, f"http://{where}").resolve(image)
    assert not isinstance(caught.value, GoneError)


@pytest.fixture
def answer() -> Iterator[dict[str, Any]]:
    """A stand-in that answers every request alike; fill in ``status``, ``body``, ``headers``."""
    given: dict[str, Any] = {"status": 200, "body": "{}", "headers": {}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = given["body"].encode()
            self.send_response(given["status"])
            for name, value in given["headers"].items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        given["mirror"] = f"http://127.0.0.1:{server.server_port}"
        yield given
        server.shutdown()
        thread.join()


def refusal(code: str) -> str:
    return json.dumps({"errors": [{"code": code, "message": "whatever it says"}]})


@pytest.mark.parametrize(
    ("status", "headers", "body", "message"),
    [
        (401, {}, refusal("UNAUTHORIZED"), "the registry refuses (401)"),
        (401, {"Www-Authenticate": "Bearer"}, "", "the registry"),
        (403, {}, refusal("DENIED"), "the registry refuses (403)"),
        (429, {}, refusal("TOOMANYREQUESTS"), "the registry's rate limit is reached"),
        (404, {}, refusal("NAME_UNKNOWN"), "the registry has no such repository"),
        (404, {}, "<html>not here</html>", "404, without a word about what is not there"),
        (503, {}, "", "the registry answered 503"),
        (200, {}, "<html>please log in</html>", "is not JSON"),
        pytest.param(200, {}, "[" * 100_000, "is not JSON", id="deep"),
        pytest.param(404, {}, "[" * 100_000, "404, without a word", id="deep refusal"),
        (200, {}, '{"manifests": [{"platform": {"os": "linux"}}]}', "asked for"),
    ],
)
def test_no_other_answer_is_taken_for_a_digest_that_is_gone(
    answer: dict[str, Any], status: int, headers: dict[str, str], body: str, message: str
) -> None:
    answer.update(status=status, headers=headers, body=body)
    with pytest.raises(RoostError) as caught:
        Registry(REPOSITORY, answer["mirror"]).resolve(by_digest(ABSENT))
    assert message in str(caught.value)
    assert not isinstance(caught.value, GoneError)


@pytest.mark.parametrize("body", ['{"manifests": [{"platform": {"os": "linux"}}]}', "{}", "[]"])
def test_a_manifest_of_an_unknown_form(answer: dict[str, Any], body: str) -> None:
    answer["body"] = body
    with pytest.raises(RoostError, match=r"is no image that is understood here|is not JSON"):
        Registry(REPOSITORY, answer["mirror"]).resolve(by_tag())


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        ("http://127.0.0.1:9", "the registry cannot be reached"),
        ("{tls}", "no TLS connection to the registry"),
    ],
)
def test_nobody_answers(answer: dict[str, Any], mirror: str, message: str) -> None:
    plain_http_port = answer["mirror"].removeprefix("http://")
    with pytest.raises(RoostError, match=message) as caught:
        Registry(REPOSITORY, mirror.format(tls=plain_http_port)).resolve(by_digest(ABSENT))
    assert not isinstance(caught.value, GoneError)


def test_a_name_that_nobody_knows_is_said_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(RoostError) as caught:
        Registry(REPOSITORY, "http://registry.invalid:5000").resolve(by_digest(ABSENT))
    assert caught.value.why is not None
    assert caught.value.why.endswith("'registry.invalid' ([Errno -2] Name or service not known)")

"""What a hub may answer, from a stand-in that answers badly on command.

The lab's hub, a well-behaved one, is asked with the same code in tests/lab and tests/playbooks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import constants

from roost import hub
from roost.errors import RoostError
from roost.pins import Repository, Revision

REPOSITORY = Repository(repo="org/name", revision=Revision(branch="main"))


@dataclass
class StandinHub:
    """Answers every request alike and remembers what it was sent."""

    url: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    authorizations: list[str | None] = field(default_factory=list)


@pytest.fixture
def standin() -> Iterator[StandinHub]:
    answers = StandinHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.authorizations.append(self.headers.get("Authorization"))
            self.send_response(answers.status)
            for name, value in answers.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answers.body)))
            self.end_headers()
            self.wfile.write(answers.body.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        answers.url = f"http://127.0.0.1:{server.server_port}"
        yield answers
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "headers", "body", "message"),
    [
        (200, {}, "<html>please log in</html>", "what answers is not a model hub"),
        (200, {}, "[]", "what answers is not a model hub"),
        pytest.param(200, {}, "[" * 100_000, "what answers is not a model hub", id="deep"),
        (200, {}, '{"id": "org/name", "sha": "main", "siblings": []}', "names no commit"),
        (404, {"X-Error-Code": "RevisionNotFound"}, "", "no such revision"),
        (404, {"X-Error-Code": "RepoNotFound"}, "", "no such repository"),
        (401, {}, "", "no such repository"),
        (403, {"X-Error-Code": "GatedRepo"}, "", "the repository is gated"),
        (503, {}, "", "the hub answered 503"),
        # The client itself stumbles over an error whose JSON is no mapping.
        (500, {}, "[]", "what answers is not a model hub"),
    ],
)
def test_each_answer_has_its_own_words(
    standin: StandinHub, status: int, headers: dict[str, str], body: str, message: str
) -> None:
    standin.status, standin.headers, standin.body = status, headers, body
    with pytest.raises(RoostError, match=message) as caught:
        hub.resolve(REPOSITORY, standin.url)
    assert "org/name@main" in caught.value.what


def test_a_token_that_the_hub_does_not_know_is_said_to_be_unknown(standin: StandinHub) -> None:
    standin.status = 401
    standin.headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
    with pytest.raises(hub.HubRefusedError, match="the hub does not know the token") as caught:
        hub.resolve(REPOSITORY, standin.url, "hf_old")
    assert "hf_old" not in str(caught.value)
    # Without one it is a repository that is not there, or not for everyone.
    with pytest.raises(hub.HubRefusedError, match="no such repository"):
        hub.resolve(REPOSITORY, standin.url)


def test_a_token_of_the_environment_is_not_sent_in_the_clear(
    standin: StandinHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    standin.body = (
        f'{{"id": "org/name", "sha": "{"a" * 40}", "siblings": '
        '[{"rfilename": "x", "size": 3}, {"rfilename": "y", "size": 4}]}'
    )
    locked = hub.resolve(REPOSITORY, standin.url)
    assert (locked.commit, locked.bytes, locked.files) == ("a" * 40, 7, 2)
    assert standin.authorizations == [None]


def test_nor_where_the_environment_names_the_hub(
    standin: StandinHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    # What HF_ENDPOINT sets when the client is imported.
    monkeypatch.setattr(constants, "ENDPOINT", standin.url)
    standin.status = 503
    with pytest.raises(hub.HubUnavailableError, match=standin.url):
        hub.resolve(REPOSITORY, None)
    assert standin.authorizations == [None]


def test_a_slash_at_the_end_of_the_address_does_no_harm(standin: StandinHub) -> None:
    standin.status = 503
    with pytest.raises(hub.HubUnavailableError, match=f"{standin.url}: the hub answered 503"):
        hub.resolve(REPOSITORY, f"{standin.url}/")


def test_nobody_answers() -> None:
    with pytest.raises(RoostError, match="the hub cannot be reached"):
        hub.resolve(REPOSITORY, "http://127.0.0.1:9")


@pytest.mark.parametrize("token", ["hf_secret\n", "hf_sécret"])
def test_a_token_that_is_none_is_refused_and_not_shown(standin: StandinHub, token: str) -> None:
    with pytest.raises(RoostError, match="correct roost_hub_token") as caught:
        hub.resolve(REPOSITORY, standin.url, token)
    assert token.strip() not in str(caught.value)
    assert standin.authorizations == []

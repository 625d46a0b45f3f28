"""The module that keeps weights, against the lab's own hub and the real client."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.unit.plugins import load
from tests.unit.servers import serving

from roost.lab import hubstore
from roost.lab.hubserver import application

hf_snapshot = load("modules", "hf_snapshot")

REPO = "roost-lab/tiny"
SHARD = bytes(range(256)) * 2048


class Wire:
    """What happens to bodies of weights on their way: cut once, or altered."""

    def __init__(self) -> None:
        self.cut_after: int | None = None
        self.alter = False
        self.requests: list[str] = []


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name in names:
        (folder / name).write_bytes(SHARD + name.encode())
    index = {"weight_map": {"first": names[0], "second": names[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}\n")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def endpoint(store: Path, wire: Wire) -> Iterator[str]:
    hub = application(store, token="open sesame")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        weights = scope["type"] == "http" and scope["path"].endswith(".safetensors")
        if scope["type"] == "http":
            wire.requests.append(scope["path"])
        sent = 0

        async def through(message: Message) -> None:
            nonlocal sent
            body = message.get("body", b"")
            if weights and body:
                if wire.cut_after is not None and sent >= wire.cut_after:
                    raise ConnectionError("cut by the test")
                sent += len(body)
                if wire.alter:
                    message = {**message, "body": body[::-1]}
            await send(message)

        await hub(scope, receive, through)

    with serving(app) as url:
        yield url


@pytest.fixture
def commit(store: Path, source: Path) -> str:
    return hubstore.publish(store, REPO, "main", source)


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    # The module sets these for its own, short process.
    for name in ("HF_HOME", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "")


def ensure(endpoint: str, revision: str, dest: Path, **options: Any) -> dict[str, Any]:
    check_mode = options.pop("check_mode", False)
    params = {
        "repo_id": REPO,
        "revision": revision,
        "dest": str(dest),
        "endpoint": endpoint,
        "token": None,
        "headroom": 0,
        "timeout": 5,
        **options,
    }
    outcome: dict[str, Any] = hf_snapshot.ensure(
        SimpleNamespace(params=params, check_mode=check_mode)
    )
    return outcome


def refusal(endpoint: str, revision: str, dest: Path, **options: Any) -> tuple[str, str]:
    with pytest.raises(hf_snapshot.SnapshotError) as caught:
        ensure(endpoint, revision, dest, **options)
    return caught.value.reason, str(caught.value)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def dest(tmp_path: Path, commit: str) -> Path:
    return tmp_path / "models" / "roost-lab--tiny" / commit


def test_a_revision_arrives_whole_and_with_its_record(
    endpoint: str, commit: str, dest: Path, source: Path
) -> None:
    outcome = ensure(endpoint, commit, dest)
    assert outcome["changed"]
    assert outcome["files"] == 4
    assert outcome["bytes"] == sum(path.stat().st_size for path in source.iterdir())
    arrived = content(dest)
    record = json.loads(arrived.pop(".roost.json"))
    assert arrived == content(source)
    assert record["repo"] == REPO
    assert record["revision"] == commit
    assert set(record["files"]) == set(arrived)
    # Nothing else is visible beside it.
    assert [path.name for path in dest.parent.iterdir() if path.name[0] != "."] == [commit]


def test_what_is_there_is_not_asked_for_again(
    endpoint: str, commit: str, dest: Path, wire: Wire
) -> None:
    ensure(endpoint, commit, dest)
    wire.requests.clear()
    outcome = ensure(endpoint, commit, dest)
    assert not outcome["changed"]
    assert outcome["present"]
    assert wire.requests == []


def test_check_mode_says_what_would_move_and_moves_nothing(
    endpoint: str, commit: str, dest: Path
) -> None:
    outcome = ensure(endpoint, commit, dest, check_mode=True)
    assert outcome["changed"]
    assert outcome["bytes"] > 2 * len(SHARD)
    assert "model-00001-of-00002.safetensors" in outcome["diff"]["after"]
    assert not dest.parent.exists()


def test_a_broken_download_is_continued(
    endpoint: str, commit: str, dest: Path, wire: Wire, source: Path
) -> None:
    wire.cut_after = len(SHARD) // 2
    reason, message = refusal(endpoint, commit, dest)
    assert reason == "hub_unreachable"
    assert "deploy again to go on from it" in message
    assert not dest.exists()
    wire.cut_after = None
    outcome = ensure(endpoint, commit, dest)
    assert outcome["bytes"] < sum(path.stat().st_size for path in source.iterdir())
    arrived = content(dest)
    arrived.pop(".roost.json")
    assert arrived == content(source)


def test_altered_weights_never_become_visible(
    endpoint: str, commit: str, dest: Path, wire: Wire
) -> None:
    wire.alter = True
    reason, message = refusal(endpoint, commit, dest)
    assert reason == "hash"
    assert "model-00001-of-00002.safetensors has another sha256" in message
    assert "config.json" not in message
    assert not dest.exists()
    wire.alter = False
    assert ensure(endpoint, commit, dest)["changed"]


def test_a_damaged_directory_is_mended(
    endpoint: str, commit: str, dest: Path, source: Path
) -> None:
    ensure(endpoint, commit, dest)
    (dest / "model-00002-of-00002.safetensors").write_bytes(b"short")
    assert ensure(endpoint, commit, dest)["changed"]
    arrived = content(dest)
    arrived.pop(".roost.json")
    assert arrived == content(source)


def test_an_index_that_names_a_missing_shard_is_refused(
    endpoint: str, source: Path, store: Path, tmp_path: Path
) -> None:
    (source / "model-00002-of-00002.safetensors").unlink()
    broken = hubstore.publish(store, REPO, "broken", source)
    dest = tmp_path / "models" / broken
    reason, message = refusal(endpoint, broken, dest)
    assert reason == "incomplete"
    assert "model-00002-of-00002.safetensors" in message
    assert not dest.exists()


@pytest.mark.parametrize("check_mode", [True, False])
def test_each_refusal_of_a_hub_is_told_apart(
    endpoint: str, commit: str, dest: Path, source: Path, store: Path, check_mode: bool
) -> None:
    absent = "0" * 40
    options = {"check_mode": check_mode}
    reason, message = refusal(endpoint, absent, dest, **options)
    assert reason == "revision"
    assert "not this revision" in message
    reason, message = refusal(endpoint, commit, dest, repo_id="roost-lab/none", **options)
    assert reason == "repository"
    assert "missing, private, or gated" in message
    gated = hubstore.publish(store, "roost-lab/gated", "main", source, gated=True)
    reason, message = refusal(endpoint, gated, dest, repo_id="roost-lab/gated", **options)
    assert reason == "repository"
    assert "gated" in message
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        closed = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    reason, message = refusal(closed, commit, dest, **options)
    assert reason == "hub_unreachable"
    assert "Connection refused" in message
    assert not dest.exists()


def test_a_token_opens_a_gated_repository(
    endpoint: str, source: Path, store: Path, tmp_path: Path
) -> None:
    gated = hubstore.publish(store, "roost-lab/gated", "main", source, gated=True)
    dest = tmp_path / "models" / gated
    outcome = ensure(endpoint, gated, dest, repo_id="roost-lab/gated", token="open sesame")
    assert outcome["changed"]


def test_a_disk_that_would_fill_up_is_refused_before_the_first_byte(
    endpoint: str, commit: str, dest: Path, wire: Wire
) -> None:
    reason, message = refusal(endpoint, commit, dest, headroom=1 << 60)
    assert reason == "disk"
    assert "roost_model_dir" in message
    assert not [path for path in wire.requests if "/resolve/" in path]


def test_a_shortened_revision_is_refused(endpoint: str, dest: Path) -> None:
    reason, message = refusal(endpoint, "31977fbe13a8", dest)
    assert reason == "usage"
    assert "not a full commit" in message


def test_two_runs_take_turns(endpoint: str, commit: str, dest: Path) -> None:
    outcomes: list[dict[str, Any]] = []

    def run() -> None:
        outcomes.append(ensure(endpoint, commit, dest))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome["changed"] for outcome in outcomes) == [False, True]

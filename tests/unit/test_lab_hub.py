"""The lab's store and hub, asked by the real ``huggingface_hub`` client."""

from __future__ import annotations

import hashlib
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send
from tests.unit.servers import serving

from roost.errors import RoostError
from roost.lab import hubstore
from roost.lab.hubserver import application

REPO = "roost-lab/tiny"
WEIGHTS = bytes(range(256)) * 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "config.json").write_text('{"model_type": "tiny"}\n')
    (source / "model-00001-of-00001.safetensors").write_bytes(WEIGHTS)
    (source / "deep" / "er" / "a name with blanks.txt").write_text("deep\n")
    return source


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@dataclass
class Cut:
    """Once, the hub's connection breaks after so many bytes of a body."""

    after_bytes: int | None = None


@pytest.fixture
def cut() -> Cut:
    return Cut()


@pytest.fixture
def ranges() -> list[str]:
    """The Range headers that the hub was sent."""
    return []


@pytest.fixture
def endpoint(store: Path, tmp_path: Path, ranges: list[str], cut: Cut) -> Iterator[str]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "thing-1.0-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "secret").write_text("not to be served")
    hub = application(store, {"wheels": wheels}, token="open-sesame")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "range" in Headers(scope=scope):
            ranges.append(Headers(scope=scope)["range"])
        sent = 0

        async def breaking_send(message: Message) -> None:
            nonlocal sent
            if cut.after_bytes is not None and sent >= cut.after_bytes:
                cut.after_bytes = None
                raise ConnectionError("cut by the test")
            sent += len(message.get("body", b""))
            await send(message)

        await hub(scope, receive, breaking_send)

    with serving(app) as url:
        yield url


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    with httpx2.Client(trust_env=False) as session:
        yield session


def test_the_same_files_give_the_same_commit(store: Path, folder: Path, tmp_path: Path) -> None:
    commit = hubstore.publish(store, REPO, "main", folder)
    again = hubstore.publish(store, REPO, "other", folder)
    elsewhere = hubstore.publish(tmp_path / "second", REPO, "main", folder)
    assert commit == again == elsewhere
    assert len(commit) == 40
    assert set(commit) <= set("0123456789abcdef")
    repo = hubstore.repository(store, REPO)
    assert repo is not None
    assert repo.branches == {"main": commit, "other": commit}


def test_a_branch_moves_and_its_old_commit_stays(store: Path, folder: Path) -> None:
    first = hubstore.publish(store, REPO, "main", folder)
    (folder / "config.json").write_text("{}")
    second = hubstore.publish(store, REPO, "main", folder)
    repo = hubstore.repository(store, REPO)
    assert repo is not None
    assert first != second
    assert repo.branches == {"main": second}
    old = hubstore.revision(repo, first)
    assert old is not None
    assert (old.folder / "config.json").read_text() == '{"model_type": "tiny"}\n'


def test_recorded_hashes_are_those_of_git_and_sha256sum(store: Path, folder: Path) -> None:
    hubstore.publish(store, REPO, "main", folder)
    repo = hubstore.repository(store, REPO)
    assert repo is not None
    found = hubstore.revision(repo, "main")
    assert found is not None
    config = folder / "config.json"
    git = subprocess.run(
        ["git", "hash-object", "--no-filters", config], capture_output=True, text=True, check=True
    )
    recorded = found.files["config.json"]
    assert recorded.blob_id == git.stdout.strip()
    assert recorded.sha256 == hashlib.sha256(config.read_bytes()).hexdigest()
    assert recorded.size == config.stat().st_size


def test_a_draft_of_a_killed_publisher_is_swept_up(store: Path, folder: Path) -> None:
    commit = hubstore.publish(store, REPO, "main", folder)
    home = store / "models" / REPO
    (home / ".draft-killed").mkdir()
    (home / f"{commit}.json").unlink()
    assert hubstore.publish(store, REPO, "main", folder) == commit
    assert sorted(path.name for path in home.iterdir()) == sorted(
        [commit, f"{commit}.json", "refs.json"]
    )


@pytest.mark.parametrize(
    ("repo_id", "branch"),
    [("../x", "main"), ("a/../b", "main"), ("one", "main"), (REPO, "a/b"), (REPO, "0" * 40)],
)
def test_names_that_no_hub_takes_are_refused(
    store: Path, folder: Path, repo_id: str, branch: str
) -> None:
    with pytest.raises(RoostError, match="no name for a repository"):
        hubstore.publish(store, repo_id, branch, folder)
    assert not store.exists()


def test_an_empty_folder_is_not_published(store: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(RoostError, match="it is empty"):
        hubstore.publish(store, REPO, "main", empty)
    assert hubstore.repository(store, REPO) is None


@pytest.mark.parametrize("by", ["branch", "commit"])
def test_the_client_downloads_a_snapshot(
    endpoint: str, store: Path, folder: Path, tmp_path: Path, by: str
) -> None:
    commit = hubstore.publish(store, REPO, "main", folder)
    target = tmp_path / "target"
    snapshot_download(
        REPO,
        revision=commit if by == "commit" else "main",
        endpoint=endpoint,
        local_dir=target,
    )
    for path in ("config.json", "model-00001-of-00001.safetensors"):
        assert (target / path).read_bytes() == (folder / path).read_bytes()
    assert (target / "deep/er/a name with blanks.txt").read_text() == "deep\n"


def test_a_cached_snapshot_stands_under_its_commit(
    endpoint: str, store: Path, folder: Path, tmp_path: Path
) -> None:
    commit = hubstore.publish(store, REPO, "main", folder)
    got = snapshot_download(REPO, endpoint=endpoint, cache_dir=tmp_path / "cache")
    assert Path(got).name == commit
    weights = Path(got, "model-00001-of-00001.safetensors").resolve()
    assert weights.name == hashlib.sha256(WEIGHTS).hexdigest()


def test_the_client_sees_metadata(endpoint: str, store: Path, folder: Path) -> None:
    commit = hubstore.publish(store, REPO, "main", folder)
    api = HfApi(endpoint=endpoint)
    info = api.model_info(REPO, files_metadata=True)
    assert info.sha == commit
    assert info.siblings is not None
    weights = next(one for one in info.siblings if one.rfilename.endswith("safetensors"))
    assert weights.size == len(WEIGHTS)
    assert weights.lfs is not None
    assert weights.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    config = next(one for one in info.siblings if one.rfilename == "config.json")
    assert config.lfs is None
    assert config.blob_id is not None
    assert [ref.name for ref in api.list_repo_refs(REPO).branches] == ["main"]
    tree = {entry.path for entry in api.list_repo_tree(REPO, recursive=True)}
    assert tree == {
        "config.json",
        "deep",
        "deep/er",
        "deep/er/a name with blanks.txt",
        "model-00001-of-00001.safetensors",
    }
    top = {entry.path for entry in api.list_repo_tree(REPO)}
    assert top == {"config.json", "deep", "model-00001-of-00001.safetensors"}
    inner = {entry.path for entry in api.list_repo_tree(REPO, "deep")}
    assert inner == {"deep/er"}
    paths = api.get_paths_info(REPO, ["config.json", "deep", "absent"])
    assert [entry.path for entry in paths] == ["config.json", "deep"]


def test_an_interrupted_download_goes_on_where_it_stopped(
    endpoint: str,
    store: Path,
    folder: Path,
    tmp_path: Path,
    ranges: list[str],
    cut: Cut,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The client keeps whole chunks of what arrived; its own are 10 MB.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 64 * 1024)
    hubstore.publish(store, REPO, "main", folder)
    cut.after_bytes = 128 * 1024
    got = hf_hub_download(
        REPO, "model-00001-of-00001.safetensors", endpoint=endpoint, cache_dir=tmp_path / "cache"
    )
    assert Path(got).read_bytes() == WEIGHTS
    assert ranges == [f"bytes={128 * 1024}-"]


def test_errors_are_the_clients_own(
    endpoint: str, store: Path, folder: Path, tmp_path: Path
) -> None:
    hubstore.publish(store, REPO, "main", folder)
    with pytest.raises(RepositoryNotFoundError):
        snapshot_download("roost-lab/nothing", endpoint=endpoint, cache_dir=tmp_path / "c1")
    with pytest.raises(RevisionNotFoundError):
        snapshot_download(REPO, revision="nope", endpoint=endpoint, cache_dir=tmp_path / "c2")
    with pytest.raises(RevisionNotFoundError):
        snapshot_download(REPO, revision="0" * 40, endpoint=endpoint, cache_dir=tmp_path / "c3")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(REPO, "absent.bin", endpoint=endpoint, cache_dir=tmp_path / "c4")


def test_a_gated_repository_wants_the_token(
    endpoint: str, store: Path, folder: Path, tmp_path: Path
) -> None:
    hubstore.publish(store, REPO, "main", folder, gated=True)
    for token in (False, "wrong"):
        with pytest.raises(GatedRepoError):
            hf_hub_download(
                REPO, "config.json", endpoint=endpoint, cache_dir=tmp_path / "c", token=token
            )
    got = hf_hub_download(
        REPO, "config.json", endpoint=endpoint, cache_dir=tmp_path / "c", token="open-sesame"
    )
    assert Path(got).read_text() == '{"model_type": "tiny"}\n'


def test_ranges(endpoint: str, store: Path, folder: Path, client: httpx2.Client) -> None:
    commit = hubstore.publish(store, REPO, "main", folder)
    url = f"{endpoint}/{REPO}/resolve/main/model-00001-of-00001.safetensors"
    part = client.get(url, headers={"Range": "bytes=10-19"})
    assert part.status_code == 206
    assert part.content == WEIGHTS[10:20]
    assert part.headers["Content-Range"] == f"bytes 10-19/{len(WEIGHTS)}"
    beyond = client.get(url, headers={"Range": f"bytes={len(WEIGHTS)}-"})
    assert beyond.status_code == 416
    assert beyond.headers["Content-Range"] == f"bytes */{len(WEIGHTS)}"
    head = client.head(url)
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    assert head.headers["X-Repo-Commit"] == commit
    assert head.headers["X-Linked-Etag"] == head.headers["ETag"] == f'"{digest}"'
    assert head.headers["X-Linked-Size"] == head.headers["Content-Length"] == str(len(WEIGHTS))
    small = client.head(f"{endpoint}/{REPO}/resolve/main/config.json")
    assert "X-Linked-Etag" not in small.headers


@pytest.mark.parametrize(
    "path",
    [
        f"/{REPO}/resolve/main/../../../../secret",
        f"/{REPO}/resolve/main/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret",
        f"/{REPO}/resolve/..%2f..%2frefs.json/x",
        "/wheels/../secret",
        "/wheels/%2e%2e/secret",
        f"/api/models/{REPO}/revision/..%2frefs",
        "/..%2f..%2fsecret/x/resolve/main/y",
    ],
)
def test_no_path_leads_out(endpoint: str, store: Path, folder: Path, path: str) -> None:
    hubstore.publish(store, REPO, "main", folder)
    host, port = endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ", 2)[1] in (b"404", b"405")
    assert b"not to be served" not in answer


def test_a_folder_is_listed_and_served(endpoint: str, client: httpx2.Client) -> None:
    page = client.get(f"{endpoint}/wheels/")
    assert '<a href="thing-1.0-py3-none-any.whl">' in page.text
    assert client.get(f"{endpoint}/wheels/thing-1.0-py3-none-any.whl").content == b"wheel"
    assert client.put(f"{endpoint}/wheels/new", content=b"x").status_code == 405

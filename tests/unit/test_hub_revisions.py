"""Names and their commits on a well-behaved hub, the lab's own: what a lock takes from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from tests.unit.servers import serving

from roost import hub, lock, locking
from roost.errors import RoostError
from roost.lab import hubstore
from roost.lab.hubserver import application
from roost.lock import LockedModel
from roost.pins import Repository, Revision
from roost.root import CATALOG_VARIABLE

REPO = "roost-lab/tiny"
NOBODY = "http://127.0.0.1:9"
CONFIG, INDEX = hub.FINGERPRINTED


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def endpoint(store: Path) -> Iterator[str]:
    with serving(application(store)) as url:
        yield url


def publish(store: Path, folder: Path, **files: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return hubstore.publish(store, REPO, "main", folder)


def ask(endpoint: str, **revision: Any) -> LockedModel:
    return hub.resolve(Repository(repo=REPO, revision=Revision(**revision)), endpoint)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_files_that_say_what_a_checkpoint_is_have_fingerprints(
    store: Path, endpoint: str, tmp_path: Path
) -> None:
    config, index = '{"model_type": "tiny"}\n', json.dumps({"weight_map": {"a": "b" * 200_000}})
    publish(store, tmp_path / "source", **{CONFIG: config})
    assert ask(endpoint, branch="main").fingerprints == {CONFIG: sha256(config), INDEX: None}
    publish(store, tmp_path / "source", **{INDEX: index})
    assert ask(endpoint, branch="main").fingerprints == {
        CONFIG: sha256(config),
        INDEX: sha256(index),
    }


def test_what_no_such_file_would_be_is_not_read_to_its_end(
    store: Path, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_MOST", 1000)
    publish(store, tmp_path / "source", **{CONFIG: "x" * 1001})
    with pytest.raises(RoostError, match=r"config.json: is larger than 1,000 bytes"):
        ask(endpoint, branch="main")


def test_a_shortened_commit_is_looked_up_in_the_history(store: Path, tmp_path: Path) -> None:
    older = publish(store, tmp_path / "source", **{CONFIG: "{}"})
    newer = publish(store, tmp_path / "source", **{CONFIG: '{"a": 1}'})
    lab = application(store)

    async def with_history(scope: Scope, receive: Receive, send: Send) -> None:
        """The lab's hub keeps no history; this is the public one's answer about it."""
        if scope["type"] == "http" and scope["path"] == f"/api/models/{REPO}/commits/main":
            commits = [newer, older, "abcdef0" + "0" * 33, "abcdef0" + "1" * 33]
            facts = {"authors": [], "date": "2026-11-29T00:00:00.000Z", "title": "", "message": ""}
            await JSONResponse([{"id": commit, **facts} for commit in commits])(
                scope, receive, send
            )
        else:
            await lab(scope, receive, send)

    with serving(with_history) as endpoint:
        for commit in (older, newer):
            assert ask(endpoint, prefix=commit[:12]).commit == commit
        assert ask(endpoint, prefix=older[:12]).fingerprints == {CONFIG: sha256("{}"), INDEX: None}
        with pytest.raises(RoostError, match="no commit begins with it"):
            ask(endpoint, prefix="0" * 12)
        with pytest.raises(RoostError, match="several commits begin with it"):
            ask(endpoint, prefix="abcdef0")


def test_check_says_what_drifted_and_writes_nothing(
    store: Path, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "own" / "recipes" / "mine.yml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(
        yaml.safe_dump(
            {
                "id": "mine",
                "title": "Mine",
                "model": {"repo": REPO, "revision": {"branch": "main"}},
                "engine": "vllm",
                "served_name": "mine",
                "default_speculation": "none",
                "speculation": {"none": {}},
                "hardware": {},
                "source": "here",
            }
        )
    )
    monkeypatch.setenv(CATALOG_VARIABLE, str(recipe.parents[1]))
    path = tmp_path / "roost.lock.yml"
    job = locking.plan(["mine"], hub=endpoint, lock_file=path)
    older = publish(store, tmp_path / "source", **{CONFIG: "{}", "README.md": "one"})
    assert locking.run(job, write=True).drift == [f"model {REPO}@main: not locked → {older}"]
    assert locking.run(job, write=False).drift == []

    # Other words about the same weights, then another model under the same name.
    words = publish(store, tmp_path / "source", **{"README.md": "two"})
    assert locking.run(job, write=False).drift == [f"model {REPO}@main: {older} → {words}"]
    changed = '{"a": 1}'
    other = publish(store, tmp_path / "source", **{CONFIG: changed})
    assert locking.run(job, write=False).drift == [
        f"model {REPO}@main: {older} → {other}",
        f"model {REPO}@main: config.json sha256 {sha256('{}')[:12]} → "
        f"sha256 {sha256(changed)[:12]}",
    ]
    assert lock.read(path).models[REPO]["main"].commit == older

    # A hub that is down changes nothing, and is no drift.
    silent = locking.run(locking.plan(["mine"], hub=NOBODY, lock_file=path), write=True)
    assert silent.drift == []
    assert [failure.kept for failure in silent.failures] == [
        f"{older} of {lock.read(path).models[REPO]['main'].resolved}"
    ]

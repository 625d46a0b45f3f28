"""The lock: never poorer, never half-written, no diff for nothing."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from roost import lock
from roost.errors import RoostError
from roost.lock import Lock, LockedImage, LockedModel
from roost.pins import Image, Repository, Revision

REPOSITORY = Repository(repo="org/name", revision=Revision(branch="main"))
OTHER = Repository(repo="org/other", revision=Revision(branch="main"))
IMAGE = Image(repository="org/image", tag="1.0", engine_version="1.0")
OLD, NEW = dt.date(2026, 1, 1), dt.date(2026, 2, 2)


def model(commit: str, when: dt.date = NEW) -> LockedModel:
    return LockedModel(commit=commit * 40, bytes=5, files=1, resolved=when)


def image(digest: str, when: dt.date = NEW) -> LockedImage:
    return LockedImage(
        digest="sha256:" + digest * 64, platforms=["amd64"], bytes={"amd64": 5}, resolved=when
    )


def fail(_: object) -> LockedModel:
    raise RoostError("hub is down")


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "roost.lock.yml"
    whole = Lock(
        models={"org/name": {"main": model("a")}}, images={"org/image": {"1.0": image("b")}}
    )
    lock.write(path, whole)
    assert lock.read(path) == whole
    assert [p.name for p in path.parent.iterdir()] == ["roost.lock.yml"]
    assert lock.read(tmp_path / "absent.yml") == Lock()


def test_an_outage_keeps_what_was_there() -> None:
    before = Lock(models={"org/name": {"main": model("a", OLD)}})
    after, failures = lock.resolve(
        before, [REPOSITORY], [IMAGE], ask_hub=fail, ask_registry=lambda _: image("c")
    )
    assert after.models == before.models
    assert after.images == {"org/image": {"1.0": image("c")}}
    assert [str(failure) for failure in failures] == ["hub is down"]


def test_the_date_moves_only_with_the_commit() -> None:
    before = Lock(
        models={"org/name": {"main": model("a", OLD)}, "org/other": {"main": model("b", OLD)}}
    )
    answers = {"org/name": model("a", NEW), "org/other": model("c", NEW)}
    after, _ = lock.resolve(
        before,
        [REPOSITORY, OTHER],
        [],
        ask_hub=lambda repository: answers[repository.repo],
        ask_registry=lambda _: image("c"),
    )
    assert after.models["org/name"]["main"].resolved == OLD
    assert after.models["org/other"]["main"] == model("c", NEW)
    assert lock.drift(before, after) == [f"model org/other@main: {'b' * 40} → {'c' * 40}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\n", "version 2 of the lock is not known here"),
        ("models: {org/name: {main: {commit: main}}}\n", "models.org/name.main.commit: "),
        ("images: []\n", "images: "),
        ("- 1\n", "(the whole file): "),
        ("unknown: 1\n", "unknown: unknown key"),
    ],
)
def test_a_damaged_lock_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "roost.lock.yml"
    path.write_text(text)
    with pytest.raises(RoostError) as caught:
        lock.read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_unwritable_place_is_one_message(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RoostError, match="cannot be written"):
        lock.write(blocked / "roost.lock.yml", Lock())

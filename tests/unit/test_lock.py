"""The lock: never poorer, never half-written, no diff for nothing."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from roost import lock
from roost.errors import RoostError, UsageError
from roost.lock import Failure, Lock, LockedImage, LockedModel
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


def no_registry(_: object) -> LockedImage:
    raise RoostError("registry is down")


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
        before,
        [REPOSITORY, OTHER],
        [IMAGE],
        ask_hub=fail,
        ask_registry=lambda _: image("c"),
        today=NEW,
    )
    assert after.models == before.models
    assert after.images == {"org/image": {"1.0": image("c")}}
    assert [str(failure) for failure in failures] == [
        f"hub is down\n  kept: {'a' * 40} of 2026-01-01",
        "hub is down\n  kept: nothing: it was not locked before",
    ]


def test_what_failures_have_in_common_is_said_once() -> None:
    down = [RoostError(f"{name}: no answer", why="no network", fix="wait") for name in ("a", "b")]
    other = RoostError("c: no such revision", why="it is gone", fix="correct it")
    found = [Failure(error, "nothing") for error in (down[0], other, down[1])]
    assert list(lock.told(found)) == [
        "2 could not be resolved, for the same reason:\n  a: no answer\n    kept: nothing\n"
        "  b: no answer\n    kept: nothing\n  why: no network\n  fix: wait",
        "c: no such revision\n  why: it is gone\n  fix: correct it\n  kept: nothing",
    ]


def test_what_has_no_reason_has_none_in_common() -> None:
    found = [Failure(RoostError(f"{name}: HTTP 500"), "nothing") for name in ("a", "b")]
    assert list(lock.told(found)) == [f"{name}: HTTP 500\n  kept: nothing" for name in ("a", "b")]


def test_what_a_recipe_pins_in_full_is_locked_without_anybody_s_answer() -> None:
    commit, digest = "d" * 40, "sha256:" + "e" * 64
    after, failures = lock.resolve(
        Lock(),
        [Repository(repo="org/name", revision=Revision(commit=commit))],
        [Image(repository="org/image", digest=digest, engine_version="1")],
        ask_hub=fail,
        ask_registry=no_registry,
        today=NEW,
    )
    assert after.models["org/name"][commit] == LockedModel(commit=commit, resolved=NEW)
    assert after.images["org/image"][digest] == LockedImage(digest=digest, resolved=NEW)
    assert [failure.kept.partition(",")[0] for failure in failures] == [commit, digest]


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
        today=NEW,
    )
    assert after.models["org/name"]["main"].resolved == OLD
    assert after.models["org/other"]["main"] == model("c", NEW)
    assert lock.drift(before, after) == [f"model org/other@main: {'b' * 40} → {'c' * 40}"]


def test_drift_says_what_of_an_entry_differs() -> None:
    def locked(**facts: object) -> Lock:
        return Lock(models={"org/name": {"main": model("a").model_copy(update=facts)}})

    one = {"config.json": "1" * 64, "model.safetensors.index.json": None}
    two = {"config.json": "1" * 64, "model.safetensors.index.json": "2" * 64}
    assert lock.drift(locked(fingerprints=one), locked(fingerprints=two)) == [
        "model org/name@main: model.safetensors.index.json absent → sha256 222222222222"
    ]
    assert lock.drift(locked(), locked(fingerprints=one)) == [
        "model org/name@main: config.json not recorded → sha256 111111111111",
        "model org/name@main: model.safetensors.index.json not recorded → absent",
    ]
    assert lock.drift(locked(bytes=5), locked(bytes=6)) == ["model org/name@main: bytes 5 → 6"]
    # Of what moved, that its size did too is no news.
    assert lock.drift(locked(bytes=5), locked(commit="b" * 40, bytes=6)) == [
        f"model org/name@main: {'a' * 40} → {'b' * 40}"
    ]
    assert lock.drift(Lock(), locked(fingerprints=one)) == [
        f"model org/name@main: not locked → {'a' * 40}"
    ]


def test_drift_of_one_platform_of_an_image() -> None:
    def locked(digit: str) -> Lock:
        manifests = {"amd64": "sha256:" + "0" * 64, "arm64": "sha256:" + digit * 64}
        entry = image("b").model_copy(update={"manifests": manifests})
        return Lock(images={"org/image": {"1.0": entry}})

    assert lock.drift(locked("1"), locked("2")) == [
        f"image org/image@1.0: arm64 sha256:{'1' * 64} → sha256:{'2' * 64}"
    ]


FIRST_LAYOUT = """\
version: 1
images:
  org/image:
    "1.0":
      digest: sha256:{digest}
      platforms: [amd64]
      bytes: {{amd64: 5}}
      resolved: 2026-01-01
models:
  org/name:
    main: {{commit: {commit}, bytes: 5, files: 1, resolved: 2026-01-01}}
"""


def test_a_lock_of_the_first_layout_is_read_and_filled_up_by_the_next_lock(tmp_path: Path) -> None:
    path = tmp_path / "roost.lock.yml"
    path.write_text(FIRST_LAYOUT.format(digest="b" * 64, commit="a" * 40))
    old = lock.read(path)
    assert old.version == lock.VERSION
    assert old.models == {"org/name": {"main": model("a", OLD)}}
    assert old.images == {"org/image": {"1.0": image("b", OLD)}}
    fuller = model("a").model_copy(update={"fingerprints": {"config.json": "1" * 64}})
    new, _ = lock.resolve(
        old, [REPOSITORY], [], ask_hub=lambda _: fuller, ask_registry=no_registry, today=NEW
    )
    lock.write(path, new)
    assert lock.read(path).models["org/name"]["main"] == fuller


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 3\n", "version 3 of the lock is not known here"),
        ("version: [2]\n", "version [2] of the lock is not known here"),
        ('version: "2"\n', "version '2' of the lock is not known here"),
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


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("folder", "it is a directory"),
        ("file/roost.lock.yml", "file: Not a directory"),
        ("file/new/roost.lock.yml", "file: Not a directory"),
        # Whose file system takes no files, from nobody.
        ("/proc/new/roost.lock.yml", "/proc: "),
    ],
)
def test_an_unwritable_place_is_told_before_anything_is_done(
    tmp_path: Path, place: str, why: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("as it was")
    path = tmp_path / place
    with pytest.raises(UsageError) as caught:
        lock.require_writable(path)
    assert caught.value.what == f"{path}: cannot be written; nothing was asked"
    assert why in caught.value.why
    assert "--lock-file" in caught.value.fix
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "file", tmp_path / "folder"]
    assert (tmp_path / "file").read_text() == "as it was"


def test_a_place_that_can_be_written_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = tmp_path / "roost.lock.yml"
    there.write_text("version: 2\n")
    # It is replaced, not written into.
    there.chmod(0o444)
    for path in (there, Path("roost.lock.yml"), Path("new", "folder", "roost.lock.yml")):
        lock.require_writable(path)
    assert list(tmp_path.iterdir()) == [there]
    lock.write(Path("new", "folder", "roost.lock.yml"), Lock())
    lock.write(there, Lock())

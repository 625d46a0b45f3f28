"""Releases on a host's disk: turns, pointers, order, and what a full disk or a kill leaves."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from roost.onhost import store as stores
from roost.onhost.store import BusyError, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "releases").mkdir()
    return Store(str(tmp_path / "releases"), str(tmp_path / "run"))


def serve(store: Store, release: str) -> None:
    store.write({"recipe": release}, release, "release.json")
    store.served(release)


def test_the_first_record_makes_the_directory(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "lib" / "roost" / "releases"), str(tmp_path / "run"))
    assert (store.begun(), store.ids(), store.failure()) == (None, [], None)
    store.end()
    store.prune()
    serve(store, "x-1")
    assert store.ids() == ["x-1"]


def test_a_turn_is_one_at_a_time_and_says_whose_it_is(store: Store) -> None:
    program = (
        "import sys, time; from roost.onhost.store import Store\n"
        "store = Store(sys.argv[1], sys.argv[2])\n"
        "store.take_turn('ann@desk deploys x-1', 0)\n"
        "print('mine', flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", program, str(store.root), str(store.runtime)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "mine\n"
        assert str(store.holder()).startswith("ann@desk deploys x-1, since 2")
        with pytest.raises(BusyError, match="ann@desk deploys x-1"):
            store.take_turn("ben@desk", 0.1)
        # The kernel gives it back, however its holder ends.
        other.kill()
        other.wait()
    assert store.holder() is None
    assert store.take_turn("ben@desk", 5) == ""


def test_who_waits_is_told_for_whom(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; from roost.onhost.store import Store\n"
        "Store(sys.argv[1], sys.argv[2]).take_turn('ann@desk', 0)\n"
        "print('mine', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(store.root), str(store.runtime)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout
        other.stdout.readline()
        # It ends once somebody waits for it.
        monkeypatch.setattr(time, "sleep", lambda _: other.communicate())
        assert store.take_turn("ben@desk", 30).startswith("ann@desk, since ")


def test_who_only_looks_whose_turn_it_is_has_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.take_turn("ben@desk", 0)
    store.end_turn()
    looking = os.open(store.runtime / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: os.close(looking))
    # The watchdog looks every few seconds; a deploy that may not wait meets it at times.
    assert store.take_turn("ann@desk", 0) == ""


def test_a_fork_keeps_the_turn_when_its_parent_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work goes on in a process of its own when the connection and its module are lost."""
    program = (
        "import os, sys; from roost.onhost.store import Store\n"
        "store = Store(sys.argv[1], sys.argv[2])\n"
        "store.take_turn('ann@desk', 0)\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    words = [sys.executable, "-c", program, str(store.root), str(store.runtime)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.wait() == 0
        assert store.holder() is not None
        # The fork ends once somebody waits for it.
        monkeypatch.setattr(time, "sleep", lambda _: parent.communicate())
        assert store.take_turn("ben@desk", 30).startswith("ann@desk")


def test_pointers_lead_to_what_is_kept(store: Store) -> None:
    assert store.pointed("current") is None
    serve(store, "a-1")
    serve(store, "b-1")
    store.point("current", "a-1")
    store.point("current", "b-1")
    assert store.pointed("current") == "b-1"
    assert (store.root / "current").readlink() == Path("b-1")  # the tree can be moved
    (store.root / "previous").symlink_to("gone-1")
    assert store.pointed("previous") is None


def test_the_order_does_not_depend_on_the_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, release in [(5, "a-1"), (4, "b-1"), (3, "c-1"), (2, "a-1")]:
        monkeypatch.setattr(stores, "now", lambda day=day: f"2026-11-{day:02}T00:00:00Z")
        serve(store, release)
    assert store.ids() == ["a-1", "c-1", "b-1"]
    times = store.read("a-1", "times.json")
    assert times == {
        "first_served": "2026-11-05T00:00:00Z",
        "last_served": "2026-11-02T00:00:00Z",
        "serial": 4,
    }


def test_pruning_keeps_the_last_five_the_pointed_and_nothing_that_never_served(
    store: Store,
) -> None:
    for number in range(9):
        serve(store, f"r-{number}")
    store.write({}, "tried-1", "release.json")
    store.point("current", "r-8")
    store.point("previous", "r-1")
    store.point("held", "r-2")
    store.prune()
    kept = {path.name for path in store.root.iterdir() if path.is_dir() and not path.is_symlink()}
    assert kept == {"r-1", "r-2", "r-4", "r-5", "r-6", "r-7", "r-8"}
    assert store.pointed("current") == "r-8"


def test_what_is_only_tried_does_not_last(store: Store) -> None:
    assert store.lasting() is None
    serve(store, "r-1")
    serve(store, "r-2")
    store.point("current", "r-2")
    assert store.lasting() == "r-2"
    store.point("held", "r-1")
    assert store.lasting() == "r-1"
    # Somebody has cleared it away, so there is nothing to go back to.
    store.point("held", "r-0")
    assert store.lasting() == "r-2"


def test_what_served_before_is_no_older_than_what_an_experiment_holds(store: Store) -> None:
    assert store.before() is None
    for release in ("r-1", "r-2", "r-3"):
        serve(store, release)
    store.point("current", "r-2")
    store.point("previous", "r-1")
    assert store.before() == "r-1"
    # By an experiment that has tried nothing yet.
    store.point("held", "r-2")
    assert store.before() == "r-1"
    store.point("current", "r-3")
    assert store.before() == "r-2"
    # Somebody has cleared it away.
    store.point("held", "r-0")
    assert store.before() == "r-1"


def test_a_file_is_whole_or_not_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.begin({"phase": "trial"})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.begin({"phase": "passed"})
    assert store.begun() == {"phase": "trial"}
    (store.root / "transaction.json").write_text('{"phase": ')
    assert store.begun() is None


def test_an_outcome_is_kept_until_the_next_piece_of_work(store: Store) -> None:
    store.take_turn("ann", 0)
    assert store.outcome() is None
    store.keep_outcome({"outcome": "serves"})
    assert store.outcome() == {"outcome": "serves"}
    assert (store.runtime / "outcome.json").stat().st_mode & 0o777 == 0o600
    store.keep_outcome(None)
    assert store.outcome() is None


def test_only_the_last_failure_is_kept(store: Store) -> None:
    store.keep_failure({"release": "a-1"}, "one\n")
    at = store.keep_failure({"release": "b-1"}, "two\nthree\n")
    assert store.failure() == {"release": "b-1", "at": at, "diagnosis": None}
    assert store.failed_log() == "two\nthree\n"
    assert time.strptime(at, "%Y-%m-%dT%H:%M:%SZ")
    log = store.root / "last-failed/engine.log"
    assert log.stat().st_mode & 0o777 == 0o600
    assert not (store.root / ".last-failed.new").exists()


def test_a_diagnosis_belongs_to_the_failure_it_was_made_of(store: Store) -> None:
    at = store.keep_failure({"release": "a-1"}, "")
    findings = [{"id": "disk-full"}]
    store.write({"at": at, "findings": findings}, "last-failed", "diagnosis.json")
    kept = store.failure()
    assert kept
    assert kept["diagnosis"] == findings
    # It came late: another release has failed meanwhile.
    store.write({"at": "2026-01-01T00:00:00Z", "findings": findings}, "last-failed/diagnosis.json")
    kept = store.failure()
    assert kept
    assert kept["diagnosis"] is None


def test_a_failure_that_cannot_be_written_leaves_the_last_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep_failure({"release": "a-1"}, "one\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.keep_failure({"release": "b-1"}, "two\n")
    kept = store.failure()
    assert kept
    assert (kept["release"], store.failed_log()) == ("a-1", "one\n")
    assert not (store.root / ".last-failed.new").exists()

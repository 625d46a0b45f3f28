"""Whose rollout a host takes part in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roost.onhost import lease
from roost.onhost.store import Store

ANN: dict[str, Any] = {"owner": "a1", "who": "ann@desk", "inventory": "/fleet"}
BOB: dict[str, Any] = {"owner": "b2", "who": "bob@laptop", "inventory": "/home/bob/fleet"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "releases"), str(tmp_path / "run"))


def age(store: Store, seconds: float) -> None:
    path = store.root / lease.FILE
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_it_is_one_controllers_until_that_gives_it_up(store: Store) -> None:
    assert lease.take(store, ANN) == {"held": True, "was": None}
    refused = lease.take(store, BOB)
    assert (refused["held"], refused["was"]["who"]) == (False, "ann@desk")
    lease.give_up(store, "b2")
    assert not lease.take(store, BOB)["held"]
    lease.give_up(store, "a1")
    lease.give_up(store, "a1")
    assert lease.take(store, BOB) == {"held": True, "was": None}


def test_its_owner_renews_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "now", lambda: "10:00")
    lease.take(store, ANN)
    monkeypatch.setattr(lease, "now", lambda: "11:00")
    age(store, lease.ABANDONED + 9)
    again = lease.take(store, {**ANN, "wanted": "r-2"})
    assert again == {"held": True, "was": {**ANN, "since": "10:00", "renewed": "10:00"}}
    assert store.read(lease.FILE) == {**ANN, "wanted": "r-2", "since": "10:00", "renewed": "11:00"}
    assert not lease.take(store, BOB)["held"]


@pytest.mark.parametrize(
    ("seconds", "take_over", "held"),
    [
        (0, True, True),
        (lease.ABANDONED - 60, False, False),
        (lease.ABANDONED + 60, False, True),
        # The host's clock has been set back since.
        (60 - lease.ABANDONED, False, False),
        (-lease.ABANDONED - 60, False, True),
    ],
)
def test_it_is_taken_over_on_demand_or_after_a_day(
    store: Store, seconds: float, take_over: bool, held: bool
) -> None:
    lease.take(store, {**ANN, "wanted": "r-2", "before": "r-1"})
    age(store, seconds)
    taken = lease.take(store, BOB, take_over=take_over)
    assert (taken["held"], taken["was"]["wanted"], taken["was"]["before"]) == (held, "r-2", "r-1")
    assert lease.take(store, ANN)["held"] is not held


def test_who_changes_a_host_by_hand_is_told_whose_it_is(store: Store) -> None:
    assert lease.of_others(store) is None
    lease.take(store, {**ANN, "wanted": "r-2"})
    found = lease.of_others(store)
    assert found
    assert (found["who"], found["wanted"]) == ("ann@desk", "r-2")
    assert lease.said(found) == (
        f"ann@desk rolls out /fleet, since {found['since']}, last heard of {found['renewed']}"
    )
    assert lease.of_others(store, "b2") == found
    # The rollout itself may change it, and so may everybody once nobody renews the lease.
    assert lease.of_others(store, "a1") is None
    age(store, lease.ABANDONED + 60)
    assert lease.of_others(store) is None
    lease.take(store, ANN)
    assert lease.of_others(store)
    lease.give_up(store, "a1")
    assert lease.of_others(store) is None


TUNING = {**ANN, "owner": "t1", "experiment": "tune"}


def test_an_experiment_is_told_from_a_rollout(store: Store) -> None:
    lease.take(store, TUNING)
    found = lease.of_others(store)
    assert found
    assert lease.said(found).startswith("ann@desk tries deployments (tune) of /fleet, since ")
    assert lease.part(found) == "an experiment"
    assert "run it again where it was begun, which brings the host back" in lease.fix(found)
    assert "(roost: --despite-lease), which ends the experiment." in lease.fix(found)
    assert lease.tries(store, "t1")
    assert not lease.tries(store, "")
    assert not lease.take(store, BOB)["held"]
    lease.take(store, ANN, take_over=True)
    assert not lease.tries(store, "t1")
    assert not lease.tries(store, "a1")
    assert (lease.has(store, "a1"), lease.has(store, "t1")) == (True, False)


@pytest.mark.parametrize(("of", "left"), [(TUNING, False), (ANN, True)])
def test_what_came_to_stay_ends_an_experiment_and_no_rollout(
    store: Store, of: dict[str, Any], left: bool
) -> None:
    lease.take(store, of)
    (store.root / "held").symlink_to("r-1")
    for _ in range(2):
        lease.end_experiment(store)
        assert (lease.of_others(store) is not None) is left
        assert not (store.root / "held").is_symlink()


def test_a_lease_that_is_given_up_while_it_is_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease.take(store, ANN)
    read = store.read

    def given_up(*path: str) -> dict[str, Any] | None:
        found = read(*path)
        lease.give_up(Store(str(store.root), str(store.runtime)), "a1")
        return found

    monkeypatch.setattr(store, "read", given_up)
    assert lease.of_others(store) is None


def test_of_many_at_once_one_has_it(store: Store) -> None:
    program = (
        "import sys; from roost.onhost import lease; from roost.onhost.store import Store\n"
        "sys.stdin.readline()\n"
        "print(lease.take(Store(*sys.argv[1:3]), {'owner': sys.argv[3]})['held'])"
    )
    words = [sys.executable, "-c", program, str(store.root), str(store.runtime)]
    racing = [
        subprocess.Popen(
            [*words, f"c{n}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for n in range(5)
    ]
    for one in racing:
        assert one.stdin
        one.stdin.write("\n")
        one.stdin.flush()
    said = [one.communicate()[0].strip() for one in racing]
    assert sorted(said) == [*["False"] * 4, "True"]

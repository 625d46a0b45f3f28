"""What a rollout tells Ansible, and what it hears from it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.plugins import ROOT

from roost import fleet as ansible
from roost.rollout import record
from roost.rollout.fleet import Fleet, Lease

THEIRS = {"owner": "x", "who": "ann@laptop", "wanted": "r-2", "before": "r-1"}


def test_hosts_are_told_whose_rollout_it_is_and_say_whose_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (play,) = yaml.safe_load((ROOT / "playbooks" / "lease.yml").read_text())
    (task,) = play["tasks"]
    asked: list[dict[str, Any]] = []
    answers: dict[str, dict[str, Any]] = {
        "a": {"held": True, "was": None},
        "b": {"held": False, "was": THEIRS},
    }

    def run(name: str, *_: object, **options: Any) -> ansible.PlayResult:
        asked.append({"playbook": name, "hosts": options["limit"], **options["extra_vars"]})
        for host, answer in answers.items():
            told = {"host": host, "task": task["name"], "res": answer}
            options["watch"]({"event": "runner_on_ok", "event_data": told})
        return ansible.PlayResult("failed", unreachable=["c"], hosts=["a", "b", "c"])

    monkeypatch.setattr(ansible, "run_playbook", run)
    hosts = Fleet(tmp_path / "fleet", tmp_path)
    note = {"wanted": "r-9", "before": "r-8"}
    leases, played = hosts.hold({"a": {}, "b": note, "c": {}}, take_over=True)
    assert leases == {"a": Lease(True), "b": Lease(False, THEIRS)}
    assert played.unreachable == {"c"}
    hosts.let_go(iter(["a", "b"]))
    mine = {
        "owner": record.owner(tmp_path / "fleet"),
        "who": record.who(),
        "inventory": str(tmp_path / "fleet"),
    }
    # Every playbook is told on whose behalf it runs, for hosts leave others out.
    assert {one.pop("rollout_owner") for one in asked} == {mine["owner"]}
    held, freed = asked
    assert held == {
        "playbook": "lease",
        "hosts": "a,b,c",
        "lease_of": {"a": mine, "b": {**mine, **note}, "c": mine},
        "lease_state": "held",
        "lease_taken_over": True,
    }
    assert (freed["hosts"], freed["lease_state"]) == ("a,b", "free")
    # The playbook hands all of it on.
    words = "".join(task["rollout_lease"].values())
    assert all(name in words for name in held if name.startswith("lease_"))


def test_another_machine_checkout_or_inventory_is_another_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = record.owner(tmp_path / "fleet")
    (tmp_path / "link").symlink_to(tmp_path / "fleet")
    assert record.owner(tmp_path / "link") == mine
    others = [record.owner(tmp_path / "other")]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(record, "repository_root", lambda: tmp_path)
        others.append(record.owner(tmp_path / "fleet"))
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop")
    others.append(record.owner(tmp_path / "fleet"))
    assert len({mine, *others}) == 4

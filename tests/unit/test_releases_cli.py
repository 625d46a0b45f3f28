"""`roost status` and `roost rollback` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.test_releases import facts

from roost import fleet
from roost.cli import cli
from roost.errors import RoostError
from roost.fleet import PlayResult


@pytest.mark.parametrize(
    ("healthy", "failed", "code"),
    [(True, {}, 0), (False, {}, 1), (True, {"spark-02": "No route to host"}, 1)],
)
def test_status_tells_every_host_and_exits_by_what_it_saw(
    monkeypatch: pytest.MonkeyPatch, healthy: bool, failed: dict[str, str], code: int
) -> None:
    found = facts()
    found["engine"]["healthy"] = healthy
    monkeypatch.setattr(fleet, "ask", lambda *_, **__: ({"spark-01": found}, failed))
    done = CliRunner().invoke(cli, ["status", "-i", "inventory/spark"])
    assert done.exit_code == code
    assert done.output.startswith("spark-01  r-0123456789ab: ")
    assert ("spark-02  No route to host" in done.output) is bool(failed)
    as_json = CliRunner().invoke(cli, ["status", "-i", "inventory/spark", "--json"])
    assert as_json.exit_code == code
    assert json.loads(as_json.output) == {"hosts": {"spark-01": found}, "failed": failed}


def test_rollback_hands_the_release_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def run(name: str, inventory: Path, **options: Any) -> PlayResult:
        asked.append({"name": name, "inventory": inventory, **options})
        return PlayResult("successful", hosts=["spark-01"])

    monkeypatch.setattr(fleet, "run_playbook", run)
    words = ["rollback", "-i", "inventory/spark", "--to", "r-1", "--limit", "spark-01"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0
    assert done.output == "rolled back: spark-01\n"
    assert asked[0]["name"] == "rollback"
    assert asked[0]["extra_vars"] == {"rollback_to": "r-1"}
    assert asked[0]["limit"] == "spark-01"
    CliRunner().invoke(cli, ["rollback", "-i", "inventory/spark"])
    assert asked[1]["extra_vars"] is None


def test_a_rollback_that_failed_names_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = PlayResult("failed", failed=["spark-01"], unreachable=["spark-02"], hosts=["spark-01"])
    monkeypatch.setattr(fleet, "run_playbook", lambda *_, **__: bad)
    done = CliRunner().invoke(cli, ["rollback", "-i", "inventory/spark"])
    assert isinstance(done.exception, RoostError)
    assert "rollback failed on: spark-01, spark-02" in str(done.exception)

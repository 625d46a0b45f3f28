"""Notebooks by the playbooks, over an inventory."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.notebooks.conftest import Deployed
from tests.playbooks.playbook import Running, inventory

from roost import runs
from roost.lab.fixtures import SharedLab

pytestmark = [pytest.mark.lab, pytest.mark.engine]


def test_a_host_that_does_not_serve_fails_with_its_checks_and_alone(
    deployed: Deployed, lab: SharedLab, tmp_path: Path
) -> None:
    empty = lab.host("cpu", fresh=True)
    given = yaml.safe_load((deployed.where / "hosts.yml").read_text())["all"]["vars"]
    where = inventory(tmp_path / "site", lab.lab, [deployed.host, empty], **given)
    play = Running(
        where,
        playbook="playbooks/verify.yml",
        verify_runs=str(tmp_path / "runs"),
        verify_long_context=0,
        verify_bad_requests=False,
    ).end()
    good, bad = deployed.host.name, empty.name
    assert play.code == 2
    assert play.failed == {good: 0, bad: 1}
    assert play.changed == {good: 0, bad: 0}
    assert play.unreachable == {good: 0, bad: 0}
    results = {run.host: run for run in map(runs.read, (tmp_path / "runs").iterdir())}
    assert {host: result.ok for host, result in results.items()} == {good: True, bad: False}
    why = play.refusal(empty)
    assert f"{len(results[bad].failed)} of {len(results[bad].checks)} checks failed" in why
    for check in ("container", "image_digest", "model_revision"):
        assert check in why

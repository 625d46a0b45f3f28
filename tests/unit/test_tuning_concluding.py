"""What is said of a search that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit import trials
from tests.unit.test_tuning_searching import newest, search, tune
from tests.unit.trials import Trials

from roost.tuning import concluding


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    return trials.install(tmp_path, monkeypatch)


def test_what_the_front_leaves_out_is_said(host: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune(host).exit_code == 0
    begun = search(host, run_dir=newest(host))
    everything = concluding.evidence(begun)
    checks = {check.id: check for check in everything.checks}
    assert (checks["front"].verdict, checks["front"].why) == ("pass", "")
    first, *_, last = next(iter(concluding.benchmarks(begun).values())).cells
    measured = concluding.benchmarks(begun)
    short = measured["sequences 2"]
    cells = [cell for cell in short.cells if cell.id != first.id]
    measured["sequences 2"] = short.model_copy(update={"cells": cells})
    monkeypatch.setattr(concluding, "benchmarks", lambda _: measured)
    evidence = concluding.evidence(begun)
    check = next(one for one in evidence.checks if one.id == "front")
    assert check.why == f"left out: {first.id} (not measured by sequences 2)"
    assert last.id in check.observed
    assert first.id not in check.observed
    assert not any(first.id in one.source for one in evidence.figures.values())
    assert "the mean of code-c8, prose-c8" in evidence.figures["present.c8.tpot"].source
    assert {row["over"] for row in concluding.rows(begun)} == {"prose-c1", "code-c8, prose-c8"}

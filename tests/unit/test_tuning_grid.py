"""The points of a search, and their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit import trials
from tests.unit.test_tuning_searching import search
from tests.unit.trials import Trials

from roost.errors import UsageError


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    return trials.install(tmp_path, monkeypatch)


def test_the_present_settings_come_first_then_the_fewest_changes(host: Trials) -> None:
    found = search(host, vary="{num_speculative_tokens: '2,4,8', max_num_seqs: [4, 8]}")
    assert [one.name for one in found.experiment.notes.tried] == [
        "present",
        "K 2",
        "sequences 8",
        "K 8",
        "K 2, sequences 8",
        "K 8, sequences 8",
    ]
    settings = found.experiment.notes.tried[4].settings
    assert (settings["num_speculative_tokens"], settings["max_num_seqs"]) == (2, 8)
    assert settings["max_model_len"] == 2048


def test_every_setting_is_also_varied_by_itself(host: Trials) -> None:
    found = search(host, vary={"num_speculative_tokens": [8], "max_num_seqs": [8]})
    names = [one.name for one in found.experiment.notes.tried]
    assert names == ["present", "sequences 8", "K 8", "K 8, sequences 8"]


def test_without_a_word_halves_and_doubles_are_tried(host: Trials) -> None:
    names = [one.name for one in search(host, vary=None).experiment.notes.tried]
    assert names[0] == "present"
    assert {"K 2", "K 8", "sequences 2", "sequences 8", "K 8, sequences 2"} <= set(names)


def test_a_point_keeps_what_the_inventory_sets(host: Trials) -> None:
    host.write(roost_settings={"extra_args": ["--x"], "max_num_seqs": 2})
    found = search(host, vary={"max_num_seqs": [2, 8]}).experiment
    assert list(found.variants) == ["present", "sequences 8"]
    assert found.variants["present"].variables == {}
    assert found.variants["sequences 8"].variables == {
        "roost_settings": {"extra_args": ["--x"], "max_num_seqs": 8}
    }


def test_a_depth_is_not_varied_where_nothing_speculates(host: Trials) -> None:
    host.write(roost_speculation="none")
    with pytest.raises(UsageError, match="without speculation"):
        search(host, vary={"num_speculative_tokens": [2]})
    assert "K 2" not in [one.name for one in search(host, vary=None).experiment.notes.tried]

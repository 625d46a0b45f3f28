"""Counters, on the exposition text of a real engine (vLLM 0.24 on a GPU, two readings each)."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost.errors import RoostError
from roost.measure import metrics

DATA = Path(__file__).parent / "data" / "metrics"


def reading(name: str) -> metrics.Reading:
    return metrics.parse((DATA / f"{name}.txt").read_text())


def test_real_counters_of_a_dflash_engine() -> None:
    change = metrics.delta(reading("dflash_before"), reading("dflash_after"))
    spec = change.speculation
    assert spec == metrics.SpecCounters(2014, 8056, 4062, (1601, 1179, 796, 486))
    assert spec.accept_length == pytest.approx(1 + 4062 / 2014)
    assert spec.accept_rate == pytest.approx(4062 / 8056)
    assert spec.per_position_rates[0] == pytest.approx(1601 / 2014)
    # The synthetic acceptance of that engine was set to 0.8, 0.6, 0.4, 0.25.
    assert [round(rate, 1) for rate in spec.per_position_rates] == [0.8, 0.6, 0.4, 0.2]
    assert change.generated_tokens == 6064


def test_without_speculation_the_families_are_absent() -> None:
    change = metrics.delta(reading("plain_before"), reading("plain_after"))
    assert change.speculation is None
    assert change.generated_tokens > 0


def test_engines_of_one_endpoint_are_summed() -> None:
    text = (DATA / "dflash_after.txt").read_text()
    second = "\n".join(
        line.replace('engine="0"', 'engine="1"')
        for line in text.splitlines()
        if not line.startswith("#")
    )
    spec = metrics.parse(f"{text}{second}\n").speculation
    assert spec is not None
    assert (spec.drafts, spec.per_position[0]) == (2 * 2014, 2 * 1601)


def test_no_drafts_give_no_accept_length() -> None:
    same = reading("dflash_after")
    spec = metrics.delta(same, same).speculation
    assert spec is not None
    assert (spec.accept_length, spec.accept_rate, spec.per_position_rates) == (None, None, ())


def test_numbers_in_scientific_notation() -> None:
    assert metrics.parse("vllm:generation_tokens_total 1.234567e+06\n").generated_tokens == 1234567


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dflash_after", "dflash_before"),
        ("dflash_before", "plain_after"),
        ("plain_before", "dflash_after"),
    ],
)
def test_a_restart_in_between_is_an_error(before: str, after: str) -> None:
    with pytest.raises(RoostError, match="restarted"):
        metrics.delta(reading(before), reading(after))


@pytest.mark.parametrize("text", ["", "<html>Bad gateway</html>\n", "up 1\n", 'a{b="c\n'])
def test_what_is_no_vllm_exposition(text: str) -> None:
    with pytest.raises(RoostError, match="/metrics"):
        metrics.parse(text)

"""Counters, on the exposition text of a real engine (vLLM 0.24 on a GPU, two readings each)."""

from __future__ import annotations

import dataclasses
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


def test_what_sglangs_own_collectors_write() -> None:
    """The collectors of SGLang 0.5.23, run without a server, through its multi-process mode.

    A request of 8 tokens without drafts; 10 of 64 in 12 steps; 20 of 128 in 20, half streamed.
    """
    fresh, before, after = (reading(f"sglang_{name}") for name in ("fresh", "before", "after"))
    assert fresh.speculation is None
    spec = metrics.delta(before, after).speculation
    assert spec == metrics.SpecCounters(400, 400 * 9, 20 * 128 - 20 - 400)
    assert spec.accept_length == pytest.approx(6.35)
    first = metrics.delta(fresh, before)
    assert (first.generated_tokens, first.prompt_tokens) == (640, 400)
    assert first.speculation == metrics.SpecCounters(120, 120 * 9, 640 - 10 - 120)


def sglang(
    steps: float | None, generated: float, requests: float, block: float = 0, rank: int = 0
) -> str:
    """The same families with figures of a test's own."""
    labels = f'engine_type="unified",model_name="m",dp_rank="{rank}"'
    lines = [
        f"sglang:spec_accept_length{{{labels}}} 6.9\nsglang:spec_accept_rate{{{labels}}} NaN",
        f"sglang:spec_num_draft_tokens{{{labels}}} {block}",
        f'sglang:prompt_tokens_total{{{labels},is_streaming="true"}} 40.0',
        f'sglang:generation_tokens_total{{{labels},is_streaming="true"}} {generated - 10}',
        f'sglang:generation_tokens_total{{{labels},is_streaming="false"}} 10.0',
        f'sglang:num_requests_total{{{labels},is_streaming="true"}} {requests}',
    ]
    if steps is not None:
        lines += [
            f"sglang:spec_verify_calls_total{{{labels}}} {steps}",
            f"sglang:spec_verify_calls_created{{{labels}}} 1.79e+09",
        ]
    return "\n".join(lines) + "\n"


def test_sglang_counts_steps_and_the_anchor_is_no_proposal() -> None:
    before = metrics.parse(sglang(100, 500, 10, block=8))
    # 20 requests: a token each from their prefill, 200 steps, 1180 accepted proposals.
    after = metrics.parse(sglang(300, 500 + 20 + 200 + 1180, 30, block=8))
    spec = metrics.delta(before, after).speculation
    assert spec == metrics.SpecCounters(200, 200 * 7, 1180)
    # The pair that SGLang itself logs for such a block: accept len 6.90, accept rate 0.84.
    assert spec.accept_length == pytest.approx(6.90)
    assert spec.accept_rate == pytest.approx(0.84, abs=0.005)


def test_sglang_that_has_not_speculated_yet() -> None:
    fresh = metrics.parse(sglang(None, 10, 1))
    assert fresh.speculation is None
    # The gauge of the block's size is set some steps later than the first counter.
    begun = metrics.parse(sglang(5, 20, 2))
    later = metrics.parse(sglang(105, 320, 3, block=4))
    assert metrics.delta(fresh, begun).speculation == metrics.SpecCounters(5, 0, 4)
    assert metrics.delta(begun, later).speculation == metrics.SpecCounters(100, 300, 199)
    assert metrics.delta(fresh, fresh).speculation is None
    assert metrics.parse('sglang:num_running_reqs{model_name="m"} 0.0\n').generated_tokens == 0


def test_sglang_restarted_or_with_several_ranks() -> None:
    for generated, requests in ((10, 1), (900, 90)):
        after = metrics.parse(sglang(None, generated, requests))
        with pytest.raises(RoostError, match="restarted"):
            metrics.delta(metrics.parse(sglang(100, 500, 10)), after)
    both = metrics.parse(sglang(100, 500, 10, block=4) + sglang(50, 250, 5, block=4, rank=1))
    assert both.speculation == metrics.SpecCounters(150, 450, 750 - 15 - 150)


def test_sglang_whose_drafts_are_all_refused_was_not_restarted() -> None:
    """Accepted drafts are no counter of its own: what is computed may fall, and nothing did."""
    before = metrics.parse(sglang(100, 500, 10, block=4))
    # 4 requests: a token each from their prefill, 200 steps, of which 3 had begun at an end.
    spec = metrics.delta(before, metrics.parse(sglang(300, 500 + 4 + 197, 14, block=4))).speculation
    assert spec == metrics.SpecCounters(200, 600, 0)
    assert spec.accept_length == 1.0
    with pytest.raises(RoostError, match="counters contradict each other") as raised:
        metrics.delta(before, metrics.parse(sglang(300, 500 + 4 + 195, 14, block=4)))
    assert raised.value.why.startswith("200 verification steps of 4 requests brought 199 tokens")
    with pytest.raises(RoostError, match="restarted"):
        metrics.delta(before, metrics.parse(sglang(300, 499, 14, block=4)))


def test_a_restart_that_has_overtaken_the_old_counters() -> None:
    """SGLang's collectors again, started anew: every counter is higher than it was before."""
    before, after = reading("sglang_before"), reading("sglang_restarted")
    assert after.generated_tokens > before.generated_tokens
    assert after.requests > before.requests
    with pytest.raises(RoostError, match="restarted") as raised:
        metrics.delta(before, after)
    assert "another start" in raised.value.why
    # Without these gauges (0.5.14) only a counter that fell would say so.
    assert metrics.delta(dataclasses.replace(before, start=()), after).requests == 30


def test_vllms_process_says_when_it_started() -> None:
    """The line is of the page that a real engine (0.24) served."""
    line = "process_start_time_seconds 1.79596270147e+09\n"
    text = (DATA / "dflash_before.txt").read_text()
    first, other = metrics.parse(text + line), metrics.parse(text + line.replace("70147", "71147"))
    assert metrics.delta(first, first).generated_tokens == 0
    with pytest.raises(RoostError, match="restarted"):
        metrics.delta(first, other)
    with pytest.raises(RoostError, match="no finite number"):
        metrics.parse(f"{text}process_start_time_seconds NaN\n")


def test_fewer_requests_than_before_are_a_restart() -> None:
    after = metrics.parse(sglang(300, 5000, 9))
    with pytest.raises(RoostError, match="restarted"):
        metrics.delta(metrics.parse(sglang(100, 500, 10)), after)


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_counter_that_is_no_number(value: str) -> None:
    with pytest.raises(RoostError, match="no finite number"):
        metrics.parse(f"vllm:generation_tokens_total {value}\n")
    with pytest.raises(RoostError, match="no finite number"):
        metrics.parse(f"sglang:spec_verify_calls_total {value}\n")
    with pytest.raises(RoostError, match="no finite number"):
        metrics.parse(sglang(100, 500, 10) + f"sglang:spec_num_draft_tokens {value}\n")
    position = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'
    with pytest.raises(RoostError, match="no finite number"):
        metrics.parse(f"vllm:generation_tokens_total 1\n{position} {value}\n")


@pytest.mark.parametrize("position", ["-1", "100000000000", "x"])
def test_a_position_that_no_draft_has(position: str) -> None:
    family = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    with pytest.raises(RoostError, match=r"not Prometheus text|no usable"):
        metrics.parse(f'vllm:generation_tokens_total 1\n{family}{{position="{position}"}} 5\n')


def test_vllm_counts_its_requests_however_they_ended() -> None:
    page = """\
vllm:generation_tokens_total{engine="0"} 100
vllm:request_success_total{engine="0",finished_reason="stop"} 3
vllm:request_success_total{engine="0",finished_reason="abort"} 1
vllm:request_success_total{engine="1",finished_reason="stop"} 2
vllm:request_success_created{engine="0",finished_reason="stop"} 1.79e9
"""
    before = metrics.parse(page)
    assert before.requests == 6
    after = metrics.parse(page.replace("} 3", "} 5"))
    assert metrics.delta(before, after).requests == 2
    without = metrics.parse("vllm:generation_tokens_total 100\n")
    assert without.requests is None
    assert metrics.delta(without, after).requests is None

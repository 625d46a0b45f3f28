"""When an engine is taken for dead: what its counters say, and how long is too long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from roost import catalog
from roost.onhost.vigil import Limits, Look, Suspicion, Vigil

LIMITS = Limits(frozen=300, silent=180, ready=1800)
#: What a GB10 draws that is deadlocked, and that works (eugr/spark-vllm-docker#260).
WEDGED_WATTS, WORKING_WATTS = 22.0, 46.0


def series(engine: str, held: int, generated: int, prompt: int = 10, used: float = 0.1) -> str:
    """What of /metrics counts, as the engines write it."""
    label = '{engine="0",model_name="m"}'
    lines = {
        "vllm": f"""
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{label} {held}.0
vllm:num_requests_waiting{label} 0.0
vllm:generation_tokens_total{label} {generated}.0
vllm:generation_tokens_created{label} 1.79e+09
vllm:prompt_tokens_total{label} {prompt}.0
vllm:kv_cache_usage_perc{label} {used}
""",
        "sglang": f"""
sglang:num_running_reqs{label} {held}.0
sglang:num_queue_reqs{label} 0.0
sglang:generation_tokens_total{label} 0.0
sglang:realtime_tokens_total{{mode="decode"}} {generated}.0
sglang:realtime_tokens_total{{mode="prefill_compute"}} {prompt}.0
sglang:num_used_tokens{label} {used}
""",
    }
    return lines[engine]


@dataclass
class Engine:
    """An engine under watch, looked at every 15 s."""

    name: str = "vllm"
    at: float = 1000.0
    started: float = 1000.0
    life: str = "first"
    working_watts: float | None = 30.0
    vigil: Vigil = field(init=False)

    def __post_init__(self) -> None:
        engine = catalog.builtin().engines[self.name]
        assert engine.watch is not None
        watch, gauges = engine.watch.model_dump(), engine.busy_gauges
        self.vigil = Vigil(watch, gauges, LIMITS, self.working_watts)

    def look(self, metrics: str | None, healthy: bool | None = True, **more: Any) -> Any:
        self.at += 15
        age = self.at - self.started
        return self.vigil.see(Look(self.at, self.life, age, metrics, healthy, **more))

    def looks(self, seconds: float, *args: Any, **more: Any) -> Iterator[Suspicion | None]:
        for _ in range(int(seconds / 15)):
            yield self.look(*args, **more)


def certain(found: Any) -> bool:
    return found is not None and found.certain


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_held_requests_without_a_token_are_a_wedge(name: str) -> None:
    engine = Engine(name)
    engine.look(series(name, 1, 500))
    last = list(engine.looks(285, series(name, 1, 500), watts=WEDGED_WATTS))[-1]
    assert last is not None
    assert not last.certain
    found = engine.look(series(name, 1, 500), watts=WEDGED_WATTS)
    assert certain(found)
    assert found.kind == "frozen"
    assert found.said == (
        "1 requests are held, and no token or block moved for 300 s, at 22 to 22 W"
    )


def test_a_wedged_sglang_whose_gauges_show_no_request_is_known_by_its_health() -> None:
    """It sets them with a batch's report, so one that wedges in its first batch shows none.

    Its /health goes through the scheduler, and a stuck one answers 503 after 20 s.
    """
    engine = Engine("sglang")
    engine.look(series("sglang", 0, 500))
    found = list(engine.looks(180, series("sglang", 0, 500), False))
    assert not any(map(certain, found[:-1]))
    assert certain(found[-1])
    assert found[-1].kind == "silent"


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_idle_engine_is_none(name: str) -> None:
    engine = Engine(name)
    assert not any(engine.looks(36_000, series(name, 0, 500), watts=4.0))


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_a_long_prefill_is_none(name: str) -> None:
    """A prompt of a quarter million tokens on a slow machine: chunk after chunk, and no token."""
    engine = Engine(name)
    for chunk in range(100):
        prompt = 10 if name == "vllm" else chunk
        now = series(name, 1, 500, prompt=prompt, used=0.1 + chunk / 1000)
        # One chunk takes four minutes.
        assert not any(map(certain, engine.looks(240, now, watts=WEDGED_WATTS)))


def test_one_token_in_a_while_is_none() -> None:
    engine = Engine()
    for generated in range(1, 200):
        now = series("vllm", 8, generated)
        assert not any(map(certain, engine.looks(60, now, watts=WEDGED_WATTS)))


@pytest.mark.parametrize(
    ("generated", "more", "sign"),
    [
        (0, {}, "no token since its start"),
        (500, {"compiling": True}, "compilers ran"),
        (500, {"watts": WORKING_WATTS}, "the GPU draws the power of work"),
    ],
    ids=["first request", "compiles", "power"],
)
def test_signs_of_work_make_it_three_times_as_long(
    generated: int, more: dict[str, Any], sign: str
) -> None:
    engine = Engine()
    engine.look(series("vllm", 1, generated))
    found = list(engine.looks(885, series("vllm", 1, generated), **more))
    assert not any(map(certain, found))
    last = engine.look(series("vllm", 1, generated), **more)
    assert certain(last)
    assert sign in last.said


def test_time_without_requests_does_not_count() -> None:
    engine = Engine()
    list(engine.looks(3600, series("vllm", 0, 500)))
    assert not any(map(certain, engine.looks(285, series("vllm", 1, 500))))


def test_a_look_that_got_no_answer_is_no_progress() -> None:
    engine = Engine()
    engine.look(series("vllm", 1, 500))
    list(engine.looks(285, series("vllm", 1, 500)))
    assert not certain(engine.look(None))
    assert certain(engine.look(series("vllm", 1, 500)))


def test_health_that_was_good_stays_good_until_it_is_asked_again() -> None:
    engine = Engine()
    engine.look(series("vllm", 0, 500))
    assert not any(engine.looks(600, series("vllm", 0, 500), None))


def test_power_of_unknown_meaning_is_no_sign() -> None:
    engine = Engine(working_watts=None)
    engine.look(series("vllm", 1, 500))
    assert any(map(certain, engine.looks(300, series("vllm", 1, 500), watts=200.0)))


def test_power_before_the_last_token_is_no_sign() -> None:
    engine = Engine()
    engine.look(series("vllm", 1, 500), watts=WORKING_WATTS)
    engine.look(series("vllm", 1, 501), watts=WORKING_WATTS)
    found = list(engine.looks(300, series("vllm", 1, 501), watts=WEDGED_WATTS))
    assert certain(found[-1])


def test_waiting_requests_of_which_none_runs_count_too() -> None:
    engine = Engine()
    now = series("vllm", 0, 500).replace('waiting{engine="0",model_name="m"} 0', "waiting 3")
    engine.look(now)
    assert certain(list(engine.looks(300, now))[-1])


@pytest.mark.parametrize(
    ("metrics", "healthy", "what"),
    [(None, None, "/metrics"), (None, False, "/metrics"), ("idle", False, "/health")],
)
def test_an_engine_that_does_not_answer(
    metrics: str | None, healthy: bool | None, what: str
) -> None:
    engine = Engine()
    engine.look(series("vllm", 0, 500))
    now = series("vllm", 0, 500) if metrics else None
    found = list(engine.looks(180, now, healthy))
    assert [certain(one) for one in found] == [False] * 11 + [True]
    assert found[-1].kind == "silent"
    assert found[-1].said == f"for 180 s there was no good answer from {what}"


def test_health_that_was_bad_stays_bad_until_it_is_asked_again() -> None:
    engine = Engine()
    engine.look(series("vllm", 0, 500))
    assert not engine.vigil.wants_health
    engine.look(series("vllm", 0, 500), False)
    assert engine.vigil.wants_health
    assert certain(list(engine.looks(180, series("vllm", 0, 500), None))[-1])


def test_who_makes_progress_may_be_late_with_its_health() -> None:
    engine = Engine()
    engine.look(series("vllm", 1, 500))
    for generated in range(501, 530):
        assert not certain(engine.look(series("vllm", 1, generated), False))


def test_a_start_has_its_own_time() -> None:
    engine = Engine()
    assert not any(engine.looks(1785, None, False))
    found = engine.look(None, False)
    assert certain(found)
    assert (found.kind, found.said) == ("unready", "it is not ready 1800 s after its start")


def test_an_old_engine_that_is_seen_for_the_first_time_is_given_time() -> None:
    engine = Engine(started=-100_000.0)
    assert not any(map(certain, engine.looks(180, None, False)))
    assert certain(engine.look(None, False))


def test_another_start_is_another_life() -> None:
    engine = Engine()
    engine.look(series("vllm", 1, 500))
    list(engine.looks(285, series("vllm", 1, 500)))
    engine.life, engine.started = "second", engine.at
    assert not any(engine.looks(600, None, False))
    engine.look(series("vllm", 1, 0))
    assert not any(map(certain, engine.looks(600, series("vllm", 1, 0))))


def test_an_engine_of_unknown_series_is_judged_by_its_answers() -> None:
    vigil = Vigil(None, [], LIMITS, None)
    for at in range(0, 3600, 15):
        assert vigil.see(Look(at, "first", at, "some text", True)) is None
    found = [vigil.see(Look(3600 + at, "first", 1e4, None, None)) for at in range(0, 200, 15)]
    assert certain(found[-1])

"""The quality gate against an engine that misbehaves in one way each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.deployments import deployment
from tests.unit.stand_in_engine import Engine, serving

from roost import catalog
from roost.deployment import Deployment
from roost.onhost import counters, endpoint
from roost.onhost.endpoint import Endpoint
from roost.onhost.gate import ROUNDS, Gate, failed

DATA = Path(__file__).parent / "data" / "metrics"


@pytest.fixture
def engine() -> Iterator[Engine]:
    with serving() as one:
        yield one


@pytest.fixture
def timed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine whose answers take as long as it says, and nothing else takes any time."""
    now = 0.0

    class Taking(list[dict[str, Any]]):
        def append(self, request: dict[str, Any]) -> None:
            nonlocal now
            now += engine.seconds
            super().append(request)

    engine.requests = Taking()
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(monotonic=lambda: now))
    return engine


def gate(engine: Engine, folder: Path, key: str | None = None, **variables: Any) -> Gate:
    wanted = deployment(folder, **variables).gate.model_dump(mode="json")
    return Gate(Endpoint(f"http://127.0.0.1:{engine.port}", key), wanted, 60)


def reference(folder: Path, **figures: float) -> dict[str, Any]:
    key = deployment(folder).gate.figures_key
    return {"id": "old-1", "figures_key": key, "figures": figures}


def only(checks: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [one for one in checks if one["id"] == name]
    return found


def test_right_answers_pass_and_are_kept(engine: Engine, tmp_path: Path) -> None:
    checks, texts = gate(engine, tmp_path).answers()
    assert failed(checks) == []
    assert texts == {"capital": "The capital of France is Paris.", "sum": "2+2 is 4."}


def test_an_engine_that_does_not_answer_is_a_failed_check(engine: Engine, tmp_path: Path) -> None:
    engine.chat_status = 500
    checks, _ = gate(engine, tmp_path).answers()
    assert [found["why"] for found in failed(checks)] == ["the reply is not a chat completion"] * 2
    assert "EngineCore" in checks[0]["observed"]


@pytest.mark.parametrize(("times", "same"), [(1, True), (2, True), (3, False)])
def test_an_answer_may_part_at_a_near_tie_but_not_every_time(
    engine: Engine, tmp_path: Path, times: int, same: bool
) -> None:
    one = gate(engine, tmp_path)
    _, before = one.answers()
    left = times

    class Parting(dict[str, str]):
        def items(self) -> Any:
            nonlocal left
            left -= 1
            tie = {"2+2": "Four, 4."} if left >= 0 else {}
            return {**self, **tie}.items()

    baseline = {
        "output_key": deployment(tmp_path).gate.output_key,
        "answers": before,
    }
    # One answer has parted already; two more attempts are made.
    left -= 1
    engine.answers = Parting(engine.answers)
    checks = one.same_answers({**before, "sum": "Four, 4."}, baseline)
    assert only(checks, "same_sum")["ok"] is same
    assert only(checks, "same_capital")["ok"]


def test_answers_of_other_settings_are_not_compared(engine: Engine, tmp_path: Path) -> None:
    one = gate(engine, tmp_path)
    baseline = {"output_key": "another", "answers": {"capital": "x", "sum": "y"}}
    assert one.same_answers({"capital": "a", "sum": "b"}, baseline) == []
    assert one.same_answers({"capital": "a", "sum": "b"}, None) == []


@pytest.mark.parametrize("counts_as", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("accepted", "before", "ok"),
    [
        (3.0, None, True),
        (0.0, None, False),  # proposed and never accepted
        (2.2, 4.0, True),  # 3.2 is 0.8 of 4.0
        (2.1, 4.0, False),
        (0.5, 1.2, True),
    ],
)
def test_accept_length_has_a_floor(
    engine: Engine,
    tmp_path: Path,
    accepted: float,
    before: float | None,
    ok: bool,
    counts_as: str,
) -> None:
    engine.accepted_per_draft, engine.counts_as = accepted, counts_as
    gate(engine, tmp_path).answers()
    old = reference(tmp_path, accept_length=before) if before else None
    checks, figures = gate(engine, tmp_path).figures(old)
    assert only(checks, "accept_length")["ok"] is ok
    assert figures["accept_length"] == pytest.approx(1 + accepted)


@pytest.mark.parametrize("counts_as", ["vllm", "sglang"])
def test_an_engine_that_drafts_nothing_where_it_should_fails(
    engine: Engine, tmp_path: Path, counts_as: str
) -> None:
    engine.speculates, engine.counts_as = False, counts_as
    gate(engine, tmp_path).answers()
    checks, figures = gate(engine, tmp_path).figures(None)
    assert only(checks, "accept_length")["observed"] == "no drafts"
    assert "accept_length" not in figures
    # Without speculation, and with a lookup that may find nothing, nobody asks for drafts.
    for speculation in ("none", "ngram"):
        assert gate(engine, tmp_path, speculation=speculation).figures(None)[0] == []


def test_what_nobody_counts_is_not_judged_and_said_so(engine: Engine, tmp_path: Path) -> None:
    engine.speculates, engine.counts_as = False, "sglang"
    wanted = sglang(tmp_path, "0.5.12").gate.model_dump(mode="json")
    checks, figures = Gate(Endpoint(f"http://127.0.0.1:{engine.port}", None), wanted, 60).figures(
        reference(tmp_path, accept_length=4.0)
    )
    found = only(checks, "accept_length")
    assert (found["ok"], found["observed"]) == (True, "not judged")
    assert found["why"].startswith("SGLang 0.5.12 does not count verification steps")
    assert "accept_length" not in figures
    # A release that an older roost has recorded.
    del wanted["uncounted"]
    after = Gate(Endpoint(f"http://127.0.0.1:{engine.port}", None), wanted, 60).figures(None)
    assert after[0] == []


def sglang(folder: Path, version: str, speculation: str = "mtp", **variables: Any) -> Deployment:
    settings = {"image": "sglang@sha256:" + "7" * 64, "engine_version": version}
    given = {"recipe": "ornith-1.5-35b-nvfp4-dflash2", "allow_unlocked": True, **variables}
    return deployment(folder, "gb10", speculation=speculation, settings=settings, **given)


@pytest.mark.parametrize(
    ("version", "floor"),
    [
        ("0.5.12.post1", None),
        ("0.5.13", 1.01),
        ("0.5.19.dev0+g710267dc4", 1.01),
        ("main 65f759144", 1.01),  # nobody can place it
    ],
)
def test_which_sglang_is_judged_by_its_accept_length(
    tmp_path: Path, version: str, floor: float | None
) -> None:
    one = sglang(tmp_path, version).gate
    assert one.min_accept_length == floor
    assert (one.uncounted is None) is (floor is not None)
    none = sglang(tmp_path, version, "none").gate
    assert (none.min_accept_length, none.uncounted) == (None, None)
    own = sglang(tmp_path, version, min_accept_length=3.5).gate
    assert own.min_accept_length == (floor and 3.5)


def test_an_engine_whose_counters_nobody_knows_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = catalog.builtin()
    bare = known.engines["vllm"].model_copy(update={"counters": None})
    other = known.model_copy(update={"engines": {**known.engines, "vllm": bare}})
    monkeypatch.setattr(catalog, "current", lambda: other)
    one = deployment(tmp_path).gate
    assert one.min_accept_length is None
    assert one.uncounted == "nobody knows of counters of vLLM that it follows from"


def test_speed_has_a_floor_and_is_measured_again_before_it_fails(
    timed: Engine, tmp_path: Path
) -> None:
    timed.tokens, timed.seconds = 10, 0.02  # 500 tokens/s
    one = gate(timed, tmp_path)
    checks, _ = one.figures(reference(tmp_path, tokens_per_second=400))
    assert only(checks, "speed")["ok"]
    asked = len(timed.requests)
    checks, figures = one.figures(reference(tmp_path, tokens_per_second=4000))
    slow = only(checks, "speed")
    assert not slow["ok"]
    assert slow["expected"] == "2000.0 tokens/s: 0.5 of the 4000 of old-1"
    assert len(timed.requests) - asked == ROUNDS * 2
    assert figures["tokens_per_second"] == 500


def test_one_slow_round_is_no_slow_engine(timed: Engine, tmp_path: Path) -> None:
    timed.tokens, timed.seconds = 10, 0.2

    class Hurrying(type(timed.requests)):  # type: ignore[misc]
        def append(self, request: dict[str, Any]) -> None:
            timed.seconds = 0.2 if len(self) < 2 else 0.01
            super().append(request)

    timed.requests = Hurrying()
    checks, _ = gate(timed, tmp_path).figures(reference(tmp_path, tokens_per_second=600))
    assert only(checks, "speed")["ok"]
    assert len(timed.requests) == 4


def test_figures_of_another_recipe_are_no_reference(engine: Engine, tmp_path: Path) -> None:
    other = {**reference(tmp_path, tokens_per_second=1e9, accept_length=5), "figures_key": "x"}
    checks, _ = gate(engine, tmp_path).figures(other)
    assert [found["id"] for found in checks] == ["accept_length"]
    assert failed(checks) == []


def test_figures_with_thinking_are_no_reference_for_those_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are those of any other arguments of the chat template: both are asked with them."""
    known, without = catalog.builtin(), deployment(tmp_path)
    recipe = known.recipes[without.recipe].model_copy(
        update={"chat_template_kwargs": {"enable_thinking": True}}
    )
    other = known.model_copy(update={"recipes": {**known.recipes, recipe.id: recipe}})
    monkeypatch.setattr(catalog, "current", lambda: other)
    assert deployment(tmp_path).gate.figures_key != without.gate.figures_key


@pytest.mark.parametrize("asks", [True, False])
def test_a_key_must_be_asked_for(engine: Engine, tmp_path: Path, asks: bool) -> None:
    engine.key = "secret" if asks else None
    one = gate(engine, tmp_path, key="secret")
    assert one.closed()[0]["ok"] is asks
    assert failed(one.answers()[0]) == []


def test_nobody_at_home_is_an_answer_too() -> None:
    reply = Endpoint("http://127.0.0.1:9").get("/health", 1)
    assert reply.status == 0
    assert "refused" in reply.body


# Counters


def test_counters_of_a_real_engine() -> None:
    before = (DATA / "dflash_before.txt").read_text()
    after = (DATA / "dflash_after.txt").read_text()
    from roost.measure import metrics

    exact = metrics.delta(metrics.parse(before), metrics.parse(after)).speculation
    assert exact
    assert counters.accept_length(before, after) == pytest.approx(exact.accept_length)
    plain = (DATA / "plain_after.txt").read_text()
    assert counters.accept_length(plain, plain) is None
    assert counters.accept_length(after, before) is None  # restarted in between


def test_counters_that_sglangs_own_collectors_wrote() -> None:
    """The pages and figures of test_measure_metrics.py: 20 requests of 128 tokens in 20 steps."""
    fresh, before, after = (
        (DATA / f"sglang_{name}.txt").read_text() for name in ("fresh", "before", "after")
    )
    assert counters.accept_length(before, after) == pytest.approx(6.35)
    # 10 requests of 64 tokens in 12 steps, the first that speculate.
    assert counters.accept_length(fresh, before) == pytest.approx((640 - 10) / 120)
    assert counters.accept_length(after, after) is None
    assert counters.accept_length(after, before) is None
    assert counters.accept_length(before, fresh) is None
    # What was not read is no zero.
    assert counters.accept_length("", after) is None
    assert counters.accept_length("Internal Server Error", after) is None


@pytest.mark.parametrize("fallen", ["generation_tokens_total", "num_requests_total"])
def test_an_sglang_that_has_overtaken_but_one_of_its_counters(fallen: str) -> None:
    before = (DATA / "sglang_before.txt").read_text()
    after = (DATA / "sglang_after.txt").read_text()
    fewer = re.sub(rf"^(sglang:{fallen}{{.*}}) .*$", r"\1 0.5", after, flags=re.MULTILINE)
    assert fewer != after
    assert counters.accept_length(before, fewer) is None


@given(st.floats(0, 1e9, allow_nan=False), st.floats(0, 1e9, allow_nan=False))
def test_a_counter_is_its_name_whole_summed_over_labels(one: float, two: float) -> None:
    text = (
        f"# TYPE {counters.DRAFTS} counter\n"
        f'{counters.DRAFTS}{{engine="0",model_name="a}}b"}} {one!r}\n'
        f'{counters.DRAFTS}{{engine="1"}} {two!r}\n'
        f"{counters.DRAFTS.replace('_total', '_created')} 1.79e9\n"
        f"{counters.DRAFTS}_more 7\n"
    )
    assert counters.total(text, counters.DRAFTS) == one + two
    assert counters.total(text, "absent_total") is None

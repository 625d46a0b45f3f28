"""Results of the engines' own load generators: real files of vLLM, SGLang's by its source."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.unit.processes import alive, until

from roost.errors import RoostError
from roost.measure import harness
from roost.measure.harness import Load

DATA = Path(__file__).parent / "data" / "harness"
LOAD = Load(
    base_url="http://127.0.0.1:8000",
    served_name="ornith",
    tokenizer="/model",
    prompts=PurePosixPath("/bench/x/coding-c1_1.jsonl"),
    count=4,
    concurrency=2,
    output_tokens=256,
    ignore_eos=True,
    result=PurePosixPath("/bench/x/coding-c1_1.result.json"),
)

#: The keys that SGLang 0.5.23 writes with --output-details, from its source; values made up.
SGLANG: dict[str, Any] = {
    "tag": None,
    "backend": "sglang-oai",
    "dataset_name": "custom",
    "request_rate": "trace",
    "max_concurrency": 1,
    "server_info": {"version": "0.5.23"},
    "duration": 4.0,
    "completed": 2,
    "total_output_tokens": 400,
    "output_throughput": 100.0,
    "median_ttft_ms": 150.0,
    "median_tpot_ms": 9.0,
    "concurrency": 0.99,
    "accept_length": None,
    "input_lens": [20, 21],
    "output_lens": [200, 200],
    "ttfts": [0.1, 0.2],
    "itls": [[0.9, 1.0], [1.8]],
    "generated_texts": ["a", "b"],
    "errors": ["", ""],
}


def real(name: str) -> str:
    return (DATA / f"vllm_0.24_{name}_c1.json").read_text()


def test_a_real_result_with_speculation() -> None:
    said = json.loads(real("dflash"))
    found = harness.parse_vllm(real("dflash"))
    assert (found.completed, found.failed, found.total_output_tokens) == (10, 0, 1280)
    assert found.duration == pytest.approx(6.0541, abs=1e-4)
    assert found.output_throughput == pytest.approx(1280 / found.duration)
    # As its own table printed it: 421 drafts, 863 accepted.
    assert found.accept_length == pytest.approx(1 + 863 / 421)
    first = found.requests[0]
    assert (first.prompt_tokens, first.output_tokens) == (524, 128)
    # Its TTFTs and TPOTs give its medians again.
    ttfts = sorted(request.ttft * 1000 for request in found.requests)
    assert (ttfts[4] + ttfts[5]) / 2 == pytest.approx(said["median_ttft_ms"])
    tpots = sorted((r.latency - r.ttft) / (r.output_tokens - 1) * 1000 for r in found.requests)
    assert (tpots[4] + tpots[5]) / 2 == pytest.approx(said["median_tpot_ms"], rel=1e-3)


def test_a_real_result_without_speculation() -> None:
    found = harness.parse_vllm(real("plain"))
    assert found.accept_length is None
    assert found.output_throughput == pytest.approx(171.99, abs=0.01)


def test_newer_keys_and_a_rate_that_is_text_are_no_trouble() -> None:
    newer = {**json.loads(real("plain")), "latencies": [1.0] * 8, "queue_times": [0.0] * 8}
    assert newer["request_rate"] == "inf"
    assert harness.parse_vllm(json.dumps(newer)) == harness.parse_vllm(real("plain"))


def test_failed_requests_are_kept_with_their_reason() -> None:
    data = json.loads(real("plain"))
    data |= {"completed": 7, "failed": 1}
    data["errors"][3] = "Internal \ud800 Error"
    data["itls"][3], data["output_lens"][3] = [], 0
    found = harness.parse_vllm(json.dumps(data))
    assert (found.completed, found.failed) == (7, 1)
    assert [r.error for r in found.requests if r.error] == ["Internal ? Error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration": None}, "no usable 'duration'"),
        ({"output_throughput": float("nan")}, "no usable 'output_throughput'"),
        ({"completed": True}, "no usable 'completed'"),
        ({"failed": 3}, "contradicts itself"),
        ({"itls": None}, "no list 'itls'"),
        ({"ttfts": [0.1]}, "lists of different lengths"),
        ({"ttfts": ["x"] * 8}, "bad entry"),
        ({"ttfts": [float("nan")] * 8}, "bad entry"),
        ({"itls": [[float("inf")]] * 8}, "bad entry"),
        ({"input_lens": [float("inf")] * 8}, "bad entry"),
        ({"output_lens": [float("nan")] * 8}, "bad entry"),
        ({"spec_decode_acceptance_length": "x"}, "no usable 'spec_decode_acceptance_length'"),
    ],
)
def test_what_a_measurement_needs_is_demanded(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RoostError, match=message):
        harness.parse_vllm(json.dumps({**json.loads(real("plain")), **change}))


def test_an_accept_length_of_nothing_is_none() -> None:
    # Zero by zero, where nothing was drafted.
    assert harness.parse_sglang(json.dumps({**SGLANG, "accept_length": math.nan})) == (
        harness.parse_sglang(json.dumps(SGLANG))
    )


def test_no_json_at_all() -> None:
    for text in ("", "[1]", "Traceback", "[" * 100_000):
        with pytest.raises(RoostError, match="is no JSON"):
            harness.parse_vllm(text)
        with pytest.raises(RoostError, match="is no JSON"):
            harness.parse_sglang(text)


def test_sglang_appends_lines_and_counts_no_failures() -> None:
    earlier = json.dumps({**SGLANG, "duration": 99.0})
    found = harness.parse_sglang(f"{earlier}\n{json.dumps(SGLANG)}\n")
    assert (found.duration, found.failed, found.accept_length) == (4.0, 0, None)
    assert found.requests[0].latency == pytest.approx(2.0)
    broken = {**SGLANG, "completed": 1, "errors": ["", "timeout"], "accept_length": 6.9}
    broken |= {"ttfts": [0.1, None], "itls": [[0.9], None], "output_lens": [200, None]}
    found = harness.parse_sglang(json.dumps(broken))
    assert (found.completed, found.failed, found.accept_length) == (1, 1, 6.9)
    with pytest.raises(RoostError, match="no list 'errors'"):
        harness.parse_sglang(json.dumps({k: v for k, v in SGLANG.items() if k != "errors"}))


def test_sglangs_shuffled_requests_are_in_the_prompts_order_again() -> None:
    """The order is what its own ``sample_custom_requests`` (0.5.23) makes of eight prompts."""
    asked = [4, 1, 5, 2, 0, 3, 7, 6]
    shuffled = {
        **SGLANG,
        "completed": 8,
        "input_lens": [100 + prompt for prompt in asked],
        **{
            key: [value] * 8 for key, value in (("output_lens", 5), ("ttfts", 0.1), ("itls", [0.1]))
        },
        "errors": [""] * 8,
    }
    found = harness.parse_sglang(json.dumps(shuffled))
    assert [request.prompt_tokens for request in found.requests] == list(range(100, 108))


def test_answers_that_may_end_early_are_counted_by_sglang_itself() -> None:
    """Without a usage in its chunks the harness (0.5.19, 0.5.23) counts what was asked for."""
    words = harness.sglang_command(dataclasses.replace(LOAD, ignore_eos=False))
    assert "--disable-ignore-eos" in words
    assert json.loads(words[words.index("--extra-request-body") + 1]) == {
        "temperature": 0,
        # The usage of a whole answer would come in a chunk without choices, where it fails.
        "stream_options": {"include_usage": False, "continuous_usage_stats": True},
    }


def test_commands_send_the_prompts_as_they_are_to_completions() -> None:
    vllm = harness.vllm_command(LOAD)
    assert vllm[:3] == ["vllm", "bench", "serve"]
    assert vllm[vllm.index("--endpoint") + 1] == "/v1/completions"
    assert {"--skip-chat-template", "--disable-shuffle", "--ignore-eos", "--save-detailed"} <= set(
        vllm
    )
    assert "spec_bench" not in vllm
    sglang = harness.sglang_command(LOAD)
    assert sglang[sglang.index("--backend") + 1] == "sglang-oai"
    assert "--apply-chat-template" not in sglang
    assert "--disable-ignore-eos" not in sglang
    assert sglang[sglang.index("--extra-request-body") + 1] == '{"temperature": 0}'


def test_every_flag_of_the_command_is_one_of_vllms() -> None:
    """The help of 0.24.0, cut down to its flags."""
    known = set((DATA / "vllm_0.24_flags.txt").read_text().split())
    assert {word for word in harness.vllm_command(LOAD) if word.startswith("--")} <= known


def inside(folder: Path, words: list[str], **options: Any) -> list[str]:
    """What runs in the container."""
    argv = harness.in_container("c", words, folder=PurePosixPath(folder), limit_s=600, **options)
    assert argv[:4] == ["docker", "exec", "-i", "c"]
    return argv[4:]


def attended(argv: list[str]) -> subprocess.Popen[str]:
    """It, with its input left open."""
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_a_limit_and_the_status_of_the_harness(tmp_path: Path) -> None:
    argv = harness.in_container("c", ["vllm"], folder=PurePosixPath("/made"), limit_s=90.2)
    assert argv[-5:] == ["/made", "timeout", "--kill-after=10", "91", "vllm"]
    with attended(inside(tmp_path, ["sh", "-c", "echo out; echo err >&2; exit 3"])) as child:
        # To its end without a word from us.
        assert (child.wait(60), child.stdout.read(), child.stderr.read()) == (3, "out\n", "err\n")  # type: ignore[union-attr]
    assert tmp_path.exists()


def test_a_load_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    script = f"echo $$ > {made}/draft; mv {made}/draft {made}/pid; exec sleep 600"
    with attended(inside(made, ["sh", "-c", script])) as child:
        until((made / "pid").exists)
        load = int((made / "pid").read_text())
        assert alive(load)
        assert child.poll() is None
        assert child.stdin
        child.stdin.close()
        assert child.wait(60) == 128 + signal.SIGTERM
    # What was told to end may take a moment to do so, on a machine with other work.
    until(lambda: not alive(load))
    assert not made.exists()


def test_the_key_reaches_the_harness_and_no_command_line(tmp_path: Path) -> None:
    """The words after the container's name, run here: the file's key is in the environment."""
    (tmp_path / "key").write_text("s3cret'$x\n")
    shown = ["sh", "-c", 'printf %s "$OPENAI_API_KEY"']
    argv = inside(tmp_path, shown, key_file=str(tmp_path / "key"))
    assert "s3cret" not in " ".join(argv)
    with attended(argv) as child:
        assert child.stdout
        assert child.stdout.read() == "s3cret'$x"
    with attended(inside(tmp_path, shown, key_file=str(tmp_path / "none"))) as child:
        assert child.wait(60) != 0

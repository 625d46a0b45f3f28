"""The engines' own load generators: their command lines and their result files.

They run inside the engine's own container (``docker exec``), so the harness is the pinned image's
by construction, the tokenizer and the API key are where the engine has them, and no tunnel or proxy
is in a latency. Prompts arrive as text that the model's chat template has been applied to: vLLM's
``spec_bench`` data set ignores the template's arguments (so thinking stays on), and over
``/v1/chat/completions`` vLLM up to 0.28 took the chunk that carries only the role for the first
token. ``/v1/completions`` has neither fault.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from roost.errors import RoostError
from roost.measure.checks import whole

#: Ends the load when its standard input ends: then nobody waits for it any more, and it would
#: falsify the next measurement. Commands in the background of a shell have no standard input, so it
#: is duplicated first.
_ATTENDED = """
folder=$1; shift
exec 3<&0
"$@" 3<&- & load=$!
{ read -r _ <&3; kill "$load"; } >/dev/null 2>&1 & watch=$!
wait "$load"; code=$?
kill "$watch" 2>/dev/null
[ "$code" -le 128 ] || rm -rf "$folder"
exit "$code"
"""
#: vLLM's key in its own container: ``sh`` reads the file, so no command line carries it.
_WITH_KEY = 'OPENAI_API_KEY="$(cat "$1")" || exit; export OPENAI_API_KEY; shift'
#: Seconds between asking the harness to end and killing it.
_GRACE_S = 10


@dataclass(frozen=True)
class Load:
    """One call of a harness.

    Attributes:
        prompts: File inside the container, one prompt a line, in this engine's format.
        count: How many prompts it has; all are sent once, in order.
        output_tokens: Generated for each (at most, unless ``ignore_eos``).
        result: File inside the container that is written.
        seed: Fixes whatever the harness shuffles.
    """

    base_url: str
    served_name: str
    tokenizer: str
    prompts: PurePosixPath
    count: int
    concurrency: int
    output_tokens: int
    ignore_eos: bool
    result: PurePosixPath
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """One request: token counts by the engine, seconds by the harness.

    Attributes:
        ttft: From sending to the first token.
        latency: From sending to the last token.
        error: Why it failed; empty if it did not.
    """

    prompt_tokens: int
    output_tokens: int
    ttft: float
    latency: float
    error: str = ""


@dataclass(frozen=True)
class HarnessResult:
    """What one call measured.

    Attributes:
        duration: Seconds of the whole load.
        output_throughput: Generated tokens per second over that time, all users together.
        requests: In the order of the prompts; failed ones too.
        accept_length: The harness's own; none without speculation, or where it has none.
    """

    duration: float
    completed: int
    failed: int
    total_output_tokens: int
    output_throughput: float
    requests: tuple[Request, ...]
    accept_length: float | None


def vllm_command(load: Load) -> list[str]:
    """``vllm bench serve``; every flag is in vLLM 0.23 to 0.33."""
    return [
        "vllm", "bench", "serve",
        "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", load.base_url,
        "--model", load.served_name, "--tokenizer", load.tokenizer,
        "--dataset-name", "custom", "--dataset-path", str(load.prompts),
        "--skip-chat-template", "--disable-shuffle", "--no-oversample",
        "--custom-output-len", str(load.output_tokens), "--num-prompts", str(load.count),
        "--max-concurrency", str(load.concurrency), "--temperature", "0",
        *(["--ignore-eos"] if load.ignore_eos else []),
        "--seed", str(load.seed), "--ready-check-timeout-sec", "0", "--disable-tqdm",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,95,99",
        "--save-result", "--save-detailed",
        "--result-dir", str(load.result.parent), "--result-filename", load.result.name,
    ]  # fmt: skip


def sglang_command(load: Load) -> list[str]:
    """SGLang's harness under its older name, which every release from 0.5.14 to 0.5.23 takes.

    It shuffles a data set, by ``--seed``; :func:`parse_sglang` puts its requests in order again.

    It takes an answer to be as long as was asked for, unless a chunk with text has a usage; and a
    chunk without choices, as the usage of a whole answer is, makes the request fail. So where
    answers may end early, every chunk is to have a usage. Where they may not, the length that was
    asked for is exact.
    """
    body: dict[str, Any] = {"temperature": 0}
    if not load.ignore_eos:
        body["stream_options"] = {"include_usage": False, "continuous_usage_stats": True}
    return [
        "python3", "-m", "sglang.bench_serving",
        "--backend", "sglang-oai", "--base-url", load.base_url,
        "--model", load.tokenizer, "--served-model-name", load.served_name,
        "--tokenizer", load.tokenizer,
        "--dataset-name", "custom", "--dataset-path", str(load.prompts),
        "--sharegpt-output-len", str(load.output_tokens), "--num-prompts", str(load.count),
        "--max-concurrency", str(load.concurrency),
        "--extra-request-body", json.dumps(body),
        *([] if load.ignore_eos else ["--disable-ignore-eos"]),
        "--seed", str(load.seed), "--warmup-requests", "0", "--disable-tqdm",
        # Its accept length is the mean since the engine's start unless the cache is flushed.
        "--flush-cache",
        "--output-details", "--output-file", str(load.result),
    ]  # fmt: skip


def in_container(
    container: str,
    words: Sequence[str],
    *,
    folder: PurePosixPath,
    limit_s: float,
    key_file: str | None = None,
) -> list[str]:
    """``docker exec`` for a command that must end, with whoever waits for it or in time.

    Docker leaves what it has started in a container running, whatever becomes of its caller. This
    command ends when its standard input does, so its input must be left open (``attended``).

    Args:
        container: Its name.
        words: The command.
        folder: Inside the container; removed where the command is killed.
        limit_s: Seconds it may take.
        key_file: The API key's file inside the container, where the endpoint asks for one.
    """
    bounded = ["timeout", f"--kill-after={_GRACE_S}", str(math.ceil(limit_s)), *words]
    keyed = [f"{_WITH_KEY}{_ATTENDED}", "sh", key_file] if key_file else [_ATTENDED, "sh"]
    return ["docker", "exec", "-i", container, "sh", "-c", *keyed, str(folder), *bounded]


def parse_vllm(text: str) -> HarnessResult:
    """Read the file of ``--save-result --save-detailed`` (vLLM 0.23 to 0.33).

    Raises:
        RoostError: It is no such file, or lacks what a measurement needs.
    """
    data = _document(text, "the result of vllm bench serve")
    length = _ratio(data, "spec_decode_acceptance_length")
    return _result(data, failed=int(_number(data, "failed")), accept_length=length)


def parse_sglang(text: str, seed: int = 0) -> HarnessResult:
    """Read the last line of SGLang's JSONL (0.5.14 to 0.5.23, with ``--output-details``).

    SGLang counts no failures; a request that failed has an error text.

    Args:
        text: The file.
        seed: Of the load.

    Raises:
        RoostError: It is no such file, or lacks what a measurement needs.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    data = _document(lines[-1] if lines else "", "the result of SGLang's harness")
    failed = sum(1 for error in _list(data, "errors") if error)
    found = _result(data, failed=failed, accept_length=_ratio(data, "accept_length"))
    # Shuffling as many numbers with the same seed tells which prompt each request had.
    asked = list(range(len(found.requests)))
    random.Random(seed).shuffle(asked)  # noqa: S311
    in_order = sorted(zip(asked, found.requests, strict=True), key=lambda pair: pair[0])
    return replace(found, requests=tuple(request for _, request in in_order))


def _result(data: Mapping[str, Any], *, failed: int, accept_length: float | None) -> HarnessResult:
    requests = _requests(data)
    completed = int(_number(data, "completed"))
    if completed + failed != len(requests):
        raise RoostError(
            "the harness's result contradicts itself",
            why=f"{completed} completed and {failed} failed of {len(requests)} requests",
        )
    return HarnessResult(
        duration=_number(data, "duration"),
        completed=completed,
        failed=failed,
        total_output_tokens=int(_number(data, "total_output_tokens")),
        output_throughput=_number(data, "output_throughput"),
        requests=requests,
        accept_length=accept_length,
    )


def _requests(data: Mapping[str, Any]) -> tuple[Request, ...]:
    columns = [_list(data, key) for key in ("input_lens", "output_lens", "ttfts", "itls", "errors")]
    if len({len(column) for column in columns}) != 1:
        raise RoostError("the harness's result has lists of different lengths")
    found = []
    for prompt, output, ttft, itls, error in zip(*columns, strict=True):
        try:
            # A request that failed has no times; SGLang then writes null or 0.
            first = float(ttft or 0.0)
            latency = first + sum(float(gap) for gap in itls or [])
            said = whole(str(error or ""))
            request = Request(int(prompt or 0), int(output or 0), first, latency, said)
            if not math.isfinite(latency):
                raise ValueError("a time is no finite number")
        except (TypeError, ValueError, OverflowError) as wrong:
            raise RoostError("the harness's result has a bad entry", why=str(wrong)) from None
        found.append(request)
    return tuple(found)


def _document(text: str, what: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RoostError(f"{what} is no JSON", why=str(error)) from None
    if not isinstance(data, dict):
        raise RoostError(f"{what} is no JSON object")
    return data


def _list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise RoostError(
            f"the harness's result has no list {key!r}", why="it was saved without its details"
        )
    return value


def _number(data: Mapping[str, Any], key: str) -> float:
    value = data.get(key)
    if not _is_number(value):
        raise RoostError(
            f"the harness's result has no usable {key!r}", why=f"its value is {value!r}"
        )
    return float(value)  # type: ignore[arg-type]


def _ratio(data: Mapping[str, Any], key: str) -> float | None:
    """A figure that may be missing, or be zero by zero where nothing was drafted."""
    value = data.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return _number(data, key)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

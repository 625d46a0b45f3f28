"""Constant streaming load on an endpoint of a lab, by vLLM's own load generator.

``vllm bench serve`` of the lab's engine, in the controller's own Python: it counts what failed,
keeps the time and the tokens of every request, and is the harness that benchmarks use. It knows
nothing of truncation, so what came is compared here with what was asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from roost.errors import RoostError
from roost.lab.build import packages

#: Seconds that the generator needs until its first request, on a busy machine.
_START_SECONDS = 600.0


@dataclass
class Load:
    """A load, and when it has ended what became of its requests.

    Attributes:
        rate: Requests a second.
        tokens: Asked for in each request.
        started: When each was sent, by this machine's monotonic clock, in seconds.
        wrong: Of those that failed or came in part: which request, and what it got.
        latencies: Seconds of each from its beginning to its end.
        ended_early: All requests had been sent and answered before the block was through.
    """

    rate: float
    tokens: int
    started: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    ended_early: bool = False

    def between(self, begun: float, ended: float) -> int:
        """How many requests were sent in a span of time."""
        return sum(1 for moment in self.started if begun <= moment <= ended)


@contextmanager
def constant(
    url: str, model: str, folder: Path, cache: Path, *, requests: int, rate: float, tokens: int
) -> Iterator[Load]:
    """Keep a load on for the length of a ``with``, and wait for the end of its last request.

    Args:
        url: Of the endpoint, without ``/v1``.
        model: Name that it serves.
        folder: For the generator's files.
        cache: The lab's, with the engine's packages.
        requests: How many are sent in all.
        rate: How many a second, at random times.
        tokens: Asked for in each.

    Raises:
        RoostError: The generator did not start, or did not end well.
    """
    engine = packages.engine_packages(cache, lambda _: None)
    prompts, result = folder / "prompts.jsonl", folder / "result.json"
    prompts.write_text("".join(f'{{"prompt": "Request {n}."}}\n' for n in range(requests)))
    command = [
        "/usr/bin/python3", "-m", "vllm.entrypoints.cli.main", "bench", "serve",
        "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url,
        "--model", model, "--skip-tokenizer-init",
        "--dataset-name", "custom", "--dataset-path", str(prompts),
        "--skip-chat-template", "--disable-shuffle", "--no-oversample",
        "--extra-body", json.dumps({"max_tokens": tokens, "temperature": 0}),
        "--num-prompts", str(requests), "--request-rate", str(rate),
        "--ready-check-timeout-sec", "0", "--disable-tqdm",
        "--save-result", "--save-detailed",
        "--result-dir", str(folder), "--result-filename", result.name,
    ]  # fmt: skip
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment = {**kept, "PYTHONPATH": str(engine), "VLLM_TARGET_DEVICE": "cpu"}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    load = Load(rate, tokens)
    log = folder / "load.log"
    with log.open("w") as output:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        _wait_for_start(child, log)
        yield load
        load.ended_early = child.poll() is not None
        if child.wait() != 0:
            raise RoostError(f"{log}: the load did not end well", why=log.read_text()[-500:])
        _read(load, result)
    finally:
        child.kill()
        child.wait()


def _wait_for_start(child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while "Starting main benchmark run" not in log.read_text():
        if child.poll() is not None or time.monotonic() > deadline:
            raise RoostError(f"{log}: the load did not start", why=log.read_text()[-500:])
        time.sleep(0.2)


def _read(load: Load, result: Path) -> None:
    found = json.loads(result.read_text())
    load.started, load.latencies = found["start_times"], found["latencies"]
    # The count comes with a stream's last chunk, so one that is cut off has none.
    for number, (length, error) in enumerate(
        zip(found["output_lens"], found["errors"], strict=True)
    ):
        if error or length != load.tokens:
            said = error.strip().splitlines()[-1:] or [f"{length} tokens"]
            load.wrong.append(f"request {number} at {load.started[number]:.1f}: {said[0]}")

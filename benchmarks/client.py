"""Does roost's streaming client see the times that the engine's own load generator sees?

Usage: python benchmarks/client.py -i INVENTORY --host HOST [--rounds N]

Both ask a deployed host the same prompts over the chat endpoint, one at a time, in turns within one
run: blocks of prompts, of which each goes first every other round. The load generator runs in the
engine's container and the client here, through the tunnel, as in every notebook. Every prompt is
asked once before, so that its prefix is in the cache for both.

Prints the medians, the ratio by prompt with its interval, and the client's CPU time for each token;
exits with 1 where either is off by more than 5 %. The ratio is that of each prompt's medians:
prompts differ more than the clients do, so that the median over all of them needs more rounds to
settle.
"""

from __future__ import annotations

import argparse
import json
import statistics as plain
import sys
import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from roost import inventory as inventories
from roost import quality
from roost.deployment import Deployment, from_variables
from roost.errors import RoostError
from roost.launch import MODEL_PATH
from roost.measure import harness, statistics, suites
from roost.measure.client import Client
from roost.measure.verify import reach
from roost.root import repository_root
from roost.ssh import Remote

TOLERANCE = 0.05
PROMPTS, TOKENS = 6, 64
DIRECTORY = PurePosixPath("/tmp/roost-client")  # noqa: S108  # in the container

#: Seconds to the first token, and for each after it, by prompt.
Times = dict[str, list[tuple[float, float]]]


def by_harness(
    remote: Remote, deployment: Deployment, prompts: list[suites.Prompt], found: Times
) -> None:
    """One block by ``vllm bench serve``."""
    container = deployment.spec.name
    load = harness.Load(
        base_url=f"http://127.0.0.1:{deployment.spec.ports[0].container}",
        served_name=deployment.served_name,
        tokenizer=MODEL_PATH,
        prompts=DIRECTORY / "prompts.jsonl",
        count=len(prompts),
        concurrency=1,
        output_tokens=TOKENS,
        ignore_eos=True,
        result=DIRECTORY / "result.json",
    )
    rows = "\n".join(json.dumps({"prompt": one.text}) for one in prompts)
    write = ["docker", "exec", "-i", container, "sh", "-c"]
    write.append(f"mkdir -p {DIRECTORY} && cat > {load.prompts}")
    assert remote.run(write, rows).rc == 0
    words = harness.vllm_command(load)
    words[words.index("openai")] = "openai-chat"
    words[words.index("/v1/completions")] = "/v1/chat/completions"
    argv = harness.in_container(container, words, folder=DIRECTORY, limit_s=600)
    done = remote.run(argv, timeout=660, attended=True)
    assert done.rc == 0, done.err[-2000:]
    result = harness.parse_vllm(
        remote.run(["docker", "exec", container, "cat", str(load.result)]).out
    )
    for prompt, one in zip(prompts, result.requests, strict=True):
        assert (one.error, one.output_tokens) == ("", TOKENS)
        per_token = (one.latency - one.ttft) / (TOKENS - 1)
        found.setdefault(prompt.id, []).append((one.ttft, per_token))


def by_client(
    client: Client, deployment: Deployment, prompts: list[suites.Prompt], found: Times
) -> float:
    """One block by roost's client; the CPU seconds that it took."""
    before = time.process_time()
    for prompt in prompts:
        answer = client.stream_chat(body(deployment, prompt))
        assert answer.completion_tokens == TOKENS
        assert answer.ttft is not None
        per_token = (answer.deltas[-1].at - answer.ttft) / (TOKENS - 1)
        found.setdefault(prompt.id, []).append((answer.ttft, per_token))
    return time.process_time() - before


def body(deployment: Deployment, prompt: suites.Prompt) -> dict[str, Any]:
    """The request; both clients end up with the same text before the model."""
    asked = quality.chat_request(
        prompt.text,
        deployment.served_name,
        deployment.chat_template_kwargs,
        max_tokens=TOKENS,
    )
    return {**asked, "ignore_eos": True}


def compare(ours: Times, theirs: Times) -> bool:
    """Print the medians side by side; whether both agree."""
    agrees = True
    print(f"{'':28}{'client':>10}{'harness':>10}{'medians':>9}   ratio by prompt, 95 % interval")
    for at, what in enumerate(("time to first token, ms", "time per token, ms")):
        sides = [
            {
                prompt: plain.median(times[at] for times in known) * 1000
                for prompt, known in one.items()
            }
            for one in (ours, theirs)
        ]
        medians = [
            plain.median(times[at] * 1000 for known in one.values() for times in known)
            for one in (ours, theirs)
        ]
        ratio = statistics.paired_ratio(sides[1], sides[0])
        assert ratio is not None
        gap = medians[0] / medians[1] - 1
        agrees = agrees and max(abs(gap), abs(ratio.value - 1)) <= TOLERANCE
        print(
            f"{what:28}{medians[0]:10.2f}{medians[1]:10.2f}{gap:+9.1%}   "
            f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        )
    return agrees


def main() -> None:
    """Measure, print, and exit with 1 where the two disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-i", "--inventory", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    host = inventories.load(asked.inventory).host(asked.host)
    deployment = from_variables(host.name, host.variables, repository_root())
    prompts = [cell.prompts[0] for cell in suites.cells(suites.suite("spec-bench"))][:PROMPTS]
    ours: Times = {}
    theirs: Times = {}
    spent = 0.0
    with reach(host, deployment) as target:
        remote, client = target.remote, target.client
        if remote is None or client is None:
            raise RoostError(target.no_remote)
        by_client(client, deployment, prompts, {})
        by_harness(remote, deployment, prompts, {})
        for number in range(asked.rounds):
            blocks: list[Callable[[], float | None]] = [
                lambda: by_harness(remote, deployment, prompts, theirs),
                lambda: by_client(client, deployment, prompts, ours),
            ]
            for block in blocks if number % 2 else reversed(blocks):
                spent += block() or 0.0
    agrees = compare(ours, theirs)
    tokens = asked.rounds * len(prompts) * TOKENS
    print(f"CPU time of the client: {spent / tokens * 1e6:.0f} µs a token ({tokens} tokens)")
    sys.exit(not agrees)


if __name__ == "__main__":
    main()

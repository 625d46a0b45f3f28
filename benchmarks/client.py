"""Does roost's streaming client see the times that the engine's own load generator sees?

Usage: python benchmarks/client.py -i INVENTORY --host HOST [--direct] [--rounds N]

Both ask a deployed host the same prompts over the chat endpoint, one at a time, in turns within one
run: blocks of prompts, which begin with another one of the clients in every round. The load
generator runs in the engine's container, roost's client here, through the tunnel of every notebook;
with ``--direct`` also without it, for which this process runs on the host or in its network.
Every prompt is asked once before, so that its prefix is in the cache for all. The prompts are of
one length: where they are not, the time to the first token has a cluster for each, and a median
between two clusters jumps from run to run by more than the clients differ.

Prints the medians, the ratio by prompt with its interval, and the client's CPU time for each token;
exits with 1 where either is off by more than 5 %. The ratio is that of each prompt's medians. With
``--direct`` the client without the tunnel is judged: the path is the engine's own then, and what
differs is the clients.
"""

from __future__ import annotations

import argparse
import json
import statistics as plain
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from roost import inventory as inventories
from roost import quality, site
from roost.deployment import Deployment, from_variables
from roost.errors import RoostError
from roost.launch.container import MODEL_PATH
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


def alike(cells: Sequence[suites.Cell]) -> list[suites.Prompt]:
    """Prompts of one length: those in the middle of all."""
    known = sorted((one for cell in cells for one in cell.prompts), key=lambda one: len(one.text))
    first = (len(known) - PROMPTS) // 2
    return known[first : first + PROMPTS]


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
            f"  {what:26}{medians[0]:10.2f}{medians[1]:10.2f}{gap:+9.1%}   "
            f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        )
    return agrees


def main() -> None:
    """Measure, print, and exit with 1 where the two disagree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-i", "--inventory", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    asked = parser.parse_args()
    host = inventories.load(asked.inventory).host(asked.host)
    deployment = from_variables(host.name, host.variables, repository_root())
    prompts = alike(suites.cells(suites.suite("spec-bench")))
    theirs: Times = {}
    with reach(host, deployment) as target, ExitStack() as stack:
        remote, client = target.remote, target.client
        if remote is None or client is None:
            raise RoostError(target.no_remote)
        paths = {"through the tunnel": client}
        if asked.direct:
            port = deployment.spec.ports[0]
            url = f"http://{port.connect}:{port.host}"
            key = site.api_key(host.variables)
            paths["direct"] = stack.enter_context(Client(url, api_key=key))
        ours: dict[str, Times] = {path: {} for path in paths}
        spent = dict.fromkeys(paths, 0.0)

        def ask(path: str) -> None:
            spent[path] += by_client(paths[path], deployment, prompts, ours[path])

        for one in paths.values():
            by_client(one, deployment, prompts, {})
        by_harness(remote, deployment, prompts, {})
        blocks: list[Callable[[], None]] = [partial(ask, path) for path in paths]
        blocks.append(lambda: by_harness(remote, deployment, prompts, theirs))
        for number in range(asked.rounds):
            first = number % len(blocks)
            for block in blocks[first:] + blocks[:first]:
                block()
    print(f"{'':28}{'client':>10}{'harness':>10}{'medians':>9}   ratio by prompt, 95 % interval")
    tokens = asked.rounds * len(prompts) * TOKENS
    agrees = {}
    for path in paths:
        print(f"{path}, {spent[path] / tokens * 1e6:.0f} µs of CPU a token ({tokens} tokens)")
        agrees[path] = compare(ours[path], theirs)
    sys.exit(not agrees["direct" if asked.direct else "through the tunnel"])


if __name__ == "__main__":
    main()

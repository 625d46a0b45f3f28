"""Stand-in for ``docker exec`` into an engine's container, where its load generator runs.

The real one is tested on the lab's hosts. This one writes results of a machine as fast, as noisy
and as faulty as the file named by ``STAND_IN_SCENARIO`` says, and moves the stand-in engine's
counters to match.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

#: What a scenario may say, and what holds where it says nothing.
DEFAULTS: dict[str, Any] = {
    "port": 0,
    "speed": 100.0,  # tokens/s of one user
    "accept_length": 3.4,
    "depth": 4,
    "noise": 0.01,  # deviation of the logarithm, of speed from repetition to repetition
    "seed": 0,
    "tail": "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "failed": 0,  # requests of each call
    "error": "Bad Gateway",  # of those
    "foreign_tokens": 0,  # that another client had generated meanwhile
    "restart": False,  # counters begin again
    "breaks_at": 0,  # the call that ends with an error
    "left_out": 0,  # prompts that it does not send
    "says_after": "",  # of some library, behind what the prompts end in
    "lasts": None,  # as long as somebody waits; a file that says which process it is
}


def main(words: list[str]) -> None:
    path = Path(os.environ["STAND_IN_SCENARIO"])
    scenario = {**DEFAULTS, **json.loads(path.read_text())}
    if "-c" in words and "python3" in words:
        _render(scenario)
    elif "bench" in words:
        scenario["calls"] = scenario.get("calls", 0) + 1
        path.write_text(json.dumps(scenario))
        _load(scenario, words)
    elif "cat" in words:
        print(Path(words[-1]).read_text())
    elif "rm" in words:
        shutil.rmtree(words[-1], ignore_errors=True)
    else:
        sys.exit(f"no stand-in for {words}")


def _render(scenario: dict[str, Any]) -> None:
    job = json.load(sys.stdin)
    Path(job["directory"]).mkdir()
    too_long: list[list[Any]] = []
    filler = {
        name: rows[0]["tokens"] * 4 for name, rows in job["files"].items() if rows[0]["tokens"]
    }
    for name, rows in job["files"].items():
        asked = [row["nonce"] + job["texts"][row["text"]] for row in rows]
        too_long += [
            [name, at, len(one.split())]
            for at, one in enumerate(asked)
            if job["limit"] and len(one.split()) > job["limit"]
        ]
        text = "\n".join(json.dumps({"prompt": one}) for one in asked)
        (Path(job["directory"]) / f"{name}.jsonl").write_text(text)
    print("a warning of some library")
    if scenario["tail"] is not None:
        print(json.dumps({"tail": scenario["tail"], "too_long": too_long, "filler": filler}))
    print(scenario["says_after"])


def _load(scenario: dict[str, Any], words: list[str]) -> None:
    def option(name: str) -> str:
        return words[words.index(name) + 1]

    if scenario["calls"] == scenario["breaks_at"]:
        print("ClientConnectorError: cannot connect", file=sys.stderr)
        sys.exit(1)
    if scenario["lasts"]:
        Path(scenario["lasts"]).write_text(str(os.getpid()))
        sys.stdin.read()
        sys.exit(143)
    draw = random.Random(scenario["seed"] * 1000 + scenario["calls"])  # noqa: S311
    count, tokens = int(option("--num-prompts")), int(option("--custom-output-len"))
    asked = Path(option("--dataset-path")).read_text().splitlines()
    assert len(asked) == count
    count -= scenario["left_out"]
    failed = scenario["failed"]
    speed = scenario["speed"] * draw.lognormvariate(0, scenario["noise"])
    length = scenario["accept_length"] * draw.lognormvariate(0, scenario["noise"] / 4)
    ttfts = [0.1 * draw.lognormvariate(0, scenario["noise"]) for _ in range(count)]
    total = (count - failed) * tokens
    duration = total / speed
    drafts = total / length
    result = {
        "duration": duration,
        "completed": count - failed,
        "failed": failed,
        "total_output_tokens": total,
        "output_throughput": speed,
        "spec_decode_acceptance_length": length,
        "input_lens": [20] * count,
        "output_lens": [tokens] * count,
        "ttfts": ttfts,
        "itls": [[(tokens - 1) / speed] for _ in range(count)],
        "errors": [scenario["error"]] * failed + [""] * (count - failed),
    }
    path = Path(option("--result-dir")) / option("--result-filename")
    path.write_text(json.dumps(result))
    moved = [total, drafts, drafts * scenario["depth"], total - drafts]
    moved[0] += scenario["foreign_tokens"]
    if scenario["restart"]:
        moved = [-value for value in moved]
    request = urllib.request.Request(
        f"http://127.0.0.1:{scenario['port']}/stand-in/load",
        json.dumps(moved).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()  # noqa: S310


if __name__ == "__main__":
    main(sys.argv[1:])

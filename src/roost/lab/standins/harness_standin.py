#!/usr/bin/python3
"""Stand-in for ``vllm bench serve``: its options and its file of results, for a stand-in engine.

It is ``vllm bench`` of the image ``roost-lab/engine-standin``. The requests are real, and so are
their times.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def main() -> None:
    """Ask every prompt once and write what came."""
    parser = argparse.ArgumentParser(prog="harness-standin")
    for name in ("base-url", "model", "dataset-path", "result-dir", "result-filename"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--custom-output-len", type=int, required=True)
    parser.add_argument("--max-concurrency", type=int, required=True)
    asked, _ = parser.parse_known_args()
    rows = Path(asked.dataset_path).read_text(encoding="utf-8").splitlines()
    bodies = [
        {
            "model": asked.model,
            "prompt": json.loads(row)["prompt"],
            "max_tokens": asked.custom_output_len,
            "stream": True,
        }
        for row in rows
    ]
    begun = time.monotonic()
    with ThreadPoolExecutor(asked.max_concurrency) as users:
        found = list(users.map(lambda body: ask(asked.base_url, body), bodies))
    duration = time.monotonic() - begun
    total = sum(one["output_len"] for one in found)
    failed = sum(1 for one in found if one["error"])
    result = {
        "duration": duration,
        "completed": len(found) - failed,
        "failed": failed,
        "total_output_tokens": total,
        "output_throughput": total / duration,
        **{f"{key}s": [one[key] for one in found] for key in found[0]},
    }
    path = Path(asked.result_dir) / asked.result_filename
    path.write_text(json.dumps(result), encoding="utf-8")


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """One request, streamed."""
    request = urllib.request.Request(  # noqa: S310  # of this machine
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    sent = last = time.monotonic()
    gaps: list[float] = []
    usage = {"prompt_tokens": 0, "completion_tokens": 0}
    error = ""
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310
            for line in reply:
                if not line.startswith(b"data: {"):
                    continue
                data = json.loads(line[6:])
                usage = data.get("usage") or usage
                if data["choices"] and data["choices"][0]["text"]:
                    now = time.monotonic()
                    gaps.append(now - last)
                    last = now
    except (OSError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return {
        "input_len": usage["prompt_tokens"],
        "output_len": usage["completion_tokens"],
        "ttft": gaps[0] if gaps else last - sent,
        "itl": gaps[1:],
        "error": error,
    }


if __name__ == "__main__":
    main()

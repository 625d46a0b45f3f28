#!/usr/bin/python3
"""Stand-in for an engine: vLLM's endpoints and counters, no model, and faults on command.

It is the command of the image ``roost-lab/engine-standin`` and takes vLLM's command line: what it
does not know it ignores, and what it is to do wrong is said with ``--standin-…``. It answers the
questions of roost's gate from a list and everything else with the same words; its counters count
what it pretends to have drafted and accepted, by SGLang's names and in its way if told so.
``vllm bench`` is another file.

Two prompts are commands: ``stand-in: wedge`` is never answered, nor is anything after it, while
/health stays good; ``stand-in: prefill N`` is answered after N seconds in which blocks are filled
and no token comes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ANSWERS = {"capital of France": "The capital of France is Paris.", "2+2": "2+2 is 4."}
OTHER = "A stand-in says the same of everything. "
#: What one draft holds, and how many of it are accepted unless something else is asked for.
DRAFTED, ACCEPTED = 4, 3.0
BENCH = "/usr/local/bin/harness-standin"


def arguments(argv: list[str]) -> argparse.Namespace:
    """What of the command line means something to a stand-in."""
    parser = argparse.ArgumentParser(prog="engine-standin", allow_abbrev=False)
    parser.add_argument("verb")
    parser.add_argument("model")
    parser.add_argument("--served-model-name", default="stand-in")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--standin-start-seconds", type=float, default=0.0)
    parser.add_argument("--standin-never-healthy", action="store_true")
    parser.add_argument("--standin-log", help="a line that is written at the start")
    parser.add_argument("--standin-exit", type=int, help="exit code, before it is ever healthy")
    parser.add_argument("--standin-needs", help="a file without which it exits with 1")
    parser.add_argument("--standin-holds-mib", type=int, default=0, help="of memory, once started")
    parser.add_argument("--standin-dies-at-request", type=int, help="the first is 1; exit code 0")
    parser.add_argument("--standin-answer", help="the same answer to everything")
    parser.add_argument("--standin-wedged", action="store_true", help="healthy, but no tokens")
    parser.add_argument("--standin-tokens-per-second", type=float, default=400.0)
    parser.add_argument("--standin-prefill-seconds", type=float, default=0.0)
    parser.add_argument("--standin-accepted", type=float, default=ACCEPTED, help="per draft")
    parser.add_argument("--standin-counts-as", choices=["vllm", "sglang"], default="vllm")
    parser.add_argument(
        "--standin-jitter",
        type=float,
        default=0.0,
        help="deviation of the logarithm of a request's times and accept length",
    )
    known, _ = parser.parse_known_args(argv)
    return known


class Engine:
    """What it has done so far."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.started = time.monotonic()
        self.lock = threading.Lock()
        self.requests = self.running = self.tokens = self.blocks = 0
        self.drafts = 0.0
        self.wedged = False
        self.held = b""
        #: So many generate at a time; others wait.
        self.seats = threading.Semaphore(asked.max_num_seqs)

    def hold(self) -> None:
        """Take the memory it was told to; a kernel gives only what is written to."""
        self.held = b"x" * (self.asked.standin_holds_mib << 20)

    def healthy(self) -> bool:
        """Whether it claims to be ready."""
        up = time.monotonic() - self.started >= self.asked.standin_start_seconds
        return bool(up and not self.asked.standin_never_healthy)

    def answer(self, body: dict[str, Any]) -> list[str]:
        """The words of an answer, at most as many as are asked for."""
        with self.lock:
            self.requests += 1
            if self.requests == self.asked.standin_dies_at_request:
                # vLLM too ends with 0 when its worker has died.
                os._exit(0)
        if self.asked.standin_wedged:
            return []
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        self.obey(prompt)
        text = next((text for key, text in ANSWERS.items() if key in prompt), OTHER * 20)
        words: list[str] = (self.asked.standin_answer or text).split()[: body.get("max_tokens", 16)]
        with self.lock:
            self.tokens += len(words)
            # SGLang counts steps, and the first token comes out of none.
            drafted = len(words) - (self.asked.standin_counts_as == "sglang")
            self.drafts += drafted / self.jittered(1 + self.asked.standin_accepted)
        return words

    def jittered(self, value: float) -> float:
        """What a request gets of it: no two get the same, as on a machine."""
        return value * random.lognormvariate(0, self.asked.standin_jitter)

    def prefill(self) -> float:
        """Seconds before the first token of a stream, for one request."""
        return self.jittered(self.asked.standin_prefill_seconds)

    def pause(self) -> float:
        """Seconds a token takes, for one request."""
        return 1 / self.jittered(self.asked.standin_tokens_per_second)

    def obey(self, prompt: str) -> None:
        """Do what a prompt asks for, if it is a command."""
        self.wedged = self.wedged or prompt == "stand-in: wedge"
        if self.wedged:
            threading.Event().wait()
        if prompt.startswith("stand-in: prefill "):
            until = time.monotonic() + float(prompt.split()[-1])
            while time.monotonic() < until:
                time.sleep(0.2)
                self.blocks += 1

    def metrics(self) -> str:
        """vLLM's counters, or SGLang's, as far as anybody here reads them."""
        if self.asked.standin_counts_as == "sglang":
            values = {
                "num_running_reqs": self.running,
                "num_queue_reqs": 0,
                "num_used_tokens": self.blocks,
                "realtime_tokens_total": self.tokens,
                "prompt_tokens_total": 10 * self.requests,
                "generation_tokens_total": self.tokens,
                "num_requests_total": self.requests,
                "spec_verify_calls_total": self.drafts,
                "spec_num_draft_tokens": DRAFTED + 1,
            }
            name = f'{{model_name="{self.asked.served_model_name}"}}'
            return "".join(f"sglang:{key}{name} {value}\n" for key, value in values.items())
        name = f'{{engine="0",model_name="{self.asked.served_model_name}"}}'
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": self.blocks / 1e4,
            "prompt_tokens_total": 10 * self.requests,
            "generation_tokens_total": self.tokens,
            "spec_decode_num_drafts_total": self.drafts,
            "spec_decode_num_draft_tokens_total": self.drafts * DRAFTED,
            "spec_decode_num_accepted_tokens_total": self.tokens - self.drafts,
        }
        return "".join(f"vllm:{key}{name} {value}\n" for key, value in values.items())


def handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    """A request handler for it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            pages = {
                "/health": (200 if engine.healthy() else 503, ""),
                "/version": (200, json.dumps({"version": "0+standin"})),
                "/v1/models": (200, json.dumps({"data": [{"id": engine.asked.served_model_name}]})),
                "/metrics": (200, engine.metrics()),
            }
            if self.path.startswith("/v1/") and not self.permitted():
                self.reply(401, json.dumps({"error": "Unauthorized"}))
            else:
                self.reply(*pages.get(self.path, (404, "{}")))

        def permitted(self) -> bool:
            key = os.environ.get("VLLM_API_KEY")
            return not key or self.headers["Authorization"] == f"Bearer {key}"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.permitted():
                self.reply(401, json.dumps({"error": "Unauthorized"}))
                return
            with engine.lock:
                engine.running += 1
            engine.seats.acquire()
            try:
                words = engine.answer(body)
                if body.get("stream"):
                    self.stream(words, chat="messages" in body)
                else:
                    time.sleep(len(words) * engine.pause())
                    message = {"role": "assistant", "content": " ".join(words)}
                    said = {"message": message} if "messages" in body else {"text": " ".join(words)}
                    whole = {"choices": [{"index": 0, **said}], "usage": usage(words)}
                    self.reply(200, json.dumps(whole))
            finally:
                engine.seats.release()
                with engine.lock:
                    engine.running -= 1

        def stream(self, words: list[str], *, chat: bool) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if chat:
                self.choice({"delta": {"role": "assistant", "content": ""}})
            due, pause = time.monotonic() + engine.prefill(), engine.pause()
            for at, word in enumerate(words):
                # By the clock: a GPU does not wait for the host's processor either.
                due += pause
                time.sleep(max(0.0, due - time.monotonic()))
                text = word if at == 0 else f" {word}"
                self.choice({"delta": {"content": text}} if chat else {"text": text})
            ending: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            self.choice({**ending, "finish_reason": "stop"})
            self.event({"choices": [], "usage": usage(words)})
            self.event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")

        def choice(self, said: dict[str, Any]) -> None:
            self.event({"choices": [{"index": 0, **said}]})

        def event(self, data: Any) -> None:
            text = data if isinstance(data, str) else json.dumps(data)
            line = f"data: {text}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

        def reply(self, status: int, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header(
                "Content-Type", "application/json" if text[:1] == "{" else "text/plain"
            )
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def usage(words: list[str]) -> dict[str, int]:
    """Token counts; a word counts as one."""
    return {"prompt_tokens": 10, "completion_tokens": len(words)}


def main() -> None:
    """Serve until told to stop."""
    if sys.argv[1:2] == ["bench"]:
        os.execv(BENCH, sys.argv)  # noqa: S606  # a program of the same image
    asked = arguments(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("This is a stand-in for an engine: it has no model.", flush=True)
    if asked.standin_log:
        print(asked.standin_log, flush=True)
    if asked.standin_exit is not None:
        sys.exit(asked.standin_exit)
    if asked.standin_needs and not Path(asked.standin_needs).exists():
        sys.exit(f"FileNotFoundError: {asked.standin_needs}")
    engine = Engine(asked)
    threading.Timer(asked.standin_start_seconds, engine.hold).start()
    ThreadingHTTPServer((asked.host, asked.port), handler(engine)).serve_forever()


if __name__ == "__main__":
    main()

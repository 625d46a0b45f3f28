"""Stand-in for an engine's HTTP side and for its container, for faults no real one makes to order.

The real engine is tested on the lab's hosts; here the answers, streams, counters and ``docker``
output are whatever a test needs.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from roost.deployment import Deployment

ANSWERS = {"capital of France": "The capital of France is Paris.", "2+2": "2+2 is 4."}
#: A file beside the stand-in `docker`: with it, another process runs in the container.
RESTARTED = "restarted"
CALL = {"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
OTHER = "A hash table maps keys to values through a hash function."


@dataclass
class Engine:
    """What the stand-in says; tests change it."""

    port: int = 0
    name: str = "smollm2-135m"
    #: As vLLM; empty: there is no such page, and another one has it, as with SGLang.
    version: str = "0.32.0+cpu"
    server_info: dict[str, str] = field(default_factory=dict)
    #: Asked for under /v1, like vLLM; none: nobody is asked.
    key: str | None = None
    #: Takes any key for the right one.
    trusting: bool = False
    health: int = 200
    chat_status: int = 200
    answers: dict[str, str] = field(default_factory=lambda: dict(ANSWERS))
    reasoning: str = ""
    #: Its tokens are spent on thinking: what it would answer comes there, and no answer.
    only_thinks: bool = False
    #: Beside the answer where thinking is asked for.
    thought: str = "All but 9 run away, so 9 are left."
    #: Raw bytes of every whole answer, or of a stream, instead of the right ones.
    whole: bytes | None = None
    stream: bytes | None = None
    #: How many streams say something else first, as near ties do.
    ties: int = 0
    speculates: bool = True
    #: At the head of its counters' page.
    comment: str = "#"
    #: Whose names its counters have: vllm or sglang.
    counts_as: str = "vllm"
    accepted_per_draft: float = 1.5
    #: Of prompt and answer together; none: the engine does not say.
    context: int | None = 2048
    #: Of every whole answer: tokens by its usage, and seconds it takes.
    tokens: int = 20
    seconds: float = 0.0
    #: What it takes although it should refuse it, by the check's id; and what it does then.
    serves: set[str] = field(default_factory=set)
    refusal: tuple[int, str] | None = None
    on_bad: Callable[[], object] = lambda: None
    #: Whether its template listens to enable_thinking, and whether it shows how it renders.
    obeys: bool = True
    renders: bool = True
    #: Loses what stands far back.
    forgets: bool = False
    #: Of a tool call: in its field, or as text where no parser takes it out.
    tool_calls: list[dict[str, Any]] = field(default_factory=lambda: [dict(CALL)])
    tool_text: str = ""
    #: Next best tokens by position, for those who ask how likely they were.
    others: dict[int, dict[str, float]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    #: What a load generator had generated: tokens, drafts, draft tokens, accepted tokens.
    load: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    def answer(self, body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"]
        if (fact := re.search(r"of Zubrowka is (\S+)\.", prompt)) and not self.forgets:
            return f"It is {fact[1]}."
        return next((text for key, text in self.answers.items() if key in prompt), OTHER)

    def render(self, body: dict[str, Any]) -> list[int]:
        """The prompt as tokens: a word is one."""
        thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
        tail = "<think> </think>" if self.obeys and not thinks else "<think>"
        tokens = []
        for word in f"{body['messages'][0]['content']} {tail}".split():
            if word not in self.words:
                self.words.append(word)
            tokens.append(self.words.index(word))
        return tokens

    def refused(self, body: dict[str, Any]) -> tuple[int, str] | None:
        """Status and message for a request that must not be served."""
        context, asked = self.context or 2048, body.get("max_tokens", 1)
        wrong = {
            "refuses_long_prompt": (len(self.render(body)) > context, "prompt is too long"),
            "refuses_long_answer": (asked > context, "max_tokens is too large"),
            "refuses_negative_max_tokens": (asked < 1, "max_tokens must be positive"),
            "refuses_unknown_model": (body["model"].startswith("not-"), "no such model"),
            "refuses_bad_tool": (
                any("name" not in tool["function"] for tool in body.get("tools", [])),
                "tools.0.function.name: Field required",
            ),
        }
        for check, (bad, message) in wrong.items():
            if bad and check not in self.serves:
                return 400, message
        return None

    def metrics(self) -> str:
        labels = '{engine="0",model_name="m"}'
        steps = 10 * len(self.requests)
        tokens, drafts, draft_tokens, accepted = self.load
        if self.counts_as == "sglang":
            return sglang_page(
                steps if self.speculates else None,
                # The first token of each request comes out of its prefill.
                len(self.requests) + steps * (1 + self.accepted_per_draft),
                len(self.requests),
            )
        lines = [self.comment, f"vllm:generation_tokens_total{labels} {steps * 2 + tokens}"]
        if self.speculates:
            lines += [
                f"vllm:spec_decode_num_drafts_total{labels} {steps + drafts}",
                f"vllm:spec_decode_num_draft_tokens_total{labels} {steps * 4 + draft_tokens}",
                f"vllm:spec_decode_num_accepted_tokens_total{labels} "
                f"{steps * self.accepted_per_draft + accepted}",
            ]
        return "\n".join(lines) + "\n"


def sglang_page(steps: float | None, generated: float, requests: float) -> str:
    """What of SGLang's /metrics counts speculation; steps are there once a request has had some."""
    labels = 'model_name="m",is_streaming="false"'
    lines = [
        'sglang:num_running_reqs{model_name="m",tp_rank="0"} 0.0',
        f"sglang:generation_tokens_total{{{labels}}} {generated}",
        f"sglang:num_requests_total{{{labels}}} {requests}",
    ]
    if steps is not None:
        lines.append(f'sglang:spec_verify_calls_total{{model_name="m"}} {steps}')
    return "\n".join(lines) + "\n"


def stream_of(text: str, thought: str = "", key: str = "content") -> bytes:
    """The stream of a right answer: role, thought, words in pairs, finish, usage, [DONE]."""
    words = text.split(" ")
    pairs = [" ".join(words[at : at + 2]) for at in range(0, len(words), 2)]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": thought}] if thought else []
    deltas += [{key: ("" if at == 0 else " ") + pair} for at, pair in enumerate(pairs)]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": item}]} for item in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(words)}})
    return b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks) + (
        b"data: [DONE]\n\n"
    )


@contextmanager
def serving(given: Engine | None = None) -> Iterator[Engine]:
    """The stand-in on a free loopback port."""
    engine = given or Engine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            model = {"id": engine.name, "max_model_len": engine.context}
            pages: dict[str, tuple[int, bytes]] = {
                "/health": (engine.health, b""),
                "/version": (200, json.dumps({"version": engine.version}).encode()),
                "/v1/models": (200, json.dumps({"data": [model]}).encode()),
                "/metrics": (200, engine.metrics().encode()),
            }
            if not engine.version:
                del pages["/version"]
                pages["/server_info"] = (200, json.dumps(engine.server_info).encode())
            if self.stranger():
                self.reply(401, b'{"error": "Unauthorized"}')
            else:
                self.reply(*pages.get(self.path, (404, b"{}")))

        def stranger(self) -> bool:
            asked = self.path.startswith("/v1") and engine.key is not None
            given = self.headers.get("Authorization")
            return asked and given != f"Bearer {engine.key}" and not (engine.trusting and given)

        def do_POST(self) -> None:
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            except ValueError:
                self.refuse(400, "JSON decode error")
                return
            if self.path == "/stand-in/load":
                engine.load = [a + b for a, b in zip(engine.load, body, strict=True)]
                self.reply(200, b"{}")
                return
            if self.path.endswith("tokenize"):
                self.reply(200 if engine.renders else 404, json.dumps(self.tokens(body)).encode())
                return
            if refused := engine.refused(body):
                self.refuse(*refused)
                return
            engine.requests.append(body)
            text = engine.answer(body)
            if self.stranger():
                self.reply(401, b'{"error": "Unauthorized"}')
            elif engine.chat_status != 200:
                message = {"error": {"message": "EngineCore encountered an issue"}}
                self.reply(engine.chat_status, json.dumps(message).encode())
            elif body.get("stream") and engine.ties:
                engine.ties -= 1
                self.reply(200, stream_of(f"{text} Indeed."))
            elif body.get("stream"):
                key = "reasoning" if engine.only_thinks else "content"
                right = stream_of(text, engine.reasoning, key)
                self.reply(200, right if engine.stream is None else engine.stream)
            else:
                time.sleep(engine.seconds)
                if engine.whole is not None:
                    self.reply(200, engine.whole)
                    return
                prompt = len(engine.render(body))
                usage = {"prompt_tokens": prompt, "completion_tokens": engine.tokens}
                whole = {"choices": [self.choice(body, text)], "usage": usage}
                self.reply(200, json.dumps(whole).encode())

        def choice(self, body: dict[str, Any], text: str) -> dict[str, Any]:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": text,
                "reasoning": engine.reasoning,
            }
            if body.get("tools"):
                message |= {"content": engine.tool_text, "tool_calls": engine.tool_calls}
            elif engine.only_thinks:
                message |= {"content": None, "reasoning": text}
            elif body.get("chat_template_kwargs", {}).get("enable_thinking"):
                message["reasoning"] = engine.thought
            choice: dict[str, Any] = {"message": message}
            if body.get("logprobs"):
                words = re.findall(r"\S+\s*", text)
                choice["logprobs"] = {"content": [self.likely(*each) for each in enumerate(words)]}
            return choice

        def likely(self, at: int, word: str) -> dict[str, Any]:
            others = {word: -0.5, **engine.others.get(at, {})}
            top = [{"token": token, "logprob": value} for token, value in others.items()]
            return {"token": word, "logprob": -0.5, "top_logprobs": top}

        def tokens(self, body: dict[str, Any]) -> dict[str, Any]:
            if self.path == "/detokenize":
                return {"prompt": " ".join(engine.words[at] for at in body["tokens"])}
            tokens = engine.render(body)
            return {"count": len(tokens), "tokens": tokens}

        def refuse(self, status: int, message: str) -> None:
            engine.on_bad()
            status, message = engine.refusal or (status, message)
            self.reply(status, json.dumps({"error": {"message": message}}).encode())

        def reply(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        engine.port = int(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Container:
    """What the stand-in ``docker`` says of the deployment's container; tests change it."""

    inspect: dict[str, Any]
    image: dict[str, Any]
    #: The log of its newest start.
    start: str = ""

    @classmethod
    def of(cls, deployment: Deployment) -> Container:
        spec = deployment.spec
        return cls(
            inspect={
                "Id": "c0ffee",
                "State": {
                    "Status": "running",
                    "ExitCode": 0,
                    "OOMKilled": False,
                    "Error": "",
                    "Pid": 4711,
                    "StartedAt": "2026-01-01T10:00:00.123456789Z",
                },
                "RestartCount": 0,
                "Image": "sha256:local",
                "Config": {
                    "Entrypoint": list(spec.entrypoint),
                    "Cmd": list(spec.command),
                    "Env": ["PATH=/bin", *(f"{k}={v}" for k, v in spec.env.items())],
                },
                "Mounts": [
                    {"Type": "bind", "Source": m.source, "Destination": m.target, "RW": False}
                    for m in spec.mounts
                ],
            },
            image={"RepoDigests": [spec.image]},
        )

    def install(self, directory: Path) -> None:
        """Write a ``docker`` that prints this; ``exec`` is the load generator's stand-in."""
        directory.mkdir(parents=True, exist_ok=True)
        script = directory / "docker"
        harness = Path(__file__).with_name("stand_in_harness.py")
        (directory / "start.log").write_text(self.start)
        again = {**self.inspect, "State": {**self.inspect["State"], "Pid": 4712}}
        was, now = (shlex.quote(json.dumps([one])) for one in (self.inspect, again))
        script.write_text(
            "#!/bin/sh\n# Stand-in: prints what a test decided.\n"
            'case "$1" in\n'
            f"container) if [ -e {directory}/{RESTARTED} ]; then echo {now};\n"
            f"else echo {was}; fi;;\n"
            f"image) echo {shlex.quote(json.dumps([self.image]))};;\n"
            f'exec) exec {sys.executable} {harness} "$@";;\n'
            f"logs) if [ $3 = --since ]; then cat {directory}/start.log; exit; fi\n"
            "echo '2026-01-02 out'; printf '2026-01-01 50%%\\r100%%\\n' >&2;;\n"
            "esac\n"
        )
        script.chmod(0o755)


def write_weights(deployment: Deployment) -> None:
    """Directories as the role that fetches weights leaves them."""
    for weights in deployment.weights:
        directory = Path(weights.directory)
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_bytes(b"x" * 100)
        record = {
            "repo": weights.repo,
            "revision": weights.revision,
            "files": {"model.safetensors": {"size": 100}},
        }
        (directory / ".roost.json").write_text(json.dumps(record))

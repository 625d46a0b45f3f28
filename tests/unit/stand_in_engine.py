"""Stand-in for an engine's HTTP side and for its container, for faults no real one makes to order.

The real engine is tested on the lab's hosts; here the answers, streams, counters and ``docker``
output are whatever a test needs.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from roost.deployment import Deployment

ANSWERS = {"capital of France": "The capital of France is Paris.", "2+2": "2+2 is 4."}
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
    health: int = 200
    chat_status: int = 200
    answers: dict[str, str] = field(default_factory=lambda: dict(ANSWERS))
    reasoning: str = ""
    #: Raw bytes of a stream instead of the right ones.
    stream: bytes | None = None
    #: How many streams say something else first, as near ties do.
    ties: int = 0
    speculates: bool = True
    accepted_per_draft: float = 1.5
    #: Of prompt and answer together; none: the engine does not say.
    context: int | None = 2048
    #: Of every whole answer: tokens by its usage, and seconds it takes.
    tokens: int = 20
    seconds: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    #: What a load generator had generated: tokens, drafts, draft tokens, accepted tokens.
    load: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0, 0.0])

    def answer(self, body: dict[str, Any]) -> str:
        prompt = body["messages"][0]["content"]
        return next((text for key, text in self.answers.items() if key in prompt), OTHER)

    def metrics(self) -> str:
        labels = '{engine="0",model_name="m"}'
        steps = 10 * len(self.requests)
        tokens, drafts, draft_tokens, accepted = self.load
        lines = [f"vllm:generation_tokens_total{labels} {steps * 2 + tokens}"]
        if self.speculates:
            lines += [
                f"vllm:spec_decode_num_drafts_total{labels} {steps + drafts}",
                f"vllm:spec_decode_num_draft_tokens_total{labels} {steps * 4 + draft_tokens}",
                f"vllm:spec_decode_num_accepted_tokens_total{labels} "
                f"{steps * self.accepted_per_draft + accepted}",
            ]
        return "\n".join(lines) + "\n"


def stream_of(text: str) -> bytes:
    """The stream of a right answer: role, words in pairs, finish, usage, [DONE]."""
    words = text.split(" ")
    pairs = [" ".join(words[at : at + 2]) for at in range(0, len(words), 2)]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": ("" if at == 0 else " ") + pair} for at, pair in enumerate(pairs)]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": item}]} for item in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = "stop"
    chunks.append({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(words)}})
    return b"".join(b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks) + (
        b"data: [DONE]\n\n"
    )


@contextmanager
def serving(engine: Engine | None = None) -> Iterator[Engine]:
    """The stand-in on a free loopback port."""
    engine = engine or Engine()

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
            return asked and self.headers.get("Authorization") != f"Bearer {engine.key}"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/stand-in/load":
                engine.load = [a + b for a, b in zip(engine.load, body, strict=True)]
                self.reply(200, b"{}")
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
                self.reply(200, stream_of(text) if engine.stream is None else engine.stream)
            else:
                time.sleep(engine.seconds)
                message = {"role": "assistant", "content": text, "reasoning": engine.reasoning}
                usage = {"completion_tokens": engine.tokens}
                whole = {"choices": [{"message": message}], "usage": usage}
                self.reply(200, json.dumps(whole).encode())

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

    @classmethod
    def of(cls, deployment: Deployment) -> Container:
        spec = deployment.spec
        return cls(
            inspect={
                "State": {"Status": "running", "ExitCode": 0, "OOMKilled": False, "Error": ""},
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
        script.write_text(
            "#!/bin/sh\n# Stand-in: prints what a test decided.\n"
            'case "$1" in\n'
            f"container) echo {shlex.quote(json.dumps([self.inspect]))};;\n"
            f"image) echo {shlex.quote(json.dumps([self.image]))};;\n"
            f'exec) exec {sys.executable} {harness} "$@";;\n'
            "logs) echo '2026-01-02 out'; printf '2026-01-01 50%%\\r100%%\\n' >&2;;\n"
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

"""A small client for OpenAI-compatible endpoints that reads streams strictly by the protocol.

It verifies; it is no load generator. A chunk is not a token: under speculation one chunk carries
several, the first carries none (only the role), and the last carries only the usage.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx2

from roost.errors import RoostError

#: An engine may prefill a long prompt, or generate a token for its own health check, in between.
TIMEOUT_S = 120.0
#: Timeout of all later requests, once an endpoint has let one run into its timeout.
_LESS_S = 10.0
_SHOWN = 300
_CHAT = "/v1/chat/completions"


class EngineError(RoostError):
    """The endpoint did not do what was asked; ``status`` is its HTTP status, if it had one."""

    def __init__(self, what: str, *, why: str = "", fix: str = "", status: int | None = None):
        super().__init__(what, why=why, fix=fix)
        self.status = status


@dataclass(frozen=True)
class Delta:
    """One chunk that carried something: text, reasoning or part of a tool call.

    Attributes:
        at: Seconds since the request was sent.
    """

    at: float
    content: str = ""
    reasoning: str = ""
    tool_call: bool = False


@dataclass(frozen=True)
class StreamedAnswer:
    """A whole streamed answer.

    Attributes:
        deltas: Chunks that carried something; a role alone, usage or a finish reason is none.
        usage: The engine's own token counts, from the usage chunk; empty if none came.
        finish_reason: Why it ended, or none if no chunk said so.
        duration: Seconds from sending the request to the end of the stream.
        ttft: Seconds to the first token; none if none came. Its text may be empty: half of a
            character that takes two tokens is held back. The chunk with the role is no token.
    """

    deltas: tuple[Delta, ...]
    usage: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    duration: float = 0.0
    ttft: float | None = None

    @property
    def text(self) -> str:
        return "".join(delta.content for delta in self.deltas)

    @property
    def reasoning(self) -> str:
        return "".join(delta.reasoning for delta in self.deltas)

    @property
    def completion_tokens(self) -> int | None:
        """Generated tokens, as the engine counted them; chunks cannot be counted instead."""
        count = self.usage.get("completion_tokens")
        return count if isinstance(count, int) else None


class Client:
    """Speaks to one endpoint; use it in a ``with``.

    Args:
        base_url: Scheme, host and port, without ``/v1``.
        timeout: Seconds without a byte until a request counts as failed.
        api_key: Sent with every request; none: the endpoint asks for none.
    """

    def __init__(
        self, base_url: str, *, timeout: float = TIMEOUT_S, api_key: str | None = None
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else None
        # Proxies of the environment are for the world outside; an engine sits behind a tunnel.
        self._http = httpx2.Client(
            base_url=base_url, timeout=timeout, trust_env=False, headers=headers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def health(self, path: str = "/health") -> int:
        """HTTP status of the health path. Green says nothing about right answers."""
        return self._send("GET", path).status_code

    def turns_away(self, key: str | None = None) -> bool:
        """Whether ``/v1`` answers 401 to a request with this key instead; none: without any."""
        request = self._http.build_request("GET", "/v1/models")
        request.headers.pop("Authorization", None)
        if key is not None:
            request.headers["Authorization"] = f"Bearer {key}"
        try:
            answer = self._http.send(request)
        except httpx2.HTTPError as error:
            raise self._failure("GET /v1/models with another key or none", error) from None
        return answer.status_code == httpx2.codes.UNAUTHORIZED

    def metrics(self, path: str = "/metrics") -> str:
        """The raw text of /metrics."""
        return self._ok("GET", path).text

    def version(self) -> str:
        """The engine's own version."""
        path = "/version"
        try:
            reply = self._json("GET", path)
        except EngineError as error:
            if error.status != httpx2.codes.NOT_FOUND:
                raise
            # SGLang says it elsewhere.
            path = "/server_info"
            reply = self._json("GET", path)
        version = reply.get("version")
        if not isinstance(version, str):
            raise EngineError(f"{path} names no version")
        return version

    def models(self) -> list[str]:
        """Names the endpoint serves under."""
        try:
            return [str(entry["id"]) for entry in self._json("GET", "/v1/models")["data"]]
        except (LookupError, TypeError):
            raise EngineError("/v1/models is not a list of models") from None

    def context_limit(self, name: str) -> int | None:
        """Tokens that prompt and answer may have together; none where the engine does not say."""
        try:
            data = self._json("GET", "/v1/models")["data"]
            limits = [entry.get("max_model_len") for entry in data if entry["id"] == name]
            return int(limits[0]) if limits and limits[0] else None
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError):
            raise EngineError("/v1/models is not a list of models") from None

    def chat(self, body: Mapping[str, Any], *, timeout: float | None = None) -> dict[str, Any]:
        """One chat completion, whole; the decoded reply.

        Args:
            body: The request.
            timeout: Seconds it may take; none: the client's own.
        """
        return self._json("POST", _CHAT, body, timeout)

    def chat_raw(self, content: bytes) -> tuple[int, str]:
        """Status and message of a chat completion with any body, for those that must be refused."""
        response = self._send("POST", _CHAT, content)
        error = _status("", response)
        return response.status_code, error.why

    def tokens(self, body: Mapping[str, Any]) -> list[int] | None:
        """The tokens that a chat completion's messages become; none where nobody can be asked.

        Args:
            body: The request; its messages and template arguments count.
        """
        said = ("model", "messages", "chat_template_kwargs")
        asked = {key: body[key] for key in said if key in body}
        reply = self._where_there("/tokenize", asked)
        return [int(token) for token in reply["tokens"]] if reply else None

    def text_of(self, model: str, tokens: Sequence[int]) -> str | None:
        """Tokens as text, special ones included; none where nobody can be asked."""
        reply = self._where_there("/detokenize", {"model": model, "tokens": list(tokens)})
        if reply is None:
            return None
        # vLLM says `prompt`, SGLang `text`.
        return str(reply.get("prompt") or reply.get("text") or "")

    def _where_there(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            return self._json("POST", path, body)
        except EngineError as error:
            if error.status in {httpx2.codes.NOT_FOUND, httpx2.codes.METHOD_NOT_ALLOWED}:
                return None
            raise

    def stream_chat(self, body: Mapping[str, Any]) -> StreamedAnswer:
        """One chat completion, streamed, with the usage asked for.

        Raises:
            EngineError: An error status, an error event within the stream, a chunk that is no
                JSON, or a stream that ended before ``[DONE]``.
        """
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        start = time.perf_counter()
        try:
            with self._http.stream("POST", _CHAT, json=asked) as response:
                if response.status_code != httpx2.codes.OK:
                    response.read()
                    raise _status(f"POST {_CHAT}", response)
                events = sse_data(response.iter_bytes())
                timed = ((time.perf_counter() - start, data) for data in events)
                return _assemble(timed, lambda: time.perf_counter() - start)
        except httpx2.RemoteProtocolError as error:
            raise EngineError("the stream broke off", why=str(error)) from None
        except httpx2.HTTPError as error:
            raise self._failure(f"POST {_CHAT}", error) from None

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        timeout: float | None = None,
    ) -> httpx2.Response:
        given: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if isinstance(body, bytes):
            given |= {"content": body, "headers": {"Content-Type": "application/json"}}
        elif body is not None:
            given["json"] = body
        try:
            return self._http.request(method, path, **given)
        except httpx2.HTTPError as error:
            raise self._failure(f"{method} {path}", error, timeout) from None

    def _ok(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> httpx2.Response:
        response = self._send(method, path, body, timeout)
        if response.status_code != httpx2.codes.OK:
            raise _status(f"{method} {path}", response)
        return response

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        response = self._ok(method, path, body, timeout)
        try:
            data = response.json()
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise EngineError(
                f"{method} {path}: the reply is no JSON object", why=response.text[:_SHOWN]
            )
        return data

    def _failure(
        self, request: str, error: httpx2.HTTPError, timeout: float | None = None
    ) -> EngineError:
        if not isinstance(error, httpx2.TimeoutException):
            return EngineError(f"{request}: no connection", why=str(error) or type(error).__name__)
        if timeout is not None:
            return EngineError(f"{request}: no answer within {timeout:g} s")
        waited = self._http.timeout.read
        # A dozen questions to an engine that hangs must not take half an hour.
        self._http.timeout = httpx2.Timeout(min(_LESS_S, waited or _LESS_S))
        return EngineError(f"{request}: no answer within {waited:g} s", why="the engine hangs")


def sse_data(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each server-sent event.

    Works on bytes up to the line: a character may be split between two network reads, and text
    may contain separators (U+2028) that are line ends to Python but not to the protocol. An event
    that the stream's end cut off is dropped, as the protocol says.
    """
    data: list[str] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield "\n".join(data)
            data = []
        elif line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines that ended with LF, CR LF or CR."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        # A CR at the very end may be the first half of a CR LF.
        held = b"\r" if rest.endswith(b"\r") else b""
        whole = rest[: len(rest) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, tail = whole.split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        rest = tail + held
    if rest.endswith(b"\r"):
        yield rest[:-1].decode(errors="replace")


def _assemble(events: Iterable[tuple[float, str]], clock: Any) -> StreamedAnswer:
    deltas: list[Delta] = []
    usage: Mapping[str, Any] = {}
    finish: str | None = None
    first: float | None = None
    for at, data in events:
        if data == "[DONE]":
            return StreamedAnswer(tuple(deltas), usage, finish, clock(), first)
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            raise EngineError("a chunk of the stream is no JSON object", why=data[:_SHOWN])
        if "error" in chunk:
            raise EngineError("the engine failed within the stream", why=_message(chunk))
        usage = chunk.get("usage") or usage
        # The usage chunk has an empty list of choices; other choices than the first are not asked.
        for choice in chunk.get("choices") or []:
            if choice.get("index", 0) != 0:
                continue
            finish = choice.get("finish_reason") or finish
            said = choice.get("delta") or {}
            delta = _delta(at, said)
            if delta is not None:
                deltas.append(delta)
            if first is None and (delta or not (said.get("role") or finish)):
                first = at
    raise EngineError(
        "the stream ended before [DONE]",
        why=f"after {len(deltas)} chunks of text",
        fix="look for the reason in the engine's log",
    )


def _delta(at: float, said: Mapping[str, Any]) -> Delta | None:
    delta = Delta(
        at=at,
        content=str(said.get("content") or ""),
        # vLLM since 0.23 says `reasoning`, older ones and SGLang `reasoning_content`.
        reasoning=str(said.get("reasoning") or said.get("reasoning_content") or ""),
        tool_call=bool(said.get("tool_calls")),
    )
    return delta if delta.content or delta.reasoning or delta.tool_call else None


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text)[:_SHOWN]


def _status(request: str, response: httpx2.Response) -> EngineError:
    try:
        why = _message(response.json())
    except (ValueError, RecursionError):
        why = response.text[:_SHOWN].strip()
    return EngineError(
        f"{request}: HTTP {response.status_code}", why=why, status=response.status_code
    )

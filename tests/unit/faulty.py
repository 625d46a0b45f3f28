"""A hub that misbehaves as told: an ASGI application before another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Behaviour = Callable[[ASGIApp, Scope, Receive, Send], Awaitable[None]]


@dataclass
class Request:
    """What was asked, and how many bytes of body were given out."""

    method: str
    path: str
    headers: dict[str, str]
    sent: int = 0

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class Faulty:
    """Passes requests on, but for those it was told to treat otherwise."""

    app: ASGIApp
    requests: list[Request] = field(default_factory=list)
    _orders: list[tuple[str, Behaviour, list[None]]] = field(default_factory=list)

    def order(self, suffix: str, behaviour: Behaviour, times: int = 1_000_000) -> None:
        """Treat the next requests whose path ends so like this."""
        self._orders.append((suffix, behaviour, [None] * times))

    def behave(self) -> None:
        """Forget all orders, and what was asked."""
        self._orders.clear()
        self.requests.clear()

    def of(self, suffix: str) -> list[Request]:
        """Requests for what has such a path."""
        return [one for one in self.requests if one.path.endswith(suffix) and one.method == "GET"]

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that went out."""
        return sum(one.sent for one in self.of(".safetensors"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode().lower(): value.decode() for key, value in scope["headers"]}
        request = Request(scope["method"], scope["path"], headers)
        self.requests.append(request)

        async def counted(message: Message) -> None:
            # Before it is there: whoever has it may look at this at once.
            request.sent += len(message.get("body", b""))
            await send(message)

        for suffix, behaviour, left in self._orders:
            if scope["path"].endswith(suffix) and scope["method"] == "GET" and left:
                left.pop()
                await behaviour(self.app, scope, receive, counted)
                return
        await self.app(scope, receive, counted)


def answer(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Behaviour:
    """Another answer instead."""

    async def behave(_: ASGIApp, __: Scope, ___: Receive, send: Send) -> None:
        fields = {"content-length": str(len(body)), **(headers or {})}
        raw = [(key.encode(), value.encode()) for key, value in fields.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    return behave


def refuse(status: int, code: str, message: str = "") -> Behaviour:
    """A refusal as hubs word it."""
    return answer(status, {"X-Error-Code": code, "X-Error-Message": message})


def at(place: int, act: Callable[[], Awaitable[None]]) -> Behaviour:
    """The right answer, but something happens after so many bytes of its body."""

    async def behave(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        gone, done = 0, False

        async def through(message: Message) -> None:
            nonlocal gone, done
            body = message.get("body", b"")
            if body and gone + len(body) > place and not done:
                done = True
                before = body[: place - gone]
                await send({**message, "body": before, "more_body": True})
                await act()
                message = {**message, "body": body[len(before) :]}
            gone += len(body)
            await send(message)

        await app(scope, receive, through)

    return behave


def paced(rate: float) -> Behaviour:
    """The right answer, at so many bytes a second."""

    async def behave(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def through(message: Message) -> None:
            await send(message)
            await asyncio.sleep(len(message.get("body", b"")) / rate)

        await app(scope, receive, through)

    return behave


def cut(place: int) -> Behaviour:
    """The connection ends after so many bytes."""

    async def act() -> None:
        raise ConnectionError("cut by the test")

    return at(place, act)


def stall(place: int, seconds: float | None = None) -> Behaviour:
    """Nothing comes any more after so many bytes, and the connection stays: for so many seconds,
    or until whoever asked has left.
    """

    async def behave(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def act() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while (await receive())["type"] != "http.disconnect":
                        pass
            raise ConnectionError("nobody listens any more")

        await at(place, act)(app, scope, receive, send)

    return behave


def shortened(place: int) -> Behaviour:
    """The body ends after so many bytes, as if that were all."""

    async def behave(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        gone = 0

        async def through(message: Message) -> None:
            nonlocal gone
            if body := message.get("body", b""):
                message = {**message, "body": body[: max(place - gone, 0)]}
                gone += len(body)
            await send(message)

        await app(scope, receive, through)

    return behave


def unsized(behaviour: Behaviour) -> Behaviour:
    """The same without a length in the answer's head."""

    async def behave(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def through(message: Message) -> None:
            if "headers" in message:
                kept = [pair for pair in message["headers"] if pair[0] != b"content-length"]
                message = {**message, "headers": kept}
            await send(message)

        await behaviour(app, scope, receive, through)

    return behave


async def altered(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """As many bytes, but others."""

    async def through(message: Message) -> None:
        if body := message.get("body", b""):
            message = {**message, "body": body[::-1]}
        await send(message)

    await app(scope, receive, through)


async def whole(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The whole file, whatever part was asked for."""
    headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
    await app({**scope, "headers": headers}, receive, send)

"""Servers for a moment: an ASGI application on a loopback port, and ports for programs."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

#: Below those that the kernel gives to whoever asks for any: a connection, or another test, may be
#: given one of them between the moment that it is found free and the one that it is taken.
_PORTS = range(10_000, 30_000)
_next = itertools.count(os.getpid() * 1021)  # sessions at the same time begin far apart


def free_port() -> int:
    """A port that nobody uses, for a program that must be told one."""
    for number in itertools.islice(_next, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        with closing(socket.socket()) as trying, suppress(OSError):
            trying.bind(("", port))
            return port
    raise AssertionError(f"all ports of {_PORTS} are in use")


@contextmanager
def serving(
    app: ASGIApp,
    *,
    address: str = "127.0.0.1",
    certificate: Path | None = None,
    key: Path | None = None,
) -> Iterator[str]:
    """Serve it, with TLS if there is a certificate; gives its URL, and ends with the block."""
    with closing(socket.create_server((address, 0))) as listening:
        # asyncio does this only for sockets that say they are TCP, and these do not: an answer in
        # two pieces would wait 40 ms for the client's acknowledgement of the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app, log_level="critical", ssl_certfile=certificate, ssl_keyfile=key
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            scheme = "https" if certificate else "http"
            yield f"{scheme}://{address}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()

"""An ASGI application on a loopback port, for tests that need a real server for a moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp


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

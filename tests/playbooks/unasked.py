"""A lab without hub and registry, where whoever calls at their addresses is written down."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from roost.lab.lab import Lab


@contextmanager
def unasked(lab: Lab) -> Iterator[list[str]]:
    """Nothing can be fetched for the length of a ``with``; the list is of those who tried."""
    calls: list[str] = []
    with ExitStack() as stack:
        for service, url in (
            (lab.hub, lab.site.hub_url),
            (lab.registry, f"http://{lab.site.registry}"),
        ):
            service.stop()
            stack.callback(service.start)
            stack.enter_context(_listening(url, calls))
        yield calls


@contextmanager
def _listening(url: str, calls: list[str]) -> Iterator[None]:
    class Caller(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            calls.append(f"{self.client_address[0]} called at {url}")

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    place = urlsplit(url)
    with Server((place.hostname or "", place.port or 80), Caller) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()

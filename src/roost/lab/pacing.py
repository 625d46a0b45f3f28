"""Network lines of a known rate on loopback, so that downloads can be watched and measured."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

CHUNK = 1 << 16


class Line:
    """A line that carries so many bytes a second, shared by all its users.

    Args:
        rate: Bytes a second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> float:
        """Put bytes on the line; seconds until the last of them is at the other end."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / self._rate
            return self._free_at - now


@contextlib.contextmanager
def paced(address: str, port: int, rate: float) -> Iterator[int]:
    """Stand before a server and slow its answers down to a rate; gives the port to connect to.

    Args:
        address: The server's, and the line's own.
        port: The server's.
        rate: Bytes a second, of all connections together.
    """
    line = Line(rate)

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, pace: bool
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK):
                    if pace:
                        await asyncio.sleep(line.take(len(data)))
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(address, port)
        # Cancelled when the line is taken away; asyncio's own streams would call that an error.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(
                carry(reader, there[1], pace=False), carry(there[0], writer, pace=True)
            )

    async def serve(listening: socket.socket, stopped: asyncio.Event) -> None:
        server = await asyncio.start_server(accept, sock=listening)
        await stopped.wait()
        server.close()

    with socket.create_server((address, 0)) as listening, asyncio.Runner() as runner:
        stopped = asyncio.Event()
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(serve(listening, stopped),))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            loop.call_soon_threadsafe(stopped.set)
            thread.join()

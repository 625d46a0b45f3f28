"""A loopback port that leads to a host's port, one SSH channel for each connection."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

import paramiko

from roost.ssh.errors import SshError
from roost.ssh.login import CONNECT_TIMEOUT_S, send_at_once

_CHUNK = 32768


@dataclass
class Tunnel:
    """Where a remote port can be reached from here while the tunnel is open."""

    address: str
    port: int
    #: Why the far side refused a connection, or what became of one under way, newest last.
    refusals: list[str] = field(default_factory=list)
    #: How many of those were the SSH connection's doing.
    broken: int = 0

    def broke(self, why: str) -> None:
        """Note a connection that did not reach the far side, or was cut on its way there."""
        self.broken += 1
        self.refusals.append(f"the SSH connection broke{why}")


class Forwarder(socketserver.ThreadingTCPServer):
    """Listens on a free loopback port and carries each connection through its own channel."""

    block_on_close = True
    daemon_threads = False

    def __init__(
        self, transport: Callable[[], paramiko.Transport], target: tuple[str, int]
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarded)
        self.transport = transport
        self.target = target
        self.tunnel = Tunnel("127.0.0.1", int(self.server_address[1]))
        self._open: set[socket.socket | paramiko.Channel] = set()
        self._guard = threading.Lock()
        self._closing = False

    def hold(self, *ends: socket.socket | paramiko.Channel) -> None:
        """Remember both ends of a connection, to cut it when the tunnel goes."""
        with self._guard:
            if not self._closing:
                self._open.update(ends)
                return
        for end in ends:
            _cut(end)

    def let_go(self, *ends: socket.socket | paramiko.Channel) -> None:
        with self._guard:
            self._open.difference_update(ends)

    def hang_up(self) -> None:
        """End every connection that is still open; their threads then finish by themselves."""
        with self._guard:
            self._closing = True
            remaining = list(self._open)
        for end in remaining:
            _cut(end)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a connection that breaks is the client's to report."""


class _Forwarded(socketserver.BaseRequestHandler):
    """One connection: two pumps, one for each direction."""

    def handle(self) -> None:
        server = cast(Forwarder, self.server)
        local: socket.socket = self.request
        send_at_once(local)
        address, port = server.target
        try:
            channel = server.transport().open_channel(
                "direct-tcpip", server.target, local.getpeername(), timeout=CONNECT_TIMEOUT_S
            )
        except paramiko.ChannelException as error:
            prohibited = error.code == paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
            server.tunnel.refusals.append(
                "the host's sshd does not allow TCP forwarding"
                if prohibited
                else f"nothing answers on {address}:{port}"
            )
            return
        except (SshError, paramiko.SSHException, OSError, EOFError) as error:
            why = error.why if isinstance(error, SshError) else error
            server.tunnel.broke(f": {why}")
            return
        server.hold(local, channel)
        up = threading.Thread(target=_pump, args=(local, channel), daemon=True)
        up.start()
        _pump(channel, local)
        up.join()
        server.let_go(local, channel)
        if not channel.get_transport().is_active():
            server.tunnel.broke(" while it carried a request")
        channel.close()


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    """Copy until the source ends, then half-close the sink: the other direction lives on."""
    try:
        while data := source.recv(_CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except (OSError, EOFError, paramiko.SSHException):
        # One end vanished, so nobody is left for the other direction either.
        _cut(source)
        _cut(sink)


def _cut(end: socket.socket | paramiko.Channel) -> None:
    with suppress(OSError, EOFError, paramiko.SSHException):
        if isinstance(end, socket.socket):
            # Wakes a thread in recv, which closing the descriptor would not.
            end.shutdown(socket.SHUT_RDWR)
        else:
            end.close()

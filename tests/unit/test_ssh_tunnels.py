"""What a tunnel remembers of connections that broke; on real hosts it is tested in the lab."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.processes import until

from roost.ssh.tunnels import Forwarder


@pytest.mark.parametrize(
    ("active", "refusals"), [(True, []), (False, ["the SSH connection broke while it carried"])]
)
def test_a_connection_that_broke_under_a_request_is_remembered(
    active: bool, refusals: list[str]
) -> None:
    """The next request opens another one, so that nothing else would tell."""
    far, channel = socket.socketpair()
    transport = SimpleNamespace(is_active=lambda: active)
    # As a channel of paramiko, as far as a tunnel uses one.
    ends = {name: getattr(channel, name) for name in ("recv", "sendall", "shutdown", "close")}
    carried = SimpleNamespace(**ends, get_transport=lambda: transport)
    opening: Any = SimpleNamespace(open_channel=lambda *_, **__: carried)
    server = Forwarder(lambda: opening, ("127.0.0.1", 8000))
    server.hold = lambda *_: None  # type: ignore[method-assign]
    server.let_go = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    with socket.create_connection(("127.0.0.1", server.tunnel.port)) as near:
        near.sendall(b"GET /")
        assert far.recv(9) == b"GET /"
        far.close()
        assert near.recv(9) == b""
    until(lambda: len(server.tunnel.refusals) >= len(refusals))
    server.shutdown()
    thread.join()
    server.server_close()
    assert [one[:40] for one in server.tunnel.refusals] == [one[:40] for one in refusals]

"""Paramiko's transport, with its channels' last words in order."""

from __future__ import annotations

import threading
from typing import Any, cast

import paramiko

#: RFC 4254, section 5.3.
_CLOSE = bytes([paramiko.common.MSG_CHANNEL_CLOSE])


class Transport(paramiko.Transport):
    """Paramiko's, whose channels say nothing more once they are closed.

    Paramiko decides under a lock what a channel says next, and says it after it has let go of the
    lock. So the end of a command's input can follow the channel's close, if the command ends just
    then. sshd hangs up on that, which ends every other command and tunnel of the connection
    (paramiko/paramiko issues 1115, 1584 and 1705, open since 2017).
    """

    def open_channel(self, *args: Any, **options: Any) -> paramiko.Channel:
        channel = super().open_channel(*args, **options)
        channel.transport = cast(paramiko.Transport, _InOrder(self))
        return channel


class _InOrder:
    """A transport as one of its channels has it: what is said after the close is left out."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport
        self._turn = threading.Lock()
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_user_message(self, message: paramiko.Message) -> None:
        with self._turn:
            if not self._closed:
                self._closed = message.asbytes()[:1] == _CLOSE
                self._transport._send_user_message(message)  # type: ignore[attr-defined]

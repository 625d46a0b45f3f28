"""Commands and tunnels on a host of the inventory, over SSH as Ansible would reach it.

Engines listen on loopback, so a notebook needs two things of a host: the output of a command
(``docker inspect``) and a local port that leads to the engine. Host keys are always checked,
against the files the inventory names or the user's own.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import paramiko

from roost.inventory import Host
from roost.ssh.errors import BrokenConnectionError, SshError
from roost.ssh.login import CONNECT_TIMEOUT_S, open_client
from roost.ssh.tunnels import Forwarder, Tunnel

__all__ = [
    "COMMAND_TIMEOUT_S",
    "CONNECT_TIMEOUT_S",
    "BrokenConnectionError",
    "Completed",
    "Remote",
    "SshError",
    "Tunnel",
    "connect",
    "run_privileged",
]

COMMAND_TIMEOUT_S = 60.0
_CHUNK = 32768

# Paramiko logs the tracebacks of failures that are raised as well; without a handler Python would
# print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Completed:
    """A finished command: exit status and decoded output."""

    rc: int
    out: str
    err: str


class Remote(Protocol):
    """An open connection to one host."""

    def run(
        self,
        argv: Sequence[str],
        input: str | None = None,  # noqa: A002 - subprocess's name for the same thing
        timeout: float = COMMAND_TIMEOUT_S,
        *,
        attended: bool = False,
    ) -> Completed:
        """Run one command, without a shell of its own interpreting the words.

        Args:
            argv: The command.
            input: Its standard input.
            timeout: Seconds it may take.
            attended: Leave its input open for as long as somebody waits for it, so that a command
                that reads it can see that nobody does any more.

        Raises:
            BrokenConnectionError: The connection ended meanwhile.
            SshError: The command took longer than ``timeout`` seconds.
        """
        ...

    def tunnel(self, port: int, address: str = "127.0.0.1") -> AbstractContextManager[Tunnel]:
        """Open a way to ``address:port`` as seen from the host, for the length of a ``with``."""
        ...


def run_privileged(remote: Remote, argv: Sequence[str]) -> Completed:
    """Run a command as the connecting user, and once more with ``sudo -n`` if that may not.

    Docker's socket and roost's files belong to root; a user in the ``docker`` group needs no sudo.
    """
    done = remote.run(argv)
    if done.rc != 0 and "permission denied" in (done.err + done.out).lower():
        again = remote.run(["sudo", "-n", "--", *argv])
        if again.rc != 0 and again.err.startswith("sudo:"):
            return replace(done, err=f"{done.err.strip()} ({again.err.strip()})")
        return again
    return done


@contextmanager
def connect(host: Host) -> Iterator[Remote]:
    """Connect to a host for the length of a ``with``.

    Raises:
        SshError: Unreachable, host key unknown or changed, login refused, or trouble with a jump
            host; each says what to do.
    """
    if host.connection.local:
        yield _Local()
        return
    with ExitStack() as stack:
        yield _Session(host, stack)


class _Local:
    """The machine roost runs on (``ansible_connection: local``)."""

    def run(
        self,
        argv: Sequence[str],
        input: str | None = None,  # noqa: A002
        timeout: float = COMMAND_TIMEOUT_S,
        *,
        attended: bool = False,
    ) -> Completed:
        given: dict[str, Any] = {} if input is None else {"input": input.encode()}
        with ExitStack() as stack:
            if attended:
                # The writing end is ours alone, and goes with this process whatever becomes of it.
                given["stdin"], ours = os.pipe()
                stack.callback(os.close, given["stdin"])
                stack.callback(os.close, ours)
            return self._run(list(argv), timeout, given)

    def _run(self, argv: list[str], timeout: float, given: dict[str, Any]) -> Completed:
        try:
            done = subprocess.run(argv, **given, capture_output=True, timeout=timeout, check=False)
        except FileNotFoundError:
            return Completed(127, "", f"{argv[0]}: not found")
        except subprocess.TimeoutExpired:
            raise SshError(f"{_brief(shlex.join(argv))} took longer than {timeout:.0f} s") from None
        # Decoded here as over SSH: text mode would turn carriage returns into lines.
        out, err = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        return Completed(done.returncode, out, err)

    @contextmanager
    def tunnel(self, port: int, address: str = "127.0.0.1") -> Iterator[Tunnel]:
        yield Tunnel(address, port)


class _Session:
    """A host behind paramiko.

    A connection that breaks ends the commands under way, which may not be safe to repeat. The next
    command, or the next connection through a tunnel, opens another one.
    """

    def __init__(self, host: Host, stack: ExitStack) -> None:
        self._name = host.name
        self._host = host
        self._stack = stack
        self._guard = threading.Lock()
        self._client = open_client(host.name, host.connection, stack)

    def _transport(self) -> paramiko.Transport:
        with self._guard:
            transport = self._client.get_transport()
            if transport is None or not transport.is_active():
                self._client = open_client(self._name, self._host.connection, self._stack)
                transport = self._client.get_transport()
            assert transport is not None  # noqa: S101 - open_client has just used it
            return transport

    def run(
        self,
        argv: Sequence[str],
        input: str | None = None,  # noqa: A002
        timeout: float = COMMAND_TIMEOUT_S,
        *,
        attended: bool = False,
    ) -> Completed:
        command = shlex.join(argv)
        try:
            channel = self._transport().open_session(timeout=CONNECT_TIMEOUT_S)
            with channel:
                channel.settimeout(timeout)
                channel.exec_command(command)
                # Both streams share one flow-control window: reading them one after the other
                # would block a command that fills the second.
                errors = bytearray()
                reader = threading.Thread(
                    target=_collect, args=(channel.recv_stderr, errors), daemon=True
                )
                reader.start()
                if input is not None:
                    _give(channel, input.encode())
                if not attended:
                    channel.shutdown_write()
                output = bytearray()
                complete = _collect(channel.recv, output)
                reader.join(timeout)
                if not complete or not channel.status_event.wait(timeout):
                    raise SshError(
                        f"{self._name}: {_brief(command)} took longer than {timeout:.0f} s"
                    )
                rc = channel.recv_exit_status()
                if rc < 0 and not channel.get_transport().is_active():
                    raise self._broke(command, channel.get_transport().get_exception())
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise self._broke(command, error) from None
        return Completed(rc, output.decode(errors="replace"), errors.decode(errors="replace"))

    def _broke(self, command: str, error: Exception | None) -> BrokenConnectionError:
        # Paramiko has EOFError, without a word, for whatever ends a connection from outside.
        why = str(error or "") or "the host hung up, or is gone"
        return BrokenConnectionError(
            f"{self._name}: the SSH connection broke during {_brief(command)}", why=why
        )

    @contextmanager
    def tunnel(self, port: int, address: str = "127.0.0.1") -> Iterator[Tunnel]:
        server = Forwarder(self._transport, (address, port))
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield server.tunnel
        finally:
            server.shutdown()
            thread.join()
            server.hang_up()
            server.server_close()  # joins the threads of all connections


def _brief(command: str) -> str:
    """A command as a message names it: some are programs of many lines."""
    return textwrap.shorten(command, 100, placeholder=" …")


def _give(channel: paramiko.Channel, data: bytes) -> None:
    """A command's input; it may end without having read all of it."""
    try:
        channel.sendall(data)
    except TimeoutError:
        raise
    except OSError:
        if not channel.closed or not channel.get_transport().is_active():
            raise


def _collect(receive: Callable[[int], bytes], into: bytearray) -> bool:
    """Read to the end; ``False`` if it did not come in time."""
    try:
        while data := receive(_CHUNK):
            into += data
    except TimeoutError:
        return False
    return True

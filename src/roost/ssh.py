"""Commands and tunnels on a host of the inventory, over SSH as Ansible would reach it.

Engines listen on loopback, so a notebook needs two things of a host: the output of a command
(``docker inspect``) and a local port that leads to the engine. Host keys are always checked,
against the files the inventory names or the user's own.
"""

from __future__ import annotations

import getpass
import logging
import os
import shlex
import socket
import socketserver
import subprocess
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import paramiko

from roost.errors import RoostError
from roost.inventory import Connection, Host

CONNECT_TIMEOUT_S = 15
COMMAND_TIMEOUT_S = 60.0
_KEEPALIVE_S = 30
_CHUNK = 32768
_SSH_PORT = 22
#: RFC 4254, section 5.3.
_CLOSE = bytes([paramiko.common.MSG_CHANNEL_CLOSE])

# Paramiko logs the tracebacks of failures that are raised as well; without a handler Python would
# print them.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class SshError(RoostError):
    """A host cannot be reached or logged in to."""


class BrokenConnectionError(SshError):
    """A connection ended while a command was under way, which may go on or not."""


@dataclass(frozen=True)
class Completed:
    """A finished command: exit status and decoded output."""

    rc: int
    out: str
    err: str


@dataclass
class Tunnel:
    """Where a remote port can be reached from here while the tunnel is open."""

    address: str
    port: int
    #: Why the far side refused a connection, newest last.
    refusals: list[str] = field(default_factory=list)


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
        self._client = _open(host.name, host.connection, stack)

    def _transport(self) -> paramiko.Transport:
        with self._guard:
            transport = self._client.get_transport()
            if transport is None or not transport.is_active():
                self._client = _open(self._name, self._host.connection, self._stack)
                transport = self._client.get_transport()
            assert transport is not None  # noqa: S101 - _open has just used it
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
        # EOFError, for one, has nothing to say.
        why = str(error or "") or (type(error).__name__ if error else "the host hung up")
        return BrokenConnectionError(
            f"{self._name}: the SSH connection broke during {_brief(command)}", why=why
        )

    @contextmanager
    def tunnel(self, port: int, address: str = "127.0.0.1") -> Iterator[Tunnel]:
        server = _Forwarder(self._transport, (address, port))
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


class _Transport(paramiko.Transport):
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


class _Forwarder(socketserver.ThreadingTCPServer):
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
        server = cast(_Forwarder, self.server)
        local: socket.socket = self.request
        _send_at_once(local)
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
            server.tunnel.refusals.append(f"the SSH connection broke: {why}")
            return
        server.hold(local, channel)
        up = threading.Thread(target=_pump, args=(local, channel), daemon=True)
        up.start()
        _pump(channel, local)
        up.join()
        server.let_go(local, channel)
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


def _send_at_once(sock: object) -> None:
    """Hold back no small packet until the one before it is acknowledged, which takes up to 40 ms.

    A request is two writes (head, body), and so is the beginning of a streamed answer: both would
    wait. Jump hosts and proxy commands have no TCP socket here; nothing is to be done for them.
    """
    if isinstance(sock, socket.socket) and sock.family in {socket.AF_INET, socket.AF_INET6}:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _cut(end: socket.socket | paramiko.Channel) -> None:
    with suppress(OSError, EOFError, paramiko.SSHException):
        if isinstance(end, socket.socket):
            # Wakes a thread in recv, which closing the descriptor would not.
            end.shutdown(socket.SHUT_RDWR)
        else:
            end.close()


# --- connecting ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hop:
    """One machine on the way, everything decided."""

    address: str
    port: int
    user: str
    key_files: tuple[str, ...]
    known_hosts: tuple[Path, ...]
    global_known_hosts: tuple[Path, ...]
    password: str | None = field(repr=False)
    identities_only: bool

    @property
    def key_name(self) -> str:
        """Its name in a known_hosts file."""
        return self.address if self.port == _SSH_PORT else f"[{self.address}]:{self.port}"

    @property
    def target(self) -> str:
        port = f" -p {self.port}" if self.port != _SSH_PORT else ""
        return f"ssh{port} {self.user}@{self.address}"


def _open(name: str, connection: Connection, stack: ExitStack) -> paramiko.SSHClient:
    config = _user_config(connection.config_file)
    said = config.lookup(connection.address)
    jump = connection.proxy_jump or (None if connection.proxy_command else said.get("proxyjump"))
    command = connection.proxy_command or (None if jump else said.get("proxycommand"))
    hop = _hop(connection, said)
    sock: socket.socket | paramiko.Channel | None = None
    if jump and jump.lower() != "none":
        sock = _through(name, jump, hop, config, stack)
    elif command and command.lower() != "none":
        sock = stack.enter_context(_proxied(name, command, hop))
    return _login(name, hop, sock, stack)


def _user_config(path: Path | None) -> paramiko.SSHConfig:
    file = path or Path.home() / ".ssh" / "config"
    if path is None and not file.is_file():
        return paramiko.SSHConfig()
    try:
        return paramiko.SSHConfig.from_path(str(file))
    except (OSError, paramiko.ConfigParseError) as error:
        raise SshError(f"{file}: cannot be read", why=str(error)) from None


def _hop(connection: Connection, said: paramiko.SSHConfigDict) -> _Hop:
    keys = [str(connection.key_file)] if connection.key_file else []
    for key in keys:
        if not Path(key).is_file():
            raise SshError(f"no private key {key}", fix="correct ansible_ssh_private_key_file")
    only = connection.identities_only
    return _Hop(
        address=said.get("hostname", connection.address),
        port=connection.port or int(said.get("port", _SSH_PORT)),
        user=connection.user or said.get("user") or getpass.getuser(),
        key_files=(*keys, *(key for key in said.get("identityfile", []) if Path(key).is_file())),
        known_hosts=connection.known_hosts
        or _files(said.get("userknownhostsfile"))
        or (Path.home() / ".ssh" / "known_hosts",),
        global_known_hosts=connection.global_known_hosts
        or _files(said.get("globalknownhostsfile"))
        or (Path("/etc/ssh/ssh_known_hosts"),),
        password=connection.password,
        identities_only=said.get("identitiesonly") == "yes" if only is None else only,
    )


def _files(value: str | None) -> tuple[Path, ...]:
    return tuple(Path(item).expanduser() for item in (value or "").split())


def _through(
    name: str, jump: str, target: _Hop, config: paramiko.SSHConfig, stack: ExitStack
) -> paramiko.Channel:
    """A channel to ``target`` over one or more jump hosts (``user@host:port,…``).

    As with ``ssh -J``, keys and known hosts of the jump hosts come from the user's own
    configuration, not from the options meant for the target.
    """
    sock: paramiko.Channel | None = None
    hops = [_jump_hop(word.strip(), config) for word in jump.split(",")]
    for here, there in zip(hops, [*hops[1:], target], strict=True):
        label = f"{name}: jump host {here.address}"
        client = _login(label, here, sock, stack)
        transport = client.get_transport()
        assert transport is not None  # noqa: S101 - _login has just used it
        try:
            sock = transport.open_channel(
                "direct-tcpip",
                (there.address, there.port),
                ("127.0.0.1", 0),
                timeout=CONNECT_TIMEOUT_S,
            )
        except paramiko.SSHException as error:
            raise SshError(
                f"{label} cannot reach {there.address}:{there.port}", why=str(error)
            ) from None
    assert sock is not None  # noqa: S101 - split never gives an empty list
    return sock


def _jump_hop(word: str, config: paramiko.SSHConfig) -> _Hop:
    user, _, rest = word.removeprefix("ssh://").rpartition("@")
    address, port = rest, ""
    if rest.startswith("["):
        address, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        address, _, port = rest.partition(":")
    if not address or (port and not port.isdigit()):
        raise SshError(f"ProxyJump {word!r} is not [user@]host[:port]")
    connection = Connection(address, port=int(port) if port else None, user=user or None)
    return _hop(connection, config.lookup(address))


@contextmanager
def _proxied(name: str, command: str, hop: _Hop) -> Iterator[socket.socket]:
    """A socket whose other end is the standard input and output of a ProxyCommand."""
    for token, value in {"%h": hop.address, "%p": str(hop.port), "%r": hop.user, "%%": "%"}.items():
        command = command.replace(token, value)
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as errors:
        with theirs:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=errors,
            )
        try:
            yield ours
        except SshError as error:
            errors.seek(0)
            if said := errors.read().decode(errors="replace").strip():
                raise SshError(
                    f"{name}: the ProxyCommand failed", why=said.splitlines()[-1], fix=error.fix
                ) from None
            raise
        finally:
            process.terminate()
            process.wait()


def _login(
    name: str, hop: _Hop, sock: socket.socket | paramiko.Channel | None, stack: ExitStack
) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    for file in (*hop.known_hosts, *hop.global_known_hosts):
        if file.is_file():
            client.load_system_host_keys(str(file))
    stack.callback(client.close)
    try:
        client.connect(
            hop.address,
            hop.port,
            hop.user,
            password=hop.password,
            key_filename=list(hop.key_files),  # type: ignore[arg-type]  # the stubs know only one
            timeout=CONNECT_TIMEOUT_S,
            banner_timeout=CONNECT_TIMEOUT_S,
            auth_timeout=CONNECT_TIMEOUT_S,
            channel_timeout=CONNECT_TIMEOUT_S,
            allow_agent=not hop.identities_only,
            transport_factory=_Transport,  # type: ignore[arg-type]  # the stubs want its callers' names
            look_for_keys=not (hop.identities_only and hop.key_files),
            sock=sock,
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise _explained(name, hop, error) from None
    transport = client.get_transport()
    if transport is not None:
        transport.set_keepalive(_KEEPALIVE_S)
        _send_at_once(transport.sock)
    return client


def _explained(name: str, hop: _Hop, error: Exception) -> SshError:
    """The failure of one login as what, why and what to do."""
    place = f"{name} ({hop.address}:{hop.port})"
    file = _file_knowing(hop)
    if isinstance(error, paramiko.BadHostKeyException):
        return SshError(
            f"{place}: its host key has changed",
            why=f"{file} has another key than the host shows ({_fingerprint(error.key)}); "
            "either it was reinstalled, or something else answers at its address",
            fix=f"if it was reinstalled: ssh-keygen -R '{hop.key_name}' -f {file}",
        )
    if "not found in known_hosts" in str(error):
        option = f"-o UserKnownHostsFile={hop.known_hosts[0]} "
        by_hand = hop.target.replace("ssh ", f"ssh {option}", 1)
        return SshError(
            f"{place}: its host key is not known",
            why="no entry in " + ", ".join(str(item) for item in hop.known_hosts),
            fix=f"connect once by hand and compare the fingerprint: {by_hand}",
        )
    if isinstance(error, paramiko.PasswordRequiredException):
        return SshError(
            f"{place}: the private key has a passphrase",
            fix="load it into the agent: ssh-add " + " ".join(hop.key_files),
        )
    refused = "authentication" in str(error).lower()
    if isinstance(error, paramiko.AuthenticationException) or refused:
        return SshError(
            f"{place}: login as {hop.user} was refused",
            why=str(error).rstrip("."),
            fix=f"this must work without a question: {hop.target} true",
        )
    if isinstance(error, socket.gaierror):
        return SshError(
            f"{place}: no such address", why=str(error.strerror), fix="correct ansible_host"
        )
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        # Its own text is about addresses; the system's reasons are inside.
        reasons = {os.strerror(getattr(item, "errno", 0) or 0) for item in error.errors.values()}
        return SshError(f"{place}: cannot connect", why=", ".join(sorted(reasons)), fix=_UP)
    why = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        why = f"no answer within {CONNECT_TIMEOUT_S} s"
    return SshError(f"{place}: cannot connect", why=why, fix=_UP)


_UP = "is the machine up, and are ansible_host and ansible_port right?"


def _file_knowing(hop: _Hop) -> Path:
    for file in (*hop.known_hosts, *hop.global_known_hosts):
        if file.is_file() and paramiko.HostKeys(str(file)).lookup(hop.key_name):
            return file
    return hop.known_hosts[0]


def _fingerprint(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.fingerprint}"

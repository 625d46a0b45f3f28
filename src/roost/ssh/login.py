"""Logging in, through jump hosts or a proxy command if need be; every failure is explained."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import paramiko

from roost.inventory import Connection
from roost.ssh.errors import SshError
from roost.ssh.ordered import Transport

#: Seconds for each step of a login, and for a channel to be opened.
CONNECT_TIMEOUT_S = 15
#: Seconds between two signs of life, and until a host that acknowledges none of them is given up:
#: as long as Ansible's ssh waits, with the options of ansible.cfg.
_KEEPALIVE_S = 30
_SILENCE_S = 90
_SSH_PORT = 22


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


def open_client(name: str, connection: Connection, stack: ExitStack) -> paramiko.SSHClient:
    """Log in to a host.

    Args:
        name: The host's, for messages.
        connection: How Ansible would reach it.
        stack: Closes what was opened on the way.

    Raises:
        SshError: Unreachable, host key unknown or changed, login refused, or trouble with a jump
            host; each says what to do.
    """
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
    values = {"%h": hop.address, "%p": str(hop.port), "%r": hop.user, "%%": "%"}
    command = re.sub("%[hpr%]", lambda token: values[token[0]], command)
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
            transport_factory=Transport,  # type: ignore[arg-type]  # the stubs want its callers' names
            look_for_keys=not (hop.identities_only and hop.key_files),
            sock=sock,
        )
    except (paramiko.SSHException, OSError, EOFError) as error:
        raise _explained(name, hop, error) from None
    transport = client.get_transport()
    if transport is not None:
        transport.set_keepalive(_KEEPALIVE_S)
        send_at_once(transport.sock)
        _give_up_in_time(transport.sock)
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
            f"{place}: no such address",
            why=str(error.strerror),
            fix="correct the address (in an inventory ansible_host)",
        )
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        # Its own text is about addresses; the system's reasons are inside.
        reasons = {os.strerror(getattr(item, "errno", 0) or 0) for item in error.errors.values()}
        return SshError(f"{place}: cannot connect", why=", ".join(sorted(reasons)), fix=_UP)
    why = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        why = f"no answer within {CONNECT_TIMEOUT_S} s"
    return SshError(f"{place}: cannot connect", why=why, fix=_UP)


_UP = (
    "is the machine up, and are its address and port right (in an inventory ansible_host and "
    "ansible_port)?"
)


def _file_knowing(hop: _Hop) -> Path:
    for file in (*hop.known_hosts, *hop.global_known_hosts):
        if file.is_file() and paramiko.HostKeys(str(file)).lookup(hop.key_name):
            return file
    return hop.known_hosts[0]


def _fingerprint(key: paramiko.PKey) -> str:
    return f"{key.get_name()} {key.fingerprint}"


def _give_up_in_time(sock: object) -> None:
    """End a connection to a host that has lost its power or its network.

    Paramiko sends signs of life and expects no answer, and Linux waits for its acknowledgement for
    a quarter of an hour. Behind a jump host it is the jump host's kernel that acknowledges.
    """
    if _is_tcp(sock) and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_S * 1000)


def send_at_once(sock: object) -> None:
    """Hold back no small packet until the one before it is acknowledged, which takes up to 40 ms.

    A request is two writes (head, body), and so is the beginning of a streamed answer: both would
    wait. Jump hosts and proxy commands have no TCP socket here; nothing is to be done for them.
    """
    if _is_tcp(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _is_tcp(sock: object) -> TypeGuard[socket.socket]:
    return isinstance(sock, socket.socket) and sock.family in {socket.AF_INET, socket.AF_INET6}

"""Commands and tunnels against a real sshd on a loopback port."""

from __future__ import annotations

import contextlib
import gc
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from getpass import getuser
from pathlib import Path

import paramiko
import pytest
from tests.playbooks.playbook import inventory

from roost import inventory as inventories
from roost import ssh
from roost.inventory import Connection, Host
from roost.lab.fixtures import SharedLab
from roost.lab.network import INSIDE
from roost.ssh import login

pytestmark = pytest.mark.lab

SSHD = Path("/usr/sbin/sshd")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


@dataclass
class Sshd:
    """A running sshd and what a client needs to trust it and be trusted."""

    directory: Path
    port: int

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    def host(self, **changes: object) -> Host:
        connection = Connection(
            address="127.0.0.1",
            port=self.port,
            user=getuser(),
            key_file=self.directory / "client",
            known_hosts=(self.known_hosts,),
        )
        return Host("lab-01", {}, replace(connection, **changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if not SSHD.exists():
        pytest.fail("install openssh-server: these tests talk to a real sshd")
    directory = tmp_path_factory.mktemp("sshd")
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "client"):
        keygen(directory / name)
    (directory / "authorized_keys").write_text((directory / "client.pub").read_text())
    port = free_port()
    kind, key, *_ = (directory / "host.pub").read_text().split()
    (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (directory / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {directory}/host\n"
        f"AuthorizedKeysFile {directory}/authorized_keys\nStrictModes no\nUsePAM no\n"
        f"PidFile none\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", directory / "config"], stderr=-3)
    try:
        wait_for(lambda: socket.create_connection(("127.0.0.1", port), PATIENCE_S).close())
        yield Sshd(directory, port)
    finally:
        server.terminate()
        server.wait()


#: Seconds that anything here may take on a machine with much to do.
PATIENCE_S = 60


def wait_for(attempt: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return attempt()
        except (OSError, AssertionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Upper(socketserver.StreamRequestHandler):
    """Answers with everything it was sent, in capitals, once the sender has finished."""

    def handle(self) -> None:
        self.wfile.write(self.rfile.read().upper())


@pytest.fixture
def upper_port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Upper) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def exchange(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := client.recv(65536):
            answer += chunk
        return answer


def test_run_keeps_words_streams_and_status_apart(sshd: Sshd) -> None:
    with ssh.connect(sshd.host()) as remote:
        done = remote.run(["sh", "-c", 'printf %s "$1"; echo oops >&2; exit 7', "_", "a 'b'; c"])
    assert (done.rc, done.out, done.err) == (7, "a 'b'; c", "oops\n")


def test_run_passes_input_and_reads_both_streams_beyond_the_window(sshd: Sshd) -> None:
    big = 5_000_000
    with ssh.connect(sshd.host()) as remote:
        assert remote.run(["cat"], input="grüß").out == "grüß"
        done = remote.run(["sh", "-c", f"head -c {big} /dev/zero >&2; head -c {big} /dev/zero"])
    assert (len(done.out), len(done.err)) == (big, big)


def test_run_gives_up_in_time(sshd: Sshd) -> None:
    with (
        ssh.connect(sshd.host()) as remote,
        pytest.raises(ssh.SshError, match=r"lab-01: sleep 30 took longer"),
    ):
        remote.run(["sleep", "30"], timeout=0.2)


def test_a_connection_that_broke_is_opened_again(sshd: Sshd, upper_port: int) -> None:
    with ssh.connect(sshd.host()) as remote, remote.tunnel(upper_port) as tunnel:
        # Its session's own sshd.
        broken = ["sh", "-c", "kill $PPID; sleep 30"]
        with pytest.raises(ssh.SshError, match="the SSH connection broke during sh -c"):
            remote.run(broken)
        assert exchange(tunnel.port, b"again") == b"AGAIN"
        with pytest.raises(ssh.SshError, match="the SSH connection broke during"):
            remote.run(broken)
        assert remote.run(["echo", "again"]).out == "again\n"


def test_a_host_that_vanishes_is_noticed(
    lab: SharedLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cable is pulled: nobody says goodbye, and nothing is acknowledged any more."""
    monkeypatch.setattr(login, "_KEEPALIVE_S", 1)
    monkeypatch.setattr(login, "_SILENCE_S", 2)
    host = lab.host("cpu", fresh=True)
    where = inventory(tmp_path, lab.lab, [host])
    known = inventories.load(where).host(host.name)
    with ssh.connect(known) as remote:
        pulled = ["sh", "-c", f"(sleep 0.5; ip link set {INSIDE} down) & exec sleep 50"]
        with pytest.raises(ssh.BrokenConnectionError, match="the host hung up, or is gone"):
            remote.run(pulled)


def test_what_comes_late_to_a_closed_channel_costs_no_connection(
    sshd: Sshd, upper_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end of input that is on its way while the command ends, as on a machine with much to do.

    sshd hangs up on whoever speaks of a channel that it has forgotten.
    """
    end_of_input, data = 96, 94
    send = paramiko.Transport._send_user_message

    def slowly(transport: paramiko.Transport, message: paramiko.Message) -> None:
        if message.asbytes()[0] in {end_of_input, data}:
            time.sleep(0.3)
        send(transport, message)

    monkeypatch.setattr(paramiko.Transport, "_send_user_message", slowly)
    with ssh.connect(sshd.host()) as remote:
        (first,) = remote.run(["sh", "-c", "echo $PPID"]).out.split()
        remote.run(["true"])
        assert remote.run(["true"], input="nobody reads it" * 300_000).rc == 0
        with remote.tunnel(upper_port) as tunnel:
            assert exchange(tunnel.port, b"late") == b"LATE"
        (last,) = remote.run(["sh", "-c", "echo $PPID"]).out.split()
    assert first == last


def test_a_command_sees_that_nobody_waits_for_it(sshd: Sshd, tmp_path: Path) -> None:
    noted = f"cat; echo gone > {tmp_path}/seen"
    with ssh.connect(sshd.host()) as remote:
        assert remote.run(["echo", "at once"], attended=True).out == "at once\n"
        with pytest.raises(ssh.SshError, match="took longer"):
            remote.run(["sh", "-c", noted], timeout=0.5, attended=True)
    wait_for(lambda: (tmp_path / "seen").stat() and None)
    (tmp_path / "seen").unlink()
    with ssh.connect(Host("here", {}, Connection("127.0.0.1", local=True))) as local:
        assert local.run(["echo", "at once"], attended=True).out == "at once\n"
        with pytest.raises(ssh.SshError, match="took longer"):
            local.run(["sh", "-c", "exec sleep 9"], timeout=0.5, attended=True)


def test_tunnel_carries_concurrent_half_closed_connections(sshd: Sshd, upper_port: int) -> None:
    blobs = [bytes([97 + n]) * 3_000_000 for n in range(4)]
    answers: dict[int, bytes] = {}
    with ssh.connect(sshd.host()) as remote, remote.tunnel(upper_port) as tunnel:
        assert tunnel.address == "127.0.0.1"
        threads = [
            threading.Thread(
                target=lambda n=n, blob=blob: answers.update({n: exchange(tunnel.port, blob)})
            )
            for n, blob in enumerate(blobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {n: blob.upper() for n, blob in enumerate(blobs)}


#: How the names of a server's threads end, one a connection.
_SERVES = "(process_request_thread)"


def test_tunnel_ends_with_its_threads_and_open_connections(sshd: Sshd, upper_port: int) -> None:
    with ssh.connect(sshd.host()) as remote:
        before = set(threading.enumerate())

        def carried() -> None:
            """The tunnel has taken the connection, and the echoing server its other end."""
            new = set(threading.enumerate()) - before
            served = [thread for thread in new if thread.name.endswith(_SERVES)]
            assert len(served) == len(("the tunnel", "the server"))

        with remote.tunnel(upper_port) as tunnel:
            left_open = socket.create_connection(("127.0.0.1", tunnel.port), PATIENCE_S)
            left_open.sendall(b"unfinished")
            wait_for(carried)
            time.sleep(0.3)  # and its bytes are on their way
        new = set(threading.enumerate()) - before
        # Only the echoing server's thread for that connection may live a moment longer.
        assert all(thread.name.endswith(_SERVES) for thread in new)
        for thread in new:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        with left_open:
            assert left_open.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            exchange(tunnel.port, b"late")


def test_tunnel_holds_no_small_packet_back(sshd: Sshd, upper_port: int) -> None:
    """A request of two writes would wait up to 40 ms for an acknowledgement between them."""
    with (
        ssh.connect(sshd.host()) as remote,
        remote.tunnel(upper_port) as tunnel,
        socket.create_connection(("127.0.0.1", tunnel.port), PATIENCE_S) as client,
    ):
        client.sendall(b"begun")

        def at_once() -> None:
            """The one that was accepted and the one to sshd; the one that listens need not."""
            ours = [
                held
                for held in gc.get_objects()
                if isinstance(held, socket.socket) and held.fileno() >= 0 and held is not client
                if held.getsockname()[1:2] == (tunnel.port,)
                or (held.type == socket.SOCK_STREAM and _peer_port(held) == sshd.port)
            ]
            options = [held.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for held in ours]
            assert sorted(map(bool, options)) == [False, True, True]

        wait_for(at_once)


def _peer_port(held: socket.socket) -> int | None:
    try:
        return int(held.getpeername()[1])
    except (OSError, IndexError, ValueError):
        return None


def test_tunnel_to_nothing_says_so(sshd: Sshd) -> None:
    port = free_port()
    with ssh.connect(sshd.host()) as remote, remote.tunnel(port) as tunnel:
        with contextlib.suppress(ConnectionResetError):
            assert exchange(tunnel.port, b"x") == b""
        assert tunnel.refusals == [f"nothing answers on 127.0.0.1:{port}"]


def test_jump_host_and_proxy_command(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upper_port: int
) -> None:
    # The jump host's key and known_hosts come from the user's own configuration, as with ssh -J.
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        f"Host the-jump\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {getuser()}\n"
        f"  IdentityFile {sshd.directory}/client\n  UserKnownHostsFile {sshd.known_hosts}\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    with ssh.connect(sshd.host(proxy_jump="the-jump")) as remote:
        assert remote.run(["echo", "via jump"]).out == "via jump\n"
    with (
        ssh.connect(sshd.host(proxy_jump="the-jump,the-jump")) as remote,
        remote.tunnel(upper_port) as tunnel,
    ):
        assert exchange(tunnel.port, b"twice") == b"TWICE"

    command = (
        f"ssh -F none -i {sshd.directory}/client -o UserKnownHostsFile={sshd.known_hosts} "
        f"-p {sshd.port} -W %h:%p {getuser()}@127.0.0.1"
    )
    with ssh.connect(sshd.host(proxy_command=command)) as remote:
        assert remote.run(["echo", "via proxy"]).out == "via proxy\n"


def refusal(host: Host) -> str:
    with pytest.raises(ssh.SshError) as caught, ssh.connect(host):
        pass
    return str(caught.value)


def test_unreachable(sshd: Sshd) -> None:
    message = refusal(sshd.host(port=free_port()))
    assert "lab-01 (127.0.0.1:" in message
    assert "why: Connection refused" in message
    assert "no such address" in refusal(sshd.host(address="no-such-host.invalid"))


def test_unknown_host_key_never_advises_removal(sshd: Sshd, tmp_path: Path) -> None:
    message = refusal(sshd.host(known_hosts=(tmp_path / "empty",)))
    assert "its host key is not known" in message
    assert f"ssh -o UserKnownHostsFile={tmp_path}/empty -p {sshd.port} " in message
    assert "ssh-keygen -R" not in message


def test_changed_host_key_names_file_and_command(sshd: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "other")
    kind, key, *_ = (tmp_path / "other.pub").read_text().split()
    (tmp_path / "known").write_text(f"[127.0.0.1]:{sshd.port} {kind} {key}\n")
    message = refusal(sshd.host(known_hosts=(tmp_path / "known",)))
    assert "its host key has changed" in message
    assert "SHA256:" in message
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}' -f {tmp_path}/known" in message


def test_login_refused(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    keygen(tmp_path / "stranger")
    message = refusal(sshd.host(key_file=tmp_path / "stranger"))
    assert f"login as {getuser()} was refused" in message
    assert f"ssh -p {sshd.port} {getuser()}@127.0.0.1 true" in message
    assert f"no private key {tmp_path}/missing" in refusal(sshd.host(key_file=tmp_path / "missing"))


def test_jump_trouble_names_the_jump_host(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    nowhere = free_port()
    message = refusal(sshd.host(proxy_jump=f"127.0.0.1:{nowhere}"))
    assert f"lab-01: jump host 127.0.0.1 (127.0.0.1:{nowhere}): cannot connect" in message
    assert "is not [user@]host[:port]" in refusal(sshd.host(proxy_jump="me@:x"))
    message = refusal(sshd.host(proxy_command="echo no route from %%h to %h >&2; exit 1"))
    assert "lab-01: the ProxyCommand failed" in message
    assert "no route from %h to 127.0.0.1" in message


def test_local_connection_needs_no_ssh(upper_port: int) -> None:
    with ssh.connect(Host("here", {}, Connection("127.0.0.1", local=True))) as remote:
        assert remote.run(["cat"], input="x").out == "x"
        assert remote.run(["no-such-program"]).rc == 127
        with remote.tunnel(upper_port) as tunnel:
            assert exchange(tunnel.port, b"x") == b"X"

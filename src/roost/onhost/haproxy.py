"""HAProxy's runtime API, asked through its master process: all of its workers, and their servers.

A reload leaves the old worker to finish what it has begun. So there may be several at once, each
with requests of its own: what is set is set in all of them, and requests are summed over them.

As a program (``haproxy.py MASTER CONFIG STATES``) it keeps the servers' states for the next worker;
systemd runs it before each start and reload. Standard library only, and nothing of roost, for it
stands alone on the gateway.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

#: The backend of the role's configuration.
BACKEND = "engines"

#: Bits of ``srv_admin_state``: maintenance and drain, each asked for or inherited.
_MAINTENANCE = 0x01 | 0x02 | 0x04 | 0x20 | 0x40
_DRAIN = 0x08 | 0x10
#: ``srv_op_state``: starting slowly, or running.
_UP = {"1", "2"}
_HEADER = "# be_id "
#: Seconds for an answer, which comes at once unless HAProxy is just being reloaded.
_PATIENCE = 10.0
#: Seconds that its socket may refuse connections: while the master re-executes itself, which takes
#: some hundredths, nobody listens.
_DEAF = 1.0


class AbsentError(Exception):
    """No HAProxy runs behind that socket."""


class Server(NamedTuple):
    """A server of the backend, as the current worker sees it.

    Attributes:
        name: The inventory name of its host.
        address: Where its requests go.
        port: Its port there.
        tls: Whether requests go through TLS.
        state: ``ready``, ``drain`` or ``maint``, as somebody has asked for.
        up: Whether its health check has passed.
        check: What the last health check said.
        requests: Those that run or wait for it, in all workers.
        worker: PID of the current worker.
    """

    name: str
    address: str
    port: int
    tls: bool
    state: str
    up: bool
    check: str
    requests: int
    worker: str


class Haproxy:
    """An HAProxy in master-worker mode.

    Args:
        master: Path of the master's socket.
        config: Path of its configuration.
        states: Path of the file from which a new worker takes the servers' states.
    """

    def __init__(self, master: str, config: str, states: str) -> None:
        self._master = master
        self._config = Path(config)
        self._states_file = Path(states)

    def servers(self) -> list[Server]:
        """The servers as the current worker sees them.

        Raises:
            AbsentError: No HAProxy runs.
        """
        workers = self._workers()
        worker, states = self._states(workers[0])
        seen = [self._statistics(worker) for worker in workers]
        found = []
        for row in csv.DictReader(states.partition("# ")[2].splitlines(), delimiter=" "):
            name, admin = row["srv_name"], int(row["srv_admin_state"])
            told = seen[0].get(name, {})
            said = (told.get(key) for key in ("check_status", "check_code", "last_chk"))
            found.append(
                Server(
                    name=name,
                    address=row["srv_addr"],
                    port=int(row["srv_port"]),
                    tls=row["srv_use_ssl"] == "1",
                    state="maint"
                    if admin & _MAINTENANCE
                    else "drain"
                    if admin & _DRAIN
                    else "ready",
                    up=row["srv_op_state"] in _UP,
                    check=" ".join(part for part in said if part),
                    requests=sum(
                        int(one[name]["scur"]) + int(one[name]["qcur"])
                        for one in seen
                        if name in one
                    ),
                    worker=worker,
                )
            )
        return found

    def set(self, server: str, state: str) -> list[str]:
        """Put a server into a state (``drain`` or ``ready``) in all workers, and for later ones.

        Returns:
            PIDs of those that were told. One that was being started just then is not among them.

        Raises:
            AbsentError: No HAProxy runs.
        """
        with self._alone("lock"):
            workers = self._workers()
            for worker in workers:
                self._ask(worker, f"set server {BACKEND}/{server} state {state}")
            self._keep()
        return workers

    def keep(self) -> None:
        """Keep the servers' states for the next worker.

        With ports and TLS of the configuration: HAProxy would take those of the states though its
        configuration says otherwise now. Where no HAProxy runs, what was kept before stays.
        """
        with self._alone("lock"):
            self._keep()

    def ready_later(self, server: str) -> bool:
        """Where no HAProxy runs, have the next one take a drained server for ready.

        Returns:
            Whether it would have been drained.
        """
        if not self._states_file.exists():
            return False
        with self._alone("lock"):
            kept = self._states_file.read_text("utf-8")
            states = _undrained(kept, server)
            if states != kept:
                self._write(states)
        return states != kept

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """A lock for whoever decides which servers are drained; use it in a ``with``."""
        return self._alone("turn")

    @contextlib.contextmanager
    def _alone(self, purpose: str) -> Iterator[None]:
        with Path(f"{self._states_file}.{purpose}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _keep(self) -> None:
        kept = self._states_file
        try:
            _, states = self._states(self._workers()[0])
        except AbsentError:
            states = kept.read_text("utf-8") if kept.exists() else "1\n"
        self._write(_with_places(states, self._config.read_text("utf-8")))

    def _write(self, states: str) -> None:
        # This file stands alone on the gateway, and cannot have `atomic` with it.
        kept = self._states_file
        draft = kept.with_name(f"{kept.name}.new")
        with draft.open("w", encoding="utf-8") as written:
            written.write(states)
            written.flush()
            os.fsync(written.fileno())
        draft.replace(kept)

    def _workers(self) -> list[str]:
        """PIDs of the workers, the current one first."""
        for _ in _tries():
            found = re.findall(r"^(\d+)\s+worker\s", self._send("show proc"), re.MULTILINE)
            if found:
                return found
        raise AbsentError(f"{self._master}: its worker does not run")

    def _states(self, worker: str) -> tuple[str, str]:
        """The worker that answered, and what it said."""
        for _ in _tries():
            said = self._ask(worker, f"show servers state {BACKEND}")
            if _HEADER in said:
                return worker, said
            if "find backend" in said:
                raise AbsentError(f"{self._master}: it leads to no engines")
            worker = self._workers()[0]  # another one has taken its place
        raise AbsentError(f"{self._master}: {said.strip() or 'no answer'}")

    def _statistics(self, worker: str) -> dict[str, dict[str, str]]:
        """Statistics by server; empty where the worker has ended meanwhile."""
        said = self._ask(worker, f"show stat {BACKEND} 4 -1")
        rows = csv.DictReader(said.partition("# ")[2].splitlines())
        return {row["svname"]: row for row in rows}

    def _ask(self, worker: str, command: str) -> str:
        return self._send(f"@!{worker} {command}")

    def _send(self, command: str) -> str:
        """The answer to a command; empty where the master was re-executing itself just then."""
        deadline = time.monotonic() + _DEAF
        while (said := self._heard(command)) is None:
            if time.monotonic() > deadline:
                raise AbsentError(f"{self._master}: Connection refused")
            time.sleep(0.02)
        return said

    def _heard(self, command: str) -> str | None:
        """As :meth:`_send`, in one attempt; none where nobody listens."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_PATIENCE)
                connection.connect(self._master)
                connection.sendall(f"{command}\n".encode())
                connection.shutdown(socket.SHUT_WR)  # or the master waits for another command
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except FileNotFoundError as error:
            raise AbsentError(f"{self._master}: {error.strerror}") from None
        except ConnectionRefusedError:
            return None
        except OSError:
            return ""


def _tries() -> Iterator[None]:
    """Tries, a tenth of a second apart, for as long as a reload may take."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(0.1)


def _with_places(states: str, config: str) -> str:
    """The states with the ports and the TLS that the configuration's servers have now."""
    ports = dict(re.findall(r"^\s*server\s+(\S+)\s+\S+:(\d+)(?:\s|$)", config, re.MULTILINE))
    tls = re.search(r"^\s*default-server\s.*\sssl\s", config, re.MULTILINE)

    def placed(row: dict[str, str]) -> None:
        row["srv_port"] = ports.get(row["srv_name"], row["srv_port"])
        row["srv_use_ssl"] = "1" if tls else "0"

    return _changed(states, placed)


def _undrained(states: str, server: str) -> str:
    """The states with a server that is not drained; one in maintenance stays so."""

    def undrained(row: dict[str, str]) -> None:
        if row["srv_name"] == server:
            row["srv_admin_state"] = str(int(row["srv_admin_state"]) & ~_DRAIN)

    return _changed(states, undrained)


def _changed(states: str, change: Callable[[dict[str, str]], None]) -> str:
    """The states with a change to the row of every server."""
    lines = states.splitlines()
    header = next((line[2:].split() for line in lines if line.startswith(_HEADER)), [])
    kept = []
    for line in lines:
        fields = line.split()
        if header and len(fields) == len(header):
            row = dict(zip(header, fields))
            change(row)
            fields = list(row.values())
        kept.append(" ".join(fields))
    return "\n".join(kept) + "\n"


if __name__ == "__main__":
    Haproxy(*sys.argv[1:]).keep()

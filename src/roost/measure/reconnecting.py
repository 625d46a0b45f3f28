"""After a connection broke under a load: wait for the host, and end what may still run there."""

from __future__ import annotations

import time
from pathlib import PurePosixPath

from roost import ssh
from roost.errors import RoostError

#: Connections that one suite may lose: a network that breaks more often is to be mended first.
MOST = 3
#: Seconds that a host may be out of reach: a wireless network or a switch that starts anew.
PATIENCE_S = 300.0
_PAUSE_S = 5.0

#: Runs in the container. sshd may not have noticed that nobody waits any more, so the load goes on.
_END = """
import os, shutil, signal, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read()
        if os.fsencode(sys.argv[1]) in words and int(pid) != os.getpid():
            os.kill(int(pid), signal.SIGTERM)
    except OSError:
        pass
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""


def wait_and_clear(remote: ssh.Remote, container: str, folder: PurePosixPath) -> None:
    """Reach the host again, and end a load that has its files in ``folder`` of the container.

    Raises:
        RoostError: The host, or the container on it, was not reached in time.
    """
    deadline = time.monotonic() + PATIENCE_S
    words = ["docker", "exec", container, "python3", "-c", _END, str(folder)]
    while True:
        try:
            done = ssh.run_privileged(remote, words)
            if done.rc == 0:
                return
            # A host that starts anew answers before its Docker does.
            said = " ".join((done.err + done.out).split()) or f"exit status {done.rc}"
            raise RoostError(
                f"what was under way in {container} could not be ended",
                why=said[-400:],
                fix="see that it runs (docker ps), then measure again",
            )
        except RoostError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)

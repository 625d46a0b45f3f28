"""Servers that are started on this machine: whether they answer yet, and how their logs end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from roost.errors import RoostError


def wait(
    url: str,
    who: str,
    log: Path,
    seconds: float,
    ended: Callable[[], int | None] = lambda: None,
) -> None:
    """Wait until ``url`` answers 200.

    Args:
        url: Where it will answer.
        who: The server, for the message.
        log: Its output.
        seconds: For how long.
        ended: Gives its exit status once it has ended, as ``Popen.poll`` does.

    Raises:
        RoostError: It does not within ``seconds``, or has ended; with the end of the log.
    """
    deadline = time.monotonic() + seconds
    # No proxy of the environment: these addresses are this machine's.
    with httpx2.Client(trust_env=False, timeout=2.0) as client:
        while True:
            try:
                answers = client.get(url).status_code == 200
            except httpx2.TransportError:
                answers = False
            # Asked of one that answers, too: whoever has taken its port may have done so.
            if (status := ended()) is not None:
                raise RoostError(f"{who} has ended (exit status {status})", why=tail(log))
            if answers:
                return
            if time.monotonic() > deadline:
                raise RoostError(f"{who} does not answer at {url}", why=tail(log))
            time.sleep(0.05)


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return "it left no log"
    return "\n".join(text.strip().splitlines()[-lines:]) or "its log is empty"

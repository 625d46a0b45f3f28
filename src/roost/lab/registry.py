"""The lab's container registry: Debian's ``docker-registry``, which is CNCF Distribution.

Plain HTTP, bound to one address, storage in the cache, no upstream. :func:`serve` is for as long
as an image is pushed; a lab starts :func:`command` as a process of its own.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from roost.errors import RoostError
from roost.lab import network, processes

_START_SECONDS = 60.0


def configuration(storage: Path, address: str, port: int) -> str:
    """The registry's configuration file (JSON, which is YAML).

    Deleting is allowed, so that a test can take an image away; no cache of blob descriptors,
    so that two processes can share a storage.
    """
    return json.dumps(
        {
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(storage)},
                "delete": {"enabled": True},
            },
            "http": {"addr": f"{address}:{port}"},
        },
        indent=2,
    )


def command(config: Path) -> list[str]:
    """The registry as a command; ``config`` holds :func:`configuration`."""
    return ["docker-registry", "serve", str(config)]


def environment() -> dict[str, str]:
    """Our environment, less what the registry would take for overrides of its configuration."""
    return {key: value for key, value in os.environ.items() if not key.startswith("REGISTRY_")}


def wait(address: str, port: int, log: Path, seconds: float = _START_SECONDS) -> None:
    """Wait until the registry answers.

    Raises:
        RoostError: It does not within ``seconds``; with the end of its log.
    """
    wait_for_url(f"http://{address}:{port}/v2/", "the registry", log, seconds)


def wait_for_url(url: str, who: str, log: Path, seconds: float) -> None:
    """Wait until ``url`` answers 200.

    Raises:
        RoostError: It does not within ``seconds``; with the end of the log.
    """
    deadline = time.monotonic() + seconds
    # No proxy of the environment: the lab's addresses are this machine's.
    with httpx2.Client(trust_env=False, timeout=2.0) as client:
        while True:
            try:
                if client.get(url).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            if time.monotonic() > deadline:
                raise RoostError(f"{who} does not answer at {url}", why=processes.tail(log))
            time.sleep(0.05)


@contextmanager
def serve(storage: Path, address: str, port: int) -> Iterator[str]:
    """Run the registry for a while; gives ``address:port``.

    Raises:
        RoostError: It does not start (port taken, not installed).
    """
    user = network.port_user(ipaddress.IPv4Address(address), port)
    if user:
        raise RoostError(f"no registry can listen on {address}:{port}, it is taken: {user}")
    storage.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="roost-registry-") as scratch:
        config, log = Path(scratch) / "config.json", Path(scratch) / "log"
        config.write_text(configuration(storage, address, port))
        try:
            with log.open("wb") as output:
                child = subprocess.Popen(
                    command(config), stdout=output, stderr=output, env=environment()
                )
        except FileNotFoundError:
            raise RoostError(
                "docker-registry is not installed", fix="apt-get install docker-registry"
            ) from None
        try:
            wait(address, port, log)
            yield f"{address}:{port}"
        finally:
            child.terminate()
            child.wait()

"""A container registry on this machine: Debian's ``docker-registry``, which is CNCF Distribution.

Plain HTTP, bound to one address, storage in a folder, no upstream. :func:`serve` is for as long as
images are pushed; a lab starts :func:`command` as a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from roost import servers
from roost.errors import RoostError

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


def wait(address: str, port: int, log: Path, ended: Callable[[], int | None]) -> None:
    """Wait until the registry answers.

    Args:
        address, port: Where it is configured to.
        log: Its output.
        ended: Gives its exit status once it has ended, as ``Popen.poll`` does.

    Raises:
        RoostError: It does not within a minute, or has ended; with the end of its log.
    """
    servers.wait(f"http://{address}:{port}/v2/", "the registry", log, _START_SECONDS, ended)


@contextmanager
def serve(storage: Path) -> Iterator[str]:
    """Run the registry for a while, where only this machine reaches it; gives ``address:port``.

    Raises:
        RoostError: It does not start, or is not installed.
    """
    address = "127.0.0.1"
    with socket.create_server((address, 0)) as probe:
        port = probe.getsockname()[1]
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
            wait(address, port, log, child.poll)
            yield f"{address}:{port}"
        finally:
            child.terminate()
            child.wait()

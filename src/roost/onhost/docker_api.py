"""Docker's API over its socket, for callers that ask too often to start a program each time."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import quote

from .machine import MachineError

SOCKET = "/var/run/docker.sock"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("docker", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DockerApi:
    """This host's daemon.

    Args:
        path: Of its socket.
        timeout: Seconds that it may take to answer.
    """

    def __init__(self, path: str = SOCKET, timeout: float = 5.0) -> None:
        self._path = path
        self._timeout = timeout

    def inspect(self, container: str) -> dict[str, Any] | None:
        """All that Docker knows of a container; none if there is no such container.

        Raises:
            MachineError: The daemon does not answer.
        """
        status, body = self._ask("GET", f"/containers/{container}/json")
        if status == 404:
            return None
        found: dict[str, Any] = json.loads(body)
        return found

    def running(self, prefix: str) -> dict[str, str]:
        """Ids of running containers whose name begins with a prefix, by name.

        Raises:
            MachineError: The daemon does not answer.
        """
        wanted = quote(json.dumps({"name": [f"^/?{prefix}"]}))
        _, body = self._ask("GET", f"/containers/json?filters={wanted}")
        return {each["Names"][0].lstrip("/"): each["Id"] for each in json.loads(body)}

    def kill(self, container: str) -> None:
        """End a container at once; does nothing if it does not run.

        Raises:
            MachineError: The daemon does not answer.
        """
        self._ask("POST", f"/containers/{container}/kill")

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        connection = _Connection(self._path, self._timeout)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise MachineError(f"docker: {error}") from None
        finally:
            connection.close()
        if status >= 500:
            raise MachineError(f"docker: {body.decode(errors='replace').strip()}")
        return status, body

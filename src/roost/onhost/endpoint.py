"""An engine's HTTP side, as plain as a gate needs it."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any, Mapping, NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    """What came back.

    Attributes:
        status: Of HTTP; 0 where no answer came at all.
        body: Decoded JSON, else the text; the reason where no answer came.
        seconds: From sending the request to the whole answer.
    """

    status: int
    body: Any
    seconds: float


class Endpoint:
    """One engine on this host; proxies of the environment are none of its business.

    Args:
        base_url: Scheme (``http``), host and port.
        key: API key, sent with every request that does not say otherwise.
    """

    def __init__(self, base_url: str, key: str | None = None) -> None:
        self._address = urlsplit(base_url)
        self._key = key

    def get(self, path: str, timeout: float, *, keyless: bool = False) -> Reply:
        """A GET; ``timeout`` in seconds is for connecting and for each read."""
        return self._send("GET", path, None, timeout, keyless)

    def chat(self, body: Mapping[str, Any], timeout: float) -> Reply:
        """One chat completion, whole."""
        return self._send("POST", "/v1/chat/completions", json.dumps(body), timeout, False)

    def _send(
        self, method: str, path: str, content: str | None, timeout: float, keyless: bool
    ) -> Reply:
        headers = {"Content-Type": "application/json"} if content else {}
        if self._key and not keyless:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = http.client.HTTPConnection(
            str(self._address.hostname), self._address.port, timeout=timeout
        )
        begun = time.monotonic()
        try:
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            status, text = response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, str(error) or type(error).__name__, time.monotonic() - begun)
        finally:
            connection.close()
        seconds = time.monotonic() - begun
        try:
            return Reply(status, json.loads(text), seconds)
        except ValueError:
            return Reply(status, text, seconds)


def keys_of(deployment: Mapping[str, Any]) -> list[str]:
    """The API keys that its container reads."""
    sources = [Path(secret["source"]) for secret in deployment["spec"]["secrets"]]
    return [source.read_text(encoding="utf-8").strip() for source in sources]


def endpoint_of(deployment: Mapping[str, Any]) -> Endpoint:
    """Where it serves, with the API key that its container reads, if it asks for one."""
    keys = keys_of(deployment)
    return Endpoint(deployment["base_url"], keys[-1] if keys else None)

"""Headless Chromium over its own debugging protocol: no driver, no package beside a WebSocket.

Debian's ``chromium`` or ``chromium-headless-shell``; what a page asked of the network and what it
said on its console is kept.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websocket

_PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
#: Seconds for anything, on a machine with much to do.
_WAIT_S = 300.0


def program() -> str | None:
    """The browser, if there is one."""
    return next((found for name in _PROGRAMS if (found := shutil.which(name))), None)


@dataclass
class Page:
    """One tab.

    Attributes:
        asked: Addresses that were asked for since the page was opened, by the request's id.
        complaints: Errors and warnings on the console, and what the page's policy refused.
    """

    socket: websocket.WebSocket
    session: str = ""
    asked: dict[str, str] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    _sent: int = 0
    _loaded: bool = False

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser something and wait for its answer."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        self.socket.send(
            json.dumps(message | ({"sessionId": self.session} if self.session else {}))
        )
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Go to an address and wait until it is loaded."""
        self.asked.clear()
        self.complaints.clear()
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone,
        )  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._next()

    @property
    def requests(self) -> list[str]:
        """Addresses that were really asked for."""
        return list(self.asked.values())

    def before_each(self, script: str) -> None:
        """Run something before any script of the pages that are opened from now on."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def comes_to(self, script: str, holds: Callable[[Any], bool]) -> Any:
        """The value of an expression as soon as this holds of it; the last where it never does."""
        end = time.monotonic() + _WAIT_S
        while not holds(value := self.run(script)) and time.monotonic() < end:
            time.sleep(0.05)
        return value

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(done["data"]))

    def _next(self) -> dict[str, Any]:
        message = dict(json.loads(self.socket.recv()))
        method, given = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.asked[given["requestId"]] = given["request"]["url"]
        elif method == "Network.loadingFailed" and given.get("blockedReason") == "csp":
            # Never sent: the page's policy stands before the network.
            self.asked.pop(given["requestId"], None)
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and given["type"] in {"error", "warning"}:
            self.complaints.append(str(given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in {"error", "warning"}:
            self.complaints.append(given["entry"]["text"])
        elif method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {given['message']}")
            self.socket.send(
                json.dumps(
                    {
                        "id": 0,
                        "sessionId": self.session,
                        "method": "Page.handleJavaScriptDialog",
                        "params": {"accept": True},
                    }
                )
            )
        return message


@contextmanager
def browsing() -> Iterator[Page]:
    """A browser with one tab, for the length of a ``with``."""
    browser = program()
    assert browser, "no Chromium"
    with tempfile.TemporaryDirectory(prefix="roost-chromium-", ignore_cleanup_errors=True) as home:
        command = [
            browser, "--headless", "--remote-debugging-port=0", f"--user-data-dir={home}",
            "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            port, path = _address(Path(home) / "DevToolsActivePort")
            socket = websocket.create_connection(
                f"ws://127.0.0.1:{port}{path}", timeout=_WAIT_S, suppress_origin=True
            )
            page = Page(socket)
            target = page.call("Target.createTarget", url="about:blank")["targetId"]
            page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)[
                "sessionId"
            ]
            for domain in ("Page", "Runtime", "Log", "Network"):
                page.call(f"{domain}.enable")
            yield page
            socket.close()
        finally:
            # Its renderers and helpers too, whichever of them still live.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _address(file: Path) -> tuple[int, str]:
    """Where the browser listens, which it writes down when it does."""
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        if file.exists() and len(lines := file.read_text().splitlines()) == 2:
            return int(lines[0]), lines[1]
        time.sleep(0.05)
    raise AssertionError(f"Chromium did not start within {_WAIT_S:.0f} s")

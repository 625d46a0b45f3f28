"""Taking an engine's host out from behind its gateway without losing a request, and back in.

HAProxy is the only record: ``drain`` is ours, whoever set it; ``maint`` is an operator's and stays.
So whatever a killed run has left is seen, and ended, by the next one.
"""

from __future__ import annotations

import re
import ssl
import time
import urllib.request
from typing import Any, NamedTuple

from .counters import total
from .haproxy import AbsentError, Haproxy, Server

#: Seconds between two looks.
PACE = 0.5
#: Seconds an engine may take to show its metrics.
_METRICS_TIMEOUT = 5.0
#: Seconds after which a count that has not moved, nor any token beside it, counts nothing. vLLM
#: leaves its gauges as they are when all its requests were aborted (its issue 22545), SGLang
#: refreshes them 30 s late (its pull request 26495).
STALE = 45.0
_TAKEN_BACK = (
    "somebody has had it served again meanwhile",
    "deploy it again when nobody else works on this host",
)
_LAST = (
    "no other host would be left to serve",
    "deploy hosts one after another (playbooks/rollout.yml, or --limit), or go without for a while "
    "(gateway_drain_last: true)",
)


class Engine(NamedTuple):
    """Where and how an engine tells how many requests it works on.

    Attributes:
        metrics_path: Of its Prometheus page.
        gauges: Names of those whose sum is the number of requests that run or wait.
        ca_file: What its certificate is signed with, where it is spoken to by TLS.
    """

    metrics_path: str
    gauges: list[str]
    ca_file: str | None = None

    def page(self, server: Server) -> str:
        """Its metrics; empty where it does not show any."""
        scheme = "https" if server.tls else "http"
        address = f"[{server.address}]" if ":" in server.address else server.address
        url = f"{scheme}://{address}:{server.port}{self.metrics_path}"
        context = ssl.create_default_context(cafile=self.ca_file)
        context.check_hostname = False  # asked by its address, and only for a number
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(url, timeout=_METRICS_TIMEOUT) as answer:
                text: str = answer.read().decode(errors="replace")
        except (OSError, ValueError):
            return ""
        return text


def drain(
    haproxy: Haproxy, name: str, engine: Engine, *, timeout: float, late: str, last: bool
) -> dict[str, Any]:
    """Send a server no new requests, and wait until it has none.

    Args:
        haproxy: Of its gateway.
        name: Of the server.
        engine: How its engine counts.
        timeout: Seconds that its requests may take to end.
        late: What happens after that: ``fail`` takes the server back in, ``go_on`` leaves it
            drained.
        last: Drain it even where no other server is left.

    Returns:
        ``{changed, state, requests, engine_requests, seconds, failure, fix}``: the state is
        ``drain``, ``maint``, ``ready`` or ``absent`` (then there is nothing to wait for). A failure
        is a sentence with a fix, or none; after one, the server is in as it was.
    """
    begun = time.monotonic()
    changed = False
    with haproxy.turn():
        servers = _look(haproxy, name)
        if not servers:
            return _result("absent", begun)
        if servers[name].state == "ready":
            others = [one for one in servers.values() if one.name != name]
            serving = [one for one in others if one.up and one.state == "ready"]
            if others and not serving and servers[name].up and not last:
                return _result("ready", begun, failure=_LAST)
            drained = set(haproxy.set(name, "drain"))
            changed = True
        else:
            drained = {servers[name].worker}
    count = _Count(engine)
    while True:
        server = _look(haproxy, name).get(name)
        if server is None:
            return _result("absent", begun, changed=changed)
        if server.state == "ready":
            if server.worker in drained:
                # Whoever did so may know nothing of this wait: it outlives the playbook that was
                # interrupted. To insist would take the host from its clients for good.
                return _result("ready", begun, count=count, failure=_TAKEN_BACK)
            # A reload has read the states of the moment before.
            drained |= set(haproxy.set(name, "drain"))
        elif count.ended(server):
            return _result(server.state, begun, changed=changed, count=count)
        else:
            drained.add(server.worker)
        if time.monotonic() - begun > timeout:
            break
        time.sleep(PACE)
    if late == "go_on":
        return _result(server.state, begun, changed=changed, count=count)
    if server.state != "maint":
        haproxy.set(name, "ready")
    what = f"its requests have not ended within {timeout:g} s: {count.said()}"
    fix = "wait longer (gateway_drain_timeout), or cut them (gateway_drain_late: go_on)"
    return _result(
        "maint" if server.state == "maint" else "ready", begun, count=count, failure=(what, fix)
    )


def readmit(haproxy: Haproxy, name: str, *, timeout: float) -> dict[str, Any]:
    """Wait until a drained server's health check passes, then send it requests again.

    Where no HAProxy runs, the next one sends it requests, once its own health check passes.

    Returns:
        As :func:`drain`; with a failure it is drained still.
    """
    begun = time.monotonic()
    changed = False
    while True:
        server = _look(haproxy, name).get(name)
        if server is None and haproxy.ready_later(name):
            changed = True
            continue  # and look whether one has started meanwhile, with the states of before
        if server is None or server.state != "drain":
            return _result(server.state if server else "absent", begun, changed=changed)
        if server.up:
            haproxy.set(name, "ready")
            changed = True
            continue  # and look whether the current worker has heard it
        if time.monotonic() - begun > timeout:
            where, said = f"{server.address}:{server.port}", server.check or "not yet checked"
            what = f"the health check of {where} does not pass within {timeout:g} s: {said}"
            fix = "if the host serves, and elsewhere: playbooks/gateway.yml; then deploy it again"
            return _result("drain", begun, failure=(what, fix))
        time.sleep(PACE)


def foreseen(haproxy: Haproxy, name: str, wanted: str) -> dict[str, Any]:
    """What :func:`drain` (``drained``) or :func:`readmit` (``ready``) would do now.

    Returns:
        As they do, with the state as it is.
    """
    server = _look(haproxy, name).get(name)
    state = server.state if server else "absent"
    changed = state == ("ready" if wanted == "drained" else "drain")
    return _result(state, time.monotonic(), changed=changed)


def _look(haproxy: Haproxy, name: str) -> dict[str, Server]:
    """All servers by name; none where no HAProxy runs, or where it does not know this one."""
    try:
        found = {server.name: server for server in haproxy.servers()}
    except AbsentError:
        return {}
    return found if name in found else {}


class _Count:
    """The requests of one server, as HAProxy and its engine see them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tokens: list[str] = []
        self._since = time.monotonic()
        self.requests = 0
        self.engine_requests: float | None = None

    def ended(self, server: Server) -> bool:
        """Whether none is left."""
        self.requests = server.requests
        page = self._engine.page(server)
        counts = [total(page, gauge) for gauge in self._engine.gauges]
        known = [count for count in counts if count is not None]
        running = sum(known) if known else None
        tokens = re.findall(r"^\S+?_tokens_total.*$", page, re.MULTILINE)
        if (running, tokens, server.requests) != (self.engine_requests, self._tokens, 0):
            self._since = time.monotonic()
        self.engine_requests, self._tokens = running, tokens
        # Of an engine that counts no requests, or does not answer, HAProxy's count is all there is.
        return server.requests == 0 and (not running or time.monotonic() - self._since >= STALE)

    def said(self) -> str:
        """Both counts, in words."""
        engine = "nothing" if self.engine_requests is None else f"{self.engine_requests:g}"
        return f"HAProxy counts {self.requests}, the engine {engine}"


def _result(
    state: str,
    begun: float,
    *,
    changed: bool = False,
    count: _Count | None = None,
    failure: tuple[str, str] = ("", ""),
) -> dict[str, Any]:
    return {
        "changed": changed,
        "state": state,
        "requests": count.requests if count else 0,
        "engine_requests": count.engine_requests if count else None,
        "seconds": round(time.monotonic() - begun, 1),
        "failure": failure[0] or None,
        "fix": failure[1] or None,
    }

#!/usr/bin/python
"""Ansible module: wait until an engine is healthy, as long as it still can be."""

from __future__ import annotations

import calendar
import http.client
import json
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
---
module: engine_ready
short_description: Wait until an engine in a container is healthy, or has ended
description:
  - Polls the engine's health address, and watches its container meanwhile. An engine that ends
    is reported at once, with the last lines of its log, however long the timeout.
  - Docker may have restarted the container by then; what counts is that the start which was
    waited for did not succeed.
options:
  container:
    description: Name of the container.
    type: str
    required: true
  url:
    description: Address that answers 200 when the engine is ready.
    type: str
    required: true
  timeout:
    description: Seconds until an engine that neither ends nor gets healthy is given up.
    type: int
    default: 1800
  log_lines:
    description: How many lines of the log to show when it failed; causes stand far above the end.
    type: int
    default: 100
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Wait until the engine is healthy
  engine_ready:
    container: roost-llm
    url: http://127.0.0.1:8000/health
"""

RETURN = r"""
seconds:
  description: Seconds since the container was started, when the engine was found healthy.
  returned: always
  type: float
"""


INTERVAL = 0.5
#: Seconds that one answer may take; an engine that is loading may be slow to accept.
ANSWER = 5.0


def state_of(container: str) -> dict[str, Any] | None:
    """Docker's ``State`` of a container; none if there is no such container."""
    done = subprocess.run(
        ["docker", "inspect", "--type=container", "--format={{json .State}}", container],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return None
    state: dict[str, Any] = json.loads(done.stdout)
    return state


def log_of(container: str, lines: int, until: str | None) -> str:
    """The end of its log, both streams in order; up to a moment, if one is given."""
    argv = [
        "docker",
        "logs",
        f"--tail={lines}",
        *([f"--until={until}"] if until else []),
        container,
    ]
    done = subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout.rstrip() or "(it wrote nothing)"


def healthy(url: str) -> bool:
    """Whether the address answers 200; proxies of the environment are none of its business."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return False


def age(state: dict[str, Any]) -> float:
    """Seconds since the container was started."""
    started = time.strptime(state["StartedAt"][:19], "%Y-%m-%dT%H:%M:%S")
    return time.time() - calendar.timegm(started)


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "url": {"type": "str", "required": True},
            "timeout": {"type": "int", "default": 1800},
            "log_lines": {"type": "int", "default": 100},
        },
        supports_check_mode=False,
    )
    container, url = module.params["container"], module.params["url"]
    begun = time.monotonic()
    first = state = state_of(container)
    while state is not None:
        restarted = first is not None and state["StartedAt"] != first["StartedAt"]
        if restarted or not state["Running"]:
            until = state["StartedAt"] if restarted else None
            code = "" if restarted else f" with exit code {state['ExitCode']}"
            killed = " (the kernel killed it for memory)" if state.get("OOMKilled") else ""
            log = log_of(container, module.params["log_lines"], until)
            module.fail_json(
                msg=f"The engine in {container} ended{code}{killed} before it was healthy. The "
                f"last lines of its log:\n{log}",
                seconds=round(time.monotonic() - begun, 1),
            )
        if healthy(url):
            module.exit_json(changed=False, seconds=round(age(state), 1))
        if time.monotonic() - begun > module.params["timeout"]:
            log = log_of(container, module.params["log_lines"], None)
            module.fail_json(
                msg=f"The engine in {container} runs, but {url} did not answer 200 within "
                f"{module.params['timeout']} s (roost_ready_timeout). The last lines of its log:\n"
                f"{log}",
                seconds=round(time.monotonic() - begun, 1),
            )
        time.sleep(INTERVAL)
        state = state_of(container)
    module.fail_json(msg=f"There is no container {container} (any more).")


if __name__ == "__main__":
    main()

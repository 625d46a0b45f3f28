#!/usr/bin/python
"""Ansible module: take an engine's host out from behind its gateway, or back in."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import draining
from ansible.module_utils.roost.onhost.haproxy import AbsentError, Haproxy

DOCUMENTATION = r"""
---
module: gateway_server
short_description: Take an engine's host out from behind its gateway, or back in
description:
  - Runs on the gateway. With O(state=drained), HAProxy sends the server no new requests, and the
    module waits until those that run have ended, as HAProxy and the engine count them.
  - With O(state=ready), it waits until the health check of a drained server passes, and has it
    served again. A server in maintenance (C(maint)) is an operator's, and is left alone.
  - What is set holds over reloads and restarts of HAProxy.
  - Where no HAProxy runs, or where it does not know the server, there is nothing to wait for. With
    O(state=ready), one that starts later sends a server requests that was drained before.
options:
  name:
    description: Name of the server, which is the inventory name of its host.
    type: str
    required: true
  state:
    description: What is wanted.
    type: str
    choices: [drained, ready]
    required: true
  timeout:
    description: Seconds to wait.
    type: int
    default: 900
  late:
    description:
      - What to do when running requests do not end in time; V(fail) has the server served again and
        fails, V(go_on) leaves it drained with its requests running.
    type: str
    choices: [fail, go_on]
    default: fail
  last:
    description: Drain it though no other server would be left to serve.
    type: bool
    default: false
  metrics_path:
    description: Path of the engine's Prometheus page.
    type: str
    default: /metrics
  gauges:
    description: Gauges on it whose sum is the number of requests that run or wait.
    type: list
    elements: str
    default: []
  ca_file:
    description: What the engine's certificate is signed with, where it is spoken to by TLS.
    type: path
  master:
    description: Socket of HAProxy's master process.
    type: path
    default: /run/haproxy-master.sock
  config:
    description: HAProxy's configuration.
    type: path
    default: /etc/haproxy/haproxy.cfg
  states:
    description: File from which HAProxy takes the states of its servers when it starts.
    type: path
    default: /var/lib/haproxy/server-state
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Send it no more requests
  gateway_server:
    name: spark-01
    state: drained
    gauges: ["vllm:num_requests_running", "vllm:num_requests_waiting"]
  delegate_to: gate-01
"""

RETURN = r"""
state:
  description: >-
    As it is now - V(drain), V(ready), V(maint), or V(absent) where there is no such server.
  returned: always
  type: str
requests:
  description: Requests that HAProxy counted when the wait was over.
  returned: always
  type: int
engine_requests:
  description: Those that the engine counted; none where it did not say.
  returned: always
  type: float
fix:
  description: What to do about a failure.
  returned: always
  type: str
seconds:
  description: How long it took.
  returned: always
  type: float
"""


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drained", "ready"], "required": True},
            "timeout": {"type": "int", "default": 900},
            "late": {"type": "str", "choices": ["fail", "go_on"], "default": "fail"},
            "last": {"type": "bool", "default": False},
            "metrics_path": {"type": "str", "default": "/metrics"},
            "gauges": {"type": "list", "elements": "str", "default": []},
            "ca_file": {"type": "path"},
            "master": {"type": "path", "default": "/run/haproxy-master.sock"},
            "config": {"type": "path", "default": "/etc/haproxy/haproxy.cfg"},
            "states": {"type": "path", "default": "/var/lib/haproxy/server-state"},
        },
        supports_check_mode=True,
    )
    try:
        result = act(module.params, module.check_mode)
    except AbsentError as error:
        module.fail_json(
            msg=f"HAProxy ended meanwhile: {error}", fix="see `systemctl status haproxy`"
        )
    failure = result.pop("failure")
    if failure:
        module.fail_json(msg=failure, **result)
    module.exit_json(**result)


def act(given: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """What is asked for, or what it would be."""
    haproxy = Haproxy(given["master"], given["config"], given["states"])
    name = given["name"]
    if check_mode:
        return draining.foreseen(haproxy, name, given["state"])
    if given["state"] == "ready":
        return draining.readmit(haproxy, name, timeout=given["timeout"])
    engine = draining.Engine(given["metrics_path"], given["gauges"], given["ca_file"])
    limits = {key: given[key] for key in ("timeout", "late", "last")}
    return draining.drain(haproxy, name, engine, **limits)


if __name__ == "__main__":
    main()

#!/usr/bin/python
"""Ansible module: stop the engine of a host, whose release stays in place."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import lease, transaction
from ansible.module_utils.roost.onhost import store as stores
from ansible.module_utils.roost.onhost.machine import Machine, MachineError

DOCUMENTATION = r"""
---
module: engine_stop
short_description: Stop the engine of a host, whose release stays in place
description:
  - Stops the container that serves, and keeps its unit from starting it at boot. A deploy, a
    rollback or C(playbooks/start.yml) starts it again.
  - A swap that a killed process has left is ended first.
options:
  directory:
    description: Where releases are recorded.
    type: path
    required: true
  turn_timeout:
    description: Seconds to wait for a deploy of this host to end.
    type: int
    default: 0
  who:
    description: Who stops it, for those who wait for their turn.
    type: str
    default: somebody
  despite_lease:
    description: Also on a host that takes part in a rollout or an experiment.
    type: bool
    default: false
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Stop it
  engine_stop:
    directory: /var/lib/roost/releases
"""

RETURN = r"""
fix:
  description: What to do about a failure, where that is known.
  returned: on failure
  type: str
"""


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "turn_timeout": {"type": "int", "default": 0},
            "who": {"type": "str", "default": "somebody"},
            "despite_lease": {"type": "bool", "default": False},
        },
        supports_check_mode=False,
    )
    given = module.params
    store = stores.Store(given["directory"])
    try:
        store.take_turn(f"{given['who']} stops the engine", given["turn_timeout"])
    except stores.BusyError as error:
        fix = "stop it when that has ended"
        module.fail_json(msg=f"another deploy is at work on this host ({error})", fix=fix)
    others = lease.of_others(store)
    if others and not given["despite_lease"]:
        said = f"it takes part in {lease.part(others)} ({lease.said(others)})"
        module.fail_json(msg=said, fix=lease.fix(others))
    try:
        changed = transaction.halt(Machine(), store)
        if others and "experiment" in others:
            # Else it would have the engine serve again with whatever it tries next.
            lease.give_up(store, others["owner"])
        module.exit_json(changed=changed)
    except (MachineError, OSError) as error:
        module.fail_json(msg=str(error), fix="see systemctl status roost-llm docker on the host")


if __name__ == "__main__":
    main()

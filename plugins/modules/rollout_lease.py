#!/usr/bin/python
"""Ansible module: have a host take part in one rollout or experiment, and in no other."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import RELEASES, lease
from ansible.module_utils.roost.onhost.store import Store

DOCUMENTATION = r"""
---
module: rollout_lease
short_description: Have a host take part in one rollout or experiment, and in no other
description:
  - Writes down on the host whose rollout or experiment it takes part in. Where it is another
    controller's that was renewed within a day, nothing is changed, which is no failure of the
    module; RV(held) says it.
options:
  directory:
    description: Where releases are recorded.
    type: path
    default: /var/lib/roost/releases
  lease:
    description: >-
      What is to be known of it; C(owner) is the controller's, and C(experiment) says that it is
      one, and of which kind.
    type: dict
    required: true
  state:
    description: >-
      V(held) takes or renews it, V(free) ends it if it is this controller's, V(asked) changes
      nothing and only returns another controller's (RV(others)).
    type: str
    choices: [held, free, asked]
    default: held
  take_over:
    description: Take the host from whoever has it.
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
- name: Take the host for this rollout
  rollout_lease:
    lease: {owner: 3f1c, who: ops@desk, inventory: /srv/roost/inventory/fleet}
"""

RETURN = r"""
held:
  description: Whether the host takes part in this controller's rollout now.
  returned: with O(state=held)
  type: bool
was:
  description: The lease that was there, with C(since) and C(renewed); none if there was none.
  returned: with O(state=held)
  type: dict
others:
  description: The lease of another controller's rollout that goes on; none if there is none.
  returned: with O(state=asked)
  type: dict
said:
  description: Whose that is, in words.
  returned: with RV(others)
  type: str
fix:
  description: What somebody can do who wanted to change the host.
  returned: with RV(others)
  type: str
"""


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "default": RELEASES},
            "lease": {"type": "dict", "required": True},
            "state": {"type": "str", "choices": ["held", "free", "asked"], "default": "held"},
            "take_over": {"type": "bool", "default": False},
        },
        supports_check_mode=False,
    )
    given, store = module.params, Store(module.params["directory"])
    try:
        if given["state"] == "free":
            lease.give_up(store, given["lease"]["owner"])
            module.exit_json(changed=False)
        if given["state"] == "asked":
            others = lease.of_others(store, given["lease"]["owner"])
            words = {"said": lease.said(others), "fix": lease.fix(others)} if others else {}
            module.exit_json(changed=False, others=others, **words)
        found = lease.take(store, given["lease"], take_over=given["take_over"])
        module.exit_json(changed=False, **found)
    except OSError as error:
        module.fail_json(msg=f"whose rollout this host takes part in cannot be written: {error}")


if __name__ == "__main__":
    main()

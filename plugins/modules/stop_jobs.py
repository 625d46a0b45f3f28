#!/usr/bin/python
"""Ansible module: end background jobs before their time."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import jobs

DOCUMENTATION = r"""
---
module: stop_jobs
short_description: End background jobs before their time
description:
  - Kills them with everything that they have started, and forgets them. M(hf_snapshot) goes on from
    there the next time, as after any kill.
options:
  jobs:
    description: RV(ignore:results_file) of the tasks that began them.
    type: list
    elements: path
    required: true
attributes:
  check_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Fetch no more
  stop_jobs:
    jobs: "{{ begun.results | map(attribute='results_file') }}"
"""

RETURN = r"""
stopped:
  description: Those that were at work.
  returned: success
  type: list
  elements: path
"""


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={"jobs": {"type": "list", "elements": "path", "required": True}}
    )
    stopped = [job for job in module.params["jobs"] if jobs.stop(Path(job))]
    module.exit_json(changed=bool(stopped), stopped=stopped)


if __name__ == "__main__":
    main()

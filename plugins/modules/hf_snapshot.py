#!/usr/bin/python
"""Ansible module: one repository of a model hub at one commit, whole or not there at all."""

from __future__ import annotations

import re
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import DISK_HEADROOM_BYTES, RELEASES
from ansible.module_utils.roost.onhost.weights.disk import explaining
from ansible.module_utils.roost.onhost.weights.failures import SnapshotError
from ansible.module_utils.roost.onhost.weights.snapshot import Snapshot

DOCUMENTATION = r"""
---
module: hf_snapshot
short_description: Keep one revision of a model repository on disk
description:
  - Downloads every file of a repository at one commit, verifies sizes and hashes against the
    hub's own record, looks into the weights, and makes the directory visible with one rename. A
    directory that is there is whole.
  - An interrupted download, killed or without power included, is continued by the next run from
    the byte it had reached. Runs on one host take turns.
  - With the directory in place nothing is asked of the hub.
  - In check mode the hub is asked what would be fetched, so a revision that does not exist, or a
    hub that does not answer, is found before anything changes.
options:
  repo_id:
    description: C(organisation/name) on the hub.
    type: str
    required: true
  revision:
    description: The full commit, 40 hexadecimal digits. Branches and shortened commits move.
    type: str
    required: true
  dest:
    description:
      - Directory of this revision, V(<model_dir>/<org>--<name>/<revision>). Its parent also holds
        the partial download, with a leading dot, and V(<model_dir>) the lock file.
    type: path
    required: true
  state:
    description:
      - V(absent) removes the revision and what is left of its download, unless a release that is
        kept on the host names it.
    type: str
    choices: [present, absent]
    default: present
  allow_patterns:
    description: Fetch only files that match one of these (C(fnmatch) on the whole path).
    type: list
    elements: str
    default: []
  ignore_patterns:
    description: Do not fetch files that match one of these.
    type: list
    elements: str
    default: []
  endpoint:
    description: Address of the hub or of a mirror of it.
    type: str
    default: https://huggingface.co
  token:
    description: Access token for private and gated repositories; sent to the endpoint alone.
    type: str
  headroom:
    description: Bytes that must stay free on the filesystem after the download.
    type: int
    default: 1073741824
  timeout:
    description: Seconds until an unanswered question to the hub counts as no answer.
    type: int
    default: 20
  stall_timeout:
    description: Seconds without a byte until a transfer is broken off and tried again.
    type: int
    default: 30
  retries:
    description:
      - How often in a row, without a new byte, something that may pass is tried again (no answer,
        5xx, 429, a broken transfer). Pauses double from one second, or are what the hub asks for.
    type: int
    default: 5
  max_wait:
    description: Longest pause in seconds that a hub may ask for; a longer one fails at once.
    type: int
    default: 300
  releases:
    description: Where this host's releases are recorded; what they name is not removed.
    type: path
    default: /var/lib/roost/releases
requirements:
  - huggingface_hub with hf_xet, for transfers from Xet storage; without it everything comes by
    plain HTTP
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
author:
  - roost
"""

EXAMPLES = r"""
- name: Keep the weights that the lock names
  hf_snapshot:
    repo_id: z-lab/Qwen3.6-35B-A3B-DFlash
    revision: 0123456789abcdef0123456789abcdef01234567
    dest: /srv/models/z-lab--Qwen3.6-35B-A3B-DFlash/0123456789abcdef0123456789abcdef01234567
    token: "{{ roost_hub_token | default(omit) }}"
  vars:
    ansible_python_interpreter: /var/lib/roost/venv/bin/python
"""

RETURN = r"""
present:
  description: Whether the directory was in place already.
  returned: success
  type: bool
bytes:
  description: >-
    Bytes that came over the network, those fetched twice counted twice; in check mode those that
    would have to come.
  returned: always
  type: int
files:
  description: How many files of the revision there are, or with O(state=absent) were.
  returned: always
  type: int
seconds:
  description: How long it took.
  returned: always
  type: float
path:
  description: The directory.
  returned: always
  type: str
reason:
  description: >-
    Why it failed, one of V(network), V(dns), V(tls), V(timeout), V(hub_error), V(rate_limit),
    V(token), V(gated), V(forbidden), V(repository), V(revision), V(broken_off), V(stalled),
    V(truncated), V(hash), V(not_weights), V(incomplete), V(disk), V(target), V(released),
    V(usage).
  returned: failure
  type: str
outage:
  description: Whether it may pass by itself, and says nothing of what was asked for.
  returned: failure
  type: bool
"""


def ensure(module: AnsibleModule) -> dict[str, Any]:
    """Bring the directory about, or in check mode say what that would take."""
    if not re.fullmatch(r"[0-9a-f]{40}", module.params["revision"]):
        raise SnapshotError(
            "usage",
            f"revision {module.params['revision']!r} of {module.params['repo_id']} is not a full "
            "commit (40 hexadecimal digits)",
            "Run `roost lock`",
        )
    # An error about such a header would have the token in it, written otherwise than Ansible hides.
    if not re.fullmatch(r"[!-~]*", module.params["token"] or ""):
        raise SnapshotError(
            "token",
            "the token has a character that no token has (a line break at its end, for example)",
            "Correct roost_hub_token",
        )
    if not re.match(r"https?://", module.params["endpoint"]):
        raise SnapshotError(
            "usage",
            f"endpoint {module.params['endpoint']!r} is not an http(s) address",
            "Correct roost_hub_endpoint",
        )
    snapshot = Snapshot(module.params)
    with explaining(snapshot.revision.name, snapshot.place.dest.parent):
        if module.params["state"] == "absent":
            return snapshot.absent(module.check_mode)
        return snapshot.present(module.check_mode)


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "repo_id": {"type": "str", "required": True},
            "revision": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "allow_patterns": {"type": "list", "elements": "str", "default": []},
            "ignore_patterns": {"type": "list", "elements": "str", "default": []},
            "endpoint": {"type": "str", "default": "https://huggingface.co"},
            "token": {"type": "str", "no_log": True},
            "headroom": {"type": "int", "default": DISK_HEADROOM_BYTES},
            "timeout": {"type": "int", "default": 20},
            "stall_timeout": {"type": "int", "default": 30},
            "retries": {"type": "int", "default": 5},
            "max_wait": {"type": "int", "default": 300},
            "releases": {"type": "path", "default": RELEASES},
        },
        supports_check_mode=True,
    )
    started = time.monotonic()
    try:
        outcome = ensure(module)
    except SnapshotError as failure:
        module.fail_json(msg=str(failure), reason=failure.reason, outage=failure.outage)
    module.exit_json(
        path=module.params["dest"], seconds=round(time.monotonic() - started, 1), **outcome
    )


if __name__ == "__main__":
    main()

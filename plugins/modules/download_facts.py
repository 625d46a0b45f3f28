#!/usr/bin/python
"""Ansible module: how far background downloads have come."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import jobs
from ansible.module_utils.roost.onhost.weights import partial_of

DOCUMENTATION = r"""
---
module: download_facts
short_description: How far background downloads have come
description:
  - Looks at the records of background jobs and at what they have brought. Changes nothing.
options:
  downloads:
    description: The jobs.
    type: list
    elements: dict
    required: true
    options:
      job:
        description: RV(ignore:results_file) of the task that began it.
        type: path
        required: true
      path:
        description: >-
          The directory that will be there when it is done, beside which the partial one lies, or
          the file that M(image_pull) writes.
        type: path
        required: true
attributes:
  check_mode:
    support: full
author:
  - roost
"""

EXAMPLES = r"""
- name: Look how far it is
  download_facts:
    downloads:
      - job: "{{ pull.results_file }}"
        path: /run/roost-image-pull.json
"""

RETURN = r"""
downloads:
  description: >-
    For each C(done) (bytes, none if it cannot be told), C(stage), and C(result), what the job has
    returned, none while it works.
  returned: success
  type: list
  elements: dict
"""


def look(job: Path, path: Path) -> dict[str, Any]:
    """One download: ``{done, stage, result}``."""
    done, stage = _progress(path)
    return {"done": done, "stage": stage, "result": jobs.result(job)}


def _progress(path: Path) -> tuple[int | None, str]:
    if path.suffix == ".json":
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return int(told["done"]), str(told["stage"])
        except (OSError, ValueError, KeyError, TypeError):
            return None, "begins"
    for place, stage in ((path, "done"), (partial_of(path), "fetching")):
        if place.is_dir():
            return _bytes(place), stage
    return None, "waits"


def _bytes(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it has moved on
                total += Path(where, name).stat().st_size
    return total


def main() -> None:
    """Entry point of the module."""
    one = {
        "job": {"type": "path", "required": True},
        "path": {"type": "path", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "downloads": {"type": "list", "elements": "dict", "required": True, "options": one}
        },
        supports_check_mode=True,
    )
    given = module.params["downloads"]
    module.exit_json(
        changed=False,
        downloads=[look(Path(one["job"]), Path(one["path"])) for one in given],
    )


if __name__ == "__main__":
    main()

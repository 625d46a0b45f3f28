#!/usr/bin/python
"""Ansible module: how far background downloads have come."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

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
    return {"done": done, "stage": stage, "result": _result(job)}


def _progress(path: Path) -> tuple[int | None, str]:
    if path.suffix == ".json":
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return int(told["done"]), str(told["stage"])
        except (OSError, ValueError, KeyError, TypeError):
            return None, "begins"
    partial = path.with_name(f".{path.name}.partial")
    for place, stage in ((path, "done"), (partial, "fetching")):
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


def _result(job: Path) -> dict[str, Any] | None:
    """What a job has returned, none while it works."""
    if (ended := _recorded(job)) is not None or _alive(job.name):
        return ended
    # It may have ended between the two looks.
    gone = "its process on the host is gone: killed, or the host was restarted"
    return _recorded(job) or {"failed": True, "msg": gone}


def _recorded(job: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(job.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    # As long as it works, its record says only that it was begun.
    ended = isinstance(found, dict) and ("changed" in found or "failed" in found)
    return found if ended else None


def _alive(job: str) -> bool:
    """Whether Ansible's wrapper of the job runs.

    Among its arguments is the job's id without the number after the dot, which is that of a process
    that has long ended.
    """
    begun_as = job.rsplit(".", 1)[0].encode()
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if begun_as in arguments.read_bytes().split(b"\0"):
                return True
        except OSError:  # it has ended
            continue
    return False


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

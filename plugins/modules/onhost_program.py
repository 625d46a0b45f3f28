#!/usr/bin/python
"""Ansible module: put the part of roost that runs on a host by itself onto the host."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# Ansible sends along what a module imports, so this line is what decides which files there are.
from ansible.module_utils.roost.onhost import atomic, watchdog

DOCUMENTATION = r"""
---
module: onhost_program
short_description: Put the part of roost that runs on a host by itself onto the host
description:
  - Writes the watchdog and all that it needs as a Python package, which needs nothing else than
    the host's own Python. Files in that directory which do not belong to it are removed.
options:
  dest:
    description: Directory of the package; the one above it exists, or is made.
    type: path
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Have the program
  onhost_program:
    dest: /usr/local/lib/roost/onhost
"""

RETURN = r"""
files:
  description: Names of the package's files.
  returned: always
  type: list
  elements: str
"""

PACKAGE = watchdog.__name__.rpartition(".")[0]


def sources() -> dict[str, str]:
    """The package's files by name, as they came here with the module."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            file = name[len(PACKAGE) + 1 :] or "__init__"
            found[f"{file}.py"] = module.__loader__.get_source(name)  # type: ignore[union-attr]
    return found


def put(wanted: dict[str, str], folder: Path, *, check: bool) -> bool:
    """Make a directory have these files and no others; whether it had not."""
    present = {path.name: path for path in folder.glob("*")}
    same = all(
        name in present and present[name].read_text(encoding="utf-8") == text
        for name, text in wanted.items()
    )
    strangers = set(present) - set(wanted)
    if check or (same and not strangers):
        return not same or bool(strangers)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name in strangers:
        if present[name].is_dir():
            shutil.rmtree(present[name])
        else:
            present[name].unlink()
    for name, text in wanted.items():
        atomic.write(folder / name, text, 0o644)
    return True


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={"dest": {"type": "path", "required": True}}, supports_check_mode=True
    )
    wanted = sources()
    try:
        changed = put(wanted, Path(module.params["dest"]), check=module.check_mode)
    except OSError as error:
        module.fail_json(msg=f"the program cannot be written: {error}")
    module.exit_json(changed=changed, files=sorted(wanted))


if __name__ == "__main__":
    main()

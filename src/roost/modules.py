"""Ansible modules of this repository, run here as Ansible runs them on a host."""

from __future__ import annotations

import sys

from roost.root import repository_root


def command(name: str, before: str = "") -> list[str]:
    """A process of its own, which reads the module's arguments from its standard input.

    Args:
        name: Of the module.
        before: Python code that runs before the module, and can import whatever the module can.

    Raises:
        UsageError: The repository is not there.
    """
    root = repository_root()
    program = f"""
import runpy
import ansible.module_utils
ansible.module_utils.__path__.append({str(root / "src")!r})  # as ansible.cfg has it
{before}
runpy.run_path({str(root / "plugins" / "modules" / f"{name}.py")!r}, run_name="__main__")
"""
    # -P: what lies in the caller's directory is not imported.
    return [sys.executable, "-P", "-c", program]

"""Action plugin: ``roost rollout`` over the inventory of the running play.

On the controller, in a process of its own: it runs Ansible itself, for one batch after the other.
Its lines are shown as they come.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

DOCUMENTATION = r"""
---
module: rollout
short_description: Bring a fleet to what its inventory says, batch by batch
description:
  - Runs C(roost rollout) on the controller for the inventory, the limit and the sudo password of
    the running play. Fails if the rollout does not pass.
options:
  batches:
    description: Sizes of the batches.
    type: str
    default: 1,25%,100%
  suite:
    description: What the benchmark measures.
    type: str
    default: gate
  brief:
    description: Verify without the long prompt and the bad requests.
    type: bool
    default: false
  resume:
    description: Only go on with one that was interrupted.
    type: bool
    default: false
  take_over:
    description: Also hosts that take part in another controller's rollout, which is no more.
    type: bool
    default: false
  runs:
    description: Where runs are kept, by default C(runs) in the repository.
    type: path
attributes:
  check_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Bring the fleet to what the inventory says
  rollout:
    batches: 1,25%,100%
  run_once: true
"""

_OPTIONS = {"batches": "--batches", "suite": "--suite", "runs": "--runs"}
_FLAGS = {"brief": "--brief", "resume": "--resume", "take_over": "--take-over"}
#: Extra variables that mean something here.
_OWN = "rollout_"


class ActionModule(ActionBase):
    """Entry point of the plugin."""

    _VALID_ARGS = frozenset({*_OPTIONS, *_FLAGS})

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run it; fails if the rollout does not pass."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            why = "a rollout has no check mode; deploy.yml --check --diff says what would change"
            return {**result, "skipped": True, "msg": why}
        command = self._command(task_vars or {})
        display = Display()
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as child:
            try:
                if child.stdin:
                    password = self._play_context.become_pass
                    child.stdin.write(f"{password}\n" if password else "")
                    child.stdin.close()
                lines = []
                for line in child.stdout or ():
                    display.display(line.rstrip("\n"))
                    lines.append(line)
            finally:
                if sys.exc_info()[0]:
                    child.terminate()
        if child.returncode:
            raise AnsibleActionFail("".join(lines[-40:]) or "roost rollout said nothing")
        return {**result, "changed": True}

    def _command(self, task_vars: dict[str, Any]) -> list[str]:
        sources = task_vars["ansible_inventory_sources"]
        if len(sources) != 1:
            raise AnsibleActionFail("a rollout is of one inventory: give -i once")
        foreign = [name for name in load_extra_vars(self._loader) if not name.startswith(_OWN)]
        if foreign:
            raise AnsibleActionFail(
                f"-e {', '.join(foreign)}: a rollout is of what the inventory says, since the "
                "notebooks judge by that; nothing was changed"
            )
        # Killed with Ansible, where it can be: nobody would see what it does, and it can be gone
        # on with.
        command = ["setpriv", "--pdeathsig=TERM", "--"] if shutil.which("setpriv") else []
        command += [sys.executable, "-m", "roost.cli", "rollout", "--inventory", sources[0]]
        if limit := context.CLIARGS.get("subset"):
            command += ["--limit", str(limit)]
        command += [
            flag for name, flag in _FLAGS.items() if boolean(self._task.args.get(name, False))
        ]
        if self._play_context.become_pass:
            command.append("--ask-become-pass")
        for name, option in _OPTIONS.items():
            if (value := self._task.args.get(name)) is not None:
                command += [option, str(value)]
        return command

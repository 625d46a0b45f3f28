"""Action plugin: a notebook about one host, on the controller.

It runs ``roost verify`` or ``roost bench`` for the host of the running task, in a process of its
own; Ansible's forks are how many run at a time. What those say of their progress is shown as it
comes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

DOCUMENTATION = r"""
---
module: notebook
short_description: Verify or measure the host with a notebook
description:
  - Runs C(roost verify) or C(roost bench) on the controller for this host of the play's inventory.
    Fails with the checks that do not hold. Changes nothing on the host.
options:
  name:
    description: The notebook.
    type: str
    choices: [verify, benchmark]
    required: true
  runs:
    description: Where runs are kept, by default C(runs) in the repository.
    type: path
  long_context:
    description: Of V(verify), tokens of the long prompt.
    type: int
  long_context_seconds:
    description: Of V(verify), the time that it may take.
    type: float
  bad_requests:
    description: Of V(verify), also send what must be refused.
    type: bool
    default: true
  reference:
    description: Of V(verify), a run whose answers must come again.
    type: str
  require_seen:
    description: Of V(verify), what the log does not say is a failure.
    type: bool
    default: false
  suite:
    description: Of V(benchmark), what to measure.
    type: str
  prompts:
    description: Of V(benchmark), a file of prompts instead of the suite's.
    type: path
attributes:
  check_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Verify it
  notebook:
    name: verify
    long_context: 0
"""

RETURN = r"""
msg:
  description: How many checks hold, or those that do not, each with its reason.
  type: str
  returned: always
run:
  description: The run's folder.
  type: str
  returned: when the notebook was begun
"""

#: Verbs of the command line by notebook, and their options that take a value.
_VERBS = {"verify": "verify", "benchmark": "bench"}
_OPTIONS = {
    "verify": ("long_context", "long_context_seconds", "reference", "runs"),
    "benchmark": ("suite", "prompts", "runs"),
}
#: Options without one, where they are not what the command line takes for granted.
_FLAGS = {
    "verify": {
        ("bad_requests", False): "--no-bad-requests",
        ("require_seen", True): "--require-seen",
    },
    "benchmark": {},
}


class ActionModule(ActionBase):
    """Entry point of the plugin."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run it; fails where a check does not hold."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        command = self._command(variables)
        if self._task.check_mode:
            return {**result, "skipped": True, "msg": "not run in check mode"}
        return {**result, **_outcome(*_run(command))}

    def _command(self, variables: Mapping[str, Any]) -> list[str]:
        given = dict(self._task.args)
        name = given.pop("name", None)
        if name not in _VERBS:
            raise AnsibleActionFail(f"name is {name!r}; notebooks are: {', '.join(_VERBS)}")
        known = {*_OPTIONS[name], *(option for option, _ in _FLAGS[name])}
        if unknown := sorted(set(given) - known):
            raise AnsibleActionFail(f"{name} has no {', '.join(unknown)}")
        foreign = set(load_extra_vars(self._loader)) - {f"{name}_{option}" for option in known}
        if foreign:
            raise AnsibleActionFail(
                f"-e {', '.join(sorted(foreign))}: notebooks go by what the inventory says; "
                f"here -e takes {', '.join(f'{name}_{option}' for option in sorted(known))}"
            )
        sources = variables["ansible_inventory_sources"]
        if len(sources) != 1:
            raise AnsibleActionFail("a notebook is of one inventory: give -i once")
        # Killed with Ansible, where it can be: nobody would see what it finds.
        command = ["setpriv", "--pdeathsig=TERM", "--"] if shutil.which("setpriv") else []
        command += [sys.executable, "-m", "roost.cli", _VERBS[name], "--json"]
        command += ["--inventory", sources[0], "--host", variables["inventory_hostname"]]
        for option in _OPTIONS[name]:
            if given.get(option) is not None:
                command += [f"--{option.replace('_', '-')}", str(given[option])]
        for (option, value), flag in _FLAGS[name].items():
            if option in given and boolean(given[option]) is value:
                command.append(flag)
        return command


def _run(command: list[str]) -> tuple[str, str]:
    """Run it and show its progress; what it wrote to each of its streams."""
    display = Display()
    lines = []
    with (
        tempfile.TemporaryFile("w+") as document,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=document, stderr=subprocess.PIPE, text=True
        ) as child,
    ):
        try:
            for line in child.stderr or ():
                lines.append(line)
                display.display(line.rstrip("\n"))
        finally:
            if sys.exc_info()[0]:
                child.terminate()
        child.wait()
        document.seek(0)
        return document.read(), "".join(lines)


def _outcome(document: str, said: str) -> dict[str, Any]:
    """The task's result, from what the command line wrote."""
    try:
        (outcome,) = json.loads(document)
    except ValueError:
        return {"failed": True, "msg": said.strip() or "roost said nothing"}
    told = outcome["summary"] or outcome["error"]
    if outcome["ok"]:
        Display().display(f"{told}; {outcome['report']}")
    return {
        "failed": not outcome["ok"],
        "msg": "\n".join(filter(None, [told, outcome["report"]])),
        "run": outcome["run"],
    }

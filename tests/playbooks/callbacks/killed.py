"""Ends a controller at a certain task, at once, as its power cut would.

From outside that cannot be done in time: what has read a task's name in the output comes to the
kill when the task is over, or the next one, on a machine with much to do.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
---
name: killed
type: aggregate
short_description: End a controller before a task
description:
  - Kills the group of processes of this run before the task whose name begins as
    C(ROOST_TEST_KILLED_BEFORE) says.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """Watches for the task."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "killed"

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002
        """Called in the controller's own process, before any host is given the task."""
        if task.get_name().startswith(os.environ["ROOST_TEST_KILLED_BEFORE"]):
            os.killpg(0, signal.SIGKILL)

"""Wait for background downloads, and say meanwhile how far they have come.

Ansible itself shows nothing of a task until it ends, and a download may take hours. The downloads
are jobs on the host, so a connection that is lost loses none of them: it is made again.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from roost.downloads import Download, Watch

display = Display()

DOCUMENTATION = r"""
---
module: await_downloads
short_description: Wait for background downloads, and say how far they have come
description:
  - Prints a line for each host every so often, with bytes, rate, the time that is left and the
    stage of each download. Ends when all of O(downloads) have ended, or any has failed.
options:
  downloads:
    description:
      - What to wait for. Each has a C(job) (C(results_file) of the task that began it), the
        C(path) that M(download_facts) looks at, the C(name) to show, and C(bytes) if known.
    type: list
    elements: dict
    required: true
  beside:
    description: Further ones to show and not to wait for; if one of them fails, the wait ends.
    type: list
    elements: dict
    default: []
  interval:
    description: Seconds between two lines.
    type: float
    default: 10
  reconnect_timeout:
    description: Seconds for which the host may be out of reach.
    type: float
    default: 600
attributes:
  check_mode:
    support: none
author:
  - roost
"""

RETURN = r"""
results:
  description: What each job of O(downloads) has returned; none of one that still goes on.
  returned: always
  type: list
"""

#: Seconds between two looks: soon at first, for what is small, then seldom.
FIRST_LOOK = 0.5
LAST_LOOK = 5.0


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible has no types
    """The action."""

    _VALID_ARGS = frozenset({"downloads", "beside", "interval", "reconnect_timeout"})
    _requires_connection = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look, print and wait."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = self._task.args
        own = [Download.model_validate(one) for one in arguments["downloads"]]
        beside = [Download.model_validate(one) for one in arguments.get("beside") or []]
        interval = float(arguments.get("interval", 10))
        patience = float(arguments.get("reconnect_timeout", 600))
        host = task_vars.get("inventory_hostname", "")
        watch = Watch([*own, *beside])
        pause, printed, seen = FIRST_LOOK, time.monotonic(), time.monotonic()
        while True:
            looked = self._look(own + beside, task_vars)
            now = time.monotonic()
            if looked is None:
                if now - seen > patience:
                    raise AnsibleConnectionFailure(
                        f"{host}: out of reach for {now - seen:.0f} s; what it fetches goes on "
                        "there: deploy again to go on from it"
                    )
            else:
                seen = now
                watch.saw(looked, now)
                results = [one["result"] for one in looked]
                failed = any(boolean(one.get("failed", False)) for one in results if one)
                results = results[: len(own)]
                if failed or None not in results:
                    return {**result, "changed": True, "results": results}
            if now - printed >= interval:
                printed = now
                said = watch.line() if looked else "out of reach; what it fetches goes on there"
                display.display(f"{host}: {said}")
            time.sleep(pause)
            pause = min(pause * 1.5, LAST_LOOK, interval)

    def _look(
        self, downloads: list[Download], task_vars: dict[str, Any]
    ) -> list[dict[str, Any]] | None:
        """What the host says of them; none if it cannot be reached."""
        asked = [{"job": one.job, "path": one.path} for one in downloads]
        try:
            found = self._execute_module(
                module_name="download_facts",
                module_args={"downloads": asked},
                task_vars=task_vars,
            )
        except AnsibleConnectionFailure:
            self._connection.reset()
            return None
        if "downloads" not in found:
            # Of a connection that broke in the middle there is only a remark on that.
            return None
        looked: list[dict[str, Any]] = found["downloads"]
        return looked

"""Imports the package and reads the catalogue once, in the process that workers are forked from.

Each task of each host has a worker of its own, and each that uses any filter at all would load the
filters of this project, so import the package: most of what a deploy without news costs.
"""

from __future__ import annotations

import contextlib
import gc

from ansible.plugins.callback import CallbackBase

with contextlib.suppress(ImportError):  # the filters say it
    import roost.cuda_context
    import roost.deployment
    import roost.docker_settings
    import roost.doctor
    import roost.downloads
    import roost.gateway
    import roost.hosts
    import roost.onhost.haproxy
    import roost.plan.gate
    import roost.preflight
    import roost.releases  # noqa: F401  # for those that are forked later
    from roost import catalog, programs
    from roost.errors import RoostError

    with contextlib.suppress(RoostError):  # who needs it says what is wrong with it
        catalog.current()
    programs.watchdog()

# All this stays to the end: no collector, here or in a worker, need look through it again.
gc.freeze()

DOCUMENTATION = r"""
---
name: preload
type: aggregate
short_description: Import and read what filters need before workers are forked
description:
  - Prints nothing and listens to nothing. Without it a playbook works, and takes longer.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """Nothing: to have been imported is all."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "preload"

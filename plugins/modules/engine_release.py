#!/usr/bin/python
"""Ansible module: have a release serve that proves itself, else the one before."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import lease, transaction
from ansible.module_utils.roost.onhost import store as stores
from ansible.module_utils.roost.onhost.machine import Machine
from ansible.module_utils.roost.onhost.trial import Wanted

DOCUMENTATION = r"""
---
module: engine_release
short_description: Have a release serve that proves itself, else the one before
description:
  - Stops the container that serves, starts the one that was created for another release on trial,
    waits for health with its log followed, and judges its answers, accepted drafts and speed.
    If it passes, it takes the old one's place. If not, the old one is started again and judged.
  - Where nothing differs, what serves is judged; what does not run, or is dead inside, is started.
  - The work is done by a process of its own, which goes on to the end if the connection is lost or
    the controller is killed. The next run, or O(follow), says what became of it.
  - A release that fails is no failure of the module; RV(outcome) says it.
options:
  release:
    description: The release, from the filter roost_release.
    type: dict
    required: true
  directory:
    description: Where releases are recorded; made if need be.
    type: path
    required: true
  answer_timeout:
    description: Seconds that one answer may take.
    type: int
    default: 600
  turn_timeout:
    description: Seconds to wait for another deploy of this host to end.
    type: int
    default: 7200
  container:
    description: Id of the release's container, the one that serves already or one made for it.
    type: str
    required: true
  restart:
    description: Start the engine anew though nothing else differs.
    type: bool
    default: false
  going_back:
    description: The release has served before; it need not be as fast as what it replaces.
    type: bool
    default: false
  who:
    description: Who wants it, for those who wait for their turn.
    type: str
    default: somebody
  rollout:
    description:
      - Owner of the lease of the rollout or experiment that wants it; empty if it is wanted by
        hand.
      - What an experiment has deployed is only tried; any other release that comes to serve, and
        the one that it goes back to, ends the experiment of the host.
    type: str
    default: ""
  despite_lease:
    description: Also on a host that takes part in somebody else's rollout or experiment.
    type: bool
    default: false
  follow:
    description: Only wait for what was begun before, end it if need be, and say what became of it.
    type: bool
    default: false
attributes:
  check_mode:
    support: none
  diff_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Have the release serve
  engine_release:
    release: "{{ deployment | roost_release }}"
    container: "{{ made.container.Id }}"
    directory: /var/lib/roost/releases
"""

RETURN = r"""
outcome:
  description: >-
    V(serves), V(restored), V(unproved), V(nothing), V(fails), V(untouched), V(busy), V(held) where
    the host takes part in a rollout or an experiment of others, or no more in O(rollout), or
    V(unknown) where O(follow) finds no trace of the release.
  returned: always
  type: str
release:
  description: Id of the release that was wanted.
  returned: always
  type: str
previous:
  description: Id of the release before it, where there was one.
  returned: always
  type: str
failure:
  description: >-
    Where it failed - C(step), C(what), C(exit_code), C(kernel), C(checks), and the engine's C(log),
    compressed and in base64.
  returned: always
  type: dict
kept:
  description: When the failure was recorded, as C(last-failed/why.json) says.
  returned: always
  type: str
died:
  description: The same of an engine that served and was found to have ended by itself.
  returned: always
  type: dict
restored:
  description: What was seen of the release that was brought back.
  returned: always
  type: str
checks:
  description: Everything the gate looked at.
  returned: always
  type: list
  elements: dict
figures:
  description: Seconds to health and of the warm-up, accept length, tokens per second.
  returned: always
  type: dict
recovered:
  description: The swap of an earlier run that was killed, and that had to be ended first.
  returned: always
  type: dict
lease:
  description: Of what the host takes part in; none where it takes part in nothing any more.
  returned: with the outcome V(held)
  type: dict
waited_for:
  description: Which other deploy of this host was waited for.
  returned: always
  type: str
"""


def apart(store: stores.Store, wanted: Wanted, doing: Callable[..., Any]) -> dict[str, Any]:
    """Do the work in a process of its own, and wait for its outcome."""
    store.keep_outcome(None)
    reading, writing = os.pipe()
    if os.fork() == 0:
        # Nothing of the module that was forked may run twice, so this way out is the only one.
        try:
            os.setsid()
            os.close(reading)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            outcome = work(store, wanted, doing)
            with contextlib.suppress(OSError):
                store.keep_outcome(outcome)
            with contextlib.suppress(OSError), os.fdopen(writing, "w") as pipe:
                pipe.write(json.dumps(outcome))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.wait()
    if said:
        outcome: dict[str, Any] = json.loads(said)
        return outcome
    return work(store, wanted, abandon)


def work(store: stores.Store, wanted: Wanted, doing: Callable[..., Any]) -> dict[str, Any]:
    """All of it; a defect of ours must not leave a host without its engine."""
    try:
        outcome: dict[str, Any] = doing(Machine(), store, wanted)
    except Exception as error:  # noqa: BLE001  # see above
        what = f"{type(error).__name__}: {error} (a defect of roost)"
        outcome = transaction.abandon(Machine(), store, wanted, what)
    return outcome


def abandon(machine: Machine, store: stores.Store, wanted: Wanted) -> dict[str, Any]:
    """End what was begun by a process that is no more."""
    what = "the host went down in the middle of it, or the process that judged it was killed"
    return transaction.abandon(machine, store, wanted, what)


def outcome_of(store: stores.Store, release: str) -> dict[str, Any] | None:
    """What became of a release; none if the last piece of work was about another.

    A connection that was lost before this module began leaves the outcome of the deploy before.
    """
    outcome = store.outcome()
    return outcome if outcome and outcome["release"] == release else None


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "dict", "required": True},
            "directory": {"type": "path", "required": True},
            "answer_timeout": {"type": "int", "default": 600},
            "turn_timeout": {"type": "int", "default": 7200},
            "container": {"type": "str", "required": True},
            "restart": {"type": "bool", "default": False},
            "going_back": {"type": "bool", "default": False},
            "who": {"type": "str", "default": "somebody"},
            "rollout": {"type": "str", "default": ""},
            "despite_lease": {"type": "bool", "default": False},
            "follow": {"type": "bool", "default": False},
        },
        supports_check_mode=False,
    )
    given = module.params
    release = given["release"]
    store = stores.Store(given["directory"])
    nothing = {
        "changed": False,
        "release": release["id"],
        "failure": None,
        "kept": None,
        "recovered": None,
        "died": None,
    }
    turn = f"{given['who']} deploys {release['id']}"
    try:
        waited_for = store.take_turn(turn, given["turn_timeout"])
    except stores.BusyError as error:
        module.exit_json(outcome="busy", waited_for=str(error), **nothing)
    owner = given["rollout"]
    others = lease.of_others(store, owner)
    # Somebody has deployed despite an experiment, which is over with that.
    over = bool(owner) and not lease.has(store, owner)
    # What was begun before is ended, whoever has the host since.
    if (others or over) and not given["despite_lease"] and not given["follow"]:
        module.exit_json(outcome="held", lease=others, waited_for=waited_for, **nothing)
    wanted = Wanted(
        id=release["id"],
        name=release["container"],
        container=given["container"],
        deployment=release["deployment"],
        files=release["files"],
        answer_timeout=given["answer_timeout"],
        restart=given["restart"],
        going_back=given["going_back"],
        who=given["who"],
        tries=lease.tries(store, owner) and not given["going_back"],
    )
    doing = transaction.serve
    if given["follow"]:
        outcome = outcome_of(store, release["id"])
        if outcome is None and store.begun() is None:
            outcome = {"outcome": "unknown", **nothing}
        if outcome is not None:
            module.exit_json(waited_for=waited_for, **outcome)
        doing = abandon
    module.exit_json(waited_for=waited_for, **apart(store, wanted, doing))


if __name__ == "__main__":
    main()

#!/usr/bin/python
"""Ansible module: which releases a host has, and what serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import NAME, WATCHDOG, WATCHDOG_STATE, lease
from ansible.module_utils.roost.onhost.logs import packed
from ansible.module_utils.roost.onhost.machine import Machine, MachineError
from ansible.module_utils.roost.onhost.redaction import Redactor
from ansible.module_utils.roost.onhost.store import BEFORE, LASTING, Store
from ansible.module_utils.roost.onhost.trial import TrialError, ended, endpoint_of, redactor_of
from ansible.module_utils.roost.onhost.weights import RECORD

DOCUMENTATION = r"""
---
module: release_facts
short_description: Which releases a host has, and what serves
description:
  - Reads the releases that a host keeps, the container that serves with its systemd unit, and
    whether its endpoint is healthy. Changes nothing.
options:
  directory:
    description: Where releases are recorded; it need not exist.
    type: path
    required: true
  release:
    description: >-
      Id of a release of which everything that was recorded is wanted, or V(current), V(previous),
      V(lasting), which is what an experiment goes back to, and V(current) where none was begun, or
      V(before), which is what served before; that is what an experiment goes back to, where what
      serves is only tried, else V(previous).
    type: str
  watchdog:
    description: Directory of the watchdog's state; it need not exist.
    type: path
    default: /var/lib/roost/watchdog
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Read the releases
  release_facts:
    directory: /var/lib/roost/releases
"""

RETURN = r"""
current:
  description: Id of the release that serves.
  returned: always
  type: str
previous:
  description: Id of the release that served before it.
  returned: always
  type: str
releases:
  description: >-
    Each that is kept, the last to serve first - C(id), C(recipe), C(speculation), C(times),
    C(figures), and C(missing) with what it would need that is no longer on the host.
  returned: always
  type: list
  elements: dict
chosen:
  description: C(id) and C(files) of O(release); none if it is not kept.
  returned: always
  type: dict
transaction:
  description: A swap that has begun and not ended.
  returned: always
  type: dict
busy:
  description: Who changes the host at the moment.
  returned: always
  type: str
rollout:
  description: >-
    The lease of the rollout or experiment that the host takes part in, see the module
    rollout_lease.
  returned: always
  type: dict
held:
  description: Id of the release that an experiment will go back to; none where none is under way.
  returned: always
  type: str
deployment:
  description: C(engine_version) and C(asked) of the current release.
  returned: always
  type: dict
last_failed:
  description: >-
    Why the last release that did not serve did not, with C(kind), C(diagnosis) if the controller
    left one, else C(log), packed.
  returned: always
  type: dict
watchdog:
  description: >-
    C(unit) as systemd calls the state of the watchdog's, and its C(state), none before there is
    one, with the C(events) and what C(held) stopped.
  returned: always
  type: dict
engine:
  description: >-
    C(exists), C(running), C(exit_code), C(restarts), C(unit) as systemd calls its state,
    C(at_boot) whether that starts it then, C(healthy), and C(failure), as in the module
    engine_release, if it ended by itself or is not healthy.
  returned: always
  type: dict
"""

#: States of the unit in which its engine has not been stopped by anybody.
ENDED = {"failed", "activating"}


def missing(machine: Machine, deployment: dict[str, Any]) -> list[str]:
    """What a release needs and the host no longer has."""
    image = deployment["spec"]["image"]
    gone = [] if machine.has_image(image) else [f"image {image} is gone"]
    return gone + [
        f"{weights['repo']}@{weights['revision'][:12]} is gone"
        for weights in deployment["weights"]
        if not Path(weights["directory"], RECORD).is_file()
    ]


def described(machine: Machine, store: Store, release: str) -> dict[str, Any]:
    """One kept release, in short."""
    deployment = store.read(release, "deployment.json") or {}
    return {
        "id": release,
        "recipe": deployment.get("recipe"),
        "speculation": deployment.get("speculation"),
        "times": store.read(release, "times.json"),
        "figures": (store.read(release, "gate.json") or {}).get("figures", {}),
        "missing": missing(machine, deployment) if deployment else ["its record is gone"],
    }


def last_failed(store: Store) -> dict[str, Any] | None:
    """The last failure, with its log where nobody has looked at it yet."""
    failure = store.failure()
    if failure is None or failure["diagnosis"]:
        return failure
    return {**failure, "log": packed(store.failed_log())}


def engine(machine: Machine, deployment: dict[str, Any] | None) -> dict[str, Any]:
    """What serves, and how it does."""
    container = machine.inspect(NAME)
    unit = machine.unit(NAME)
    state = container["State"] if container else {}
    running = bool(state.get("Running"))
    found: dict[str, Any] = {
        "exists": container is not None,
        "running": running,
        "exit_code": state.get("ExitCode"),
        "restarts": int(unit.get("NRestarts") or 0),
        "unit": unit["ActiveState"],
        "at_boot": unit["UnitFileState"] == "enabled",
        "healthy": False,
        "failure": None,
    }
    if running and deployment:
        try:
            endpoint = endpoint_of(deployment)
        except OSError as error:
            what = f"the key of the endpoint cannot be read: {error}; a deploy writes it again"
            raise MachineError(what) from None
        found["healthy"] = endpoint.get(deployment["health_path"], 5.0).status == 200
    if container and not found["healthy"] and (running or unit["ActiveState"] in ENDED):
        failure = TrialError(
            "health" if running else "engine",
            "it is not healthy" if running else ended(container),
            machine.log(NAME),
            state=None if running else container["State"],
            kernel=machine.kernel(container),
        )
        redact = redactor_of(deployment) if deployment else Redactor([])
        found["failure"] = failure.as_dict(redact)
    return found


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "directory": {"type": "path", "required": True},
            "release": {"type": "str"},
            "watchdog": {"type": "path", "default": WATCHDOG_STATE},
        },
        supports_check_mode=True,
    )
    machine, store = Machine(), Store(module.params["directory"])
    serves = store.pointed("current")
    deployment = store.read(serves, "deployment.json") if serves else None
    wanted = module.params["release"]
    current, previous = store.pointed("current"), store.pointed("previous")
    named = {
        "current": current,
        "previous": previous,
        LASTING: store.lasting(),
        BEFORE: store.before(),
    }
    chosen = named.get(wanted, wanted)
    kept = store.ids()
    files = {}
    if chosen in kept:
        names = ("release.json", "deployment.json", "plan.json")
        files = {name: store.read(chosen, name) for name in names}
    try:
        module.exit_json(
            changed=False,
            current=current,
            previous=previous,
            releases=[described(machine, store, release) for release in kept],
            chosen={
                "id": chosen,
                "files": {name: content for name, content in files.items() if content},
            }
            if files
            else None,
            transaction=store.begun(),
            busy=store.holder(),
            rollout=lease.of_others(store),
            held=store.pointed("held"),
            last_failed=last_failed(store),
            watchdog={
                "unit": machine.unit(WATCHDOG)["ActiveState"],
                "state": Store(module.params["watchdog"]).read("state.json"),
            },
            engine=engine(machine, deployment),
            deployment={name: deployment[name] for name in ("engine_version", "asked")}
            if deployment
            else None,
        )
    except MachineError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()

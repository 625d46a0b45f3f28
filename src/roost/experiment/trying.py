"""Deploying and measuring one variant after another."""

from __future__ import annotations

import time
from pathlib import Path

from roost import fleet
from roost.errors import RefusedError, RoostError
from roost.experiment.host import DEPLOYED, lost, play, serving
from roost.experiment.notes import Experiment, Tried, Variant

#: The preflight's task that says what it found.
_PREFLIGHT = "Judge the host"
#: A variant is judged beside the others, not beside the one that happened to serve before it.
_FLOORS = {"roost_speed_floor": 0, "roost_accept_length_floor": 0}


def preflight(experiment: Experiment) -> None:
    """Have the deploy's own preflight judge every variant that is still to be tried.

    Beyond the plan it asks hub, registry and disk, and changes nothing.

    Raises:
        RefusedError: At least one would be refused.
    """
    refused = []
    for one in experiment.notes.tried:
        if not one.open:
            continue
        experiment.tell(f"{one.name}: preflight")
        _, failed = fleet.ask(
            "deploy",
            _PREFLIGHT,
            experiment.inventory,
            limit=experiment.host.name,
            check=True,
            become_password=experiment.become_password,
            extra_vars={
                **experiment.variants[one.name].variables,
                "rollout_owner": experiment.owner,
            },
            tags="preflight",
        )
        if experiment.host.name in failed:
            refused.append(f"{one.name}: {failed[experiment.host.name]}")
    if refused:
        raise RefusedError("nothing was tried, for not all of it can run", why="\n".join(refused))


def try_variant(experiment: Experiment, tried: Tried) -> Tried:
    """Deploy and measure one variant, and note it.

    Raises:
        RoostError: It was not deployed, not measured to the end, or another release served.
    """
    started = time.monotonic()
    variant = experiment.variants[tried.name]
    if why := lost(experiment):
        raise RoostError(f"{experiment.host.name}: {tried.name} was not deployed", why=why)
    experiment.tell(f"{tried.name}: deploy")
    play(experiment, "deploy", DEPLOYED, {**variant.variables, **_FLOORS, **fleet.STAYS_OUT})
    folder = _measure(experiment, variant)
    now_serves = serving(experiment.host)
    if now_serves != tried.release:
        raise RoostError(
            f"{experiment.host.name}: {tried.name} was not measured",
            why=f"somebody else deployed {now_serves or 'nothing'} meanwhile, not {tried.release}",
            fix="run it again when nobody else works on this host",
        )
    took = time.monotonic() - started
    now = tried.model_copy(update={"run": str(folder), "seconds": tried.seconds + took})
    experiment.note(now)
    return now


def _measure(experiment: Experiment, variant: Variant) -> Path:
    """Run the benchmark notebook; its folder."""
    # Brings papermill along, which no other part of this module needs.
    from roost import notebooks

    (outcome,) = notebooks.execute_all(
        "benchmark",
        experiment.inventory,
        [experiment.host.name],
        parameters={
            "suite": experiment.plan.name,
            "prompts": str(experiment.prompts) if experiment.prompts else None,
            "variables": dict(variant.variables),
        },
        runs_dir=experiment.runs_dir,
        progress=lambda _, line: experiment.tell(f"{variant.name}: {line}"),
    )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.result is not None  # noqa: S101 - exactly one of the two is there
    if not outcome.ok:
        raise RoostError(
            f"{experiment.host.name}: the benchmark of {variant.name} cannot be believed",
            why=outcome.result.summary(),
            fix=f"its evidence is in {outcome.folder}",
        )
    return outcome.folder

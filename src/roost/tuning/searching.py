"""A search: the points of a grid tried in turn, within its limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roost import experiment, runs
from roost.errors import RefusedError, RoostError, UsageError
from roost.experiment import Experiment, Tried
from roost.measure.benchmark import planning
from roost.measure.compare import TOLERANCE
from roost.tuning import grid
from roost.tuning.grid import PRESENT

#: Points that are tried where nobody says how many.
_POINTS = 12


@dataclass
class Search:
    """A search that has begun."""

    experiment: Experiment
    points: int
    hours: float | None
    users: int
    tolerance: float

    @property
    def folder(self) -> Path:
        """The search's own, which is its run's as well."""
        return self.experiment.folder

    def describe(self) -> dict[str, str]:
        """What is about to be tried, for the first output of a notebook."""
        notes = self.experiment.notes
        allowed = [one.name for one in notes.tried if one.refusal is None]
        limit = f"{self.points} points" + (f", {self.hours:g} hours" if self.hours else "")
        return {
            **self.experiment.plan.describe(),
            "limit": limit,
            "to be tried": ", ".join(allowed),
            "refused by the planner": f"{len(notes.tried) - len(allowed)} of {len(notes.tried)}",
            "folder": str(self.folder),
        }

    def run(self) -> None:
        """Try what is still to be tried, within the limits; then the host is where it was.

        A point that does not run is noted with its reason and the search goes on.

        Raises:
            RefusedError: The planner leaves nothing to compare.
            RoostError: The present settings cannot be measured, or the host is lost, or somebody
                else has deployed there or taken it for a rollout.
        """
        if self._next() is None and not self.experiment.unended:
            return
        tried = self.experiment.notes.tried
        allowed = [one.name for one in tried if one.refusal is None]
        with experiment.or_nothing(self.experiment):
            self._try(allowed)

    def _try(self, allowed: Sequence[str]) -> None:
        if PRESENT not in allowed or len(allowed) < 2:
            raise RefusedError(
                f"{self.experiment.host.name}: nothing to tune; nothing was tried",
                why="\n".join(f"{one.name}: {one.refusal}" for one in self.experiment.refused)
                or "the present settings are all there is to try",
                fix="other values: --vary SETTING=A,B",
            )
        failed: list[Tried] = []  # since one was measured, as they were before
        try:
            with experiment.on_host(self.experiment):
                while (one := self._next()) is not None:
                    if self._measure(one):
                        failed.clear()
                    else:
                        failed.append(one)
        finally:
            if self.experiment.lost:
                # The deploy that the host was lost to was at work for a while before it passed.
                for one in failed:
                    self.experiment.note(one)

    def _measure(self, one: Tried) -> bool:
        """Try a point; whether it was measured. If not, why is noted."""
        started = time.monotonic()
        try:
            experiment.try_variant(self.experiment, one)
        except RoostError as error:
            # A host that cannot be reached any more ends the search here, too.
            if one.name == PRESENT or experiment.lost(self.experiment):
                raise
            took = time.monotonic() - started
            now = one.model_copy(update={"failure": str(error), "seconds": took})
            self.experiment.note(now)
            self.experiment.tell(f"{one.name}: not measured: {error.what}")
            return False
        return True

    def _next(self) -> Tried | None:
        tried = self.experiment.notes.tried
        done = [one for one in tried if one.run is not None or one.failure is not None]
        if len(done) >= self.points:
            return None
        if self.hours is not None and sum(one.seconds for one in done) >= self.hours * 3600:
            return None
        return next((one for one in tried if one.open), None)


def start(
    *,
    inventory: Any,
    host: Any,
    suite: Any,
    vary: Any = None,
    prompts: Any = None,
    points: Any = _POINTS,
    hours: Any = None,
    users: Any = None,
    tolerance: Any = TOLERANCE,
    runs_dir: Any = "runs",
    run_dir: Any = None,
    **options: Any,
) -> Search:
    """Check a notebook's parameters and plan every point; see :func:`roost.experiment.begin`.

    Args:
        inventory: Path of an inventory.
        host: One of its hosts.
        suite: What is measured of each point.
        vary: Values to try by setting (``{max_num_seqs: [2, 4, 8]}``); none: the present K,
            ``max_num_seqs`` and ``max_num_batched_tokens``, their halves and doubles.
        prompts: The user's own file of prompts, or none.
        points: How many are tried at the most.
        hours: How long they may take together, or none; what is begun is ended.
        users: Requests at a time that the settings are chosen for; none: the suite's most.
        tolerance: The gap that is too small to care about, as a fraction.
        runs_dir: Where runs are kept; relative to the repository root.
        run_dir: The search's own folder, where there is one already.
        options: Further ones of :func:`roost.experiment.begin`.

    Raises:
        UsageError: A parameter makes no sense.
        RoostError: The host cannot be reached.
    """
    asked = grid.axes(runs.mapping("vary", vary))
    most = int(_number("points", points, "a whole number from 1 on", least=1, whole=True))
    most_hours = None if hours is None else _number("hours", hours, "a number from 0 on")
    allowed = runs.fraction("tolerance", tolerance)
    known = sorted({cell.concurrency for cell in planning.plan(suite, prompts).cells})
    if users is not None and (type(users) is not int or users not in known):
        raise UsageError(
            f"parameter users is {users!r}, which the suite does not measure",
            fix=f"one of: {', '.join(map(str, known))}",
        )
    begun = experiment.begin(
        "tune",
        runs.text("inventory", inventory),
        runs.text("host", host),
        lambda chosen, resolved: grid.variants(chosen, resolved, asked),
        suite=suite,
        prompts=prompts,
        runs_dir=runs.kept_in(runs_dir),
        run_dir=None if run_dir is None else runs.own_path(run_dir),
        **options,
    )
    return Search(begun, most, most_hours, known[-1] if users is None else users, allowed)


def _number(name: str, value: Any, wanted: str, *, least: float = 0, whole: bool = False) -> float:
    sound = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    # Up to what a float can count; NaN is beyond everything.
    if not sound or not least <= value <= 2**53:
        raise UsageError(f"parameter {name} is {grid.short(value)}, not {wanted}")
    return float(value)

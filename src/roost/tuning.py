"""Which settings serve a host's load best: a grid within what the planner allows, measured.

A point costs an engine start and a benchmark, minutes each, so a search has some ten to thirty of
them. That is too few for an optimiser that has to learn a model first; a grid is exhaustive at that
size, says of every point why it was not tried, and can be interrupted and continued anywhere. Its
order is that of the fewest changes, so that a limit cuts off the combinations and leaves what each
setting does by itself.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics as plain
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roost import catalog, deployment, experiment, runs, site
from roost.deployment import Deployment
from roost.errors import RefusedError, RoostError, UsageError
from roost.experiment import Experiment, Tried, Variant
from roost.inventory import Host
from roost.measure import choices, compare, points, statistics
from roost.measure.benchmark import planning
from roost.measure.checks import Check, Evidence, Figure
from roost.measure.compare import TOLERANCE
from roost.measure.points import Benchmark, CellPoints
from roost.measure.statistics import Estimate, shown
from roost.plan import planner

#: Settings that can be varied, and their names in tables.
VARIED = {
    "num_speculative_tokens": "K",
    "max_num_seqs": "sequences",
    "max_num_batched_tokens": "batched",
    "max_model_len": "context",
}
#: Of these the present value is tried with its half and its double where nobody says what to vary.
_BY_DEFAULT = ("num_speculative_tokens", "max_num_seqs", "max_num_batched_tokens")
PRESENT = "present"
#: Points that are tried where nobody says how many.
POINTS = 12
#: Combinations that a grid may have: all are planned, and a week measures some hundreds.
_MOST = 1000
#: Characters of a wrong value in a message.
_SHOWN = 80
#: The largest value to try, which no setting comes near to.
_LARGEST = 10**12 - 1
SNIPPET = "tuned.yml"
_TIMES = ("tpot", "ttft")


@dataclass(frozen=True)
class Dot:
    """One point at one number of users; over several kinds of prompts, their geometric mean.

    Attributes:
        cells: Of the suite, what it is the mean of: the same for all points.
        throughput: Generated tokens per second of all users.
        tpot: Milliseconds that one of them waits for a token after the first.
        ttft: Milliseconds that one of them waits for the first.
    """

    point: str
    users: int
    cells: tuple[str, ...]
    throughput: Estimate
    tpot: float
    ttft: float


@dataclass(frozen=True)
class Choice:
    """The settings that were chosen.

    Attributes:
        point: Their name; ``present`` where nothing is faster beyond noise.
        users: How many they were chosen for.
        rivals: Others that it does not beat.
        gain: Throughput over that of the present settings; none where they were chosen.
    """

    point: str
    users: int
    rivals: tuple[str, ...]
    gain: Estimate | None


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
    points: Any = POINTS,
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
    asked = _axes(runs.mapping("vary", vary))
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
        lambda chosen, resolved: variants(chosen, resolved, asked),
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
        raise UsageError(f"parameter {name} is {_short(value)}, not {wanted}")
    return float(value)


# --- the grid -------------------------------------------------------------------------------------


def _axes(given: Mapping[str, Any]) -> dict[str, list[int]]:
    """Values by setting, as a notebook or a command line gives them."""
    axes = {}
    for name, values in given.items():
        if name not in VARIED:
            raise UsageError(
                f"vary: {name} is not varied", fix=f"settings that are: {', '.join(VARIED)}"
            )
        words = values.split(",") if isinstance(values, str) else values
        words = words if isinstance(words, list | tuple) else [words]
        numbers = [_whole(word) for word in words]
        known = sorted({one for one in numbers if one is not None})
        if not numbers or None in numbers:
            raise UsageError(
                f"vary: {name}: {_short(values)} are no whole numbers from 1 to {_LARGEST:,}",
                fix=f"such as {name}: [2, 4, 8]",
            )
        axes[name] = known
    return axes


def _whole(word: Any) -> int | None:
    """A value to try; papermill and a command line may give digits as text."""
    if isinstance(word, str) and re.fullmatch("[0-9]{1,12}", word.strip()):
        word = int(word)
    sound = isinstance(word, int) and not isinstance(word, bool) and 1 <= word <= _LARGEST
    return int(word) if sound else None


def _short(value: Any) -> str:
    """A wrong value for a message: thousands of values are not told."""
    said = repr(value)
    return said if len(said) <= _SHOWN else f"{said[: _SHOWN - 1]}…"


def variants(host: Host, resolved: Deployment, axes: Mapping[str, Sequence[int]]) -> list[Variant]:
    """Every point of the grid: the present settings first, then those with the fewest changes.

    Args:
        host: Whose own settings all points keep.
        resolved: Its deployment by the inventory.
        axes: Values by setting; none: around the present ones.

    Raises:
        UsageError: A depth of speculation is to be varied, and nothing speculates; or there are
            more combinations than a search can try.
    """
    known = catalog.current()
    settled = planner.examine(deployment.resolved_again(resolved, known), catalog=known).settings
    present = {name: value for name in VARIED if (value := getattr(settled, name)) is not None}
    if not resolved.speculates:
        if "num_speculative_tokens" in axes:
            raise UsageError(
                f"vary: {host.name} serves {resolved.recipe} without speculation",
                fix="choose one first: roost_speculation",
            )
        present.pop("num_speculative_tokens", None)
    axes = axes or {
        name: sorted({max(1, present[name] // 2), present[name], present[name] * 2})
        for name in _BY_DEFAULT
        if name in present
    }
    # With the present value among them, every setting is also varied by itself.
    axes = {name: sorted({*values, present.get(name, values[0])}) for name, values in axes.items()}
    size = math.prod(len(values) for values in axes.values())
    if size > _MOST:
        raise UsageError(
            f"vary: {size:,} combinations are more than the {_MOST:,} that can be planned",
            why="each takes minutes to measure, and the present values are among them",
            fix="fewer values, or fewer settings at a time",
        )
    own = site.from_variables(host.name, host.variables).settings
    grid = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    changes = [
        {name: value for name, value in point.items() if present.get(name) != value}
        for point in [{}, *grid]
    ]
    changes.sort(key=len)
    found: dict[str, Variant] = {}
    for changed in changes:
        name = ", ".join(f"{VARIED[key]} {value}" for key, value in changed.items()) or PRESENT
        variables = {"roost_settings": {**own, **changed}} if changed else {}
        found.setdefault(name, Variant(name, variables, {**present, **changed}))
    return list(found.values())


# --- what was found -------------------------------------------------------------------------------


def benchmarks(search: Search) -> dict[str, Benchmark]:
    """What was measured, by point; the present settings first.

    Raises:
        RoostError: A run is no longer there.
    """
    return {
        one.name: points.read(Path(one.run))
        for one in search.experiment.notes.tried
        if one.run is not None
    }


def dots(measured: Mapping[str, Benchmark]) -> list[Dot]:
    """Throughput and times of every point, by number of users, over what all points measured.

    A setting may leave out cells, prompts that are longer than its context; the mean over the short
    ones alone would put it before all others. A cell's times are the benchmark's own figures of it;
    a point that has none of any cell has no place here, and takes none from the others.
    """
    found = []
    for users, points_of in _complete(measured).items():
        shared = _shared(points_of)
        for name, cells in points_of.items():
            here = [cells[cell_id] for cell_id in shared]
            if here:
                speed = statistics.geometric_mean([choices.SPEED.by_repetition(c) for c in here])
                means = {key: plain.geometric_mean(_time(c, key) for c in here) for key in _TIMES}
                found.append(Dot(name, users, shared, speed, **means))
    order = list(measured)
    return sorted(found, key=lambda dot: (order.index(dot.point), dot.users))


def left_out(measured: Mapping[str, Benchmark]) -> dict[str, list[str]]:
    """Cells that no dot is of, and by cell the points that did not measure it."""
    found = {}
    for points_of in _complete(measured).values():
        shared = _shared(points_of)
        for cell_id in dict.fromkeys(one for cells in points_of.values() for one in cells):
            if cell_id not in shared:
                found[cell_id] = [name for name, of in points_of.items() if cell_id not in of]
    return found


def _complete(measured: Mapping[str, Benchmark]) -> dict[int, dict[str, dict[str, CellPoints]]]:
    """By number of users and point, its cells that have all that a dot needs."""
    found: dict[int, dict[str, dict[str, CellPoints]]] = {}
    for name, benchmark in measured.items():
        for users, cells in _by_users(benchmark).items():
            whole = {cell.id: cell for cell in cells if all(_time(cell, key) for key in _TIMES)}
            if whole:
                found.setdefault(users, {})[name] = whole
    return dict(sorted(found.items()))


def _shared(points_of: Mapping[str, Mapping[str, CellPoints]]) -> tuple[str, ...]:
    first, *others = points_of.values()
    return tuple(cell_id for cell_id in first if all(cell_id in one for one in others))


def _time(cell: CellPoints, key: str) -> float:
    """Milliseconds; 0 where there is none."""
    found = points.metric(key).estimate(cell)
    return found.value if found else 0.0


def front(found: Sequence[Dot]) -> list[Dot]:
    """The dots than which no other one has more throughput at no more time per token (Pareto)."""
    ordered = sorted(found, key=lambda dot: (dot.tpot, -dot.throughput.value))
    best: list[Dot] = []
    for dot in ordered:
        if not best or dot.throughput.value > best[-1].throughput.value:
            best.append(dot)
    return best


def choose(
    measured: Mapping[str, Benchmark],
    tried: Sequence[Tried],
    users: int,
    tolerance: float = TOLERANCE,
) -> Choice:
    """The settings with the most throughput for so many users, if beyond noise and tolerance.

    Of several that nothing beats, those that change the least.

    Raises:
        RoostError: Nothing but the present settings was measured, or not even those.
    """
    cells = {name: _by_users(benchmark).get(users, []) for name, benchmark in measured.items()}
    if PRESENT not in cells or len(cells) < 2 or not all(cells.values()):
        raise RoostError(
            f"nothing to choose from for {users} users: {len(cells)} points were measured",
            fix="a higher limit, or other values to vary; the table says what was refused",
        )
    # Of many points some are faster by chance: the intervals hold all together (Bonferroni).
    confidence = 1 - (1 - statistics.CONFIDENCE) / (len(cells) - 1)
    gains = {
        name: choices.speed_ratio(cells[PRESENT], here, confidence)
        for name, here in cells.items()
        if name != PRESENT
    }
    # What nothing beats may be so for its noise alone: first it has to beat what is there now.
    better = {
        name: cells[name]
        for name, gain in gains.items()
        if gain is not None and compare.judge(gain, choices.SPEED, tolerance) == "better"
    }
    best = list(choices.unbeaten(better or cells, tolerance))
    present = next(one.settings for one in tried if one.name == PRESENT)
    changes = {
        one.name: sum(present.get(key) != value for key, value in one.settings.items())
        for one in tried
    }
    point = min(best, key=lambda name: changes[name]) if better else PRESENT
    rivals = tuple(name for name in best if name != point)
    return Choice(point, users, rivals, gains.get(point))


def snippet(search: Search, choice: Choice) -> str:
    """The chosen settings as variables of an inventory, with all that the host says itself."""
    host = search.experiment.host
    variables = dict(search.experiment.variants[choice.point].variables) or {
        "roost_settings": site.from_variables(host.name, host.variables).settings
    }
    lines = [
        f"# For {host.name}, {choice.users} at a time, by `roost tune` with the suite "
        f"{search.experiment.plan.name}: {choice.point}.",
        f"# {said(choice)}",
        "# Into host_vars, or: ansible-playbook deploy.yml -i INVENTORY -e @tuned.yml",
    ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(variables, sort_keys=False)


def said(choice: Choice) -> str:
    """Why it was chosen."""
    if choice.gain is None:
        return "Nothing is faster than the present settings beyond noise and tolerance."
    rivals = f"; not told apart from: {', '.join(choice.rivals)}" if choice.rivals else ""
    return f"{choices.times(choice.gain)} the throughput of the present settings{rivals}."


def evidence(search: Search) -> Evidence:
    """Checks, figures and the snippet of a search that has ended."""
    tried = search.experiment.notes.tried
    measured = benchmarks(search)
    found = dots(measured)
    best = front(found)
    refused = [f"{one.name}: {one.refusal}" for one in tried if one.refusal is not None]
    failed = [f"{one.name}: {one.failure}" for one in tried if one.failure is not None]
    left = sum(one.open for one in tried)
    made = Evidence()
    made.checks.append(
        Check(
            id="points",
            ok=len(measured) > 1,
            expected="the present settings and at least one other point measured",
            observed=f"{len(measured)} measured, {len(failed)} failed, {len(refused)} refused by "
            f"the planner and not tried, {left} left out by the limit",
            why="\n".join([*refused, *failed]),
        )
    )
    try:
        choice = choose(measured, tried, search.users, search.tolerance)
    except RoostError as error:
        made.checks.append(
            Check(id="chosen", ok=False, expected="something to choose from", why=str(error))
        )
    else:
        made.checks.append(
            Check(
                id="chosen",
                ok=True,
                expected=f"the most throughput of {choice.users} users, by more than "
                f"{search.tolerance:.0%} and beyond noise",
                observed=choice.point,
                why=said(choice),
            )
        )
        made.artefacts[SNIPPET] = snippet(search, choice)
    made.checks.append(_compared(found, left_out(measured)))
    for dot in found:
        where = f"{dot.point}, {dot.users} users"
        run = next(Path(str(one.run)).name for one in tried if one.name == dot.point)
        source = f"run {run}; {_over(dot)}" + ("; on the front" if dot in best else "")
        made.figures[f"{dot.point}.c{dot.users}.throughput"] = Figure(
            title=f"Throughput of all users, {where}",
            value=dot.throughput.value,
            unit="tokens/s",
            source=source,
            low=dot.throughput.low,
            high=dot.throughput.high,
        )
        for key, value in (("tpot", dot.tpot), ("ttft", dot.ttft)):
            title = f"{points.metric(key).title}, {where}"
            made.figures[f"{dot.point}.c{dot.users}.{key}"] = Figure(
                title=title, value=value, unit="ms", source=source
            )
    return made


def _compared(found: Sequence[Dot], lacking: Mapping[str, Sequence[str]]) -> Check:
    """Over what the front compares the points."""
    over = dict.fromkeys(cell_id for dot in found for cell_id in dot.cells)
    said = [f"{cell_id} (not measured by {', '.join(of)})" for cell_id, of in lacking.items()]
    return Check(
        id="front",
        verdict="pass" if over else "not seen",
        expected="every point beside the others, over the prompts that all of them measured",
        observed=f"over {', '.join(over)}" if over else "",
        why=f"left out: {'; '.join(said)}" if said else "" if over else "nothing was measured",
    )


def _over(dot: Dot) -> str:
    return f"the mean of {', '.join(dot.cells)}" if len(dot.cells) > 1 else dot.cells[0]


def rows(search: Search) -> Iterator[dict[str, str]]:
    """A table of every point: its settings, what became of it, and what was measured."""
    measured = benchmarks(search)
    found = dots(measured)
    best = front(found)
    for one in search.experiment.notes.tried:
        row = {"point": one.name}
        row |= {VARIED[key]: f"{value:,}" for key, value in one.settings.items()}
        if one.run is None:
            why = (
                f"refused: {one.refusal}"
                if one.refusal
                else one.failure and "failed: " + one.failure
            )
            yield {**row, "outcome": why or "left out by the limit"}
        for dot in found:
            if dot.point == one.name:
                yield {
                    **row,
                    "users": str(dot.users),
                    "over": ", ".join(dot.cells),
                    "tokens/s": shown(dot.throughput),
                    "ms a token": f"{dot.tpot:.4g}",
                    "ms to the first": f"{dot.ttft:.4g}",
                    "outcome": "on the front" if dot in best else "measured",
                }


def _by_users(benchmark: Benchmark) -> dict[int, list[CellPoints]]:
    found: dict[int, list[CellPoints]] = {}
    for cell in benchmark.cells:
        if cell.clean:
            found.setdefault(cell.concurrency, []).append(cell)
    return found

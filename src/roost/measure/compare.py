"""Two runs or more, point by point: ratios with intervals, and what a gap points to.

A figure is called worse or better only if the gap is larger than the tolerance *and* the interval
of the ratio excludes 1: a large gap may be noise, and a gap beyond noise may be too small to care.
``no difference`` and ``within tolerance`` need the whole interval within the tolerance; whatever
may also be a large gap is ``unclear``.
Of many points one or another lies outside its interval by chance. So the intervals of a metric hold
at 95 % simultaneously (Bonferroni), and a gap that all points share is found by the ratio over all
of them.
The interval covers the noise within the runs, not what changes between two starts of an engine.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import shlex
import statistics as plain
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from roost import runs
from roost.errors import RoostError, UsageError
from roost.measure import points, statistics, store, throttling
from roost.measure.checks import Check, Evidence, Figure, unseen
from roost.measure.kept import IN_WORDS
from roost.measure.points import Benchmark, CellPoints, Metric
from roost.measure.statistics import Estimate
from roost.root import places
from roost.runs import Origin, Pins, Result

TOLERANCE = 0.05
#: Metrics that are judged. The others are only shown: decode speed is the inverse of TPOT, and the
#: accept rate follows from the accept length.
DECISIVE = ("output_throughput", "accept_length", "ttft", "tpot")
#: A point passes only if this is known not to be worse: single requests may take as long as before
#: while it fell.
SPEED = "output_throughput"

#: Stands for the points of a suite together.
ALL = "all points"

Verdict = Literal["worse", "better", "no difference", "within tolerance", "unclear"]
#: Where ours lies beside a published figure. That one comes without a spread, so whatever lies
#: between them may be its noise: ours is not worse for it, nor better.
BesidePublished = Literal[
    "above published (spread unknown)",
    "below published (spread unknown)",
    "near published (spread unknown)",
    "unclear",
]


@dataclass(frozen=True)
class Compared:
    """One run in a comparison.

    Attributes:
        facts: Versions and digests that it was made with, as far as they are known.
        qualified: Its folder with as many of those around it as tell it from the other runs';
            empty: its folder's name does.
    """

    folder: Path
    result: Result
    benchmark: Benchmark
    facts: Mapping[str, str] = field(default_factory=dict)
    qualified: str = ""

    @property
    def name(self) -> str:
        return self.qualified or self.folder.name

    @property
    def origin(self) -> Origin:
        """What its figures rest on."""
        return Origin(
            run=self.name,
            **{key: getattr(self.result, key) for key in Origin.model_fields if key != "run"},
        )

    @property
    def clock(self) -> float | None:
        """Median GPU clock of the repetitions that count, MHz."""
        clocks = [
            one.clock
            for cell in self.benchmark.cells
            for one in cell.clean
            if one.clock is not None
        ]
        return plain.median(clocks) if clocks else None


@dataclass(frozen=True)
class Comparison:
    """A comparison that has begun.

    Its result is filed under all that its runs are of, and has the pins and settings of each.
    """

    compared: list[Compared]
    folder: Path
    tolerance: float
    started: dt.datetime

    def describe(self) -> dict[str, str]:
        """What is about to be compared, for the first output of a notebook."""
        rows = {
            f"{'baseline' if at == 0 else 'run'} {run.name}": ", ".join(
                (run.result.recipe, run.result.speculation, run.result.hardware, run.result.host)
            )
            for at, run in enumerate(self.compared)
        }
        first = self.compared[0].benchmark
        return {**rows, "suite": f"{first.suite}: {first.protocol}", "folder": str(self.folder)}

    def finish(self, evidence: Evidence) -> Result:
        """Write everything into the folder and return the result."""
        of = [run.result for run in self.compared]
        result = Result(
            ok=evidence.ok,
            notebook="compare",
            recipe=runs.together(one.recipe for one in of),
            host=runs.together(one.host for one in of),
            hardware=runs.together(one.hardware for one in of),
            speculation=runs.together(one.speculation for one in of),
            lock=Pins.together(one.lock.model_dump() for one in of),
            started=self.started,
            finished=dt.datetime.now(dt.UTC),
            checks=evidence.checks,
            figures=evidence.figures,
            trial=all(one.trial for one in of),
            compared=[run.origin for run in self.compared],
        )
        runs.write(self.folder, result, evidence.artefacts)
        return result


@dataclass(frozen=True)
class Gap:
    """One metric of one point: another run, or a published figure, against the baseline."""

    cell: str
    metric: Metric
    baseline: str
    other: str
    value: Estimate
    verdict: Verdict | BesidePublished

    def __str__(self) -> str:
        percent = (self.value.value - 1) * 100
        said = f"{self.cell} {self.metric.title.lower()} {percent:+.1f} %"
        if self.value.low is not None and self.value.high is not None:
            said += f" ({(self.value.low - 1) * 100:+.1f} to {(self.value.high - 1) * 100:+.1f} %)"
        return said


def start(
    given: Any,
    *,
    published: Any = False,
    choose: Any = False,
    tolerance: Any = TOLERANCE,
    runs_dir: Any = "runs",
    run_dir: Any = None,
) -> Comparison:
    """Check a notebook's parameters, read the runs and make the comparison's folder.

    Args:
        given: The runs' folders, the baseline first: a list, or one text with commas. Each from
            here, from the repository root, or by its name in ``runs_dir``.
        published, choose: What the notebook is to do besides, which it asks for later.
        tolerance: The gap that is too small to care about, as a fraction.
        runs_dir: Where runs are kept; relative to the repository root.
        run_dir: The comparison's own folder, where a caller has made it already.

    Raises:
        UsageError: As :func:`load`, or a parameter makes no sense.
    """
    share = runs.fraction("tolerance", tolerance)
    runs.switch("published", published)
    of_one_host = runs.switch("choose", choose)
    names = given if isinstance(given, list | tuple) else runs.text("runs", given).split(",")
    home = runs.kept_in(runs_dir)
    compared = load([_find(runs.text("runs", name).strip(), home) for name in names])
    first = compared[0].result
    hosts = list(dict.fromkeys(run.result.host for run in compared))
    if of_one_host and len(hosts) > 1:
        raise UsageError(
            f"the runs are of different hosts: {', '.join(hosts)}",
            why="a choice for one host can only be told from runs of that host",
            fix="compare them without choose, or roost compare --deploy for a choice",
        )
    if run_dir is not None:
        folder = runs.given_folder(run_dir)
    else:
        folder = runs.new_folder(home, f"{first.host}-compare", first.recipe)
    return Comparison(compared, folder, share, dt.datetime.now(dt.UTC))


def _find(name: str, home: Path) -> Path:
    named = [*places(name), home / name]
    return next((place for place in named if place.is_dir()), named[0])


def load(folders: Sequence[Path]) -> list[Compared]:
    """Read the runs; the first is the baseline.

    Raises:
        UsageError: Fewer than two, the same one twice, or of different suites, prompts or arguments
            of the chat template.
        RoostError: A folder is no finished benchmark.
    """
    if len(folders) < 2:
        raise UsageError("a comparison needs two runs", fix="roost compare RUN RUN…")
    given = [folder.absolute() for folder in folders]
    # Two runs may lie in folders of one name, and a link to a run is that run.
    found = [
        dataclasses.replace(_read(folder), qualified=name)
        for folder, name in zip(given, _told_apart(given), strict=True)
    ]
    places = [folder.resolve() for folder in given]
    if twice := next((at for at in places if places.count(at) > 1), None):
        raise UsageError(f"{twice}: this run is given twice")
    suites = list(dict.fromkeys(run.benchmark.suite for run in found))
    if len(suites) > 1:
        raise UsageError(
            f"the runs are of different suites: {', '.join(suites)}",
            why="their figures mean different things",
        )
    first = found[0]
    for run in found:
        if not run.benchmark.asks_as(first.benchmark):
            raise _asked_otherwise(run, first)
    return found


def _told_apart(places: Sequence[Path]) -> list[str]:
    """A name for each of several folders: of their paths' ends, the shortest that differ."""
    found = []
    for place in places:
        others = [one for one in places if one != place]
        length = 1
        while any(one.parts[-length:] == place.parts[-length:] for one in others):
            length += 1
        found.append(str(Path(*place.parts[-length:])))
    return found


def _asked_otherwise(run: Compared, first: Compared) -> UsageError:
    fix = "measure one of them again with the prompts of the other (--prompts)"
    if run.benchmark.prompts == first.benchmark.prompts:
        # Another path would not tell them apart, and prompts made to length are nobody's file.
        fix = "measure the older one again, with this version of roost and of the prompts"
    if run.benchmark.renders_otherwise(first.benchmark):
        fix = "measure one of them again with the other's chat_template_kwargs in its recipe"
    return UsageError(
        f"{run.name} asked something else than {first.name}",
        why=run.benchmark.asked_otherwise(first.benchmark),
        fix=fix,
    )


def _read(folder: Path) -> Compared:
    # In this order: the first says best what the folder lacks.
    benchmark = points.read(folder)
    kept = store.read(folder)
    if kept.benchmark is None:
        raise RoostError(kept.problem)
    return Compared(folder, runs.read(folder), benchmark, kept.facts())


def judge(ratio: Estimate, metric: Metric, tolerance: float = TOLERANCE) -> Verdict:
    """What a ratio to the baseline says."""
    where = _where(ratio, tolerance)
    if where == "unclear":
        return "unclear"
    if where == "near":
        return "within tolerance" if ratio.excludes(1.0) else "no difference"
    return "better" if (where == "above") == (metric.better == "higher") else "worse"


def _where(ratio: Estimate, tolerance: float) -> Literal["above", "below", "near", "unclear"]:
    """Where a ratio lies beside 1, as far as its interval tells."""
    if ratio.low is None or ratio.high is None:
        return "unclear"
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        return "near"
    # An interval from 0.5 to 2 does not show that both are alike, nor does one from 1.00 to 1.09.
    if not ratio.excludes(1.0) or abs(ratio.value - 1) <= tolerance:
        return "unclear"
    return "above" if ratio.value > 1 else "below"


def gaps(compared: Sequence[Compared], tolerance: float = TOLERANCE) -> list[Gap]:
    """Every metric that both measured, of every run against the first.

    Raises:
        RoostError: There is none.
    """
    first, *others = compared
    found = [
        Gap(cell, metric, first.name, other.name, ratio, verdict)
        for other in others
        for cell, metric, ratio, verdict in between(first.benchmark, other.benchmark, tolerance)
    ]
    if not found:
        raise RoostError("the runs share no point that both measured", fix="measure them again")
    return found


def between(
    first: Benchmark,
    other: Benchmark,
    tolerance: float = TOLERANCE,
    confidence: float | None = None,
) -> Iterator[tuple[str, Metric, Estimate, Verdict]]:
    """Every point and metric that both measured: its ratio to the first, and what that says.

    Args:
        first, other: Of the same suite.
        tolerance: The gap that is too small to care about, as a fraction.
        confidence: Of each interval by itself; none: all intervals of a metric hold at 95 %
            simultaneously.
    """
    shared = [(cell, theirs) for cell in first.cells if (theirs := other.cell(cell.id))]
    if confidence is None:
        confidence = 1 - (1 - statistics.CONFIDENCE) / max(1, len(shared))
    for metric in points.METRICS if len(shared) > 1 else ():
        if (ratio := metric.over(shared)) is not None:
            yield ALL, metric, ratio, judge(ratio, metric, tolerance)
    for cell, theirs in shared:
        for metric in points.METRICS:
            if (ratio := metric.ratio(cell, theirs, confidence)) is not None:
                yield cell.id, metric, ratio, judge(ratio, metric, tolerance)


def against_published(compared: Sequence[Compared], tolerance: float = TOLERANCE) -> list[Gap]:
    """Every run against the published figures of its points; the intervals are ours alone."""
    found = []
    for run in compared:
        for cell in run.benchmark.cells:
            for one in cell.published:
                metric = points.metric(one.metric)
                ours = metric.estimate(cell)
                if ours is None:
                    continue
                low = None if ours.low is None else ours.low / one.value
                high = None if ours.high is None else ours.high / one.value
                ratio = Estimate(ours.value / one.value, low, high, ours.n)
                verdict = _beside_published(ratio, tolerance)
                source = f"{one.source}, {one.table}"
                found.append(Gap(cell.id, metric, source, run.name, ratio, verdict))
    return found


def _beside_published(ratio: Estimate, tolerance: float) -> BesidePublished:
    said: dict[str, BesidePublished] = {
        "above": "above published (spread unknown)",
        "below": "below published (spread unknown)",
        "near": "near published (spread unknown)",
    }
    return said.get(_where(ratio, tolerance), "unclear")


def points_to(found: Sequence[Gap], tolerance: float = TOLERANCE) -> str:
    """Whether the gaps of one point belong to the model or to the machine.

    tok/s is a property of the hardware (and of the engine on it), the accept length one of the
    model and its drafter: the same pair accepts the same on any machine.
    """
    decisive = {gap.metric.key: gap for gap in found if gap.metric.key in DECISIVE}
    noisy = [gap.metric.title.lower() for gap in decisive.values() if gap.verdict == "unclear"]
    said = [_cause(decisive, tolerance)]
    said += [f"too noisy to tell: {', '.join(noisy)}"] if noisy else []
    return "; ".join(said)


def _cause(decisive: Mapping[str, Gap], tolerance: float) -> str:
    moved = {key for key, gap in decisive.items() if gap.verdict in {"worse", "better"}}
    length, speed = decisive.get("accept_length"), decisive.get("output_throughput")
    if not moved:
        return "no gap beyond noise and tolerance"
    if length is None:
        return (
            "the machine or the engine's settings, for all that is known: no accept length to tell"
        )
    if "accept_length" not in moved and length.verdict == "unclear":
        return (
            "the machine or the engine's settings, for all that is known: the accept length is "
            "lost in noise"
        )
    if "accept_length" not in moved:
        return "the machine or the engine's settings: drafts are accepted as before"
    if speed is None or "output_throughput" not in moved:
        return "the model or its drafter: the accept length moved, the speed did not follow"
    both = f"the accept length moved by {_percent(length)}, the speed by {_percent(speed)}"
    # A longer accept length brings as many more tokens a step, in the same time.
    explained, seen = math.log(length.value.value), math.log(speed.value.value)
    machine = "the machine or the engine's settings as well as the model or its drafter"
    if explained * seen < 0:
        return f"{machine}: {both}, which is the other way"
    if abs(seen) - abs(explained) > math.log1p(tolerance):
        return f"{machine}: {both}, which is more than that explains"
    return f"the model or its drafter: {both}"


def compare(comparison: Comparison, *, published: bool = False) -> Evidence:
    """Judge every run against the first: one check each point, failed where it is worse.

    Published figures are shown and never judged: their spread is unknown, and prompts, versions
    and machines differ from ours in more than a table tells.
    """
    evidence = Evidence()
    compared, tolerance = comparison.compared, comparison.tolerance
    found = gaps(compared, tolerance)
    evidence.checks += standing(compared)
    differing = {run.name: differences(compared[0], run) for run in compared}
    for other, cell in dict.fromkeys((gap.other, gap.cell) for gap in found):
        here = [gap for gap in found if (gap.other, gap.cell) == (other, cell)]
        decisive = [gap for gap in here if gap.metric.key in DECISIVE]
        worse = [gap for gap in decisive if gap.verdict == "worse"]
        why = points_to(here, tolerance)
        if any(gap.verdict in {"worse", "better"} for gap in decisive) and differing[other]:
            why += f"; the runs differ in {', '.join(differing[other])}"
        # A speed that is not known is neither a failure nor a pass.
        speeds = [gap for gap in decisive if gap.metric.belongs_to == "hardware"]
        speeds = [gap for gap in speeds if gap.metric.key == SPEED] or speeds
        unclear = not worse and (not speeds or any(_may_be_worse(gap, tolerance) for gap in speeds))
        if all(gap.value.low is None for gap in decisive):
            why = "too few repetitions to know the noise"
        evidence.checks.append(
            Check(
                id=f"{cell} {other}" if len(compared) > 2 else cell,
                verdict="fail" if worse else "not seen" if unclear else "pass",
                expected=f"nothing worse than {here[0].baseline} by more than {tolerance:.0%}",
                observed="; ".join(str(gap) for gap in (worse or decisive)),
                why=why,
            )
        )
    evidence.checks += unshared(compared)
    if published:
        found += against_published(compared, tolerance)
    evidence.figures = figures(found)
    return evidence


def figures(found: Sequence[Gap]) -> dict[str, Figure]:
    """A figure for each gap."""
    return {
        f"{gap.other}.{gap.cell}.{gap.metric.key}/{gap.baseline}": Figure(
            title=f"{gap.metric.title}, {gap.cell}",
            value=gap.value.value,
            unit="times",
            source=f"{gap.verdict}; {gap.other} / {gap.baseline}; belongs to the "
            f"{gap.metric.belongs_to}",
            low=gap.value.low,
            high=gap.value.high,
        )
        for gap in found
    }


def standing(compared: Sequence[Compared]) -> list[Check]:
    """May the runs be compared at all?

    A run with marks is compared all the same. Its marks, and in what it differs from the first
    run, are remarks on its check.
    """
    checks = []
    for run in compared:
        whole = run.benchmark.complete
        remarks = [] if whole else ["its suite was not measured to the end"]
        remarks += dict.fromkeys(mark for cell in run.benchmark.cells for mark in _marks(cell))
        if other := differences(compared[0], run):
            told = ", ".join(f"{key} ({values})" for key, values in other.items())
            remarks.append(f"differs from {compared[0].name} in {told}")
        checks.append(
            Check(
                id=f"run {run.name}",
                ok=whole,
                expected="a suite measured to its end",
                observed=f"{len(run.benchmark.cells)} points of {run.benchmark.suite}",
                why="; ".join(remarks),
            )
        )
    return checks


def unshared(compared: Sequence[Compared], kind: str = "") -> list[Check]:
    """A check for each point that some run has no figures of: nothing can be compared there.

    Args:
        compared: The runs.
        kind: Stands before the point in the checks' ids.
    """
    checks = []
    for cell_id in dict.fromkeys(cell.id for run in compared for cell in run.benchmark.cells):
        found = [(run.name, run.benchmark.cell(cell_id)) for run in compared]
        lacking = [
            f"{name} has no repetition that counts: {', '.join(_marks(cell))}"
            if cell and cell.repetitions
            else f"{name} did not measure it"
            for name, cell in found
            if cell is None or not cell.clean
        ]
        if lacking:
            expected = "a repetition that counts in every run"
            checks.append(unseen(f"{kind} {cell_id}".strip(), expected, "; ".join(lacking)))
    return checks


def _marks(cell: CellPoints) -> list[str]:
    return list(dict.fromkeys(mark for one in cell.repetitions for mark in one.marks))


def differences(first: Compared, other: Compared) -> dict[str, str]:
    """In what two runs differ besides their figures, and how: ``the first's -> the other's``."""
    of_result = ("host", "hardware", "recipe", "speculation")
    pairs = {key: (getattr(first.result, key), getattr(other.result, key)) for key in of_result}
    pairs |= {key: (value, other.facts.get(key, value)) for key, value in first.facts.items()}
    for key in pairs.keys() & IN_WORDS:
        a, b = (shlex.split(words) for words in pairs[key])
        own = [" ".join(word for word in one if word not in two) for one, two in ((a, b), (b, a))]
        pairs[key] = (own[0], own[1]) if a != b else ("", "")
    if first.clock and other.clock:
        apart = abs(math.log(other.clock / first.clock)) > -math.log1p(-throttling.CLOCK_DROP)
        clocks = (f"{first.clock:.0f} MHz", f"{other.clock:.0f} MHz")
        pairs["GPU clock"] = clocks if apart else ("", "")
    return {key: f"{a or 'none'} -> {b or 'none'}" for key, (a, b) in pairs.items() if a != b}


def _may_be_worse(gap: Gap, tolerance: float) -> bool:
    """Whether a gap for the worse, and beyond the tolerance, lies within the interval."""
    low, high = gap.value.low, gap.value.high
    if low is None or high is None:
        return True
    return low < 1 - tolerance if gap.metric.better == "higher" else high > 1 + tolerance


def _percent(gap: Gap) -> str:
    return f"{(gap.value.value - 1) * 100:+.0f} %"

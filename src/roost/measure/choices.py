"""Which of several choices a host should serve: at each point, and over all kinds of prompts.

A choice is recommended only if it is faster than every other one by more than the tolerance and
beyond noise; else those that nothing beats are named together. Of many points and pairs one or
another is faster by chance, so the intervals of all kinds of prompts hold at 95 % simultaneously
(Bonferroni), and so do those over all kinds. Beside the speed stand the engine's
counters: a choice that speculates can be faster than a plain one only by the tokens that each of
its steps brings, for no step takes less time than one without drafts. A gap above that is no
property of the choice: the host was not the same in both runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roost.measure import compare, points, statistics
from roost.measure.checks import Check, Evidence, Figure
from roost.measure.compare import TOLERANCE, Compared, Comparison
from roost.measure.points import CellPoints, Repetition
from roost.measure.statistics import Estimate

SPEED = points.metric("output_throughput")
#: All kinds of prompts of one concurrency; the geometric mean of their ratios.
ALL = "all"


@dataclass(frozen=True)
class Recommendation:
    """What to serve at one point.

    Attributes:
        point: A cell's id, or ``all-c<users>``.
        best: The choices that no other one beats, the fastest first; one: it is recommended.
        ratios: Speed of the fastest over that of each other choice.
        why: What the counters say of it.
        alike: Whether those of ``best`` are known to be alike, and not only lost in noise.
    """

    point: str
    best: tuple[str, ...]
    ratios: Mapping[str, Estimate]
    why: str
    alike: bool = True

    @property
    def choice(self) -> str | None:
        """The choice, or none where the difference is within noise or tolerance."""
        return self.best[0] if len(self.best) == 1 else None

    def __str__(self) -> str:
        said = [f"{times(ratio)} {name}" for name, ratio in self.ratios.items()]
        if self.choice is None:
            named = " and ".join(self.best)
            alike = f"no difference between {named}" if self.alike else f"lost in noise: {named}"
            return f"{alike} ({'; '.join(said)})"
        return f"{self.choice}: {'; '.join(said)}"


def times(ratio: Estimate) -> str:
    """A ratio with its interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f} times"
    return f"{ratio.value:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


def names(compared: Sequence[Compared]) -> list[str]:
    """A name for each run: its choice of speculation, where that tells them apart."""
    choices = [run.result.speculation for run in compared]
    return choices if len(set(choices)) == len(choices) else [run.name for run in compared]


def recommend(
    cells: Mapping[str, Sequence[Sequence[CellPoints]]], tolerance: float = TOLERANCE
) -> list[Recommendation]:
    """What to serve, for each kind of prompt and for all of them, by concurrency.

    Args:
        cells: By choice, its points in the same order; a list for each concurrency.
        tolerance: The gap that is too small to care about, as a fraction.
    """
    pairs = max(1, math.comb(len(cells), 2))
    groups = next(iter(cells.values()), [])
    one_kind = _together(pairs * sum(map(len, groups)))
    all_kinds = _together(pairs * sum(len(group) > 1 for group in groups))
    found = []
    for group in zip(*cells.values(), strict=True):
        by_choice = dict(zip(cells, group, strict=True))
        kinds = []
        for here in zip(*group, strict=True):
            one = {name: [cell] for name, cell in zip(cells, here, strict=True)}
            kinds.append(_recommend(here[0].id, one, tolerance, _steps_said(one), one_kind))
        found += kinds
        if len(kinds) > 1:
            point = f"{ALL}-c{group[0][0].concurrency}"
            why = "by kind: " + ", ".join(
                f"{one.point} {one.choice or _undecided(one)}" for one in kinds
            )
            found.append(_recommend(point, by_choice, tolerance, why, all_kinds))
    return found


def _together(intervals: int) -> float:
    """The confidence of each of several intervals that hold at 95 % all together."""
    return 1 - (1 - statistics.CONFIDENCE) / max(1, intervals)


def _undecided(one: Recommendation) -> str:
    return "no difference" if one.alike else "lost in noise"


def speed_ratio(
    baseline: Sequence[CellPoints],
    other: Sequence[CellPoints],
    confidence: float = statistics.CONFIDENCE,
) -> Estimate | None:
    """Throughput of one choice over another's, the mean over the cells of both; none: there is
    none, or one of them was not measured.

    A setting may leave out cells: prompts that are longer than its context.
    """
    theirs = {cell.id: cell for cell in other}
    pairs = [
        (SPEED.by_repetition(cell), SPEED.by_repetition(theirs[cell.id]))
        for cell in baseline
        if cell.id in theirs
    ]
    if not pairs or not all(a and b for a, b in pairs):
        return None
    return statistics.mean_ratio(pairs, confidence)


def unbeaten(
    cells: Mapping[str, Sequence[CellPoints]],
    tolerance: float = TOLERANCE,
    confidence: float = statistics.CONFIDENCE,
) -> dict[str, dict[str, Estimate]]:
    """The choices that no other one beats, the fastest first, with their ratios to the others.

    Never none: where each is beaten by another one, all of them.

    Args:
        cells: By choice.
        tolerance: The gap that is too small to care about, as a fraction.
        confidence: Of each ratio's interval by itself.
    """
    ratios: dict[str, dict[str, Estimate]] = {name: {} for name in cells}
    for name in cells:
        for other in cells:
            if name == other:
                continue
            ratio = speed_ratio(cells[other], cells[name], confidence)
            if ratio is not None:
                ratios[name][other] = ratio
    beaten = {
        other
        for found in ratios.values()
        for other, ratio in found.items()
        if compare.judge(ratio, SPEED, tolerance) == "better"
    }
    # Where all have the same cells, the ratios order the choices. Where each pair shares others,
    # they may form a circle, which says of none of them that it is beaten.
    left = [name for name in cells if name not in beaten] or list(cells)
    left.sort(key=lambda name: -sum(ratio.value > 1 for ratio in ratios[name].values()))
    return {name: ratios[name] for name in left}


def _recommend(
    point: str,
    cells: Mapping[str, Sequence[CellPoints]],
    tolerance: float,
    why: str,
    confidence: float,
) -> Recommendation:
    best = unbeaten(cells, tolerance, confidence)
    ratios = next(iter(best.values()))
    if all(ratio.low is None for ratio in ratios.values()):
        why = "too few repetitions to know the noise"
    _, *others = best
    alike = all(
        name in ratios and compare.judge(ratios[name], SPEED, tolerance) != "unclear"
        for name in others
    )
    return Recommendation(point, tuple(best), ratios, why, alike)


# --- the counters ---------------------------------------------------------------------------------


def tokens_per_step(cell: CellPoints) -> Estimate | None:
    """Tokens that each step of the engine brought a request, by counters; none without drafts.

    The accept length is over steps that had a draft, and lookup in the prompt drafts only now and
    then; this is over all steps.
    """
    found = [_tokens_per_step(one) for one in cell.clean]
    known = [one for one in found if one is not None]
    return statistics.estimate(known) if known else None


def _tokens_per_step(one: Repetition) -> float | None:
    tokens = sum(request.output_tokens for request in one.requests)
    if one.speculation is None:
        return one.accept_length
    # Every step brings one token of its own, and those that were accepted.
    steps = tokens - one.speculation.accepted
    return tokens / steps if steps > 0 else None


def _plain(cells: Mapping[str, Sequence[CellPoints]]) -> str | None:
    """The choice that does not speculate."""
    return next(
        (
            name
            for name, found in cells.items()
            if all(tokens_per_step(cell) is None for cell in found)
        ),
        None,
    )


def _steps_said(cells: Mapping[str, Sequence[CellPoints]]) -> str:
    """What the counters say of the choices at one point."""
    plain = _plain(cells)
    said = []
    for name, (cell,) in cells.items():
        steps = tokens_per_step(cell)
        if steps is None:
            continue
        text = f"{name} brings {steps.value:.2f} tokens a step"
        ratio = speed_ratio(cells[plain], [cell]) if plain else None
        if ratio is not None:
            text += f", each in {steps.value / ratio.value:.2f} times the time of {plain}'s"
        said.append(text)
    return "; ".join(said)


def counters(
    cells: Mapping[str, Sequence[CellPoints]], tolerance: float = TOLERANCE
) -> list[Check]:
    """Do the speeds agree with the counters? One check for each point of each choice with drafts.

    Args:
        cells: By choice, its points in the same order.
        tolerance: Allowed beyond the tokens a step where these have no interval.
    """
    plain = _plain(cells)
    if plain is None:
        return []
    checks = []
    for name, found in cells.items():
        for base, cell in zip(cells[plain], found, strict=True):
            steps, ratio = tokens_per_step(cell), speed_ratio([base], [cell])
            if name == plain or steps is None or ratio is None:
                continue
            most = steps.high if steps.high is not None else steps.value * (1 + tolerance)
            ok = (ratio.low if ratio.low is not None else ratio.value) <= most
            checks.append(
                Check(
                    id=f"counters {cell.id} {name}",
                    ok=ok,
                    expected=f"at most {most:.2f} times the speed of {plain}: so many tokens came "
                    "of each step",
                    observed=times(ratio),
                    why=""
                    if ok
                    else "drafts cannot explain it: the host was faster in one of the two runs",
                )
            )
    return checks


# --- a comparison ---------------------------------------------------------------------------------


def evidence(comparison: Comparison, *, published: bool = False) -> Evidence:
    """A recommendation for each point; no choice fails for being slower than another.

    Raises:
        RoostError: The runs share no point.
    """
    compared, tolerance = comparison.compared, comparison.tolerance
    found = compare.gaps(compared, tolerance)
    cells = shared(compared)
    runs_of = dict(zip(names(compared), (run.name for run in compared), strict=True))
    made = Evidence(checks=compare.standing(compared))
    for one in recommend(cells, tolerance):
        made.checks.append(
            Check(
                id=f"recommend {one.point}",
                verdict="pass" if one.choice or one.alike else "not seen",
                expected=f"the fastest, by more than {tolerance:.0%} and beyond noise",
                observed=str(one),
                why=one.why,
            )
        )
        for other, ratio in one.ratios.items():
            made.figures[f"recommend.{one.point}/{other}"] = Figure(
                title=f"Throughput of all users, {one.point}: {one.best[0]} / {other}",
                value=ratio.value,
                unit="times",
                source=f"{'recommended' if one.choice else _undecided(one)}; the speed in run "
                f"{runs_of[one.best[0]]} divided by that in {runs_of[other]}",
                low=ratio.low,
                high=ratio.high,
            )
    made.checks += compare.unshared(compared, "recommend")
    flat = {name: [cell for group in groups for cell in group] for name, groups in cells.items()}
    made.checks += counters(flat, tolerance)
    if published:
        found += compare.against_published(compared, tolerance)
    made.figures.update(compare.figures(found))
    return made


def shared(compared: Sequence[Compared]) -> dict[str, list[list[CellPoints]]]:
    """By choice, the points that all runs measured; a list for each concurrency."""
    first = compared[0].benchmark.cells
    kept = [
        cell.id
        for cell in first
        if all((one := run.benchmark.cell(cell.id)) and one.clean for run in compared)
    ]
    users = sorted({cell.concurrency for cell in first if cell.id in kept})
    return {
        name: [
            [
                cell
                for cell_id in kept
                if (cell := run.benchmark.cell(cell_id)) and cell.concurrency == here
            ]
            for here in users
        ]
        for name, run in zip(names(compared), compared, strict=True)
    }

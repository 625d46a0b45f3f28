"""Charts for notebooks. Error bars are intervals; a bar across the line at 1 is noise."""

from __future__ import annotations

import io
import math
import unicodedata
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from IPython.display import HTML
from matplotlib import rc_context
from matplotlib.figure import Figure

from roost.measure.compare import DECISIVE, Gap
from roost.measure.points import METRICS, Benchmark

if TYPE_CHECKING:
    from roost.measure.fleet.outliers import Standing
    from roost.tuning.front import Dot

_COLOURS = {"worse": "#a3201c", "better": "#17663a"}
#: What is neither: grey, so that only a difference beyond noise has a colour.
_QUIET = "#77736c"
_ROW_INCHES = 0.34
#: Names of hosts, folders and recipes are no formulas, whatever dollar signs they have.
_PLAIN: dict[str, Any] = {"parse_math": False}
_SMALL: dict[str, Any] = {**_PLAIN, "fontsize": 8}


def ratios(gaps: Sequence[Gap], tolerance: float) -> HTML:
    """One panel a metric: each point's ratio with its interval, and the band of the tolerance.

    All panels share a scale: a gap of 2 % looks the same in each. Ratios to anything but the first
    one's baseline are to published figures: open, and grey however large they are.
    """
    baseline = gaps[0].baseline
    others = {gap.other for gap in gaps}

    def name(gap: Gap) -> str:
        cell = _roomy(gap.cell)
        if gap.baseline != baseline:
            return f"{cell}  {gap.other} / {gap.baseline}"
        return f"{cell}  {gap.other}" if len(others) > 1 else cell

    shown = [metric for metric in METRICS if metric.key in DECISIVE]
    panels = [
        (metric, rows)
        for metric in shown
        if (rows := [gap for gap in gaps if gap.metric.key == metric.key])
    ]
    longest = max(len(rows) for _, rows in panels)
    figure = Figure(figsize=(9, len(panels) * (longest * _ROW_INCHES + 1.1)), layout="constrained")
    for axes, (metric, rows) in zip(
        figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0], panels, strict=True
    ):
        axes.axvspan(1 - tolerance, 1 + tolerance, color="#0000000f")
        axes.axvline(1, color=_QUIET, linewidth=1)
        for at, gap in enumerate(reversed(rows)):
            colour = _COLOURS.get(gap.verdict, _QUIET)
            if gap.value.low is not None and gap.value.high is not None:
                axes.plot([gap.value.low, gap.value.high], [at, at], color=colour, linewidth=2)
            mark = "x" if gap.value.low is None else "o" if gap.baseline == baseline else "D"
            fill = "full" if mark == "o" else "none"
            axes.plot(gap.value.value, at, mark, color=colour, fillstyle=fill)
        # Of a tall chart the scale at its very end is a page away.
        axes.tick_params(labelbottom=True, labelsize=8)
        names = [name(gap) for gap in reversed(rows)]
        axes.set_yticks(range(len(rows)), names, **_SMALL)
        axes.set_title(
            f"{metric.title}: ratio ({metric.better} is better)", fontsize=10, loc="left"
        )
    said = "; ".join(f"{gap} {gap.verdict}" for gap in gaps if gap.metric.key in DECISIVE)
    return _inline(figure, f"Ratios with their intervals: {said}")


def points(benchmark: Benchmark) -> HTML:
    """Throughput and accept length of every point, with intervals and published figures."""
    keys = ("output_throughput", "accept_length")
    shown = [metric for metric in METRICS if metric.key in keys]
    cells = [cell for cell in benchmark.cells if cell.clean]
    figure = Figure(figsize=(9, max(2.0, len(cells) * _ROW_INCHES + 1.1)), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(shown), sharey=True), shown, strict=True):
        for at, cell in enumerate(reversed(cells)):
            found = metric.estimate(cell)
            if found is not None:
                if found.low is not None and found.high is not None:
                    axes.plot([found.low, found.high], [at, at], color="#1d1c1a", linewidth=2)
                axes.plot(found.value, at, "o", color="#1d1c1a")
            for one in cell.published:
                if one.metric == metric.key:
                    axes.plot(one.value, at, "D", color=_QUIET, fillstyle="none")
        names = [_roomy(cell.id) for cell in reversed(cells)]
        axes.set_yticks(range(len(cells)), names, **_SMALL)
        axes.set_xlim(0, axes.get_xlim()[1] * 1.05)
        axes.set_title(f"{metric.title} ({metric.unit})", fontsize=10, loc="left")
    return _inline(figure, "Dots: median and 95 % interval; open diamonds: published figures")


def fleet(standings: Sequence[Standing], tolerance: float) -> HTML:
    """One panel a class, suite and metric: each host's ratio to its class, and the tolerance."""
    panels: dict[str, list[Standing]] = {}
    for one in standings:
        title = f"{one.metric.title}, {one.suite} ({one.belongs}): {one.metric.better} is better"
        panels.setdefault(title, []).append(one)
    if not panels:
        return _html("<p>No two hosts of a class have measured the same points.</p>")
    longest = max(len(rows) for rows in panels.values())
    height = len(panels) * (longest * _ROW_INCHES + 1.1)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes_of = figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0]
    for axes, (title, rows) in zip(axes_of, panels.items(), strict=True):
        axes.tick_params(labelbottom=True, labelsize=8)
        axes.axvspan(1 - tolerance, 1 + tolerance, color="#0000000f")
        axes.axvline(1, color=_QUIET, linewidth=1)
        for at, one in enumerate(reversed(rows)):
            axes.plot(one.ratio, at, "o", color=_COLOURS.get(one.verdict, _QUIET))
        axes.set_yticks(
            range(len(rows)), [one.host for one in reversed(rows)], **_PLAIN, fontsize=8
        )
        axes.set_title(title, **_PLAIN, fontsize=10, loc="left")
    said = "; ".join(
        f"{one.host} {one.metric.title.lower()} {one.ratio:.3f} of its class, {one.verdict}"
        for one in standings
    )
    return _inline(figure, f"Ratios to the class's median: {said}")


def front(dots: Sequence[Dot], best: Sequence[Dot], chosen: str) -> HTML:
    """Throughput of all users over the time that each waits for a token, and the Pareto front.

    Args:
        dots: Every point that was measured, at every number of users.
        best: Those on the front, by time.
        chosen: Name of the settings that were chosen, which are filled.
    """
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [dot.tpot for dot in best],
        [dot.throughput.value for dot in best],
        color=_COLOURS["better"],
        linewidth=1.5,
        drawstyle="steps-post",
    )
    for dot in dots:
        colour = _COLOURS["better"] if dot in best else _QUIET
        low, high = dot.throughput.low, dot.throughput.high
        if low is not None and high is not None:
            axes.plot([dot.tpot, dot.tpot], [low, high], color=colour, linewidth=1)
        fill = "full" if dot.point == chosen else "none"
        axes.plot(dot.tpot, dot.throughput.value, "o", color=colour, fillstyle=fill)
        if dot in best or dot.point == chosen:
            axes.annotate(
                f"{dot.point}, {dot.users} at a time",
                (dot.tpot, dot.throughput.value),
                xytext=(4, 6),
                textcoords="offset points",
                **_SMALL,
            )
    axes.set_xlabel("milliseconds a token, of one user (less is better)", fontsize=9)
    axes.set_ylabel("tokens/s, of all users (more is better)", fontsize=9)
    axes.set_ylim(bottom=0)
    said = "; ".join(
        f"{dot.point} for {dot.users} users: {dot.throughput.value:.4g} tokens/s at "
        f"{dot.tpot:.4g} ms a token"
        for dot in best
    )
    return _inline(figure, f"{len(dots)} measured points; on the Pareto front: {said}")


def _inline(figure: Figure, description: str) -> HTML:
    """As SVG in the page, with a description for who does not see it."""
    svg = _svg(figure)
    drawing = svg[svg.index("<svg") :]
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return _html(drawing.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def _svg(figure: Figure) -> str:
    """Letters drawn as they are here; where the font has not all of them, as text for the reader's.

    A user's categories may be Chinese or Japanese, which matplotlib's own font draws as boxes.
    """
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph .* missing from font", UserWarning)
        try:
            figure.savefig(out, format="svg")
        except UserWarning:
            warnings.simplefilter("ignore", UserWarning)
            out = io.StringIO()
            with rc_context({"svg.fonttype": "none"}):
                figure.savefig(out, format="svg")
    return out.getvalue()


def _roomy(label: str) -> str:
    """With room at its left where the reader's letters are wider than boxes of matplotlib's font.

    Those are 0.6 of the font's size wide, the letters all of it, and a space 0.32.
    """
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in label)
    return "\u00a0" * math.ceil(wide * 0.4 / 0.32) + label


def _html(shown: str) -> HTML:
    return HTML(shown)  # type: ignore[no-untyped-call]

"""Tables for notebooks; an engine's answers stand in them, so everything is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from IPython.display import HTML

from roost.measure.compare import Gap
from roost.measure.points import METRICS, Benchmark
from roost.measure.statistics import Estimate
from roost.measure.verify import Check, Figure

#: Characters of a cell that are shown; the report has the rest.
_WIDTH = 160


def facts(rows: Mapping[str, str]) -> HTML:
    """Names and values."""
    return _html(pd.DataFrame({"": list(rows), " ": list(rows.values())}), header=False)


def checks(made: Iterable[Check]) -> HTML:
    """One row a check: what was expected, what was observed, and why not."""
    rows = [
        {
            "check": check.id,
            "outcome": "passed" if check.ok else "FAILED",
            "expected": check.expected,
            "observed": check.observed,
            "why": check.why,
        }
        for check in made
    ]
    return _html(pd.DataFrame(rows))


def figures(found: Mapping[str, Figure]) -> HTML:
    """One row a figure, with what produced it."""
    rows = [
        {"figure": item.title, "value": f"{item.value:.2f} {item.unit}", "from": item.source}
        for item in found.values()
    ]
    return _html(pd.DataFrame(rows, columns=["figure", "value", "from"]))


def points(benchmark: Benchmark) -> HTML:
    """One row a point and metric: ours with its interval, and the published figure beside it."""
    rows = []
    for cell in benchmark.cells:
        for metric in METRICS:
            found = metric.estimate(cell)
            if found is None:
                continue
            theirs = [one for one in cell.published if one.metric == metric.key]
            rows.append(
                {
                    "point": cell.id,
                    "figure": f"{metric.title}, {metric.unit}",
                    "median": f"{found.value:.4g}",
                    "95 % interval": _interval(found),
                    "repetitions": len(cell.clean),
                    "published": ", ".join(f"{one.value} ({one.source})" for one in theirs),
                }
            )
    return _html(pd.DataFrame(rows))


def gaps(found: Iterable[Gap]) -> HTML:
    """One row a point and metric: the ratio with its interval and what it says."""
    rows = [
        {
            "point": gap.cell,
            "figure": gap.metric.title,
            "belongs to": gap.metric.belongs_to,
            "run": gap.other,
            "against": gap.baseline,
            "ratio": f"{gap.value.value:.3f}",
            "95 % interval": _interval(gap.value),
            "verdict": gap.verdict,
        }
        for gap in found
    ]
    return _html(pd.DataFrame(rows))


def _interval(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return "none: too few values"
    return f"{found.low:.4g} to {found.high:.4g}"


def _html(frame: pd.DataFrame, *, header: bool = True) -> HTML:
    with pd.option_context("display.max_colwidth", _WIDTH):
        return HTML(frame.to_html(index=False, header=header, border=0, justify="left"))  # type: ignore[no-untyped-call]

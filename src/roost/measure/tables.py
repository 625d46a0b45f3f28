"""Tables for notebooks; an engine's answers stand in them, so everything is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

import pandas as pd
from IPython.display import HTML

from roost.measure.checks import Check, Figure, ordered
from roost.measure.compare import Gap
from roost.measure.points import METRICS, Benchmark
from roost.measure.statistics import Estimate

#: Characters of a cell that are shown; the report has the rest.
_WIDTH = 160


def facts(rows: Mapping[str, str]) -> HTML:
    """Names and values."""
    return _html(pd.DataFrame({"": list(rows), " ": list(rows.values())}), header=False)


#: Jupyter aligns cells to the right and breaks no long word; a digest would push all else out.
_CELL = "text-align: left; vertical-align: top; overflow-wrap: anywhere; white-space: pre-line"
#: The name of a column is a few words, none of which should be broken.
_HEAD = "text-align: left; vertical-align: top; white-space: nowrap"
_COLUMNS = {"check": "20%", "verdict": "9%", "wants": "26%", "saw": ""}
_BAD, _QUIET = "color: #c5221f; font-weight: 600", "opacity: .7"


def checks(made: Iterable[Check]) -> HTML:
    """One row a check, what does not hold first: what it wants, what it saw, and how to mend."""
    head = "".join(
        f'<th style="{_CELL}; width: {width}">{name}</th>' for name, width in _COLUMNS.items()
    )
    told: set[tuple[str, str]] = set()
    rows = "".join(_row(check, told) for check in ordered(made))
    style = "table-layout: fixed; width: 100%"
    return _display(f'<table style="{style}"><tr>{head}</tr>{rows}</table>')


def _row(check: Check, told: set[tuple[str, str]]) -> str:
    """A row; why nothing could be asked, of a host out of reach, is told once."""
    as_wanted = check.ok and check.observed == check.expected
    saw = "as wanted" if as_wanted else _short(check.observed)
    said = [saw, _short(check.why), check.fix and f"To mend: {check.fix}"]
    if not check.observed and check.why:
        reason = (check.why, check.fix)
        said = ["as above"] if reason in told else said
        told.add(reason)
    cells = [
        (check.id, "font-weight: 600"),
        (check.verdict, "" if check.ok else _BAD),
        (_short(check.expected), ""),
        ("\n".join(filter(None, said)), ""),
    ]
    style = _QUIET if check.verdict == "not applicable" else ""
    tds = "".join(f'<td style="{_CELL}; {own}">{html.escape(text)}</td>' for text, own in cells)
    return f'<tr style="{style}">{tds}</tr>'


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


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
            "interval": _interval(gap.value),
            "verdict": gap.verdict,
        }
        for gap in found
    ]
    return _html(pd.DataFrame(rows))


def rows(found: Iterable[Mapping[str, str]]) -> HTML:
    """Rows as they are; what one of them lacks is empty."""
    return _html(pd.DataFrame(list(found)).fillna(""))


def _interval(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return "none: too few values"
    return f"{found.low:.4g} to {found.high:.4g}"


def _html(frame: pd.DataFrame, *, header: bool = True) -> HTML:
    with pd.option_context("display.max_colwidth", _WIDTH):
        table = frame.to_html(index=False, header=header, border=0, justify="left")
    for cell, style in (("td", _CELL), ("th", _HEAD)):
        table = table.replace(f"<{cell}>", f'<{cell} style="{style}">')
    return _display(table)


def _display(table: str) -> HTML:
    return HTML(table)  # type: ignore[no-untyped-call]

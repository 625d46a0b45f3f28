"""Tables for notebooks; an engine's answers stand in them, so everything is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from IPython.display import HTML

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


def _html(frame: pd.DataFrame, *, header: bool = True) -> HTML:
    with pd.option_context("display.max_colwidth", _WIDTH):
        return HTML(frame.to_html(index=False, header=header, border=0, justify="left"))  # type: ignore[no-untyped-call]

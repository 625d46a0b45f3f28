"""A run's report: one HTML file that needs nothing else, from ``result.json`` alone.

An engine's answers stand in it, and an engine answers what it likes: every value is escaped.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2

from roost import html_templates
from roost.measure.checks import Check, ordered


def render(result: Mapping[str, Any]) -> str:
    """The report of one run.

    Args:
        result: ``result.json``, decoded.
    """
    started = dt.datetime.fromisoformat(result["started"])
    finished = dt.datetime.fromisoformat(result["finished"])
    # A run that an older roost wrote says less of its checks.
    checks = [Check.model_validate(check) for check in result["checks"]]
    return _template().render(
        result=result,
        checks=ordered(checks),
        failed=[check for check in checks if not check.ok],
        unseen=[check for check in checks if check.ok and check.verdict == "not seen"],
        inapplicable=[check for check in checks if check.verdict == "not applicable"],
        started=started.strftime("%Y-%m-%d %H:%M:%S UTC"),
        seconds=(finished - started).total_seconds(),
    )


@cache
def _template() -> jinja2.Template:
    return html_templates.environment().get_template("report.html.j2")

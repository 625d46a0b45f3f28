"""Templates of HTML pages, in which every value is escaped and a missing one is an error."""

from __future__ import annotations

import jinja2


def environment(folder: str = "templates") -> jinja2.Environment:
    """What renders the templates of a folder of the package.

    Args:
        folder: Within the package.
    """
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("roost", folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["number"] = number
    return made


def number(value: float) -> str:
    """A figure with three significant digits, and never in powers of ten."""
    if value == 0:
        return "0"
    decimals = next((at for at, from_ in enumerate((100, 10, 1)) if abs(value) >= from_), 3)
    return f"{value:,.{decimals}f}"

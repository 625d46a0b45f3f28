"""What all templates of pages can say."""

from __future__ import annotations

import pytest

from roost import html_templates


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.1234, "0.123"), (2.5, "2.50"), (41.26, "41.3"), (12345.6, "12,346")],
)
def test_numbers(value: float, shown: str) -> None:
    assert html_templates.number(value) == shown

"""Generates ``docs/reference.md``: variables, settings and recipes, from the code that reads them.

Run ``python -m roost.reference docs/reference.md`` after changing one; a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from pydantic.fields import FieldInfo

from roost import catalog
from roost.settings import Settings
from roost.site import PREFIX, HostVars


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
        "",
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    value = field.default
    return "" if value is None or value in ({}, []) else f"`{value}`"


def render() -> str:
    """The whole page."""
    known = catalog.builtin()
    lines = [
        "# Variables, settings, recipes",
        "",
        "Generated from the code by `python -m roost.reference`; do not edit.",
        "",
        "## Inventory variables",
        "",
        "Any other `roost_*` variable is an error, so a misspelt one cannot pass unnoticed.",
        "",
        *_table(
            ("variable", "default", "meaning"),
            (
                (f"`{PREFIX}{name}`", _default(field), field.description or "")
                for name, field in HostVars.model_fields.items()
            ),
        ),
        "## Settings",
        "",
        "For `roost_settings` and `--set`. Later layers win: hardware, recipe, speculation choice,",
        "recipe on this hardware, inventory. `extra_args` of all layers add up.",
        "",
        *_table(
            ("setting", "vLLM", "meaning"),
            (
                (
                    f"`{name}`",
                    f"`{known.engines['vllm'].flags[name].flag}`"
                    if name in known.engines["vllm"].flags
                    else "",
                    field.description or "",
                )
                for name, field in Settings.model_fields.items()
            ),
        ),
        "## Recipes",
        "",
        *_table(
            ("recipe", "speculation (default first)", *known.hardware),
            (
                (
                    f"`{recipe.id}`",
                    ", ".join(
                        sorted(recipe.speculation, key=lambda c: c != recipe.default_speculation)
                    ),
                    *(recipe.support_on(hardware) for hardware in known.hardware),
                )
                for recipe in known.recipes.values()
            ),
        ),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")

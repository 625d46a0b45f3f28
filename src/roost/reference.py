"""Generates ``docs/reference.md``: variables, settings and keys, from the code that reads them.

Run ``python -m roost.reference docs/reference.md`` after changing one; a test compares.
"""

from __future__ import annotations

from pydantic.fields import FieldInfo

from roost import catalog, catalog_schema, figures, pins
from roost.generating import target
from roost.pages import markdown_table
from roost.settings import Settings, Strict
from roost.site import PREFIX, HostVars


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    value = field.default
    return "" if value is None or value in ({}, []) else f"`{value}`"


#: Everything that stands in a catalogue's files, from the outside in.
_KINDS: tuple[type[Strict], ...] = (
    catalog_schema.Recipe,
    pins.Repository,
    pins.Revision,
    catalog_schema.Speculation,
    catalog_schema.Support,
    pins.Image,
    pins.Build,
    pins.Fallback,
    catalog_schema.Variant,
    catalog_schema.Contradiction,
    figures.Table,
    figures.Column,
    figures.Row,
    catalog_schema.Model,
    catalog_schema.KnownRevision,
    catalog_schema.Hardware,
    catalog_schema.Gpu,
    catalog_schema.Engine,
)


def _keys(kind: type[Strict]) -> list[str]:
    fields = kind.model_fields.items()
    names = (f"**`{name}`**" if field.is_required() else f"`{name}`" for name, field in fields)
    lines = [f"### {kind.__name__}", "", (kind.__doc__ or "").partition("\n")[0], ""]
    lines += [", ".join(names), ""]
    described = [f"- `{name}`: {field.description}" for name, field in fields if field.description]
    return [*lines, *described, *([""] if described else [])]


def _spelled(engine: catalog_schema.Engine, setting: str) -> str:
    word = engine.flags[setting].flag if setting in engine.flags else engine.variables.get(setting)
    return f"`{word}`" if word else ""


def render() -> str:
    """The whole page."""
    known = catalog.builtin()
    lines = [
        "# Variables, settings, keys",
        "",
        "Generated from the code by `python -m roost.reference docs/reference.md`; do not edit.",
        "",
        "## Inventory variables",
        "",
        "Any other `roost_*` variable is an error, so a misspelt one cannot pass unnoticed.",
        "",
        *markdown_table(
            ("variable", "default", "meaning"),
            (
                (f"`{PREFIX}{name}`", _default(field), field.description or "")
                for name, field in HostVars.model_fields.items()
            ),
        ),
        "## Settings",
        "",
        "For `roost_settings` and `--set`. Later layers win: hardware, recipe, variant,",
        "speculation choice, recipe on this hardware, inventory. `extra_args` of all layers add",
        "up.",
        "",
        *markdown_table(
            ("setting", *(engine.title for engine in known.engines.values()), "meaning"),
            (
                (
                    f"`{name}`",
                    *(_spelled(engine, name) for engine in known.engines.values()),
                    field.description or "",
                )
                for name, field in Settings.model_fields.items()
            ),
        ),
        "## Files of a catalogue",
        "",
        "What ships is in `src/roost/catalog`; `roost --catalog DIR` takes further files of the",
        "same kinds from a directory of yours. [Adding a recipe](adding-a-recipe.md) shows them in",
        "use, [recipes](recipes/README.md) what is there. Keys in bold are required; any other key",
        "is an error.",
        "",
        *(line for kind in _KINDS for line in _keys(kind)),
    ]
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    target("roost.reference", "docs/reference.md").write_text(render(), encoding="utf-8")

"""Generates ``docs/recipes``: a page for every recipe, from the catalogue that ships.

Run ``python -m roost.pages docs/recipes`` after changing a recipe, a model or an engine; a test
compares. Nothing is locked on these pages: what a recipe names by branch or tag is shown by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from roost import catalog, listing
from roost.catalog import Catalog
from roost.catalog_schema import Model, Recipe
from roost.errors import RefusedError
from roost.figures import Column, Table, Value
from roost.generating import target
from roost.launch import resolving, shown

_GENERATED = "Generated from the catalogue by `python -m roost.pages docs/recipes`; do not edit."


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table's lines, and an empty one."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in [head, *rows]]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(cells[0]), *lines[1:], ""]


def index(known: Catalog) -> str:
    """The page that leads to the others."""
    lines = [
        "# Recipes",
        "",
        _GENERATED,
        "",
        *markdown_table(
            ("recipe", "speculation (* default)", "engine", *known.hardware),
            (
                (
                    f"[{recipe.id}]({recipe.id}.md)",
                    ", ".join(listing.choices(recipe)),
                    recipe.engine,
                    *(recipe.support_on(hardware) for hardware in known.hardware),
                )
                for recipe in known.recipes.values()
            ),
        ),
        "*verified*: the recipe's source ran it there. *unsupported*: somebody found that it does",
        "not run there. *untested*: nobody says.",
        "",
        "The same in a terminal: `roost recipes`, and `roost recipes RECIPE` for one in full.",
        "How to write one: [adding a recipe](../adding-a-recipe.md).",
        "Where the facts are from: [sources](../sources.md).",
        "",
    ]
    return "\n".join(lines)


def page(recipe: Recipe, known: Catalog) -> str:
    """One recipe's page."""
    lines = [
        f"# {recipe.title}",
        "",
        _GENERATED,
        "",
        f"Recipe `{recipe.id}`, from {recipe.source}.",
        "",
    ]
    lines += _repositories(recipe, known)
    lines += _support(recipe, known)
    lines += _launches(recipe, known)
    lines += _told("##", listing.sections(recipe))
    if recipe.figures:
        lines += [f"## {len(recipe.published())} published figures", ""]
        for table in recipe.figures:
            lines += _figures(table)
    if recipe.contradictions:
        lines += ["## Contradictions", ""]
        lines += _told("###", listing.contradictions(recipe))
    lines += _told("##", listing.background(recipe))
    return "\n".join(lines).rstrip("\n") + "\n"


def _told(level: str, sections: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
    for title, items in sections:
        if items:
            yield from (f"{level} {title}", "")
            yield from (f"- {' '.join(item.split())}" for item in items)
            yield ""


def _repositories(recipe: Recipe, known: Catalog) -> Iterator[str]:
    """Model and drafters: what each is, whose, and under which licence."""
    named = {(recipe.model.repo, recipe.model.revision.name): recipe.model}
    for choice in recipe.speculation.values():
        for repository in (choice.model, choice.drafter):
            if repository is not None:
                named[repository.repo, repository.revision.name] = repository
    rows, notes = [], []
    for (repo, revision), repository in named.items():
        model = known.models.get(repo)
        rows.append((f"`{repo}`", f"`{revision}`", *_known(model)))
        notes += [repository.note] if repository.note else []
        notes += model.notes if model else []
        facts = model.revision(revision) if model else None
        notes += (
            [f"`{repo}@{revision}`: {facts.note} ({facts.source})"] if facts and facts.note else []
        )
    yield from markdown_table(
        ("repository", "revision", "role", "weights", "licence", "author", "made from"), rows
    )
    yield from (f"- {' '.join(note.split())}" for note in dict.fromkeys(notes))
    yield from [""] if notes else []


def _known(model: Model | None) -> tuple[str, ...]:
    if model is None:
        return ("",) * 5
    weights = ", ".join(text for text in (model.weights, model.method) if text)
    return (
        model.role,
        weights,
        model.licence or "",
        model.author or "",
        ", ".join(f"`{name}`" if "/" in name else name for name in model.lineage),
    )


def _support(recipe: Recipe, known: Catalog) -> Iterator[str]:
    yield from ("## Where it runs", "")
    names = sorted(recipe.speculation, key=lambda name: name != recipe.default_speculation)
    yield from markdown_table(
        ("speculation", *known.hardware, "needs"),
        [
            (
                "the recipe",
                *(recipe.support_on(hardware) for hardware in known.hardware),
                f"engine {known.engines[recipe.engine].title}",
            ),
            *(
                (
                    f"`{name}`" + (" (default)" if name == recipe.default_speculation else ""),
                    *(recipe.support_on(hardware, name) for hardware in known.hardware),
                    ", ".join(listing.needs(recipe.speculation[name], known)),
                )
                for name in names
            ),
        ],
    )


def _launches(recipe: Recipe, known: Catalog) -> Iterator[str]:
    """The command for every machine that somebody verified, with the choice to take there."""
    names = sorted(recipe.speculation, key=lambda name: name != recipe.default_speculation)
    for hardware in known.hardware:
        if recipe.support_on(hardware) != "verified":
            continue
        for name in names:
            try:
                resolved = resolving.resolve(known, recipe.id, hardware, speculation=name)
            except RefusedError:
                continue
            yield from (f"## Launch on {hardware}", "")
            if resolved.spec.build:
                yield from ("No registry has the image; build it there:", "")
                yield from ("```bash", resolved.spec.build, "```", "")
            yield from ("```bash", shown.docker_command(resolved.spec), "```", "")
            others = [
                f"`{other}`"
                for other in names
                if other != name and recipe.support_on(hardware, other) != "unsupported"
            ]
            yield f"`roost show {recipe.id} --on {hardware} --speculation {name}`" + (
                f"; other choices: {', '.join(others)}." if others else "."
            )
            if resolved.spec.lockable:
                yield "By branch or tag until `roost lock` pins it: " + (
                    ", ".join(resolved.spec.lockable) + "."
                )
            yield ""
            break


def _figures(table: Table) -> Iterator[str]:
    """A table in the shape it was published in, with what holds for all of it below."""
    at = list(dict.fromkeys(key for row in table.rows for key in row.at))
    noted = any(row.note for row in table.rows)
    yield from (f"### {table.title}", "")
    yield from markdown_table(
        [
            *(key.replace("_", " ") for key in at),
            *map(_head, table.columns),
            *([""] if noted else []),
        ],
        (
            [
                *(_condition(row.at[key]) if key in row.at else "" for key in at),
                *map(_value, row.values),
                *([row.note or ""] if noted else []),
            ]
            for row in table.rows
        ),
    )
    facts = [table.kind, *([f"on {table.hardware}"] if table.hardware else [])]
    facts += [str(table.date)] if table.date else []
    facts += [
        f"{key.replace('_', ' ')}: {_condition(value)}" for key, value in table.conditions.items()
    ]
    yield f"{table.source}; {', '.join(facts)}."
    if table.note:
        yield " ".join(table.note.split())
    yield ""


def _head(column: Column) -> str:
    conditions = [
        value if isinstance(value, str) else f"{key.replace('_', ' ')} {_condition(value)}"
        for key, value in column.conditions.items()
    ]
    said = [*([column.speculation] if column.speculation else []), *conditions, column.unit]
    return f"{column.what.replace('_', ' ')} ({', '.join(said)})"


def _condition(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(value: Value) -> str:
    if value is None:
        return ""
    return " to ".join(map(str, value)) if isinstance(value, list) else str(value)


def render(known: Catalog) -> dict[str, str]:
    """Every page by its file's name."""
    pages = {f"{recipe.id}.md": page(recipe, known) for recipe in known.recipes.values()}
    return {"README.md": index(known), **pages}


def write(folder: Path) -> None:
    """Write the pages, and remove those of recipes that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = render(catalog.builtin())
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    for stale in set(folder.glob("*.md")) - {folder / name for name in pages}:
        stale.unlink()


if __name__ == "__main__":
    write(target("roost.pages", "docs/recipes"))

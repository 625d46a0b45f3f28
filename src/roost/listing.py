"""What ``roost recipes`` prints: every recipe at a glance, and one in full."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from roost.catalog import Catalog
from roost.catalog_schema import Recipe, Speculation
from roost.pins import Image, Repository

MARKS = {"verified": "yes", "unsupported": "no", "untested": "-"}

LEGEND = "* default.  yes: its source ran it there; no: it does not run there; -: nobody says."

#: Columns of a terminal in which a recipe's choices fit beside its marks instead of below them.
_WIDE = 110

_GAP = "  "


def row(recipe: Recipe, known: Catalog) -> dict[str, Any]:
    """One recipe as the command's JSON has it: id, parts, choices, tri-state by hardware."""
    choices = recipe.speculation.values()
    return {
        "id": recipe.id,
        "model": recipe.model.repo,
        "drafter": next((choice.drafter.repo for choice in choices if choice.drafter), None),
        "engine": recipe.engine,
        "speculation": list(recipe.speculation),
        "hardware": {hardware: recipe.support_on(hardware) for hardware in known.hardware},
        "source": recipe.source,
    }


def choices(recipe: Recipe) -> list[str]:
    """The recipe's speculation choices, the default marked and first."""
    ordered = sorted(recipe.speculation, key=lambda name: name != recipe.default_speculation)
    return [f"{ordered[0]}*", *ordered[1:]]


def table(known: Catalog, width: int) -> str:
    """All recipes with their marks, for a terminal of so many columns."""
    recipes = list(known.recipes.values())
    wide = width >= _WIDE
    lines = [["recipe", *known.hardware, *(["engine", "speculation"] if wide else [])]]
    for recipe in recipes:
        marks = [MARKS[recipe.support_on(hardware)] for hardware in known.hardware]
        beside = [recipe.engine, " ".join(choices(recipe))] if wide else []
        lines.append([recipe.id, *marks, *beside])
    shown = _columns(lines, width)
    if not wide:
        below = [f"  {recipe.engine}: {' '.join(choices(recipe))}" for recipe in recipes]
        shown = [
            shown[0],
            *(f"{line}\n{more}" for line, more in zip(shown[1:], below, strict=True)),
        ]
    return "\n".join([*shown, "", *textwrap.wrap(LEGEND, width)])


def _columns(lines: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines in aligned columns; the last column is folded into what is left of the width."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    before = sum(widths) + len(_GAP) * len(widths)
    shown = []
    for *cells, last in lines:
        start = "".join(f"{cell:{size}}{_GAP}" for cell, size in zip(cells, widths, strict=True))
        folded = textwrap.wrap(
            last, max(width - before, 16), break_on_hyphens=False, break_long_words=False
        ) or [""]
        shown.append(("\n" + " " * before).join([start + folded[0], *folded[1:]]).rstrip())
    return shown


def details(recipe: Recipe, known: Catalog, width: int) -> str:
    """One recipe in full, for a terminal of so many columns."""
    head = [
        ["model", named(recipe.model, known)],
        ["engine", known.engines[recipe.engine].title],
        ["served as", recipe.served_name],
        ["source", recipe.source],
    ]
    parts = [recipe.title, "\n".join(_columns(head, width)), _choices(recipe, known, width)]
    told = [
        *sections(recipe),
        *((f"contradiction: {about}", items) for about, items in contradictions(recipe)),
        *background(recipe),
        (
            f"{len(recipe.published())} published figures, in full: "
            f"roost recipes {recipe.id} --json",
            [f"{table.title} ({len(table.figures())})" for table in recipe.figures],
        ),
    ]
    parts += [_section(title, items, width) for title, items in told if items]
    return "\n\n".join(parts)


def sections(recipe: Recipe) -> Iterator[tuple[str, list[str]]]:
    """What is said of choices, machines and images, as titles and items; some have no items."""
    yield (
        "about these choices",
        [f"{name}: {choice.note}" for name, choice in recipe.speculation.items() if choice.note],
    )
    for hardware, support in recipe.hardware.items():
        when = f", {support.date}" if support.date else ""
        said = [support.reason] if support.reason else []
        said += image_lines(support.image) if support.image else []
        yield f"{hardware}: {support.support} ({support.source}{when})", [*said, *support.notes]
    yield "where nobody verified it", image_lines(recipe.image) if recipe.image else []
    for name, variant in recipe.variants.items():
        said = [f"licence {variant.licence}"] if variant.licence else []
        said += image_lines(variant.image) if variant.image else []
        said += [variant.note] if variant.note else []
        yield f"variant {name}: {variant.title} ({variant.source})", said


def contradictions(recipe: Recipe) -> Iterator[tuple[str, list[str]]]:
    """What each is about, and its sides with what was chosen."""
    for item in recipe.contradictions:
        sides = [f"{side.source}: {side.says}" for side in item.sides]
        yield item.about, [*sides, f"chosen: {item.chosen}. {item.why}"]


def background(recipe: Recipe) -> Iterator[tuple[str, list[str]]]:
    """Whose it is, and what else there is to know."""
    yield "provenance", recipe.provenance
    yield "notes", recipe.notes


def _choices(recipe: Recipe, known: Catalog, width: int) -> str:
    wide = width >= _WIDE
    lines = [["speculation", *known.hardware, *(["with"] if wide else [])]]
    below = [""]
    for name in sorted(recipe.speculation, key=lambda name: name != recipe.default_speculation):
        marks = [MARKS[recipe.support_on(hardware, name)] for hardware in known.hardware]
        parts = needs(recipe.speculation[name], known)
        star = "*" if name == recipe.default_speculation else ""
        lines.append([name + star, *marks, *([", ".join(parts)] if wide else [])])
        below.append("".join(f"\n  {part}" for part in parts if not wide))
    shown = _columns(lines, width)
    return "\n".join(line + more for line, more in zip(shown, below, strict=True))


def needs(choice: Speculation, known: Catalog) -> list[str]:
    """What a speculation choice needs besides the recipe's model, in words."""
    found = [f"drafter {named(choice.drafter, known)}"] if choice.drafter else []
    return found + ([f"model {named(choice.model, known)}"] if choice.model else [])


def image_lines(image: Image) -> list[str]:
    """An image in words: what it is, how to come by it, what may do instead."""
    lines = [f"image {image.reference}, engine {image.engine_version}"]
    if image.untrusted:
        without = "no credentials and no IPC with the host"
        lines.append(f"untrusted, so it gets {without}: {image.untrusted}")
    if image.build:
        lines.append(f"built with: {image.build_command()}")
        lines += [image.build.note] if image.build.note else []
    lines += [image.note] if image.note else []
    for fallback in image.fallbacks:
        known = fallback.support or "untested"
        when = f" on {fallback.date}" if fallback.date else ""
        lines.append(
            f"or {fallback.image.reference} ({known}{when}): {fallback.reason} ({fallback.source})"
        )
    return lines


def named(repository: Repository, known: Catalog) -> str:
    """A repository at its revision, with what is known of it in a word each."""
    revision = repository.revision
    name = f"{repository.repo}@{revision.commit[:12] if revision.commit else revision.name}"
    model = known.models.get(repository.repo)
    said = [text for text in (model.licence, model.weights, model.method) if text] if model else []
    return f"{name} ({', '.join(said)})" if said else name


def _section(title: str, items: Sequence[str], width: int) -> str:
    return "\n".join([*textwrap.wrap(title, width), *_items(items, width)])


def _items(items: Sequence[str], width: int) -> Iterator[str]:
    for item in items:
        yield textwrap.fill(
            " ".join(item.split()),
            width,
            initial_indent="  - ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )

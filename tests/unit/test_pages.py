"""The pages of recipes: generated, complete, figures in the shape they were published in."""

from __future__ import annotations

from pathlib import Path

import pytest

from roost import catalog, pages
from roost.catalog_schema import Recipe
from roost.figures import Table
from roost.launch import resolving, shown

FOLDER = Path(__file__).parents[2] / "docs" / "recipes"
KNOWN = catalog.builtin()
RECIPES = list(KNOWN.recipes.values())


def test_pages_are_generated_from_the_catalogue() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    rendered = pages.render(KNOWN)
    stale = sorted(
        name for name in {*written, *rendered} if written.get(name) != rendered.get(name)
    )
    assert not stale, f"{stale}: run `python -m roost.pages docs/recipes`"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.id)
def test_a_page_holds_what_is_known(recipe: Recipe) -> None:
    text = pages.page(recipe, KNOWN)
    for choice in recipe.speculation.values():
        for repository in (choice.model, choice.drafter):
            assert repository is None or f"`{repository.repo}`" in text
    for hardware, support in recipe.hardware.items():
        if support.support == "verified":
            assert f"## Launch on {hardware}\n" in text
        assert f"## {hardware}: {support.support}" in text
        for fallback in support.image.fallbacks if support.image else []:
            assert fallback.image.reference in text
    for item in recipe.contradictions:
        assert all(f"- {side.source}: " in text for side in item.sides)
    for table in recipe.figures:
        assert f"### {table.title}\n" in text
    licences = {KNOWN.models[r].licence for r in [recipe.model.repo] if r in KNOWN.models}
    assert all(licence is None or licence in text for licence in licences)


def test_the_command_is_the_one_that_show_prints() -> None:
    recipe = KNOWN.recipe("smollm2-135m")
    spec = resolving.resolve(KNOWN, recipe.id, "cpu").spec
    assert f"```bash\n{shown.docker_command(spec)}\n```" in pages.page(recipe, KNOWN)


def test_figures_keep_the_shape_of_their_table() -> None:
    table = Table.model_validate(
        {
            "id": "t",
            "title": "T",
            "source": "source 000",
            "hardware": "gb10",
            "conditions": {"thinking": False},
            "columns": [
                {"what": "output_throughput", "unit": "tok/s", "speculation": "mtp"},
                {"what": "ttft", "unit": "ms", "conditions": {"statistic": "median", "streams": 1}},
            ],
            "rows": [
                {"at": {"category": "a|b"}, "values": [217.8, None]},
                {"at": {"streams": 2}, "values": [[93, 98], 4], "note": "twice"},
            ],
            "note": "As printed.",
        }
    )
    assert "\n".join(pages._figures(table)) == (
        "### T\n\n"
        "| category | streams | output throughput (mtp, tok/s) | ttft (median, streams 1, ms) |  |"
        "\n"
        "|---|---|---|---|---|\n"
        "| a\\|b |  | 217.8 |  |  |\n"
        "|  | 2 | 93 to 98 | 4 | twice |\n\n"
        "source 000; measured, on gb10, thinking: false.\n"
        "As printed.\n"
    )


def test_pages_of_recipes_that_are_gone_are_removed(tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("x")
    pages.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(pages.render(KNOWN))

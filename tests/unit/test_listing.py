"""What ``roost recipes`` prints, at the widths that terminals have."""

from __future__ import annotations

import pytest

from roost import catalog, listing
from roost.catalog_schema import Recipe

#: As many recipes and machines as a full catalogue has, with ids as long as its longest.
SHIPPED = catalog.builtin()
ORNITH = "ornith-1.0-35b-heretic-nvfp4-dflash"
SMOLLM = SHIPPED.recipe("smollm2-135m")
KNOWN = SHIPPED.model_copy(
    update={
        "hardware": {
            **SHIPPED.hardware,
            **{
                name: SHIPPED.hardware["cpu"].model_copy(update={"id": name})
                for name in ("h200", "rtx5090")
            },
        },
        "recipes": {
            ORNITH: SHIPPED.recipe(ORNITH),
            SMOLLM.id: SMOLLM,
            **{
                f"ornith-1.0-35b-heretic-nvfp4-dflash{n}": SMOLLM.model_copy(
                    update={"id": f"ornith-1.0-35b-heretic-nvfp4-dflash{n}"}
                )
                for n in range(6)
            },
        },
    }
)


@pytest.mark.parametrize("width", [80, 100, 110, 120, 200])
def test_the_table_fits_and_marks_stand_below_their_machine(width: int) -> None:
    lines = listing.table(KNOWN, width).splitlines()
    assert max(map(len, lines)) <= width
    head = lines[0]
    ornith = next(line for line in lines if line.startswith("ornith-1.0-35b-heretic"))
    assert ornith[head.index("gb10") :].startswith("yes")
    assert ornith[head.index("cpu") :].startswith("-")
    text = "\n".join(lines)
    assert "dflash* ngram none" in text
    assert text.count("vllm") == len(KNOWN.recipes)


@pytest.mark.parametrize("recipe", SHIPPED.recipes.values(), ids=lambda recipe: recipe.id)
@pytest.mark.parametrize("width", [80, 120])
def test_details_fit_but_for_words_that_cannot_be_cut(recipe: Recipe, width: int) -> None:
    text = listing.details(recipe, KNOWN, width)
    for line in text.splitlines():
        assert len(line) <= width or len(line.split()) <= 2, line
    assert recipe.title in text
    for name in recipe.speculation:
        assert f"\n{name}" in text
    for support in recipe.hardware.values():
        assert support.image is None or support.image.reference in text


def test_an_unsupported_machine_is_marked_with_its_reason() -> None:
    data = SMOLLM.model_dump(exclude_defaults=True)
    data["hardware"]["gb10"] = {
        "support": "unsupported",
        "reason": "It has no kernels for it.",
        "source": "here",
    }
    recipe = Recipe.model_validate(data)
    known = KNOWN.model_copy(update={"recipes": {recipe.id: recipe}})
    head, marks = listing.table(known, 80).splitlines()[:2]
    assert marks[head.index("gb10") :].startswith("no ")
    assert "It has no kernels for it." in listing.details(recipe, known, 80)


def test_rows_say_the_tri_state() -> None:
    marks = listing.row(SMOLLM, KNOWN)["hardware"]
    assert list(marks) == list(KNOWN.hardware)
    assert (marks["cpu"], marks["gb10"], marks["h200"]) == ("verified", "untested", "untested")


def test_where_published_figures_are_read_in_full() -> None:
    """A recipe of one's own has no page."""
    recipe = next(one for one in KNOWN.recipes.values() if one.published())
    text = " ".join(listing.details(recipe, KNOWN, 200).split())
    assert f"published figures, in full: roost recipes {recipe.id} --json" in text
    assert f"docs/recipes/{recipe.id}.md" not in text

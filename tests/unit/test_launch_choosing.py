"""What of a recipe runs where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.test_launch_resolving import ORNITH, locked

from roost import catalog
from roost.catalog_schema import Support
from roost.errors import RefusedError, UsageError
from roost.launch import resolving
from roost.settings import Settings


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"recipe_id": "nope", "hardware_id": "cpu"}, UsageError, "is not in the catalogue"),
        ({"recipe_id": ORNITH, "hardware_id": "h100"}, UsageError, "is not in the catalogue"),
        ({"recipe_id": ORNITH, "hardware_id": "cpu"}, RefusedError, "has never been run on cpu"),
        (
            {"recipe_id": ORNITH, "hardware_id": "gb10", "speculation": "eagle"},
            UsageError,
            "has no speculation 'eagle'",
        ),
        (
            {
                "recipe_id": ORNITH,
                "hardware_id": "gb10",
                "speculation": "none",
                "overrides": Settings(num_speculative_tokens=4),
            },
            UsageError,
            "num_speculative_tokens is set, but speculation 'none' does not speculate",
        ),
        (
            {
                "recipe_id": "smollm2-135m",
                "hardware_id": "cpu",
                "speculation": "ngram",
                "overrides": Settings(drafter_revision="early"),
            },
            UsageError,
            "drafter_revision is set, but speculation 'ngram' has no drafter",
        ),
    ],
)
def test_refusals(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        resolving.resolve(catalog.builtin(), **arguments)


def test_unsupported_gives_the_reason() -> None:
    known = catalog.builtin()
    recipe = known.recipes[ORNITH]
    refusing = Support(support="unsupported", reason="no kernels", source="a test")
    changed = recipe.model_copy(update={"hardware": {**recipe.hardware, "cpu": refusing}})
    other = known.model_copy(update={"recipes": {ORNITH: changed}})
    with pytest.raises(RefusedError, match=r"no kernels \(a test\)"):
        resolving.resolve(other, ORNITH, "cpu")


def test_untested_hardware_runs_with_a_named_image() -> None:
    image = "vllm/vllm-openai-cpu@sha256:" + "b" * 64
    spec = resolving.resolve(
        catalog.builtin(), ORNITH, "cpu", lock=locked(), overrides=Settings(image=image)
    ).spec
    assert spec.image == image
    assert spec.gpus is None


@pytest.mark.parametrize(
    ("recipe", "speculation", "settings", "fix"),
    [
        ("ornith-1.0-35b-fp8", "none", {"num_speculative_tokens": 4}, "drop the setting"),
        ("smollm2-135m", "ngram", {"drafter_revision": "x"}, "drop the setting, or choose: dflash"),
    ],
)
def test_a_fix_names_only_choices_that_take_the_setting(
    recipe: str, speculation: str, settings: dict[str, Any], fix: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolving.resolve(
            catalog.builtin(),
            recipe,
            "gb10",
            speculation=speculation,
            overrides=Settings(**settings),
            refuse=False,
        )
    assert caught.value.fix == fix

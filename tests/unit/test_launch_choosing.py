"""What of a recipe runs where, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.test_launch_resolving import ORNITH, TODAY, locked

from roost import catalog
from roost.catalog_schema import Support
from roost.errors import RefusedError, UsageError
from roost.launch import resolving
from roost.lock import Lock, LockedImage
from roost.pins import Image
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


def test_a_version_without_its_image_is_refused() -> None:
    """It would change nothing that runs, and all that is computed."""
    with pytest.raises(UsageError, match=r"engine_version 0\.24\.0 is set, but no image") as caught:
        resolving.resolve(
            catalog.builtin(), ORNITH, "gb10", overrides=Settings(engine_version="0.24.0")
        )
    assert "which would run, has 0.23.1rc1.dev" in str(caught.value.why)
    assert "image=repository@sha256:…" in caught.value.fix


def test_a_version_may_be_said_again_or_for_an_image_of_which_none_is_known() -> None:
    known = catalog.builtin()
    recipe = known.recipes["ornith-1.0-35b-fp8"]
    support = recipe.hardware["gb10"]
    assert support.image is not None

    def version(image: Image, said: str) -> str:
        changed = support.model_copy(update={"image": image})
        hardware = {**recipe.hardware, "gb10": changed}
        other = known.model_copy(
            update={"recipes": {recipe.id: recipe.model_copy(update={"hardware": hardware})}}
        )
        made = resolving.resolve(other, recipe.id, "gb10", overrides=Settings(engine_version=said))
        return made.image.engine_version

    assert version(support.image, support.image.engine_version) == support.image.engine_version
    unknown = support.image.model_copy(update={"engine_version": "unknown"})
    assert version(unknown, "0.30.0") == "0.30.0"


def test_a_lock_tells_that_an_image_is_the_recipe_s_own() -> None:
    known = catalog.builtin()
    image = known.recipes["ornith-1.0-35b-fp8"].hardware["gb10"].image
    assert image is not None
    digest = "sha256:" + "c" * 64
    lock = Lock(images={image.repository: {image.name: LockedImage(digest=digest, resolved=TODAY)}})
    for said, assumed in ((digest, False), ("sha256:" + "d" * 64, True)):
        overrides = Settings(image=f"{image.repository}@{said}")
        made = resolving.resolve(
            known, "ornith-1.0-35b-fp8", "gb10", lock=lock, overrides=overrides
        )
        assert made.version_assumed is assumed
        assert made.image.engine_version == image.engine_version


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

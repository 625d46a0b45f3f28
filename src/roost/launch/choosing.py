"""What of a recipe is launched on a machine, and what is refused there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from roost.catalog_schema import (
    ApiKey,
    Engine,
    Hardware,
    Known,
    Recipe,
    Speculation,
    Support,
    Variant,
)
from roost.errors import RefusedError, UsageError
from roost.lock import Lock
from roost.pins import Image
from roost.settings import Settings

#: The version of an image of which nobody says one.
_UNKNOWN = "unknown"


def speculation(recipe: Recipe, wanted: str | None) -> tuple[str, Speculation]:
    """The choice by its name, or the recipe's default.

    Raises:
        UsageError: The recipe has no such choice.
    """
    name = wanted or recipe.default_speculation
    if name not in recipe.speculation:
        raise UsageError(
            f"{recipe.id} has no speculation {name!r}",
            fix="choose one of: " + ", ".join(recipe.speculation),
        )
    return name, recipe.speculation[name]


def check_settings(recipe: Recipe, name: str, overrides: Settings) -> None:
    """Refuse settings that a choice of speculation has no use for.

    Raises:
        UsageError: Naming the choices that take it.
    """
    choice, choices = recipe.speculation[name], recipe.speculation.items()
    if choice.method is None and overrides.num_speculative_tokens is not None:
        raise UsageError(
            f"num_speculative_tokens is set, but speculation {name!r} does not speculate",
            fix=_drop_or_choose(one for one, other in choices if other.method),
        )
    if choice.drafter is None and overrides.drafter_revision is not None:
        raise UsageError(
            f"drafter_revision is set, but speculation {name!r} has no drafter",
            fix=_drop_or_choose(one for one, other in choices if other.drafter),
        )


def _drop_or_choose(choices: Iterable[str]) -> str:
    names = ", ".join(choices)
    return "drop the setting" + (f", or choose: {names}" if names else "")


def known_not_to_run(recipe: Recipe, hardware: Hardware, choice: str) -> Known | None:
    """Who found that it does not run there, or that this choice does not."""
    places: tuple[Known | None, ...] = (
        recipe.hardware.get(hardware.id),
        recipe.speculation[choice].hardware.get(hardware.id),
    )
    return next((known for known in places if known and known.support == "unsupported"), None)


def refusal(recipe: Recipe, hardware: Hardware, choice: str, known: Known) -> RefusedError:
    """What a user is told of it, with what is known to run."""
    why = f"{known.reason} ({known.source})"
    if recipe.support_on(hardware.id) == "unsupported":
        return RefusedError(
            f"{recipe.id} does not run on {hardware.id}",
            why=why,
            fix="it is known to run on: " + (_verified(recipe) or "nothing yet"),
        )
    others = [
        name for name in recipe.speculation if recipe.support_on(hardware.id, name) != known.support
    ]
    return RefusedError(
        f"{recipe.id} with speculation {choice} does not run on {hardware.id}",
        why=why,
        fix="choose one of: " + ", ".join(others),
    )


def _verified(recipe: Recipe) -> str:
    return ", ".join(
        hardware_id for hardware_id, known in recipe.hardware.items() if known.support == "verified"
    )


class Chosen(NamedTuple):
    """The image that runs, and how sure that is.

    Attributes:
        borrowed: It is known to run on other hardware only.
        assumed: Nobody says which version it has; it is taken for that of the image it replaces.
    """

    image: Image
    borrowed: bool = False
    assumed: bool = False


def image(
    recipe: Recipe,
    hardware: Hardware,
    settings: Settings,
    support: Support | None,
    variant: Variant | None,
    lock: Lock,
    *,
    refuse: bool,
) -> Chosen:
    """The image: as set, else as known for this hardware.

    Raises:
        RefusedError: None is known for this hardware.
        UsageError: A version is set for an image that is known to have another.
    """
    known = (variant.image if variant else None) or (support.image if support else None)
    known = known or recipe.image
    borrowed = known is None and not refuse
    if borrowed:
        # For a plan, an image that runs elsewhere says more than none.
        known = next((one.image for one in recipe.hardware.values() if one.image), None)
    if settings.image is not None:
        return _replaced(settings.image, settings.engine_version, known, lock)
    if known is None:
        raise RefusedError(
            f"{recipe.id} has never been run on {hardware.id}, so no image is known for it",
            fix=f"it is known to run on: {_verified(recipe) or 'nothing yet'}; to try it all the "
            "same, name an image: --set image=repository@sha256:… or roost_settings.image",
        )
    if settings.engine_version not in {None, known.engine_version}:
        if known.engine_version != _UNKNOWN:
            raise UsageError(
                f"engine_version {settings.engine_version} is set, but no image",
                why=f"{known.reference}, which would run, has {known.engine_version}",
                fix="name the image that has it, too: image=repository@sha256:…; or drop the "
                "setting",
            )
        known = known.model_copy(update={"engine_version": settings.engine_version})
    return Chosen(known, borrowed)


def _replaced(reference: str, version: str | None, known: Image | None, lock: Lock) -> Chosen:
    """An image that is set, with the version that is set or most likely."""
    if version is not None or known is None:
        return Chosen(Image.parse(reference, version or _UNKNOWN))
    image = Image.parse(reference, known.engine_version)
    locked = lock.image(known)
    same = image.digest in {known.digest, locked.digest if locked else None}
    return Chosen(image, assumed=not same and known.engine_version != _UNKNOWN)


def takes_key(recipe: Recipe, engine: Engine, image: Image) -> ApiKey:
    """How the engine takes a key.

    Raises:
        RefusedError: It must not have one, or nobody knows how it could without showing it.
    """
    fix = "take roost_api_key away, and put a gateway that asks for a key before the endpoint"
    if image.untrusted is not None:
        raise RefusedError(
            f"{recipe.id} gets no API key: its image is not trusted with one",
            why=image.untrusted,
            fix=fix,
        )
    if engine.api_key is None:
        raise RefusedError(
            f"{recipe.id} gets no API key: none that {engine.title} keeps to itself",
            why="no way is known to tell it one that stands in no argument list and in no log",
            fix=fix,
        )
    return engine.api_key

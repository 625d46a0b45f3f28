"""What ``roost lock`` does: collect what recipes name, ask, compare, write."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from roost import catalog, fallbacks, hub, lock, site
from roost.catalog import Catalog
from roost.catalog_schema import Recipe
from roost.errors import RoostError, UsageError
from roost.lock import Failure, Lock, LockedImage, LockedModel
from roost.pins import Image, Repository, Revision
from roost.registry import GoneError, Registry
from roost.root import default_lock_file
from roost.settings import Settings

Value = TypeVar("Value")


@dataclass(frozen=True)
class Job:
    """Everything to ask, whom to ask, and where to write it.

    Attributes:
        hub_tokens: By repository; for others the hub's client looks into its environment.
    """

    repositories: list[Repository]
    images: list[Image]
    hub_endpoint: str | None
    registry_mirror: str | None
    lock_file: Path
    hub_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Outcome:
    """The lock after asking, what changed, and what could not be resolved."""

    lock: Lock
    drift: list[str]
    failures: list[Failure]


def plan(
    recipe_ids: Sequence[str],
    *,
    inventory: Path | None = None,
    hub: str | None = None,
    registry: str | None = None,
    lock_file: Path | None = None,
    overrides: Settings | None = None,
) -> Job:
    """Collect what to ask.

    With an inventory: what its hosts deploy, overrides included, asked of the inventory's own hub
    and registry, with the token of a host that deploys it. Without: the given recipes, or all, on
    every hardware they name, and what ``overrides`` names beside them (``drafter_revision``,
    ``image``).

    Raises:
        UsageError: Unknown recipe, or hosts of one inventory that disagree on hub, registry or
            lock file.
    """
    known = catalog.current()
    if inventory is None:
        chosen = [known.recipe(recipe_id) for recipe_id in recipe_ids] or known.recipes.values()
        repositories, images = _named_by(chosen, overrides=overrides)
        return Job(repositories, images, hub, registry, lock_file or default_lock_file())
    if recipe_ids or (overrides and overrides != Settings()):
        raise UsageError("name recipes and settings, or an inventory, not both")
    return _plan_inventory(known, inventory, hub, registry, lock_file)


def _plan_inventory(
    known: Catalog,
    path: Path,
    hub_endpoint: str | None,
    registry: str | None,
    lock_file: Path | None,
) -> Job:
    from roost import inventory as inventories
    from roost.root import repository_root

    hosts = {
        host.name: site.from_variables(host.name, host.variables)
        for host in inventories.load(path).hosts.values()
    }
    repositories: list[Repository] = []
    images: list[Image] = []
    tokens: dict[str, str] = {}
    for name, given in hosts.items():
        recipe = known.recipe(given.recipe)
        known.machine(given.hardware)
        overrides = given.overrides(name)
        more_repositories, more_images = _named_by(
            [recipe], hardware=given.hardware, overrides=overrides
        )
        repositories += more_repositories
        images += more_images
        if token := given.token(hub_endpoint):
            tokens = {**{one.repo: token for one in more_repositories}, **tokens}
    root = repository_root()
    return Job(
        repositories,
        images,
        hub_endpoint or _same(path, "roost_hub_endpoint", [h.hub_endpoint for h in hosts.values()]),
        registry
        or _same(path, "roost_registry_mirror", [h.registry_mirror for h in hosts.values()]),
        lock_file
        or _same(path, "roost_lock_file", [h.lock_path(root) for h in hosts.values()])
        or default_lock_file(),
        tokens,
    )


def _same(path: Path, name: str, values: list[Value]) -> Value | None:
    distinct = list(dict.fromkeys(values))
    if len(distinct) > 1:
        raise UsageError(
            f"{path}: hosts disagree on {name}: " + ", ".join(str(value) for value in distinct),
            fix="lock them one by one, with --hub, --registry and --lock-file",
        )
    return distinct[0] if distinct else None


def _named_by(
    recipes: Iterable[Recipe], hardware: str | None = None, overrides: Settings | None = None
) -> tuple[list[Repository], list[Image]]:
    """Repositories and images that these recipes (on this hardware, so overridden) name."""
    overrides = overrides or Settings()
    repositories: list[Repository] = []
    images: list[Image] = []
    for recipe in recipes:
        repositories.append(recipe.model)
        for choice in recipe.speculation.values():
            repositories += [one for one in (choice.model, choice.drafter) if one is not None]
            if choice.drafter is not None and overrides.drafter_revision is not None:
                revision = Revision.parse(overrides.drafter_revision)
                repositories.append(choice.drafter.model_copy(update={"revision": revision}))
        if hardware is None or overrides.image is None:
            images += _images_of(recipe, hardware)
        if overrides.image is not None:
            images.append(Image.parse(overrides.image, overrides.engine_version or "unknown"))
    return repositories, images


def _images_of(recipe: Recipe, hardware: str | None) -> list[Image]:
    """Every image that a recipe may run, where a registry can be asked for it.

    Without a machine in mind also what it may run instead: a user who finds the image gone wants
    to paste a digest. A site's mirror has no reason to have those.
    """
    images = [
        support.image
        for hardware_id, support in recipe.hardware.items()
        if hardware in {None, hardware_id}
    ]
    images += [recipe.image, *(variant.image for variant in recipe.variants.values())]
    named = [image for image in images if image is not None]
    if hardware is None:
        named += [
            fallback.image
            for image in named
            for fallback in image.fallbacks
            if fallback.support != "unsupported"
        ]
    return [image for image in named if image.build is None]


def run(job: Job, *, write: bool) -> Outcome:
    """Ask everything, and write the lock unless told not to.

    What could not be resolved keeps the entry it had; the rest is still written.
    """
    before = lock.read(job.lock_file)
    after, failures = lock.resolve(
        before,
        # Recipes share drafters, and machines share images: each is asked for once.
        {(one.repo, one.revision.name): one for one in job.repositories}.values(),
        {(one.repository, one.name): one for one in job.images}.values(),
        ask_hub=functools.partial(_ask_hub, job=job),
        ask_registry=functools.partial(_ask_registry, mirror=job.registry_mirror, lock=before),
        today=dt.datetime.now(dt.UTC).date(),
    )
    if write and after != before:
        lock.write(job.lock_file, after)
    return Outcome(after, lock.drift(before, after), failures)


def _ask_hub(repository: Repository, job: Job) -> LockedModel:
    return hub.resolve(repository, job.hub_endpoint, job.hub_tokens.get(repository.repo))


def _ask_registry(image: Image, mirror: str | None, lock: Lock) -> LockedImage:
    try:
        return Registry(image.repository, mirror).resolve(image)
    except GoneError as error:
        raise RoostError(error.what, why=error.why, fix=fallbacks.choices(image, lock)) from None

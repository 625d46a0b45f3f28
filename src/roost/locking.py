"""What ``roost lock`` does: collect what recipes name, ask, compare, write."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from roost import catalog, fallbacks, hub, lock, site
from roost.catalog import Catalog
from roost.catalog_schema import Recipe
from roost.errors import RoostError, UnansweredError, UsageError
from roost.lock import Failure, Lock, LockedImage, LockedModel
from roost.pins import Image, Repository, Revision
from roost.references import split_registry
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


def run(
    job: Job, *, write: bool, progress: Callable[[int, int, str], None] = lambda *_: None
) -> Outcome:
    """Ask everything, and write the lock unless told not to.

    What could not be resolved keeps the entry it had; the rest is still written.

    Args:
        job: What to ask.
        write: The lock, where anything in it is another.
        progress: Is told which question is asked, of how many, and what it is about.

    Raises:
        UsageError: It is to be written where nothing can be; nobody was asked.
        RoostError: The lock there is damaged, or could not be written in the end.
    """
    if write:
        lock.require_writable(job.lock_file)
    before = lock.read(job.lock_file)
    # Recipes share drafters, and machines share images: each is asked for once.
    repositories = {(one.repo, one.revision.name): one for one in job.repositories}.values()
    images = {(one.repository, one.name): one for one in job.images}.values()
    number = itertools.count(1)
    patience = _Patience()

    def ask_hub(repository: Repository) -> LockedModel:
        name = f"{repository.repo}@{repository.revision.name}"
        progress(next(number), len(repositories) + len(images), name)
        return patience.ask("the hub", name, lambda: _ask_hub(repository, job))

    def ask_registry(image: Image) -> LockedImage:
        progress(next(number), len(repositories) + len(images), image.reference)
        where = job.registry_mirror or split_registry(image.repository)[0] or "docker.io"
        return patience.ask(
            where, image.reference, lambda: _ask_registry(image, job.registry_mirror, before)
        )

    after, failures = lock.resolve(
        before,
        repositories,
        images,
        ask_hub=ask_hub,
        ask_registry=ask_registry,
        today=dt.datetime.now(dt.UTC).date(),
    )
    if write and after != before:
        lock.write(job.lock_file, after)
    return Outcome(after, lock.drift(before, after), failures)


class _Patience:
    """Asks services, and one that was silent twice in a row no more: each time takes its while."""

    _TIMES = 2

    def __init__(self) -> None:
        self._silent: dict[str, list[UnansweredError]] = {}

    def ask(self, service: str, name: str, question: Callable[[], Value]) -> Value:
        before = self._silent.setdefault(service, [])
        if len(before) >= self._TIMES:
            raise UnansweredError(
                f"{name}: not asked, since {service} does not answer",
                why=before[-1].why,
                fix=before[-1].fix,
            )
        try:
            answer = question()
        except UnansweredError as error:
            before.append(error)
            raise
        except RoostError:
            before.clear()
            raise
        before.clear()
        return answer


def _ask_hub(repository: Repository, job: Job) -> LockedModel:
    return hub.resolve(repository, job.hub_endpoint, job.hub_tokens.get(repository.repo))


def _ask_registry(image: Image, mirror: str | None, lock: Lock) -> LockedImage:
    try:
        return Registry(image.repository, mirror).resolve(image)
    except GoneError as error:
        raise RoostError(error.what, why=error.why, fix=fallbacks.choices(image, lock)) from None

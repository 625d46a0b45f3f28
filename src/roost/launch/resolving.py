"""Recipe, hardware, speculation choice, overrides, lock and site joined into one container."""

from __future__ import annotations

import shlex

from pydantic import BaseModel, ConfigDict, Field

from roost import engines
from roost.catalog import Catalog
from roost.catalog_schema import Engine, Hardware, Known, Recipe, Speculation
from roost.engines import keys
from roost.errors import RefusedError
from roost.launch import choosing, pinning
from roost.launch.container import (
    CONTAINER,
    DRAFTER_PATH,
    IMAGE,
    KEY_PATH,
    KEY_SOURCE,
    MODEL_PATH,
    LaunchSpec,
    Mount,
    Port,
    Secret,
    Security,
)
from roost.launch.pinning import Weights
from roost.lock import Lock
from roost.pins import Image, Revision
from roost.root import default_lock_file
from roost.settings import Settings, merge
from roost.site import HostVars, Site


class Resolved(BaseModel):
    """A launch spec and the decisions it came from."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    spec: LaunchSpec
    recipe: Recipe
    hardware: Hardware
    engine: Engine
    speculation_name: str
    speculation: Speculation
    variant_name: str | None
    known_not_to_run: Known | None = Field(
        description="who found that this does not run; only where the caller wants it all the same"
    )
    settings: Settings
    image: Image
    image_borrowed: bool = Field(
        description="no image is known for this hardware, and this one runs elsewhere"
    )
    version_assumed: bool = Field(
        description="nobody says which version the image has; it is that of the one it replaces"
    )
    image_digest: str | None
    image_platforms: list[str] = Field(
        description="architectures it is built for; empty where the lock knows nothing"
    )
    image_bytes: dict[str, int] = Field(
        description="compressed layers by architecture; empty where the lock knows nothing"
    )
    model: Weights
    drafter: Weights | None
    served_name: str
    lock_file: str | None = Field(description="where a lock was looked for; none: nowhere")
    lock_missing: bool = Field(description="there is none")

    @property
    def lock_command(self) -> str:
        """What pins the recipe in the lock that was looked in."""
        words = ["roost", "lock", self.recipe.id]
        if self.lock_file not in {None, str(default_lock_file())}:
            words += ["--lock-file", str(self.lock_file)]
        return shlex.join(words)


def resolve(
    catalog: Catalog,
    recipe_id: str,
    hardware_id: str,
    *,
    speculation: str | None = None,
    variant: str | None = None,
    overrides: Settings | None = None,
    lock: Lock | None = None,
    site: Site | None = None,
    refuse: bool = True,
) -> Resolved:
    """Join everything that was decided into one container.

    Merge order, later wins: hardware < recipe < variant < speculation choice < recipe on this
    hardware < overrides. Tensor parallelism is the hardware's GPU count unless something says
    otherwise.

    Args:
        catalog: What is known.
        recipe_id: Of the recipe.
        hardware_id: Of the machine.
        speculation: One of the recipe's choices; none: its default.
        variant: One of the recipe's variants; none: the recipe as it is.
        overrides: What the user sets.
        lock: What names mean; none: nothing is locked.
        site: Addresses and places; none: the defaults.
        refuse: Whether what is known not to run is an error. A plan wants to say why instead.

    Raises:
        UsageError: Unknown recipe, hardware or choice, or settings that contradict.
        RefusedError: It is known not to run there, or nobody ever ran it there and no image is
            given; or the site has an API key that the engine must not have, or cannot take.
    """
    overrides = overrides or Settings()
    lock = lock or Lock()
    site = site or Site()
    recipe = catalog.recipe(recipe_id)
    hardware = catalog.machine(hardware_id)
    engine = catalog.engines[recipe.engine]
    choice_name, choice = choosing.speculation(recipe, speculation)
    support = recipe.hardware.get(hardware_id)
    special = recipe.variant(variant) if variant else None
    known_not_to_run = choosing.known_not_to_run(recipe, hardware, choice_name)
    if known_not_to_run and refuse:
        raise choosing.refusal(recipe, hardware, choice_name, known_not_to_run)

    settings = merge(
        [
            hardware.settings,
            recipe.settings,
            special.settings if special else Settings(),
            choice.settings,
            support.settings if support else Settings(),
            overrides,
        ]
    )
    if settings.tensor_parallel is None and hardware.gpu and hardware.gpu.count > 1:
        settings = settings.model_copy(update={"tensor_parallel": hardware.gpu.count})
    choosing.check_settings(recipe, choice_name, overrides)

    chosen = choosing.image(recipe, hardware, settings, support, special, lock, refuse=refuse)
    image = chosen.image
    locked_image = lock.image(image)
    digest = image.digest or (locked_image.digest if locked_image else None)
    unresolved = []
    if digest is None and not (image.build and image.build.revision.commit):
        unresolved.append(IMAGE + image.reference)

    model = pinning.weights(choice.model or recipe.model, lock, site, unresolved)
    drafter = None
    if choice.drafter is not None:
        repository = choice.drafter
        if settings.drafter_revision is not None:
            repository = repository.model_copy(
                update={"revision": Revision.parse(settings.drafter_revision)}
            )
        drafter = pinning.weights(repository, lock, site, unresolved)

    served_name = site.served_name or recipe.served_name
    spelled = engines.spell(
        engine,
        settings,
        choice,
        engines.Place(MODEL_PATH, DRAFTER_PATH if drafter else None, served_name),
    )
    secrets = []
    entrypoint = engine.entrypoint
    if site.api_key or recipe.api_key == "required":
        secrets.append(Secret(name="api_key", source=KEY_SOURCE, target=KEY_PATH))
        entrypoint = keys.entrypoint(
            entrypoint, choosing.takes_key(recipe, engine, image), KEY_PATH
        )
    ipc_host = hardware.ipc_host
    if support is not None and support.ipc_host is not None:
        ipc_host = support.ipc_host
    # Whoever shares the host's IPC reads and writes the memory that other processes hand around.
    ipc_host = ipc_host and image.untrusted is None
    spec = LaunchSpec(
        name=CONTAINER,
        image=pinning.reference(image, digest, site.registry_mirror),
        entrypoint=entrypoint,
        command=spelled.command,
        env={
            **engine.env,
            **hardware.env,
            **recipe.env,
            **(special.env if special else {}),
            **(support.env if support else {}),
            **spelled.env,
        },
        mounts=[
            Mount(source=model.directory, target=MODEL_PATH),
            *([Mount(source=drafter.directory, target=DRAFTER_PATH)] if drafter else []),
            *(Mount(source=secret.source, target=secret.target) for secret in secrets),
        ],
        secrets=secrets,
        ports=[Port(listen=site.listen, host=site.port, container=engine.port)],
        gpus="all" if hardware.gpu else None,
        ipc="host" if ipc_host else None,
        shm_size=None if ipc_host else engine.shm_size,
        security=Security(),
        ulimits=recipe.ulimits,
        pids_limit=4096,
        # An engine logs every few seconds for months; Docker's default keeps all of it.
        log_options={"max-size": "50m", "max-file": "3"},
        labels={
            "roost.recipe": recipe.id,
            "roost.hardware": hardware.id,
            "roost.speculation": choice_name,
            **({"roost.variant": variant} if variant else {}),
            "roost.model": f"{model.repo}@{model.revision}",
            **({"roost.drafter": f"{drafter.repo}@{drafter.revision}"} if drafter else {}),
        },
        build=image.build_command(),
        untrusted=image.untrusted,
        unresolved=unresolved,
    )
    return Resolved(
        spec=spec,
        recipe=recipe,
        hardware=hardware,
        engine=engine,
        speculation_name=choice_name,
        speculation=choice,
        variant_name=variant,
        known_not_to_run=known_not_to_run,
        settings=settings,
        image=image,
        image_borrowed=chosen.borrowed,
        version_assumed=chosen.assumed,
        image_digest=digest,
        image_platforms=locked_image.platforms if locked_image else [],
        image_bytes=locked_image.bytes if locked_image else {},
        model=model,
        drafter=drafter,
        served_name=served_name,
        lock_file=str(lock.file) if lock.file else None,
        lock_missing=lock.missing,
    )


def resolve_host(
    catalog: Catalog, host: str, given: HostVars, lock: Lock, *, refuse: bool = True
) -> Resolved:
    """:func:`resolve` as a host's variables say it.

    Args:
        catalog: What is known.
        host: Inventory name, for messages.
        given: Its variables.
        lock: What names mean.
        refuse: As for :func:`resolve`, and it raises the same.
    """
    return resolve(
        catalog,
        given.recipe,
        given.hardware,
        speculation=given.speculation,
        variant=given.variant,
        overrides=given.overrides(host),
        lock=lock,
        site=given.site(),
        refuse=refuse,
    )


def require_resolved(resolved: Resolved, *, allow_unlocked: bool = False) -> None:
    """Refuse what a lock has not pinned.

    Args:
        resolved: What is to be deployed.
        allow_unlocked: Whether the user takes an image by its tag, whatever it means by then.
            Weights need a commit all the same: on a host they are kept, shared and checked by it.

    Raises:
        RefusedError: Naming every branch, tag or shortened commit and what to do about it.
    """
    image = [item for item in resolved.spec.unresolved if item.startswith(IMAGE)]
    weights = [item for item in resolved.spec.unresolved if not item.startswith(IMAGE)]
    if allow_unlocked:
        image = []
    if not image and not weights:
        return
    why, fixes = [], []
    if weights or not resolved.image.build:
        why.append("a branch or tag can mean something else tomorrow" + _looked_in(resolved))
        fixes.append(
            "run `roost lock -i INVENTORY` and deploy again "
            f"(without an inventory: `{resolved.lock_command}`)"
        )
    if weights and allow_unlocked:
        why.append("roost_allow_unlocked is for images: weights are kept on a host by their commit")
    if image and resolved.image.build:
        why.append("the image is to be built from what can mean something else tomorrow")
        fixes.append(
            "name the full commit in the recipe (build: {revision: {commit: …}}), as "
            f"`git ls-remote {resolved.image.build.git}` prints it"
        )
    raise RefusedError(
        f"{resolved.recipe.id} on {resolved.hardware.id} is not pinned: "
        + ", ".join([*image, *weights]),
        why="; ".join(why),
        fix="\n  ".join(fixes),
    )


def _looked_in(resolved: Resolved) -> str:
    """Which lock does not say what a name means, as the end of a sentence."""
    if resolved.lock_file is None:
        return ""
    if resolved.lock_missing:
        return f", and there is no lock {resolved.lock_file}"
    return f", and {resolved.lock_file} does not say what it means now"

"""Launch specs: the fully resolved container, as a pure function of what was decided.

``build`` joins recipe, hardware, speculation choice, overrides, lock and site into the one
container that runs; :func:`docker_command` and :func:`argv` print the same thing for people.
Nothing here does I/O, and nothing else in roost assembles a command line.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from roost import engines, onhost
from roost.catalog import Catalog
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
from roost.engines import keys
from roost.errors import RefusedError, UsageError
from roost.lock import Lock
from roost.pins import Image, Repository, Revision
from roost.references import split_mirror, split_registry
from roost.root import default_lock_file
from roost.settings import Settings, merge
from roost.site import Site

#: The one name of roost's container on a host.
CONTAINER = onhost.NAME

#: How an entry of ``unresolved`` begins that is an image.
_IMAGE = "image "

MODEL_PATH = "/model"
DRAFTER_PATH = "/drafter"

#: The endpoint's API key, on the host (mode 0600) and inside the container.
KEY_SOURCE = "/var/lib/roost/secrets/api-key"
KEY_PATH = "/run/secrets/roost-api-key"


class Mount(BaseModel):
    """A bind mount."""

    model_config = ConfigDict(frozen=True)

    source: str
    target: str
    read_only: bool = True


class Secret(BaseModel):
    """A file on the host that root and the engine read, and nobody else; one of the mounts."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str
    target: str


class Port(BaseModel):
    """A published port; ``listen`` is an IP address."""

    model_config = ConfigDict(frozen=True)

    listen: str
    host: int
    container: int

    @property
    def published(self) -> str:
        """Docker's short form, ``listen:host:container``."""
        return f"{_bracketed(self.listen)}:{self.host}:{self.container}"

    @property
    def connect(self) -> str:
        """The address that reaches it from the host itself."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)  # noqa: S104  # says where to connect, binds nothing

    @property
    def url(self) -> str:
        """Where the endpoint is, from the host itself."""
        return f"http://{_bracketed(self.connect)}:{self.host}"


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class Security(BaseModel):
    """What the container may not do."""

    model_config = ConfigDict(frozen=True)

    cap_drop: list[str] = ["ALL"]
    no_new_privileges: bool = True
    privileged: bool = False

    @property
    def options(self) -> list[str]:
        """The options of ``docker run`` that take rights away."""
        words = [word for name in self.cap_drop for word in ("--cap-drop", name)]
        if self.no_new_privileges:
            words += ["--security-opt", "no-new-privileges"]
        return words


class Weights(BaseModel):
    """One repository at one revision, and the directory it has on a host."""

    model_config = ConfigDict(frozen=True)

    repo: str
    name: str = Field(description="the revision as the recipe writes it")
    revision: str = Field(description="a full commit, or the name that is still to be resolved")
    directory: str
    bytes: int | None = Field(None, description="of all files, where the lock knows it")


class LaunchSpec(BaseModel):
    """One container, every option said."""

    model_config = ConfigDict(frozen=True)

    name: str
    image: str = Field(description="repository@sha256:… (repository:tag while unresolved)")
    entrypoint: list[str]
    command: list[str]
    env: dict[str, str]
    mounts: list[Mount]
    secrets: list[Secret] = Field(description="which of the mounts are secret, by what they hold")
    ports: list[Port]
    gpus: str | None = Field(description="`all`, or none on a machine without")
    ipc: str | None = Field(description="`host`, or the engine's default")
    shm_size: str | None = Field(description="none where the host's IPC namespace is shared")
    security: Security
    ulimits: dict[str, int]
    pids_limit: int
    log_options: dict[str, str]
    labels: dict[str, str]
    build: str | None = Field(description="the command that makes the image; none: it is pulled")
    untrusted: str | None = Field(description="why the image gets no credentials")
    unresolved: list[str] = Field(description="what `roost lock` has not pinned yet")

    @property
    def lockable(self) -> list[str]:
        """What of it a lock can pin: an image that is built is in no registry to be asked."""
        return [one for one in self.unresolved if not (self.build and one.startswith(_IMAGE))]


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


def build(
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
    choice_name, choice = _speculation(recipe, speculation)
    support = recipe.hardware.get(hardware_id)
    special = recipe.variant(variant) if variant else None
    known_not_to_run = _known_not_to_run(recipe, hardware, choice_name)
    if known_not_to_run and refuse:
        raise _refusal(recipe, hardware, choice_name, known_not_to_run)

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
    _check_speculation_settings(recipe, choice_name, overrides)

    image, borrowed = _image(recipe, hardware, settings, support, special, refuse=refuse)
    locked_image = lock.image(image)
    digest = image.digest or (locked_image.digest if locked_image else None)
    unresolved = []
    if digest is None and not (image.build and image.build.revision.commit):
        unresolved.append(_IMAGE + image.reference)

    model = _weights(choice.model or recipe.model, lock, site, unresolved)
    drafter = None
    if choice.drafter is not None:
        repository = choice.drafter
        if settings.drafter_revision is not None:
            repository = repository.model_copy(
                update={"revision": Revision.parse(settings.drafter_revision)}
            )
        drafter = _weights(repository, lock, site, unresolved)

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
        entrypoint = keys.entrypoint(entrypoint, _takes_key(recipe, engine, image), KEY_PATH)
    ipc_host = hardware.ipc_host
    if support is not None and support.ipc_host is not None:
        ipc_host = support.ipc_host
    spec = LaunchSpec(
        name=CONTAINER,
        image=_reference(image, digest, site.registry_mirror),
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
        image_borrowed=borrowed,
        image_digest=digest,
        image_platforms=locked_image.platforms if locked_image else [],
        image_bytes=locked_image.bytes if locked_image else {},
        model=model,
        drafter=drafter,
        served_name=served_name,
        lock_file=str(lock.file) if lock.file else None,
        lock_missing=lock.missing,
    )


def _known_not_to_run(recipe: Recipe, hardware: Hardware, choice: str) -> Known | None:
    places: tuple[Known | None, ...] = (
        recipe.hardware.get(hardware.id),
        recipe.speculation[choice].hardware.get(hardware.id),
    )
    return next((known for known in places if known and known.support == "unsupported"), None)


def _refusal(recipe: Recipe, hardware: Hardware, choice: str, known: Known) -> RefusedError:
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


def _takes_key(recipe: Recipe, engine: Engine, image: Image) -> ApiKey:
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


def _check_speculation_settings(recipe: Recipe, name: str, overrides: Settings) -> None:
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


def _speculation(recipe: Recipe, wanted: str | None) -> tuple[str, Speculation]:
    name = wanted or recipe.default_speculation
    if name not in recipe.speculation:
        raise UsageError(
            f"{recipe.id} has no speculation {name!r}",
            fix="choose one of: " + ", ".join(recipe.speculation),
        )
    return name, recipe.speculation[name]


def _drop_or_choose(choices: Iterable[str]) -> str:
    names = ", ".join(choices)
    return "drop the setting" + (f", or choose: {names}" if names else "")


def _verified(recipe: Recipe) -> str:
    return ", ".join(
        hardware_id for hardware_id, known in recipe.hardware.items() if known.support == "verified"
    )


def _image(
    recipe: Recipe,
    hardware: Hardware,
    settings: Settings,
    support: Support | None,
    variant: Variant | None,
    *,
    refuse: bool,
) -> tuple[Image, bool]:
    """The image, and whether it is known to run on other hardware only."""
    known = (variant.image if variant else None) or (support.image if support else None)
    known = known or recipe.image
    borrowed = known is None and not refuse
    if borrowed:
        # For a plan, an image that runs elsewhere says more than none.
        known = next((one.image for one in recipe.hardware.values() if one.image), None)
    if settings.image is not None:
        version = settings.engine_version or (known.engine_version if known else "unknown")
        return Image.parse(settings.image, version), False
    if known is None:
        raise RefusedError(
            f"{recipe.id} has never been run on {hardware.id}, so no image is known for it",
            fix=f"it is known to run on: {_verified(recipe) or 'nothing yet'}; to try it all the "
            "same, name an image: --set image=repository@sha256:… or roost_settings.image",
        )
    return known, borrowed


def _weights(repository: Repository, lock: Lock, site: Site, unresolved: list[str]) -> Weights:
    locked = lock.model(repository)
    commit = repository.revision.commit or (locked.commit if locked else None)
    if commit is None:
        unresolved.append(f"revision {repository.repo}@{repository.revision.name}")
    revision = commit or repository.revision.name
    directory = PurePosixPath(site.model_dir, repository.repo.replace("/", "--"), revision)
    return Weights(
        repo=repository.repo,
        name=repository.revision.name,
        revision=revision,
        directory=str(directory),
        bytes=locked.bytes if locked else None,
    )


def _reference(image: Image, digest: str | None, mirror: str | None) -> str:
    """A reference by digest alone: a tag beside it would make every later deploy a change."""
    repository = image.repository
    if mirror and not image.build:  # what the host built is under its own name there
        _, host = split_mirror(mirror)
        _, path = split_registry(repository)
        repository = f"{host}/{path}"
    return f"{repository}@{digest}" if digest else f"{repository}:{image.name}"


def require_resolved(resolved: Resolved, *, allow_unlocked: bool = False) -> None:
    """Refuse what a lock has not pinned.

    Args:
        resolved: What is to be deployed.
        allow_unlocked: Whether the user takes an image by its tag, whatever it means by then.
            Weights need a commit all the same: on a host they are kept, shared and checked by it.

    Raises:
        RefusedError: Naming every branch, tag or shortened commit and what to do about it.
    """
    image = [item for item in resolved.spec.unresolved if item.startswith(_IMAGE)]
    weights = [item for item in resolved.spec.unresolved if not item.startswith(_IMAGE)]
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


def argv(spec: LaunchSpec) -> list[str]:
    """The engine's own command inside the container."""
    return [*spec.entrypoint, *spec.command]


def docker_argv(spec: LaunchSpec) -> list[str]:
    """The ``docker run`` that starts the same container by hand."""
    words = ["docker", "run", "-d", "--name", spec.name]
    if spec.gpus:
        words += ["--gpus", spec.gpus]
    if spec.ipc:
        words += ["--ipc", spec.ipc]
    if spec.shm_size:
        words += ["--shm-size", spec.shm_size]
    words += ["--pids-limit", str(spec.pids_limit)]
    for name, limit in spec.ulimits.items():
        words += ["--ulimit", f"{name}={limit}:{limit}"]
    words += spec.security.options
    for key, value in spec.log_options.items():
        words += ["--log-opt", f"{key}={value}"]
    for key, value in spec.labels.items():
        words += ["--label", f"{key}={value}"]
    for key, value in spec.env.items():
        words += ["-e", f"{key}={value}"]
    for mount in spec.mounts:
        words += ["-v", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"]
    for port in spec.ports:
        words += ["-p", port.published]
    if spec.entrypoint:
        words += ["--entrypoint", spec.entrypoint[0]]
    return [*words, spec.image, *spec.entrypoint[1:], *spec.command]


def docker_command(spec: LaunchSpec) -> str:
    """:func:`docker_argv` as shell text, one option a line."""
    return _fold(docker_argv(spec))


def _fold(words: Sequence[str]) -> str:
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines)


def as_json(spec: LaunchSpec) -> dict[str, Any]:
    """The spec as plain data; ``ports`` and ``mounts`` in Docker's own short forms."""
    data = spec.model_dump()
    data["mounts"] = [f"{m.source}:{m.target}{':ro' if m.read_only else ''}" for m in spec.mounts]
    data["ports"] = [port.published for port in spec.ports]
    return data

"""One host's deployment: everything that roles and notebooks need to know, decided once.

``from_variables`` is the single door from an inventory into roost. Ansible gets the result as plain
data through one filter; notebooks call it directly, so both see the same container, the same
pinned revisions and the same questions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from roost import builds, fallbacks, lock, quality, site, versions
from roost import catalog as catalog_module
from roost.builds import ImageBuild
from roost.catalog import Catalog
from roost.catalog_schema import Engine, Gpu, Watch
from roost.errors import UsageError
from roost.launch import resolving, shown
from roost.launch.container import LaunchSpec
from roost.launch.pinning import Weights
from roost.launch.resolving import Resolved
from roost.plan import names
from roost.settings import Settings
from roost.site import HostVars


class Requirements(BaseModel):
    """What the host must have, for the preflight."""

    model_config = ConfigDict(frozen=True)

    hardware: str
    architecture: str | None
    gpu: Gpu | None
    min_driver: int
    min_driver_source: str
    min_docker: int | None
    weights_bytes: int = Field(description="on disk and in memory, from the lock")
    image_bytes: dict[str, int] = Field(
        description="compressed layers by architecture, from the lock; empty: not known"
    )
    memory_bytes: int | None = Field(description="host memory beyond the weights, without a GPU")
    install_docker: bool


class Asked(BaseModel):
    """What was asked for: from it the catalogue gives the same container again."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    recipe: str
    hardware: str
    speculation: str
    variant: str | None
    settings: Settings


class Gate(BaseModel):
    """What a deploy asks before it is done: ready-made requests and how to judge them."""

    model_config = ConfigDict(frozen=True)

    questions: list[quality.Question]
    requests: list[dict[str, Any]] = Field(description="one for each question")
    measured: list[dict[str, Any]] = Field(description="for accept length and speed")
    metrics_path: str
    same_answers: bool
    min_accept_length: float | None = Field(
        description="tokens per step; none: no speculation, or it is uncounted"
    )
    uncounted: str | None = Field(
        None, description="why no accept length is judged, though the engine speculates"
    )
    accept_length_floor: float = Field(description="share of the replaced release's figure")
    speed_floor: float = Field(description="share of the replaced release's figure")
    output_key: str = Field(description="releases with the same one answer alike at temperature 0")
    figures_key: str = Field(description="releases with the same one can be measured by each other")


class Watched(BaseModel):
    """What the watchdog on the host goes by."""

    model_config = ConfigDict(frozen=True)

    series: Watch | None = Field(description="of the engine's metrics; none: not known")
    working_watts: int | None = Field(description="of a GPU at work; none: not known")
    memory_floor_mib: int = Field(description="0: none")


class Deployment(BaseModel):
    """The resolved deployment of one host."""

    # A kept one may be refused for a secret in it, which no message may repeat.
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    host: str
    recipe: str
    hardware: str
    speculation: str
    served_name: str
    spec: LaunchSpec
    docker_command: str = Field(description="the same container as shell text, for people")
    image_digest: str | None
    other_images: str = Field(description="what to do where the image cannot be had, for people")
    build: ImageBuild | None = Field(None, description="what the host makes the image from")
    allow_unlocked: bool = Field(False, description="takes an image whatever it was built from")
    engine_version: str
    weights: list[Weights]
    hub_endpoint: str | None
    registry_mirror: str | None
    model_dir: str
    base_url: str = Field(description="as seen on the host itself")
    port: int
    health_path: str
    metrics_path: str
    busy_gauges: list[str] = Field(
        description="on it; their sum is the number of requests that run or wait"
    )
    ready_timeout: int
    watched: Watched
    fatal_lines: list[str] = Field(description="of a log: the engine will not become healthy")
    pip_args: list[str]
    hub_client: bool = True
    speculates: bool
    chat_template_kwargs: dict[str, bool | str | int]
    requirements: Requirements
    asked: Asked
    accept_findings: list[str] = Field(description="errors of the plan that the user goes on with")
    gate: Gate
    lock_file: str

    @property
    def plain_registry(self) -> str | None:
        """The mirror for images, if it has no TLS, as Docker calls it."""
        mirror = self.registry_mirror or ""
        return mirror.removeprefix("http://") if mirror.startswith("http://") else None


def from_variables(host: str, variables: Mapping[str, Any], root: Path) -> Deployment:
    """Resolve one host's inventory variables into its deployment.

    Args:
        host: Inventory name, for messages.
        variables: All of the host's variables; only ``roost_*`` count.
        root: The repository root, where the lock lives unless a variable says otherwise.

    Raises:
        UsageError: A variable, setting, recipe, hardware or choice is wrong.
        RefusedError: The recipe does not run there, or something is not pinned.
    """
    known = catalog_module.current()
    given = site.from_variables(host, variables)
    names.require(given.accept_findings, known, f"{host}: roost_accept_findings")
    given.require_lock(host, root)
    lock_path = given.lock_path(root)
    overrides = given.overrides(host)
    locked = lock.read(lock_path)
    refuse = names.NOT_TO_RUN not in given.accept_findings
    resolved = resolving.resolve_host(known, host, given, locked, refuse=refuse)
    if resolved.spec.secrets and given.api_key is None:
        raise UsageError(
            f"{host}: {resolved.recipe.id} is served with an API key, and roost_api_key is not set",
            why=f"whoever published it asks for one ({resolved.recipe.source})",
            fix="make one (openssl rand -hex 32), keep it in a vault, or in the environment: "
            "roost_api_key: \"{{ lookup('ansible.builtin.env', 'ROOST_API_KEY') }}\"",
        )
    resolving.require_resolved(resolved, allow_unlocked=given.allow_unlocked)
    image = resolved.image
    weights = [resolved.model, *([resolved.drafter] if resolved.drafter else [])]
    return Deployment(
        host=host,
        recipe=resolved.recipe.id,
        hardware=resolved.hardware.id,
        speculation=resolved.speculation_name,
        served_name=resolved.served_name,
        spec=resolved.spec,
        docker_command=shown.docker_command(resolved.spec),
        image_digest=resolved.image_digest,
        other_images=fallbacks.to_build(image) if image.build else fallbacks.choices(image, locked),
        build=builds.of(image),
        allow_unlocked=given.allow_unlocked,
        engine_version=image.engine_version,
        weights=weights,
        hub_endpoint=given.hub_endpoint,
        registry_mirror=given.registry_mirror,
        model_dir=given.model_dir,
        base_url=resolved.spec.ports[0].url,
        port=given.port,
        health_path=resolved.engine.health_path,
        metrics_path=resolved.engine.metrics_path,
        busy_gauges=resolved.engine.busy_gauges,
        ready_timeout=given.ready_timeout,
        watched=_watched(resolved, given),
        fatal_lines=resolved.engine.fatal_lines,
        pip_args=given.pip_args,
        hub_client=given.hub_client,
        speculates=resolved.speculation.method is not None,
        chat_template_kwargs=resolved.recipe.chat_template_kwargs,
        requirements=requirements(resolved, install_docker=given.install_docker),
        asked=Asked(
            recipe=resolved.recipe.id,
            hardware=resolved.hardware.id,
            speculation=resolved.speculation_name,
            variant=resolved.variant_name,
            settings=overrides,
        ),
        accept_findings=given.accept_findings,
        gate=_gate(resolved, given),
        lock_file=str(lock_path),
    )


def _watched(resolved: Resolved, given: HostVars) -> Watched:
    gpu, floor = resolved.hardware.gpu, given.memory_floor_mib
    if floor is None:
        floor = (gpu.memory_floor_mib if gpu else None) or 0
    return Watched(
        series=resolved.engine.watch,
        working_watts=gpu.working_watts if gpu else None,
        memory_floor_mib=floor,
    )


def with_image(deployment: Deployment, image_id: str) -> Deployment:
    """A deployment whose image was built on its host, pinned to what the host has.

    Args:
        deployment: Names the image by a tag, which a later build may move.
        image_id: Docker's id (``sha256:…``), which means this image on its own host alone.
    """
    spec = deployment.spec.model_copy(update={"image": image_id})
    key = _digest(deployment.gate.output_key, image_id)
    return deployment.model_copy(
        update={
            "spec": spec,
            "docker_command": shown.docker_command(spec),
            "gate": deployment.gate.model_copy(update={"output_key": key}),
        }
    )


#: Below this, drafts are proposed and none is accepted: the engine pays for speculation in vain.
_ANY_ACCEPTED = 1.01


def _gate(resolved: Resolved, given: HostVars) -> Gate:
    def request(prompt: str, max_tokens: int) -> dict[str, Any]:
        kwargs = resolved.recipe.chat_template_kwargs
        return quality.chat_request(prompt, resolved.served_name, kwargs, max_tokens=max_tokens)

    questions = list(quality.QUESTIONS)
    requests = [request(question.prompt, quality.MAX_TOKENS) for question in questions]
    measured = [request(text, quality.MEASURED_TOKENS) for text in quality.MEASURED_PROMPTS]
    speculation, spec = resolved.speculation, resolved.spec
    min_accept_length = uncounted = None
    # Lookup in the prompt may rightly find nothing to propose.
    if speculation.method not in {None, "ngram"}:
        uncounted = _uncounted(resolved.engine, resolved.image.engine_version)
        if uncounted is None:
            min_accept_length = (
                given.min_accept_length or speculation.min_accept_length or _ANY_ACCEPTED
            )
    weights = [[one.repo, one.revision] for one in (resolved.model, resolved.drafter) if one]
    return Gate(
        questions=questions,
        requests=requests,
        measured=measured,
        metrics_path=resolved.engine.metrics_path,
        same_answers=given.same_answers,
        min_accept_length=min_accept_length,
        uncounted=uncounted,
        accept_length_floor=given.accept_length_floor,
        speed_floor=given.speed_floor,
        output_key=_digest(
            resolved.image_digest or spec.image,
            spec.entrypoint,
            spec.command,
            spec.env,
            weights,
            requests,
        ),
        figures_key=_digest(
            resolved.recipe.id,
            resolved.hardware.id,
            resolved.speculation_name,
            resolved.settings.num_speculative_tokens,
            resolved.recipe.chat_template_kwargs,
            quality.MEASURED_PROMPTS,
            quality.MEASURED_TOKENS,
        ),
    )


def _uncounted(engine: Engine, version: str) -> str | None:
    """Why no accept length follows from an engine's counters; none: it does.

    A build whose version cannot be compared with others is taken for one that counts.
    """
    if engine.counters is None:
        return f"nobody knows of counters of {engine.title} that it follows from"
    if versions.within(version, engine.counters.versions) is False:
        return (
            f"{engine.title} {version} does not count verification steps; "
            f"{engine.counters.versions} does ({engine.counters.source})"
        )
    return None


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def requirements(resolved: Resolved, *, install_docker: bool = True) -> Requirements:
    """What a host must have for a container."""
    support = resolved.recipe.hardware.get(resolved.hardware.id)
    weights = [resolved.model, *([resolved.drafter] if resolved.drafter else [])]
    return Requirements(
        hardware=resolved.hardware.id,
        architecture=resolved.hardware.architecture,
        gpu=resolved.hardware.gpu,
        min_driver=resolved.engine.min_driver,
        min_driver_source=resolved.engine.min_driver_source,
        min_docker=resolved.engine.min_docker,
        weights_bytes=sum(item.bytes or 0 for item in weights),
        image_bytes=resolved.image_bytes,
        memory_bytes=support.memory_bytes if support else None,
        install_docker=install_docker,
    )


def resolved_again(deployment: Deployment, catalog: Catalog) -> Resolved:
    """The container that a deployment was made from, with everything it was decided by.

    A plan looks at more than a deployment carries from task to task.
    """
    asked = deployment.asked
    return resolving.resolve(
        catalog,
        asked.recipe,
        asked.hardware,
        speculation=asked.speculation,
        variant=asked.variant,
        overrides=asked.settings,
        lock=lock.read(Path(deployment.lock_file)),
        refuse=False,
    )

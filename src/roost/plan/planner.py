"""The plan of one deployment: memory, findings and a verdict, before a byte is fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from roost.catalog import Catalog
from roost.errors import RefusedError, RoostError, UsageError
from roost.hosts import HostFacts
from roost.hub import HubRefusedError, HubUnavailableError
from roost.launch import CONTAINER, Resolved, Weights
from roost.plan import budget, findings, machine, memory, sglang
from roost.plan import frontier as frontiers
from roost.plan.architecture import Dtype
from roost.plan.budget import Case, Term
from roost.plan.effective import settled
from roost.plan.finding import Finding, Severity, Verdict, ordered, verdict
from roost.plan.frontier import Frontier
from roost.plan.machine import Machine
from roost.plan.memory import KvPool, PoolRefusedError
from roost.plan.rules import Device, rules_for
from roost.plan.subject import Side, Subject

if TYPE_CHECKING:
    from roost.plan.checkpoint import Checkpoint

GIB = 1024**3

#: Reads a repository at its locked commit; ``None`` where there is nothing to read.
Reader = Callable[[Weights], "Checkpoint | None"]


class Memory(BaseModel):
    """The memory of one GPU, bytes unless the name says otherwise; none: not known."""

    model_config = ConfigDict(frozen=True)

    weights_bytes: int | None = None
    drafter_bytes: int | None = None
    kv_cache_bytes: int | None = None
    attention_block_size: int | None = Field(None, description="tokens")
    page_size_bytes: int | None = None
    kv_groups: int | None = None
    num_blocks: int | None = None
    blocks_per_request: int | None = None
    max_concurrency: float | None = Field(None, description="requests of max_model_len at a time")
    kv_pool_tokens: int | None = None
    mamba_bytes_per_seq: int | None = None
    free_bytes: int | None = None
    uncertainty_bytes: int | None = None
    max_model_len: int | None = Field(None, description="tokens")
    machine: Machine | None = None
    terms: list[Term] = []


class Plan(BaseModel):
    """What will happen, as far as it can be known from here."""

    model_config = ConfigDict(frozen=True)

    recipe: str
    hardware: str
    speculation: str
    variant: str | None
    verdict: Verdict
    memory: Memory
    findings: list[Finding]

    @property
    def refused(self) -> list[Finding]:
        """What stands against it."""
        return [one for one in self.findings if one.severity == "error" and not one.accepted]


def make(
    resolved: Resolved,
    *,
    catalog: Catalog,
    facts: HostFacts | None = None,
    read: Reader | None = None,
    accept: Iterable[str] = (),
) -> Plan:
    """Plan a deployment.

    Args:
        resolved: The container, built with ``refuse=False``.
        catalog: What is known of models and engines.
        facts: Of the host; none: its hardware profile is planned for.
        read: Reads checkpoints; none: the catalogue's facts are all there is.
        accept: Ids of error findings that the user goes on with.
    """
    return judge(examine(resolved, catalog=catalog, facts=facts, read=read), accept=accept)


def judge(subject: Subject, *, accept: Iterable[str] = (), preflighted: bool = False) -> Plan:
    """The plan of what was examined; see :func:`make` and :func:`roost.plan.findings.find`."""
    resolved = subject.resolved
    found = ordered(findings.find(subject, preflighted=preflighted), accept)
    return Plan(
        recipe=resolved.recipe.id,
        hardware=resolved.hardware.id,
        speculation=resolved.speculation_name,
        variant=resolved.variant_name,
        verdict=verdict(found),
        memory=_memory(subject),
        findings=found,
    )


def examine(
    resolved: Resolved,
    *,
    catalog: Catalog,
    facts: HostFacts | None = None,
    read: Reader | None = None,
) -> Subject:
    """Everything that can be known of a deployment, for the findings to look at."""
    dtype = _dtype(resolved)
    target = _side(resolved.model, catalog, read, drafter=False, dtype=dtype)
    drafter = None
    if resolved.drafter is not None:
        drafter = _side(resolved.drafter, catalog, read, drafter=True)
    host_machine, obstacles = _machine(resolved, facts)
    settings = settled(
        resolved.engine,
        resolved.settings,
        version=resolved.image.engine_version,
        hardware=resolved.hardware.id,
        gpu_bytes=host_machine.total_bytes if host_machine and resolved.hardware.gpu else None,
    )
    subject = Subject(
        catalog=catalog,
        resolved=resolved,
        target=target,
        drafter=drafter,
        settings=settings,
        machine=host_machine,
        host=facts,
        rules=None,
        pool=None,
        obstacles=tuple(obstacles),
    )
    if resolved.engine.style == "sglang":
        return _with_sglang(subject)
    return _with_pool(_with_budget(_with_rules(subject)))


def reader(*, hub: str | None = None, models: Path | None = None) -> Reader | None:
    """Reads from a directory of snapshots, else from a hub; none where neither is given."""
    from roost.plan import reading

    if models is not None:
        return partial(reading.from_directory, root=models)
    return partial(reading.from_hub, endpoint=hub) if hub is not None else None


def frontier(subject: Subject) -> Frontier | None:
    """What the pool buys; none where there is no budget or no rule to compute it with."""
    case = _case(subject)
    if case is None or subject.rules is None:
        return None
    return frontiers.frontier(case, subject.rules)


def _dtype(resolved: Resolved) -> Dtype | None:
    given = resolved.settings.dtype
    return None if given is None or given == "auto" else given


def _side(
    weights: Weights,
    catalog: Catalog,
    read: Reader | None,
    *,
    drafter: bool,
    dtype: Dtype | None = None,
) -> Side:
    from roost.plan import reading

    known = catalogued(catalog, weights)
    if dtype is not None and known.architecture is not None:
        loaded = known.architecture.model_copy(update={"dtype": dtype})
        known = replace(known, architecture=loaded)
    if read is None:
        return known
    try:
        found = read(weights)
        return reading.observed(known, found, drafter=drafter, dtype=dtype) if found else known
    except (HubUnavailableError, HubRefusedError) as error:
        return replace(known, unread=error)
    except RoostError as error:
        return replace(known, defect=error)


def catalogued(catalog: Catalog, weights: Weights) -> Side:
    """What the catalogue says of a repository at a revision."""
    model = catalog.models.get(weights.repo)
    if model is None:
        return Side(weights=weights, model=None, read_from="catalogue")
    revision = model.revision(weights.name) or model.revision(weights.revision)
    described = catalog.architectures.get(model.architecture or "")
    alike = described.loaded.get(model.weights) if described and model.weights else None
    stated = revision.loaded_bytes if revision else None
    return Side(
        weights=weights,
        model=model,
        read_from="catalogue",
        architecture=described.shape if described else None,
        widths=described.widths if described else None,
        drafter=revision.drafter if revision else None,
        contents=revision.contents if revision else None,
        loaded_bytes=stated or (alike.bytes if alike else None),
        loaded_from=alike.source if alike and not stated else None,
        disk_bytes=(revision.disk_bytes if revision else None) or weights.bytes,
    )


def _machine(resolved: Resolved, facts: HostFacts | None) -> tuple[Machine | None, list[Finding]]:
    profile = machine.from_profile(resolved.hardware)
    if facts is None:
        return profile, []
    try:
        probed = machine.from_facts(facts, resolved.hardware)
    except RoostError as error:
        # What is wrong with the GPUs is a finding of its own; the budget is the profile's then.
        return profile, [_obstacle("memory-not-probed", "warning", error, "host facts")]
    if CONTAINER in facts.containers and profile is not None:
        # What our own container holds comes back at the swap.
        free = max(probed.available_bytes, profile.available_bytes)
        probed = probed.model_copy(update={"available_bytes": min(free, probed.total_bytes)})
    return probed, []


def _obstacle(name: str, severity: Severity, error: RoostError, source: str) -> Finding:
    return Finding(
        id=name,
        severity=severity,
        summary=error.what,
        why=error.why or "the arithmetic ends here",
        fix=error.fix,
        source=source,
    )


def _with_rules(subject: Subject) -> Subject:
    """The version's rules for the pool; an image may hold a version that nobody has read."""
    version = subject.version
    device: Device = "cpu" if subject.compute_capability is None else "gpu"
    rows = subject.catalog.engines["vllm"].kv_pool
    try:
        return replace(subject, rules=rules_for(version, device, rows))
    except RoostError as error:
        return _blocked(
            subject, _obstacle("engine-version-unknown", "info", error, "roost.plan.rules")
        )


def _blocked(subject: Subject, *obstacles: Finding) -> Subject:
    return replace(subject, obstacles=(*subject.obstacles, *obstacles))


def _case(subject: Subject) -> Case | None:
    """The budget's view; none where the machine or the model's size is not known."""
    load, architecture = subject.target.load(), subject.target.architecture
    if subject.machine is None or load is None or architecture is None:
        return None
    if subject.machine.kind == "host":
        # What the CPU engine takes beside its pool, nobody has measured but for one model.
        return None
    drafter = subject.drafter
    return Case(
        machine=subject.machine,
        architecture=architecture,
        target=load,
        widths=subject.target.widths,
        method=subject.resolved.speculation.method,
        drafter=drafter.drafter if drafter else None,
        drafter_load=drafter.load() if drafter else None,
        settings=subject.settings,
    )


def _with_budget(subject: Subject) -> Subject:
    case = _case(subject)
    if case is None:
        return _blocked(subject, *_unknown_size(subject))
    try:
        return replace(subject, budget=budget.make(case))
    except UsageError as error:
        return _blocked(
            subject, _obstacle("memory-not-planned", "info", error, "roost.plan.budget")
        )


def _unknown_size(subject: Subject) -> Iterator[Finding]:
    if subject.compute_capability is not None:
        yield Finding(
            id="memory-not-planned",
            severity="info",
            summary=f"nothing says how large {subject.target.weights.repo} is",
            why="the catalogue does not know, and the checkpoint was not read",
            fix="roost plan … --hub URL, or --models DIR",
            source="roost.plan",
        )


def _with_pool(subject: Subject) -> Subject:
    """The KV pool, also where nobody knows how large the weights are but the bytes are given."""
    architecture, rules = subject.target.architecture, subject.rules
    pool_bytes = _pool_bytes(subject)
    if architecture is None or rules is None or not pool_bytes:
        return subject
    drafter = subject.layers_added
    if subject.drafter is not None and drafter is None:
        return _blocked(
            subject,
            Finding(
                id="drafter-not-known",
                severity="info",
                summary=f"the layers of {subject.drafter.weights.repo} at this revision are not "
                f"known",
                why="so the pool that it shares cannot be computed",
                fix="roost plan … --hub URL, or --models DIR",
                source="catalogue",
            ),
        )

    def lay_out(kv_dtype: str) -> KvPool:
        settings = subject.settings
        speculates = subject.resolved.speculation.method is not None
        return memory.kv_pool(
            architecture,
            drafter,
            tensor_parallel=settings.tensor_parallel or 1,
            kv_dtype=kv_dtype,
            mamba_cache_dtype=settings.mamba_cache_dtype or "auto",
            num_speculative_tokens=(settings.num_speculative_tokens or 0) if speculates else 0,
            max_model_len=settings.max_model_len or architecture.context,
            max_num_batched_tokens=settings.max_num_batched_tokens or 2048,
            kv_cache_bytes=pool_bytes,
            prefix_caching=_prefix_caching(subject),
            rules=rules,
        )

    wanted = subject.settings.kv_cache_dtype or "auto"
    try:
        pool = lay_out(wanted)
    except PoolRefusedError as error:
        return _blocked(subject, _obstacle(error.id, "error", error, rules.source))
    except RefusedError as error:
        return _blocked(
            subject, _obstacle("tensor-parallel-uneven", "error", error, "roost.plan.memory")
        )
    except UsageError as error:
        return _blocked(subject, _obstacle("pool-not-computed", "info", error, "roost.plan.memory"))
    # Only the capture of CUDA graphs asks for a block a sequence.
    graphs = subject.compute_capability is not None and not subject.settings.enforce_eager
    refusals = memory.pool_refusals(
        pool, max_num_seqs=subject.settings.max_num_seqs if graphs else None
    )
    found = [_obstacle(error.id, "error", error, rules.source) for error in refusals]
    plain = None
    if wanted.startswith("fp8"):
        with suppress(RoostError):
            plain = lay_out(architecture.dtype)
    return _blocked(replace(subject, pool=pool, pool_in_model_type=plain), *found)


def _prefix_caching(subject: Subject) -> bool:
    """Models without gated-delta layers have it on, and a pool that it does not change."""
    return bool(subject.settings.prefix_caching)


def _pool_bytes(subject: Subject) -> int | None:
    if subject.budget is not None:
        return subject.budget.kv_cache_bytes or None
    if subject.settings.kv_cache_bytes is not None:
        return subject.settings.kv_cache_bytes
    # The CPU engine is told in its environment, in GiB.
    space = subject.resolved.spec.env.get("VLLM_CPU_KVCACHE_SPACE", "")
    return int(space) * GIB if space.isdecimal() and subject.compute_capability is None else None


def _with_sglang(subject: Subject) -> Subject:
    case = _case(subject)
    if case is None:
        return _blocked(subject, *_unknown_size(subject))
    try:
        return replace(subject, split=sglang.make(case))
    except UsageError as error:
        return _blocked(
            subject, _obstacle("memory-not-planned", "info", error, "roost.plan.sglang")
        )


def _memory(subject: Subject) -> Memory:
    pool, given, split = subject.pool, subject.budget, subject.split
    terms = given.terms if given else split.terms if split else ()
    return Memory(
        weights_bytes=given.weights_bytes if given else None,
        drafter_bytes=given.drafter_bytes if given else None,
        kv_cache_bytes=pool.kv_cache_bytes if pool else given.kv_cache_bytes if given else None,
        attention_block_size=pool.attention_block_size if pool else None,
        page_size_bytes=pool.page_size_bytes if pool else None,
        kv_groups=pool.kv_groups if pool else None,
        num_blocks=pool.num_blocks if pool else None,
        blocks_per_request=pool.blocks_per_request if pool else None,
        max_concurrency=pool.max_concurrency if pool else None,
        kv_pool_tokens=pool.kv_pool_tokens if pool else split.kv_pool_tokens if split else None,
        mamba_bytes_per_seq=pool.mamba_bytes_per_seq if pool else None,
        free_bytes=given.free_bytes if given else None,
        uncertainty_bytes=given.uncertainty_bytes if given else None,
        max_model_len=pool.max_model_len if pool else None,
        machine=subject.machine,
        terms=list(terms),
    )

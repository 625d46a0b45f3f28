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
from roost.launch.pinning import Weights
from roost.launch.resolving import Resolved
from roost.plan import budget, findings, machine, memory, sglang
from roost.plan import frontier as frontiers
from roost.plan.architecture import Dtype
from roost.plan.case import Case
from roost.plan.effective import settled
from roost.plan.finding import TO_READ, Finding, Severity, Verdict, ordered, verdict
from roost.plan.frontier import Frontier
from roost.plan.machine import Machine
from roost.plan.memory import PoolRefusedError
from roost.plan.pool import lay_out
from roost.plan.rules import Device, rules_for
from roost.plan.sglang import Split
from roost.plan.subject import Side, Subject
from roost.plan.terms import DRAFTER, WEIGHTS, Term, bytes_of
from roost.settings import Settings
from roost.units import GIB

if TYPE_CHECKING:
    from roost.plan.checkpoint import Checkpoint

#: Architecture of nearly every measured point: its widths are assumed, and said to be, where a
#: model's own are not known.
_REFERENCE = "qwen3.5-35b-a3b"

#: Reads a repository at its locked commit.
Reader = Callable[[Weights], "Checkpoint"]


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
    estimated: bool = Field(False, description="the pool too, as all that SGLang splits")
    machine: Machine | None = None
    terms: list[Term] = []


class Plan(BaseModel):
    """The verdict on a deployment, with its memory and findings."""

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
    subject = _with_shares(subject)
    if resolved.engine.style == "sglang":
        return _with_sglang(subject)
    return _with_pool(_with_budget(_with_rules(subject)))


def reader(
    *, hub: str | None = None, models: Path | None = None, token: str | None = None
) -> Reader | None:
    """Reads from a directory of snapshots, else from a hub; none where neither is given.

    Args:
        hub: Its address.
        models: The directory.
        token: For the hub; none: what its client finds in its environment.
    """
    from roost.plan import reading

    if models is not None:
        return partial(reading.from_directory, root=models)
    return partial(reading.from_hub, endpoint=hub, token=token) if hub is not None else None


def frontier(subject: Subject) -> Frontier:
    """What the pool buys.

    Raises:
        RoostError: There is no budget, or no rule to compute it with.
    """
    case = _case(subject)
    if subject.split is not None:
        why = "only vLLM keeps states, drafts and tokens in one pool"
    elif subject.rules is None:
        why = f"nobody has read how {subject.resolved.engine.title} {subject.version} sizes a pool"
    elif case is None:
        why = "what the pool is left with is not known here"
    else:
        return frontiers.frontier(case, subject.rules)
    raise RoostError(
        f"no frontier of {subject.resolved.recipe.id} on {subject.resolved.hardware.id}", why=why
    )


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

    known = loaded = catalogued(catalog, weights)
    if dtype is not None and known.architecture is not None:
        architecture = known.architecture.model_copy(update={"dtype": dtype})
        loaded = replace(known, architecture=architecture)
    if read is None:
        return loaded
    try:
        # What was read is held against the catalogue, not against what the engine is told.
        return reading.observed(known, read(weights), drafter=drafter, dtype=dtype)
    except (HubUnavailableError, HubRefusedError, reading.NotReadError) as error:
        return replace(loaded, unread=error)
    except RoostError as error:
        return replace(loaded, defect=error)


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
        method=model.method,
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
        # What is wrong with the GPUs is a finding of its own; the budget is then the profile's.
        return profile, [_obstacle("memory-not-probed", "warning", error, "host facts")]
    if facts.releases and profile is not None:
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


def _with_shares(subject: Subject) -> Subject:
    """The subject, with an obstacle where the GPUs cannot share the heads evenly."""
    if subject.target.architecture is None:
        return subject
    ranks = subject.settings.tensor_parallel or 1
    try:
        memory.require_shares(subject.target.architecture, subject.layers_added, ranks)
    except RefusedError as error:
        return _blocked(
            subject, _obstacle("tensor-parallel-uneven", "error", error, "roost.plan.memory")
        )
    return subject


def _with_rules(subject: Subject) -> Subject:
    """The subject with its version's rules, or an obstacle where nobody has read that version."""
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
        # What the CPU engine takes besides its pool was measured for one model only.
        return None
    drafter, known = subject.drafter, subject.target.widths
    widths = known or subject.catalog.architectures[_REFERENCE].widths
    if widths is None:
        return None
    return Case(
        machine=subject.machine,
        architecture=architecture,
        target=load,
        widths=widths,
        widths_assumed=known is None,
        method=subject.resolved.speculation.method,
        drafter=drafter.drafter if drafter else None,
        drafter_load=drafter.load() if drafter else None,
        settings=subject.settings,
    )


def _with_budget(subject: Subject) -> Subject:
    case = _case(subject)
    if case is None:
        return _blocked(subject, *_unknown_size(subject))
    need = _need(subject)
    subject = replace(subject, case=case, need=need)
    try:
        return replace(subject, budget=budget.make(case, need=need))
    except UsageError as error:
        return _blocked(
            subject, _obstacle("memory-not-planned", "info", error, "roost.plan.budget")
        )


def _need(subject: Subject) -> budget.Need:
    """The smallest pool that serves: it holds a request, and a state for each sequence."""
    architecture, rules = subject.target.architecture, subject.rules
    if architecture is None or rules is None or _unknown_drafter(subject):
        return lambda _: 1

    def need(settings: Settings) -> int:
        try:
            pool = lay_out(
                architecture,
                subject.drafter.drafter if subject.drafter else None,
                settings,
                method=subject.resolved.speculation.method,
                kv_cache_bytes=1,
                rules=rules,
            )
        except (PoolRefusedError, UsageError):
            return 1  # which is said of itself, and no size of the pool mends
        stateful = architecture.gdn is not None and not settings.enforce_eager
        states = (settings.max_num_seqs or 0) * pool.block_bytes if stateful else 0
        return max(pool.bytes_for_one_request, states)

    return need


def _severity(error: PoolRefusedError, pool: memory.KvPool, subject: Subject) -> Severity:
    """A pool is too small by more than the estimates that size it may be off, or perhaps."""
    made = subject.budget
    most = pool.kv_cache_bytes + (made.pool_uncertainty_bytes if made else 0)
    needed = {
        "kv-too-small": pool.bytes_for_one_request,
        "max-num-seqs": error.values.get("max_num_seqs", 0) * pool.block_bytes,
    }
    return "warning" if most >= needed.get(error.id, most + 1) else "error"


def _room(subject: Subject) -> int | None:
    """The largest pool that memory may hold, as far as the estimates go; none: not known."""
    made = subject.budget
    if made is None:
        return None
    return max(0, made.free_bytes + made.kv_cache_bytes + made.uncertainty_bytes)


def _unknown_size(subject: Subject) -> Iterator[Finding]:
    if subject.compute_capability is not None:
        yield Finding(
            id="memory-not-planned",
            severity="info",
            summary=f"nothing says how large {subject.target.weights.repo} is",
            why="the catalogue does not know, and the checkpoint was not read",
            fix=TO_READ,
            source="roost.plan",
        )


def _with_pool(subject: Subject) -> Subject:
    """The KV pool, also where nobody knows how large the weights are but the bytes are given.

    Where nothing says how large the pool is, what does not depend on that is found all the same.
    """
    architecture, rules = subject.target.architecture, subject.rules
    pool_bytes = _pool_bytes(subject)
    if architecture is None or rules is None:
        return subject
    if unknown := _unknown_drafter(subject):
        return _blocked(subject, unknown)
    lay = partial(
        lay_out,
        architecture,
        subject.drafter.drafter if subject.drafter else None,
        subject.settings,
        method=subject.resolved.speculation.method,
        kv_cache_bytes=pool_bytes or 1,
        rules=rules,
    )
    try:
        pool = lay()
    except PoolRefusedError as error:
        return _blocked(subject, _obstacle(error.id, "error", error, rules.source))
    except RefusedError:
        return subject  # the heads cannot be shared, which was said above
    except UsageError as error:
        return _blocked(subject, _obstacle("pool-not-computed", "info", error, "roost.plan.memory"))
    if not pool_bytes:
        return subject
    # Only the capture of CUDA graphs asks for a block a sequence.
    graphs = subject.compute_capability is not None and not subject.settings.enforce_eager
    limits = {} if (room := _room(subject)) is None else {"room": room}
    if not subject.may_exceed_context:
        limits["context"] = architecture.context
    refusals = memory.pool_refusals(
        pool, max_num_seqs=subject.settings.max_num_seqs if graphs else None, **limits
    )
    found = [
        _obstacle(error.id, _severity(error, pool, subject), error, rules.source)
        for error in refusals
    ]
    plain = None
    if (subject.settings.kv_cache_dtype or "").startswith("fp8"):
        with suppress(RoostError):
            plain = lay(kv_dtype=architecture.dtype)
    return _blocked(replace(subject, pool=pool, pool_in_model_type=plain), *found)


def _unknown_drafter(subject: Subject) -> Finding | None:
    """A drafter shares the pool, so without its layers there is none to compute."""
    drafter = subject.drafter
    if drafter is None or drafter.drafter is not None:
        return None
    return Finding(
        id="drafter-not-known",
        severity="info",
        summary=f"the layers of {drafter.weights.repo} at this revision are not known",
        why="so the pool that it shares cannot be computed",
        fix=TO_READ,
        source="catalogue",
    )


def _pool_bytes(subject: Subject) -> int | None:
    if subject.budget is not None:
        return subject.budget.kv_cache_bytes or None
    if subject.settings.kv_cache_bytes is not None:
        return subject.settings.kv_cache_bytes
    # The CPU engine is told in its environment, in GiB.
    space = subject.resolved.spec.env.get("VLLM_CPU_KVCACHE_SPACE", "")
    return int(space) * GIB if space.isdecimal() and subject.compute_capability is None else None


def _with_sglang(subject: Subject) -> Subject:
    if unknown := _unknown_drafter(subject):
        return _blocked(subject, unknown)
    case = _case(subject)
    if case is None:
        return _blocked(subject, *_unknown_size(subject))
    strategy = sglang.strategy_of(subject.resolved.spec.command)
    try:
        split = sglang.make(case, version=subject.version, strategy=strategy)
    except UsageError as error:
        return _blocked(
            subject, _obstacle("memory-not-planned", "info", error, "roost.plan.sglang")
        )
    return replace(subject, case=case, split=split)


def _memory(subject: Subject) -> Memory:
    if subject.split is not None:
        return _memory_of_sglang(subject, subject.split)
    pool, given = subject.pool, subject.budget
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
        kv_pool_tokens=pool.kv_pool_tokens if pool else None,
        mamba_bytes_per_seq=pool.mamba_bytes_per_seq if pool else None,
        free_bytes=given.free_bytes if given else None,
        uncertainty_bytes=given.uncertainty_bytes if given else None,
        max_model_len=pool.max_model_len if pool else None,
        machine=subject.machine,
        terms=list(given.terms) if given else [],
    )


def _memory_of_sglang(subject: Subject, split: Split) -> Memory:
    """Memory under SGLang: it has no blocks, and every figure is an estimate."""
    length = subject.context
    requests = min(split.kv_pool_tokens / length, split.max_running_requests) if length else None
    return Memory(
        weights_bytes=bytes_of(split.terms, WEIGHTS),
        drafter_bytes=bytes_of(split.terms, DRAFTER),
        kv_cache_bytes=split.kv_cache_bytes,
        max_concurrency=requests,
        kv_pool_tokens=split.kv_pool_tokens,
        mamba_bytes_per_seq=split.state_bytes_per_request,
        free_bytes=split.free_bytes,
        max_model_len=length,
        estimated=True,
        machine=subject.machine,
        terms=list(split.terms),
    )

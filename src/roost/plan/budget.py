"""The memory of one GPU under vLLM: the KV pool, and the terms that leave room for it.

vLLM sizes its pool in one of two ways. ``kv_cache_bytes`` is taken as it is. Else the engine takes
``gpu_memory_utilization`` of the total and subtracts what a profiling pass used and what CUDA
graphs will take (:func:`make`). Either way it first refuses to start where less than that share is
free. The terms themselves are in :mod:`roost.plan.terms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from roost.errors import RoostError, UsageError
from roost.plan import remedies, terms
from roost.plan.calibration import Calibration, builtin
from roost.plan.case import Case
from roost.plan.machine import Machine
from roost.plan.remedies import Change
from roost.plan.terms import DRAFTER, WEIGHTS, Term, bytes_of
from roost.settings import Count, Settings, Strict
from roost.units import GIB

#: Bytes of a pool that is of use with these settings: one that holds a request.
Need = Callable[[Settings], int]


class Refusal(Strict):
    """Why this does not start, with the figures that a finding needs."""

    id: Literal["utilization-too-high", "out-of-memory"]
    summary: str
    why: str
    fix: str
    figures: dict[str, int | float]


class Start(Strict):
    """The first thing vLLM looks at: is the share that it may take free?"""

    requested_bytes: Count = Field(description="gpu_memory_utilization of the total")
    free_bytes: Annotated[int, Field(ge=0)] = Field(description="when the engine looks")
    uncertainty_bytes: Annotated[int, Field(ge=0)] = Field(description="of free_bytes")
    highest_utilization: float = Field(description="that would start, two digits")

    @property
    def margin_bytes(self) -> int:
        """What is free beyond the request; negative: it starts only if the estimates err."""
        return self.free_bytes - self.requested_bytes


class Budget(Strict):
    """Where the memory of one GPU goes."""

    machine: Machine
    terms: tuple[Term, ...]
    kv_cache_bytes: Annotated[int, Field(ge=0)] = Field(description="the pool; 0: none is left")
    start: Start | None = Field(description="none: no GPU")
    free_bytes: int = Field(description="left of what is available; negative: so much is missing")
    uncertainty_bytes: Annotated[int, Field(ge=0)] = Field(description="of free_bytes")
    pool_uncertainty_bytes: Annotated[int, Field(ge=0)] = Field(
        description="of kv_cache_bytes; 0: the settings give it"
    )
    refusals: tuple[Refusal, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing stands against it, the uncertainty of estimates granted."""
        return not self.refusals

    @property
    def tight(self) -> bool:
        """Whether the estimates leave open if it fits."""
        unsure = self.free_bytes < self.uncertainty_bytes or not self.kv_cache_bytes
        return self.fits and unsure

    def bytes_of(self, *names: str) -> int:
        """Bytes of all terms with one of these names."""
        return bytes_of(self.terms, names)

    @property
    def weights_bytes(self) -> int:
        """The target's, on this rank."""
        return self.bytes_of(*WEIGHTS)

    @property
    def drafter_bytes(self) -> int:
        """The drafter's, on this rank."""
        return self.bytes_of(*DRAFTER)


class _Division(NamedTuple):
    """A budget of which nobody has said yet why it is refused."""

    budget: Budget
    pool: int  # negative: so much is missing
    rest: int  # all but the pool
    used: int  # what the engine takes off its share before there is a pool

    @property
    def too_high(self) -> bool:
        start = self.budget.start
        return start is not None and start.margin_bytes + start.uncertainty_bytes < 0

    @property
    def short(self) -> bool:
        return self.pool <= 0 or self.budget.free_bytes + self.budget.uncertainty_bytes < 0


def make(case: Case, calibration: Calibration | None = None, *, need: Need | None = None) -> Budget:
    """The budget of one GPU under vLLM 0.23 to 0.33, which split memory alike.

    What the engine subtracts from the share it was given is, in each of these versions: everything
    resident after the profiling pass that was not before (weights and what is not PyTorch's), the
    peak of the pass, and the estimated CUDA graphs. The context and NCCL are there before the
    engine looks at free memory, so they are no part of the share.

    Args:
        case: Machine, model and settings.
        calibration: Measured points; none: those that ship with roost.
        need: The smallest pool that a fix may leave; none: any that is not empty.

    Raises:
        UsageError: A setting that the terms depend on is not said.
    """
    calibration = calibration or builtin()
    found = _divide(case, calibration)
    start = found.budget.start
    need = need or (lambda _: 1)
    refusals = []
    if start is not None and found.too_high:
        refusals.append(_too_high(case, start, _letting_start(case, calibration, need, start)))
    if found.short and not _left_open(found, case, need):
        fix = _making_room(case, calibration, need, found)
        refusals.append(
            _no_pool(case, start, found.used, fix)
            if found.pool <= 0 and start is not None
            else _out_of_memory(case, found.budget.free_bytes, found.rest, fix)
        )
    return found.budget.model_copy(update={"refusals": tuple(refusals)})


def _divide(case: Case, calibration: Calibration) -> _Division:
    settings = case.settings
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if getattr(settings, name) is None:
            raise UsageError(f"{name} is not said, and the engine's default is not known")
    machine = case.machine
    host = terms.host_reserve(case, calibration)
    before = terms.context(case, calibration)
    resident = terms.loaded(case, calibration)
    transient = [terms.activation(case, calibration)]
    graphs = terms.graphs(case, calibration)

    taken = sum(term.bytes for term in before)
    used = sum(term.bytes for term in (*resident, *graphs, *transient))
    reserve = sum(term.bytes for term in host)
    start = _start(case, [*before, *host])
    if settings.kv_cache_bytes is not None:
        pool, how = settings.kv_cache_bytes, "kv_cache_bytes; utilisation has no effect on it"
    elif start is not None:
        # On unified memory the engine counts what its processes take meanwhile as its own.
        pool = start.requested_bytes - used - reserve
        how = f"{settings.gpu_memory_utilization} of the total, less what the engine measures"
    else:
        raise UsageError("kv_cache_bytes is not said", why="without a GPU nothing else sizes it")
    listed = (
        *before,
        *resident,
        Term(
            name="KV pool",
            bytes=max(0, pool),
            kind="exact" if settings.kv_cache_bytes is not None else "estimate",
            source=how,
        ),
        *graphs,
        *transient,
        *host,
    )
    free = machine.available_bytes - sum(term.bytes for term in listed)
    uncertainty = _together([machine.uncertainty_bytes, *(term.uncertainty for term in listed)])
    subtracted = [term.uncertainty for term in (*resident, *graphs, *transient, *host)]
    budget = Budget(
        machine=machine,
        terms=listed,
        kv_cache_bytes=max(0, pool),
        start=start,
        free_bytes=free,
        uncertainty_bytes=uncertainty,
        pool_uncertainty_bytes=_together(subtracted) if settings.kv_cache_bytes is None else 0,
        refusals=(),
    )
    return _Division(budget, pool, rest=taken + used + reserve, used=used + reserve)


def _start(case: Case, before: list[Term]) -> Start | None:
    """What vLLM compares before it loads anything."""
    machine, utilization = case.machine, case.settings.gpu_memory_utilization
    if machine.kind == "host":
        return None
    if utilization is None:
        raise UsageError("gpu_memory_utilization is not said, and no default of it is known")
    free = max(0, machine.available_bytes - sum(term.bytes for term in before))
    return Start(
        requested_bytes=math.ceil(machine.total_bytes * utilization),
        free_bytes=free,
        # All of them off the same way at once: this decides whether a server is refused.
        uncertainty_bytes=machine.uncertainty_bytes + sum(term.uncertainty for term in before),
        highest_utilization=math.floor(free / machine.total_bytes * 100) / 100,
    )


def _too_high(case: Case, start: Start, fix: str) -> Refusal:
    utilization = case.settings.gpu_memory_utilization or 0
    total = case.machine.total_bytes
    why = "vLLM refuses to start where less than that share of the total is free"
    if case.settings.kv_cache_bytes is not None:
        why += ", also when kv_cache_bytes sizes the pool"
    return Refusal(
        id="utilization-too-high",
        summary=f"gpu_memory_utilization {utilization} asks for {gib(start.requested_bytes)} of "
        f"{gib(total)} GiB, and {gib(start.free_bytes)} GiB are free at start",
        why=why,
        fix=fix,
        figures={
            "requested_bytes": start.requested_bytes,
            "free_bytes": start.free_bytes,
            "total_bytes": total,
            "utilization": utilization,
            "highest_utilization": start.highest_utilization,
        },
    )


def _of_use(tried: _Division, case: Case, need: Need) -> bool:
    """Whether the pool holds what it must, with settings that the engine takes."""
    try:
        return tried.pool >= need(case.settings)
    except RoostError:
        return False


def _left_open(found: _Division, case: Case, need: Need) -> bool:
    """Whether the estimates alone keep the engine's share from holding a pool."""
    made = found.budget
    most = found.pool + made.pool_uncertainty_bytes
    overfull = made.free_bytes + made.uncertainty_bytes < 0
    return not overfull and most > 0 and _of_use(found._replace(pool=most), case, need)


def _letting_start(case: Case, calibration: Calibration, need: Need, start: Start) -> str:
    """The fix where more is asked for than is free."""
    share = {"gpu_memory_utilization": start.highest_utilization}

    def mends(other: Case) -> bool:
        tried = _divide(other, calibration)
        pinned = other.settings.kv_cache_bytes is not None
        return not tried.too_high and (pinned or _of_use(tried, other, need))

    def pools(_: Case) -> Iterator[Change]:
        if start.highest_utilization > 0:
            yield share

    fix = remedies.making_room(case, mends, pools=pools, taken={})
    return fix or "free memory: what is free at start is too little for this model"


def _making_room(case: Case, calibration: Calibration, need: Need, found: _Division) -> str:
    """The fix of a budget in which there is no room for a pool."""

    def mends(other: Case) -> bool:
        tried = _divide(other, calibration)
        return not tried.short and _of_use(tried, other, need)

    def pools(other: Case) -> Iterator[Change]:
        tried = _divide(other, calibration)
        if other.settings.kv_cache_bytes is not None:
            room = other.machine.available_bytes - tried.rest
            if 0 < room < other.settings.kv_cache_bytes:
                yield {"kv_cache_bytes": room}
        elif (start := tried.budget.start) is not None:
            # Asks for a tenth of the memory more than is used up, which leaves that much for the
            # pool.
            share = math.ceil(tried.used / other.machine.total_bytes * 100 + 10) / 100
            for asked in dict.fromkeys((share, start.highest_utilization)):
                if 0 < asked <= start.highest_utilization:
                    yield {"gpu_memory_utilization": asked}

    taken: dict[str, int] = {}
    for term in found.budget.terms:
        name = "weights" if term.name in WEIGHTS else term.name
        taken[name] = taken.get(name, 0) + (term.bytes if term.name != "KV pool" else 0)
    if fix := remedies.making_room(case, mends, pools=pools, taken=taken):
        return fix
    largest = max(taken, key=lambda name: taken[name])
    return (
        "smaller weights, or more or larger GPUs: no setting makes room, and the largest part, "
        f"{largest}, takes {gib(taken[largest])} GiB"
    )


def _no_pool(case: Case, start: Start, used: int, fix: str) -> Refusal:
    """The share of memory that the engine may take is used up before there is a pool."""
    missing = used - start.requested_bytes
    return Refusal(
        id="out-of-memory",
        summary=f"gpu_memory_utilization {case.settings.gpu_memory_utilization} leaves nothing for "
        f"the KV pool: {gib(missing)} GiB are missing on each GPU",
        why=f"it is {gib(start.requested_bytes)} of {gib(case.machine.total_bytes)} GiB, and "
        f"{gib(used)} GiB go to weights, graphs and activations",
        fix=fix,
        figures={
            "missing_bytes": missing,
            "available_bytes": start.requested_bytes,
            "rest_bytes": used,
        },
    )


def _out_of_memory(case: Case, free: int, rest: int, fix: str) -> Refusal:
    available = case.machine.available_bytes
    missing = max(-free, 1)
    return Refusal(
        id="out-of-memory",
        summary=f"{gib(missing)} GiB are missing on each GPU",
        why=f"{gib(available)} GiB are available, and {gib(rest)} GiB go to all but the KV pool",
        fix=fix,
        figures={"missing_bytes": missing, "available_bytes": available, "rest_bytes": rest},
    )


def _together(uncertainties: list[int]) -> int:
    """The uncertainty of a sum whose parts are off independently of one another."""
    return round(math.hypot(*uncertainties))


def gib(amount: int) -> str:
    """Bytes in GiB, as the messages have them."""
    return f"{amount / GIB:.2f}"

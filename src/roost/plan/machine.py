"""The memory of a machine as the planner needs it: one budget a GPU, or one for all."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from roost.catalog import Hardware
from roost.hosts import HostFacts
from roost.settings import Count, Strict

MIB = 1024**2


class Machine(Strict):
    """What there is, and what of it is free."""

    kind: Literal["discrete", "unified", "host"] = Field(
        description="memory of each GPU; shared by CPU and GPU; of a machine without GPU"
    )
    gpus: Annotated[int, Field(ge=0)]
    total_bytes: Count | None = Field(
        description="of one GPU, or MemTotal; none: nobody says, as of a machine that is any"
    )
    available_bytes: Annotated[int, Field(ge=0)] | None = Field(
        description="free now: of the GPU with least, or MemAvailable; none: not probed"
    )
    source: str


def of(hardware: Hardware, facts: HostFacts | None) -> Machine:
    """The machine as it was probed, else as its profile describes it.

    A GPU that does not say its memory (``[N/A]``) shares the host's, which /proc/meminfo knows;
    nvidia-smi's figures are not asked for there at all.
    """
    gpu = hardware.gpu
    if gpu is None:
        return Machine(
            kind="host",
            gpus=0,
            total_bytes=facts.memory_total_bytes if facts else None,
            available_bytes=facts.memory_available_bytes if facts else None,
            source="host facts" if facts else "hardware profile",
        )
    profile = gpu.memory_mib * MIB
    if facts is None:
        return Machine(
            kind=gpu.memory,
            gpus=gpu.count,
            total_bytes=profile,
            available_bytes=None,
            source=f"hardware profile {hardware.id}",
        )
    if gpu.memory == "unified":
        return Machine(
            kind="unified",
            gpus=len(facts.gpus),
            total_bytes=facts.memory_total_bytes or profile,
            available_bytes=facts.memory_available_bytes,
            source="host facts (/proc/meminfo)",
        )
    totals = [card.memory_total_mib for card in facts.gpus if card.memory_total_mib is not None]
    free = [card.memory_free_mib for card in facts.gpus if card.memory_free_mib is not None]
    return Machine(
        kind="discrete",
        gpus=len(facts.gpus),
        total_bytes=min(totals) * MIB if totals else profile,
        available_bytes=min(free) * MIB if free else None,
        source="host facts (nvidia-smi)" if totals else f"hardware profile {hardware.id}",
    )

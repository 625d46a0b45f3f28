"""What memory a machine offers to an engine on one of its GPUs.

Two kinds of GPU are told apart. A discrete card has memory of its own: each card is a
budget by itself, and a rank of the engine gets one card. A GPU with unified memory (GB10) shares
the host's: nvidia-smi has no figure for it, ``/proc/meminfo`` has.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from roost.catalog_schema import Hardware
from roost.errors import RoostError
from roost.hosts import HostFacts
from roost.plan.calibration import Calibration, builtin
from roost.settings import Count, Strict
from roost.units import MIB


class Machine(Strict):
    """The memory of one GPU, the scarcest where they differ, bytes."""

    hardware: str = Field(description="id in the catalogue")
    kind: Literal["discrete", "unified", "host"] = Field(description="host: no GPU at all")
    gpus: Count
    total_bytes: Count = Field(
        description="what gpu_memory_utilization is a share of: discrete: CUDA's total, less than "
        "nvidia-smi's by what the driver keeps; else MemTotal"
    )
    available_bytes: Annotated[int, Field(ge=0)] = Field(
        description="before the engine starts; unified and host: MemAvailable"
    )
    uncertainty_bytes: Annotated[int, Field(ge=0)] = Field(
        0, description="of available_bytes; 0: it was probed, or follows from the total"
    )
    probed: bool = Field(description="else a machine of this kind that does nothing else")
    source: str


def from_profile(hardware: Hardware, calibration: Calibration | None = None) -> Machine | None:
    """An idle machine of a kind; none where the kind says nothing about memory.

    Unified memory is never all available: what an idle machine uses is a calibrated estimate.
    """
    calibration = calibration or builtin()
    gpu = hardware.gpu
    if gpu is None:
        return None
    total = gpu.memory_mib * MIB
    if gpu.memory == "unified":
        in_use = calibration.fits.unified_in_use
        return Machine(
            hardware=hardware.id,
            kind="unified",
            gpus=gpu.count,
            total_bytes=total,
            available_bytes=max(0, total - in_use.bytes),
            uncertainty_bytes=round(in_use.tolerance * in_use.bytes),
            probed=False,
            source=f"profile {hardware.id}, less what an idle machine uses",
        )
    total -= calibration.driver_reserve(gpu.memory_mib)
    return Machine(
        hardware=hardware.id,
        kind="discrete",
        gpus=gpu.count,
        total_bytes=total,
        available_bytes=total,
        probed=False,
        source=f"profile {hardware.id}, less what the driver keeps",
    )


def from_facts(
    facts: HostFacts, hardware: Hardware, calibration: Calibration | None = None
) -> Machine:
    """A machine as it was probed.

    Args:
        facts: What the probe saw.
        hardware: What the machine is declared to be.
        calibration: Measured points; none: those that ship with roost.

    Raises:
        RoostError: The facts that a budget needs are not there.
    """
    calibration = calibration or builtin()
    # Whatever nvidia-smi says of unified memory is not what an engine can take.
    if hardware.gpu is None or hardware.gpu.memory == "unified":
        if not facts.memory_total_bytes or facts.memory_available_bytes is None:
            raise RoostError(
                "the probe saw no MemTotal and MemAvailable",
                why="without memory of its own a GPU uses the host's, which /proc/meminfo tells",
            )
        return Machine(
            hardware=hardware.id,
            kind="host" if hardware.gpu is None else "unified",
            gpus=max(1, len(facts.gpus)),
            total_bytes=facts.memory_total_bytes,
            available_bytes=min(facts.memory_available_bytes, facts.memory_total_bytes),
            probed=True,
            source="MemTotal and MemAvailable of the host",
        )
    if not facts.gpus:
        raise RoostError("the probe saw no GPU", why=facts.gpu_message)
    totals = [gpu.memory_total_mib for gpu in facts.gpus]
    known = [total for total in totals if total is not None]
    if len(known) < len(totals):
        raise RoostError(
            f"nvidia-smi tells the memory of {len(known)} of {len(totals)} GPUs only",
            why="a machine has cards with memory of their own, or a GPU that shares the host's",
        )
    # Ranks are equal, so the smallest card and the fullest one decide for all.
    total = min(known)
    total_bytes = total * MIB - calibration.driver_reserve(total)
    if total_bytes <= 0:
        raise RoostError(f"nvidia-smi tells {total:,} MiB of memory of a GPU")
    free = [gpu.memory_free_mib for gpu in facts.gpus if gpu.memory_free_mib is not None]
    return Machine(
        hardware=hardware.id,
        kind="discrete",
        gpus=len(totals),
        total_bytes=total_bytes,
        available_bytes=min([total_bytes, *(mib * MIB for mib in free)]),
        probed=True,
        source="nvidia-smi of the host, the scarcest card",
    )

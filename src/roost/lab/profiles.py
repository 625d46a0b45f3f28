"""Which machine a lab host plays: data in ``profiles/*.yml``, read strictly.

Only the GPU and what follows from it (memory that it shares, the architecture of its machine)
are played; a profile without GPUs is the machine as it is.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from roost import yamlfile
from roost.errors import UsageError

_FOLDER = Path(__file__).parent / "profiles"

#: What can be wrong with a played GPU: clocks that stay low under load, or a driver whose library
#: is of another version, or that is not loaded.
GpuFault = Literal["stuck-clock", "library-mismatch", "driver-not-loaded"]

#: As reported of a GB10 whose power supply negotiated too little.
_STUCK = {"sm_clock_mhz": 513, "power_w": 14.0, "busy_percent": 96}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Gpu(_Strict):
    """One row of nvidia-smi. Memory in MiB; None is what the driver calls ``[N/A]``."""

    name: str
    compute_capability: str = Field(pattern=r"^\d+\.\d$")
    memory_total_mib: int | None
    memory_used_mib: int | None
    pci_bus_id: str
    temperature_c: int
    power_w: float
    power_limit_w: float | None
    sm_clock_mhz: int
    sm_clock_max_mhz: int
    busy_percent: int = 0


class Profile(_Strict):
    """One kind of machine.

    Attributes:
        architecture: What ``uname -m`` says; None for the controller's own.
        driver: NVIDIA driver version; None where there is no GPU.
        meminfo_kb: Contents of ``/proc/meminfo`` in kB; empty for the controller's own.
    """

    summary: str
    architecture: str | None
    driver: str | None
    gpus: tuple[Gpu, ...] = Field(strict=False)
    meminfo_kb: dict[str, int] = {}

    def meminfo(self) -> str:
        """``/proc/meminfo`` as the kernel prints it."""
        return "".join(
            f"{key + ':':<16}{amount:>8} kB\n" for key, amount in self.meminfo_kb.items()
        )

    def gpu_report(
        self, host: str, driver: str | None = None, fault: GpuFault | None = None
    ) -> str:
        """What the stand-in for nvidia-smi reads (JSON).

        Args:
            host: Gives each card its own, lasting UUID.
            driver: Another driver version than the profile's.
            fault: What is wrong with the cards or their driver.
        """
        stuck = _STUCK if fault == "stuck-clock" else {}
        rows = [
            {
                "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{index}.{host}')}",
                **gpu.model_dump(),
                **stuck,
            }
            for index, gpu in enumerate(self.gpus)
        ]
        report = {"driver": driver or self.driver, "fault": fault, "gpus": rows}
        return json.dumps(report, indent=1)


def names() -> list[str]:
    """All profiles there are."""
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


def load(name: str) -> Profile:
    """Read one profile.

    Raises:
        UsageError: There is none of that name.
    """
    if name not in names():
        raise UsageError(f"no lab profile is called {name!r}", fix=f"one of: {', '.join(names())}")
    return yamlfile.validate(yamlfile.read(_FOLDER / f"{name}.yml"), Profile)

"""What holds for a setting: what was said, else the engine's own default, else nothing."""

from __future__ import annotations

from typing import Any

from roost import versions
from roost.catalog_schema import Default, Engine
from roost.settings import Settings
from roost.units import GIB


def settled(
    engine: Engine, settings: Settings, *, version: str, hardware: str, gpu_bytes: int | None
) -> Settings:
    """The settings, and for those that are not said what this engine takes on this machine.

    Args:
        engine: Whose defaults hold.
        settings: All layers, merged.
        version: Of the engine; one that is no version gets the defaults of any.
        hardware: Id in the catalogue.
        gpu_bytes: Memory of one GPU, which some defaults depend on; none without a GPU.
    """
    said: dict[str, Any] = settings.model_dump(exclude_none=True)
    for name, candidates in engine.defaults.items():
        if name in said:
            continue
        holding = (one for one in candidates if _holds(one, version, hardware, gpu_bytes))
        if default := next(holding, None):
            said[name] = default.value
    return Settings(**said)


def _holds(default: Default, version: str, hardware: str, gpu_bytes: int | None) -> bool:
    if default.hardware and hardware not in default.hardware:
        return False
    if default.min_memory_gib and (gpu_bytes or 0) < default.min_memory_gib * GIB:
        return False
    return versions.within(version, default.versions) is not False

"""What holds for a setting: what was said, else the engine's own default, else nothing."""

from __future__ import annotations

from typing import NamedTuple

from roost import versions
from roost.catalog import Default, Engine
from roost.settings import Settings

GIB = 1024**3

Value = int | float | str | bool


class Effective(NamedTuple):
    """A value and where it is from; none: neither said nor known."""

    value: Value | None
    default: Default | None

    @property
    def said(self) -> bool:
        """Whether recipe, hardware or user said it, rather than the engine's default."""
        return self.value is not None and self.default is None


def effective(
    engine: Engine,
    settings: Settings,
    name: str,
    *,
    version: str,
    gpu_bytes: int | None,
    hardware: str | None = None,
) -> Effective:
    """The value that the engine will run with.

    Args:
        engine: Whose defaults hold.
        settings: All layers, merged.
        name: Of the setting.
        version: Of the engine; one that is no version gets only defaults that every version has.
        gpu_bytes: Memory of one GPU, which some defaults depend on; none without a GPU.
        hardware: Its id, which others depend on.
    """
    said = getattr(settings, name)
    if said is not None:
        return Effective(said, None)
    for default in engine.defaults.get(name, []):
        if not versions.within(version, default.versions):
            continue
        if default.hardware and hardware not in default.hardware:
            continue
        if default.min_memory_gib and (gpu_bytes or 0) < default.min_memory_gib * GIB:
            continue
        return Effective(default.value, default)
    return Effective(None, None)

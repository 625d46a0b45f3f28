"""What a budget is made for: a machine, what is loaded onto it, how it speculates, and settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from roost.plan.architecture import Architecture, Drafter
from roost.plan.contents import Contents
from roost.plan.machine import Machine
from roost.plan.widths import Widths
from roost.settings import Count, Settings, Strict

Method = Literal["dflash", "mtp", "ngram"]

#: Layers of the target that a DFlash drafter of this family reads, where nothing says how many
#: (sources 002 and 003 list eight).
TAPS = 8


class Load(Strict):
    """What one checkpoint puts on the GPUs. The first that is known of the three counts."""

    contents: Contents | None = Field(None, description="with sizes, where headers were read")
    loaded_bytes: Count | None = Field(
        None, description="after loading on one GPU, as an engine printed it"
    )
    disk_bytes: Count | None = None
    source: str

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.sized is None and self.loaded_bytes is None and self.disk_bytes is None:
            raise ValueError("nothing says how large it is")
        return self

    @property
    def sized(self) -> Contents | None:
        """The contents, if every part has a size."""
        return self.contents if self.contents and self.contents.bytes is not None else None


class Case(Strict):
    """What is planned: a machine, a model, how it speculates, and all settings merged."""

    machine: Machine
    architecture: Architecture
    target: Load
    widths: Widths
    widths_assumed: bool = Field(False, description="they are those of Qwen3.5-35B-A3B")
    method: Method | None = Field(None, description="of speculation")
    drafter: Drafter | None = Field(None, description="of method dflash")
    drafter_load: Load | None = None
    drafter_taps: Annotated[int, Field(ge=0)] = Field(
        TAPS, description="layers of the target that the drafter reads (target_layer_ids)"
    )
    settings: Settings = Field(
        description="with max_num_seqs, max_num_batched_tokens and gpu_memory_utilization said "
        "(see roost.plan.effective)"
    )

    @property
    def ranks(self) -> int:
        """GPUs that share the model."""
        return self.settings.tensor_parallel or 1

    @property
    def depth(self) -> int:
        """Tokens drafted a step (K), 0 without speculation."""
        return (self.settings.num_speculative_tokens or 0) if self.method else 0

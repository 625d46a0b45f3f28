"""How wide a model is: what its memory outside the KV pool depends on.

The KV pool needs heads and states (:mod:`~roost.plan.architecture`); buffers, tables and the
passing activations need the sizes of hidden states, experts and vocabulary.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from roost.errors import RoostError
from roost.settings import Count, Strict

_MOST = 2**31 - 1
# ``partial_rotary_factor`` where a configuration does not say: all of the head turns.
_ALL = 1.0


class Widths(Strict):
    """Sizes of one layer's parts."""

    layers: Count
    hidden: Count
    vocabulary: Count
    intermediate: Annotated[int, Field(ge=0)] = Field(
        0, description="of the dense feed-forward layers; 0: experts only"
    )
    experts: Annotated[int, Field(ge=0)] = 0
    experts_per_token: Annotated[int, Field(ge=0)] = 0
    expert_intermediate: Annotated[int, Field(ge=0)] = 0
    rotary_dim: Count = Field(description="of a head")
    three_positions: bool = Field(
        False,
        description="multimodal rotary embedding: the engine keeps a table four times as long",
    )

    @property
    def replicated_parameters(self) -> int:
        """What every rank of tensor parallelism holds in full: routers and norms."""
        routers = self.hidden * (self.experts + 1) if self.experts else 0
        return self.layers * (routers + 2 * self.hidden) + self.hidden

    @classmethod
    def from_config(cls, config: dict[str, Any], where: str = "config.json") -> Widths:
        """Read a ``config.json``, with or without a nested ``text_config``.

        Raises:
            RoostError: Naming the key that is missing or of no use.
        """
        text = config.get("text_config", config)
        if not isinstance(text, dict):
            raise RoostError(f"{where}: text_config: must be a mapping")
        rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise RoostError(f"{where}: rope_parameters: must be a mapping")
        factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", _ALL))
        if not isinstance(factor, int | float) or not 0 < factor <= 1:
            raise RoostError(f"{where}: partial_rotary_factor: must be above 0 and at most 1")
        heads = _count(text, "num_attention_heads", where)
        hidden = _count(text, "hidden_size", where)
        head_dim = _count(text, "head_dim", where, hidden // heads)
        return cls(
            layers=_count(text, "num_hidden_layers", where),
            hidden=hidden,
            vocabulary=_count(text, "vocab_size", where),
            intermediate=_count(text, "intermediate_size", where, 0),
            experts=_count(text, "num_experts", where, 0),
            experts_per_token=_count(text, "num_experts_per_tok", where, 0),
            expert_intermediate=_count(text, "moe_intermediate_size", where, 0),
            rotary_dim=max(1, int(head_dim * factor)),
            three_positions="mrope_section" in rope,
        )


def _count(section: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = section.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise RoostError(f"{where}: {key}: must be a whole number, and a plausible one")
    return value

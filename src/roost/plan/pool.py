"""The KV pool that settings ask for: which of them is which quantity of the arithmetic."""

from __future__ import annotations

from roost.plan.architecture import Architecture, Drafter
from roost.plan.memory import KvPool, kv_pool
from roost.plan.rules import EngineRules
from roost.settings import Settings

#: max_num_batched_tokens where no default is known; only sliding windows depend on it.
_SLICE = 2048


def layers_added(
    architecture: Architecture, method: str | None, drafter: Drafter | None
) -> Drafter | None:
    """The attention layers that speculation adds, be it a drafter or the model's own head."""
    if method == "mtp":
        return architecture.mtp_drafter()
    return drafter if method == "dflash" else None


def lay_out(
    architecture: Architecture,
    drafter: Drafter | None,
    settings: Settings,
    *,
    method: str | None,
    kv_cache_bytes: int,
    rules: EngineRules,
    max_model_len: int | None = None,
    kv_dtype: str | None = None,
) -> KvPool:
    """The pool of a vLLM engine.

    Args:
        architecture: Of the target.
        drafter: Of method ``dflash``.
        settings: As said, and where nothing is said as the engine takes it.
        method: Of speculation; without one ``num_speculative_tokens`` does not count.
        kv_cache_bytes: Of one GPU.
        rules: Of the engine's version.
        max_model_len: Instead of the settings', tokens.
        kv_dtype: Instead of the settings'.

    Raises:
        RoostError: See :func:`roost.plan.memory.kv_pool`.
    """
    return kv_pool(
        architecture,
        layers_added(architecture, method, drafter),
        tensor_parallel=settings.tensor_parallel or 1,
        kv_dtype=kv_dtype or settings.kv_cache_dtype or "auto",
        mamba_cache_dtype=settings.mamba_cache_dtype or "auto",
        num_speculative_tokens=(settings.num_speculative_tokens or 0) if method else 0,
        max_model_len=max_model_len or settings.max_model_len or architecture.context,
        max_num_batched_tokens=settings.max_num_batched_tokens or _SLICE,
        kv_cache_bytes=kv_cache_bytes,
        # Models without gated-delta layers have it on, and a pool that it does not change.
        prefix_caching=bool(settings.prefix_caching),
        rules=rules,
    )

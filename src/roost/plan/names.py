"""The name of every finding: what ``--accept`` and ``roost_accept_findings`` can say.

``docs/plan.md`` says of each how severe it is and when it is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from roost import near
from roost.errors import UsageError
from roost.settings import Settings

if TYPE_CHECKING:
    from roost.catalog import Catalog

#: What somebody tried in vain. Where the user accepts it, the container is built all the same.
NOT_TO_RUN = "known-not-to-run"
#: ``{setting}`` stands for any setting, ``{ability}`` for what a model may need of an engine.
NAMES = (
    NOT_TO_RUN, "no-image", "untested", "doubtful", "{setting}-beyond-known", "not-pinned",
    "untrusted-image", "catalogue-disagrees", "checkpoint-defective", "checkpoint-unreadable",
    "planned-from-catalogue", "engine-version-assumed",
    # of the machine
    "too-few-gpus", "idle-gpus", "image-architecture", "architecture", "gpu", "gpu-count",
    "gpu-memory", "compute-capability", "driver", "memory", "unlike-gpus", "memory-not-probed",
    # of the weights
    "mtp-tensors-missing", "mtp-declared-only", "mtp-not-seen", "vision-switched-off",
    "vision-tensors-missing", "shards-missing", "tensors-missing", "engine-lacks-{ability}",
    "drafts-beyond-block", "context-beyond-model",
    # of the engine
    "{setting}-refused", "flag-not-in-version", "flag-has-a-setting", "flag-of-roost",
    "flag-not-planned", "no-such-choice", "quantization-differs",
    "flashinfer-mixed-window", "cudagraph-piecewise", "drafter-backend-automatic",
    "fp8-kv-unsupported", "image-lacks-kernels", "nvfp4-without-gpu", "nvfp4-too-old",
    "nvfp4-weight-only", "moe-backend-overridden", "eager",
    # of memory
    "kv-page-size", "mixed-drafter", "drafter-kv-groups", "kv-too-small", "max-num-seqs",
    "tensor-parallel-uneven", "utilization-too-high", "out-of-memory", "memory-tight",
    "kv-below-context", "batched-tokens-below-sequences", "kv-in-model-type", "pool-beyond-use",
    "speculation-loses",
    # of the plan
    "engine-version-unknown", "memory-not-planned", "drafter-not-known", "pool-not-computed",
)  # fmt: skip

_ANY = re.compile("|".join(re.sub(r"\{\w+\}", "[a-z0-9.-]+", name) for name in NAMES))


def known(name: str) -> str:
    """A finding's name as it is.

    Raises:
        ValueError: It does not stand in :data:`NAMES`, so nobody could look it up.
    """
    if not _ANY.fullmatch(name):
        raise ValueError(f"{name!r} is no name in roost.plan.names")
    return name


def require(given: Iterable[str], catalog: Catalog, place: str) -> None:
    """Refuse what no finding can be called: it would be accepted in vain.

    Args:
        given: Names that the user accepts.
        catalog: Says which abilities an engine may lack.
        place: Where they stand, for the message.

    Raises:
        UsageError: One is no finding's name; a near miss is named.
    """
    every = set(_every(catalog))
    for name in given:
        if name in every:
            continue
        hint = near.miss(name, sorted(every))
        raise UsageError(
            f"{place}: no finding has the name {name!r}{hint}",
            fix="" if hint else "take a name that `roost plan` prints; docs/plan.md lists them",
        )


def _every(catalog: Catalog) -> Iterator[str]:
    """Every name in full."""
    settings = [name.replace("_", "-") for name in Settings.model_fields]
    abilities = [limit.id for engine in catalog.engines.values() for limit in engine.limits]
    for name in NAMES:
        if "{setting}" in name:
            yield from (name.format(setting=one) for one in settings)
        elif "{ability}" in name:
            yield from (name.format(ability=one) for one in abilities)
        else:
            yield name

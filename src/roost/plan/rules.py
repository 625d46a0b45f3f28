"""How vLLM versions differ in the arithmetic of the KV pool, as data.

Each row was read in the sources of the version it names or seen in its logs; ``source`` says
which. Between two rows the older one holds.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field

from roost.errors import RoostError
from roost.settings import Count, Strict


class EngineRules(Strict):
    """What one engine version does on one kind of device."""

    block_multiple: Count = Field(description="the attention block is a multiple of it, tokens")
    pads_gdn_page: bool = Field(description="to a larger page of the drafter")
    pads_attention_page: bool = Field(
        description="to a larger page that is no whole multiple of it"
    )
    honours_drafter_window: bool = Field(
        description="else the drafter's sliding layers count as full attention"
    )
    batches_in_flight: Count = Field(
        description="batches of max_num_batched_tokens that a sliding window keeps blocks for"
    )
    compared: bool = Field(description="with a pool that an engine of this version printed")
    source: str


class KvPoolRow(Strict):
    """What changed with one version; everything else holds on from the rows before."""

    since: str
    before: str | None = Field(
        None, description="for builds of main only, and only for those before this release"
    )
    rules: dict[str, Any] = Field({}, description="fields of EngineRules")
    cpu: dict[str, Any] = Field({}, description="what is different on the CPU engine")
    compared: list[str] = Field([], description="versions that were compared with these rules")
    source: str


KvPoolRows = list[KvPoolRow]


_GPU_BLOCK = 16
# Observed on the CPU engine with a small hybrid model. The sources of 0.32.0 read as 128 (its
# default block), so a pool that such an engine prints has yet to settle it.
_CPU_BLOCK = 256

_V24 = EngineRules(
    block_multiple=_GPU_BLOCK,
    pads_gdn_page=False,
    pads_attention_page=False,
    honours_drafter_window=False,
    batches_in_flight=1,
    compared=True,
    source="logs of vLLM 0.24.0 on an H200",
)
_MAIN = EngineRules(
    block_multiple=_GPU_BLOCK,
    pads_gdn_page=True,
    pads_attention_page=False,
    honours_drafter_window=True,
    batches_in_flight=1,
    compared=True,
    source="source 000: log of a build of main, 0.23.1rc1.dev968 or later",
)

#: Releases, oldest first.
_RELEASES: list[tuple[tuple[int, int, int], EngineRules]] = [
    (
        (0, 23, 0),
        _V24.model_copy(
            update={
                "compared": False,
                "source": "sources of vLLM 0.23.0 (assertion); the drafter's window as in 0.24.0",
            }
        ),
    ),
    ((0, 24, 0), _V24),
    (
        (0, 24, 1),
        _V24.model_copy(
            update={
                "compared": False,
                "source": "as vLLM 0.24.0; padding is in the sources from 0.26 only",
            }
        ),
    ),
    (
        (0, 26, 0),
        _MAIN.model_copy(
            update={
                "compared": False,
                "source": "sources of vLLM 0.26 (padding); the rest as builds of main before it",
            }
        ),
    ),
    (
        (0, 32, 0),
        _MAIN.model_copy(
            update={
                "pads_attention_page": True,
                "batches_in_flight": 2,
                "compared": False,
                "source": "sources of vLLM 0.32.0; asynchronous scheduling, its default, assumed",
            }
        ),
    ),
]

#: The oldest build of main that is known to behave as :data:`_MAIN`: version and commit count.
_MAIN_SINCE = ((0, 23, 1), 968)

_VERSION = re.compile(
    r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:rc\d+)?(?:\.dev(\d{1,9}))?(?:\+[\w.]+)?"
)


def rules_for(version: str, device: Literal["gpu", "cpu"] = "gpu") -> EngineRules:
    """The rules of a vLLM version.

    Args:
        version: As the engine prints it, e.g. ``0.24.0`` or ``0.23.1rc1.dev968+g2c17d33f4``.
        device: What the engine runs on.

    Raises:
        RoostError: It is no version, or older than anything that was read.
    """
    rules = _lookup(version)
    if device == "cpu":
        return rules.model_copy(
            update={
                "block_multiple": _CPU_BLOCK,
                "compared": False,
                "source": f"{rules.source}; block multiple observed on the CPU engine",
            }
        )
    return rules


def _lookup(version: str) -> EngineRules:
    match = _VERSION.fullmatch(version)
    if not match:
        raise RoostError(
            f"engine version {version[:60]!a} is none of vLLM's",
            fix="set engine_version to what the image's `vllm --version` prints",
        )
    major, minor, patch, dev = match.groups()
    release = (int(major), int(minor), int(patch))
    known = [rules for since, rules in _RELEASES if since <= release]
    if dev is not None and (release, int(dev)) >= _MAIN_SINCE:
        # A build of main can do what the nightlies before it could.
        return known[-1] if known and known[-1].pads_gdn_page else _MAIN
    if not known or (dev is not None and release <= _MAIN_SINCE[0]):
        raise RoostError(
            f"vLLM {version}: nobody has read how it sizes its KV pool",
            why="known are releases from 0.23.0 and builds of main from 0.23.1rc1.dev968",
        )
    return known[-1]

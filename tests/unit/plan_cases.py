"""Machines, weights and settings of real servers, for the tests of the memory budget."""

from __future__ import annotations

from typing import Any

from tests.unit.plan_configs import dflash, qwen35_35b

from roost.catalog import builtin
from roost.plan.architecture import Architecture, Drafter
from roost.plan.case import Case, Load
from roost.plan.contents import Contents, Part
from roost.plan.machine import Machine
from roost.plan.widths import Widths
from roost.settings import Settings

#: Of Qwen3.5-35B-A3B.
REFERENCE = builtin().architectures["qwen3.5-35b-a3b"].widths
assert REFERENCE is not None

MIB = 2**20
GIB = 2**30

TARGET = Architecture.from_config(qwen35_35b())
DRAFTER = Drafter.from_config(dflash(kv_heads=8, window=4096))
OLD_DRAFTER = Drafter.from_config(dflash(kv_heads=4, window=None))

# What nvidia-smi calls 143771 MiB and 16303 MiB, as CUDA counts it.
H200 = Machine(
    hardware="h200",
    kind="discrete",
    gpus=1,
    total_bytes=int(139.8 * GIB),
    available_bytes=int(139.8 * GIB),
    probed=True,
    source="log of vLLM 0.24.0",
)
RTX5070TI = Machine(
    hardware="rtx5070ti-x2",
    kind="discrete",
    gpus=2,
    total_bytes=(16_303 - 451) * MIB,
    available_bytes=(16_303 - 451) * MIB,
    probed=False,
    source="nvidia-smi, less what the driver keeps",
)
#: ``MemTotal: 127600748 kB``, ``MemAvailable: 118566368 kB``.
GB10 = Machine(
    hardware="gb10",
    kind="unified",
    gpus=1,
    total_bytes=127_600_748 * 1024,
    available_bytes=118_566_368 * 1024,
    probed=True,
    source="a public report of such a machine",
)


def parameters(layers: int = 40) -> dict[str, int]:
    """Parameters of the Qwen3.5-35B-A3B shape by part, from the sizes in its public config.json."""
    hidden, gdn, full = 2048, layers * 3 // 4, layers // 4
    return {
        "experts": layers * 256 * 3 * hidden * 512,
        "shared expert": layers * 3 * hidden * 512,
        "routers": layers * hidden * (256 + 1),
        # q, k, v and z in one, beta and alpha in one, the convolution, the output, A and dt.
        "gated delta": gdn * (hidden * 12_288 + hidden * 64 + 8192 * 4 + 4096 * hidden + 64 + 128),
        # Queries carry a gate of their own size.
        "attention": full * (hidden * 8192 + 2 * hidden * 512 + 4096 * hidden + 2 * 256),
        "norms": (2 * layers + 1) * hidden,
        "embedding and head": 2 * 248_320 * hidden,
    }


def contents(
    bytes_of: dict[str, float] | None = None, *, layers: int = 40, vision: bool = False
) -> Contents:
    """A checkpoint of that shape: two bytes a parameter, but for the parts that are named.

    The vision tower of this family has 446.6 million parameters, in BF16 in every checkpoint.
    """
    sizes = {
        part: round(count * (bytes_of or {}).get(part, 2))
        for part, count in parameters(layers).items()
    }
    shared = sizes.pop("embedding and head")
    return Contents(
        language=Part(tensors=1, bytes=sum(sizes.values())),
        embedding=Part(tensors=2, bytes=shared),
        vision=Part(tensors=333, bytes=893_200_000) if vision else Part(tensors=0),
    )


#: Four bits, and a scale of eight for each sixteen.
NVFP4 = dict.fromkeys(("experts", "shared expert", "attention"), 0.5625)


def drafter_bytes(kv_heads: int, taps: int = 8) -> int:
    """A DFlash drafter of 6 layers in BF16: attention, feed-forward and the projection of what it
    reads from the target."""
    hidden, inner, head_dim = 2048, 6144, 128
    layer = 2 * hidden * 32 * head_dim + 2 * hidden * kv_heads * head_dim + 3 * hidden * inner
    return 2 * (6 * layer + taps * hidden * hidden)


def case(machine: Machine = H200, *, load: Load | None = None, **given: Any) -> Case:
    """A case: BF16 text model and no speculation unless something else is said.

    What is no field of a case is one of its settings.
    """
    fields = {name: given.pop(name) for name in list(given) if name in Case.model_fields}
    widths: Widths | None = fields.pop("widths", REFERENCE)
    settings = {
        "gpu_memory_utilization": 0.9,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        **given,
    }
    return Case(
        machine=machine,
        architecture=fields.pop("architecture", TARGET),
        target=load or Load(contents=contents(), source="headers"),
        widths=widths,
        settings=Settings(**settings),
        **fields,
    )


def source_000(**given: Any) -> Case:
    """The server of source 000 on two RTX 5070 Ti.

    The source names no size of its checkpoint: the weights are those of the shape with experts,
    shared expert and attention in NVFP4.
    """
    return case(
        RTX5070TI,
        load=Load(contents=contents(NVFP4), source="the shape in NVFP4"),
        method="dflash",
        drafter=DRAFTER,
        drafter_load=Load(disk_bytes=drafter_bytes(8), source="source 000"),
        **{
            "tensor_parallel": 2,
            "gpu_memory_utilization": 0.95,
            "kv_cache_bytes": 3_200_000_000,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 2048,
            "num_speculative_tokens": 4,
            "kv_cache_dtype": "fp8",
            "moe_backend": "humming",
            "attention_backend": "TRITON_ATTN",
            **given,
        },
    )

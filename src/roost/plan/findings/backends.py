"""Attention and MoE backends, number formats and what the GPU has kernels for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from roost import versions
from roost.plan.finding import Finding
from roost.plan.subject import Subject

_TRITON = "attention_backend=TRITON_ATTN"
#: Compute capability, major, with TensorRT-LLM's kernels in FlashInfer, whose graphs are full.
_TENSORRT_LLM = 10
_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")


def _speculates_on_gpu(s: Subject) -> bool:
    on_gpu = s.resolved.engine.style == "vllm" and s.compute_capability is not None
    return on_gpu and s.resolved.speculation.method is not None


def flashinfer_window(s: Subject) -> Iterator[Finding]:
    """FlashInfer wants one window for all layers; a windowed drafter makes two."""
    drafter = s.layers_added
    backends = {s.target_backend, s.drafter_backend if drafter else None}
    if not _speculates_on_gpu(s) or "FLASHINFER" not in backends:
        return
    forced = s.forcing_image
    # Where an image forces the backend, somebody saw it stop, whatever its version's rules are.
    honoured = forced is not None or s.rules is None or s.rules.drafter_window != "ignored"
    if drafter is not None and drafter.sliding_layers > 0 and honoured:
        yield Finding(
            id="flashinfer-mixed-window",
            severity="error",
            summary="FlashInfer with a drafter whose layers slide: the engine stops with `Window "
            "left is not the same for all layers`",
            why=f"{drafter.sliding_layers} drafter layer(s) see {drafter.window:,} tokens, the "
            "target's all of them" + (f"; {forced.reason}" if forced else ""),
            fix=_other_image(s) if forced else _triton(s),
            source=forced.source if forced else "source 000",
            date=forced.date if forced else None,
        )
    elif s.compute_capability and s.compute_capability[0] != _TENSORRT_LLM:
        yield Finding(
            id="cudagraph-piecewise",
            severity="warning",
            summary="a FlashInfer target or drafter takes the whole engine to piecewise CUDA "
            "graphs",
            why="FlashInfer supports full graphs only for steps of one token, speculation has more",
            fix=_other_image(s) if forced else _triton(s),
            source="logs of vLLM 0.24.0; source 000",
            date=dt.date(2026, 11, 29),
        )


def drafter_backend(s: Subject) -> Iterator[Finding]:
    """vLLM does not hand the target's backend down, neither to a drafter nor to the own head."""
    if not _speculates_on_gpu(s) or s.layers_added is None or s.drafter_backend is not None:
        return
    yield Finding(
        id="drafter-backend-automatic",
        severity="warning",
        summary="the drafter's attention backend is left to the engine",
        why="it is not inherited from the target; where the engine takes FlashInfer, the whole "
        "engine falls to piecewise CUDA graphs",
        fix=_triton(s),
        source="source 000; logs of vLLM 0.24.0",
        date=dt.date(2026, 11, 29),
    )


def _triton(s: Subject) -> str:
    """Triton for target and drafter, where each of them is told something else."""
    settings = s.resolved.settings
    own = "drafter_" + _TRITON
    if settings.drafter_attention_backend is None:
        return _TRITON
    return own if s.target_backend not in {None, "FLASHINFER"} else f"{_TRITON} and {own}"


def _other_image(s: Subject) -> str:
    """How to take another image, and which other the recipe has in mind."""
    image = s.resolved.image
    others = [
        one
        for one in image.fallbacks
        if one.support != "unsupported" and one.image.repository != image.repository
    ]
    named = f", for example {others[0].image.reference}" if others else ""
    return f"another image{named}: image=repository@sha256:…, engine_version=…"


def kv_format(s: Subject) -> Iterator[Finding]:
    """FlashAttention reads an FP8 cache on few GPUs."""
    kv, gpu = s.resolved.settings.kv_cache_dtype, s.resolved.hardware.gpu
    if s.target_backend != "FLASH_ATTN" or kv not in _FP8 or gpu is None:
        return
    # FlashAttention 3 on 9.0; since vLLM 0.28 also FlashAttention 4 on 10.x.
    major = gpu.compute_capability.partition(".")[0]
    if major != "9" and not (major == "10" and versions.within(s.version, ">=0.28")):
        yield Finding(
            id="fp8-kv-unsupported",
            severity="error",
            summary=f"FLASH_ATTN has no {kv} KV cache on compute capability "
            f"{gpu.compute_capability}",
            why="FlashAttention 3, which has it, is for compute capability 9.0",
            fix=_TRITON,
            source="source 000",
        )


def kernels(s: Subject) -> Iterator[Finding]:
    """Some images have no kernels for some GPUs."""
    gpu = s.resolved.hardware.gpu
    for known in s.image_facts:
        if gpu is not None and gpu.compute_capability in known.lacks_compute_capability:
            yield Finding(
                id="image-lacks-kernels",
                severity="error",
                summary=f"{s.resolved.image.reference} has no kernels for compute capability "
                f"{gpu.compute_capability}",
                why=known.reason,
                fix="leave image unset: the recipe's own was run on this hardware"
                if s.resolved.settings.image
                else _other_image(s),
                source=known.source,
                date=known.date,
            )


def number_format(s: Subject) -> Iterator[Finding]:
    """NVFP4 is stored in four bits everywhere, computed in four bits only where a unit can."""
    gpu, capability = s.resolved.hardware.gpu, s.compute_capability
    if s.target.model is None or s.target.model.weights != "nvfp4":
        return
    if gpu is None or capability is None:
        yield Finding(
            id="nvfp4-without-gpu",
            severity="error",
            summary="NVFP4 weights need a GPU",
            why="no CPU kernel reads them",
            source="source 004",
        )
    elif capability < (8, 0):
        yield Finding(
            id="nvfp4-too-old",
            severity="error",
            summary=f"no kernel reads NVFP4 on compute capability {gpu.compute_capability}",
            why="Marlin, which unpacks it, needs 8.0",
            source="vLLM: Marlin kernels",
        )
    elif not gpu.native_fp4:
        yield Finding(
            id="nvfp4-weight-only",
            severity="info",
            summary="NVFP4 runs weight-only here: unpacked for each multiplication",
            why=f"compute capability {gpu.compute_capability} is without FP4 units that these "
            "engines use; Marlin unpacks the weights. Memory is saved all the same",
            source="source 002 (measured on an H200), source 000; source 004 calls it impossible "
            "before Blackwell, which holds for its image and not for the format",
        )


def moe_override(s: Subject) -> Iterator[Finding]:
    """For FP8 the engine's own choice is what was measured."""
    given, model = s.resolved.settings.moe_backend, s.target.model
    if given is None or model is None or model.weights != "fp8":
        return
    yield Finding(
        id="moe-backend-overridden",
        severity="warning",
        summary=f"moe_backend {given} overrides the engine's choice for FP8 experts",
        why="advice for one number format does not carry over to another: on sm_121 the engine "
        "takes Triton for FP8 and FlashInfer CUTLASS for BF16, and was measured so",
        fix="leave moe_backend unset",
        source="source 001",
        date=dt.date(2026, 7, 27),
    )


def eager(s: Subject) -> Iterator[Finding]:
    """Without CUDA graphs every kernel is launched by hand, every token."""
    if s.resolved.settings.enforce_eager and s.compute_capability is not None:
        yield Finding(
            id="eager",
            severity="warning",
            summary="enforce_eager gives up CUDA graphs",
            why="38 against 217 tok/s on two RTX 5070 Ti (5.7 times), 91.4 against 4.6 ms a "
            "token on an H200; graphs take about 0.3 GB a card",
            fix="enforce_eager=false" if s.fits_with({"enforce_eager": False}) else "",
            source="source 000; logs of vLLM 0.24.0",
            date=dt.date(2026, 11, 29),
        )


CHECKS = (
    flashinfer_window,
    drafter_backend,
    kv_format,
    kernels,
    number_format,
    moe_override,
    eager,
)

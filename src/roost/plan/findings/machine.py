"""The machine against what is to run on it."""

from __future__ import annotations

from collections.abc import Iterator

from roost.plan.finding import Finding
from roost.plan.subject import Subject


def _gpus(s: Subject) -> int:
    gpu = s.resolved.hardware.gpu
    if s.host is not None and s.host.gpus:
        return len(s.host.gpus)
    return gpu.count if gpu else 0


def tensor_parallel(s: Subject) -> Iterator[Finding]:
    """One launch is one host."""
    wanted = s.resolved.settings.tensor_parallel or 1
    have, gpu = _gpus(s), s.resolved.hardware.gpu
    if gpu is None or not have or wanted <= have:
        return
    unified = gpu.memory == "unified"
    why = f"{s.resolved.hardware.id} has {have} GPU(s), and an engine is started on one host"
    if unified:
        why += (
            "; a second such machine would add memory that is not scarce, a fabric to set up and, "
            "across nodes, eager execution. Serve from both, or sweep flags on the second"
        )
    yield Finding(
        id="too-few-gpus",
        severity="error",
        summary=f"tensor_parallel {wanted} on {have} GPU(s)",
        why=why,
        fix=f"tensor_parallel={have}",
        source="source 001" if unified else "logs of vLLM 0.24.0",
    )


def idle_gpus(s: Subject) -> Iterator[Finding]:
    """Cards that nobody uses."""
    wanted = s.resolved.settings.tensor_parallel or 1
    have = _gpus(s)
    if have > wanted:
        yield Finding(
            id="idle-gpus",
            severity="warning",
            summary=f"tensor_parallel {wanted} leaves {have - wanted} GPU(s) idle",
            why="weights and KV cache are then on the first card(s) alone",
            fix=f"tensor_parallel={have}",
            source="hardware profile",
        )


def image_platform(s: Subject) -> Iterator[Finding]:
    """An image for another processor fails at its first instruction."""
    wanted = s.host.architecture if s.host else s.resolved.hardware.architecture
    built_for = s.resolved.image_platforms
    if wanted and built_for and wanted not in built_for:
        yield Finding(
            id="image-architecture",
            severity="error",
            summary=f"the image is not built for {wanted}",
            why="its manifest lists " + ", ".join(built_for),
            fix="name an image that is: image=repository@sha256:…",
            source="roost.lock.yml",
        )


def driver(s: Subject) -> Iterator[Finding]:
    """The image's CUDA needs a driver of its generation."""
    if s.host is None or s.compute_capability is None:
        return
    least = s.resolved.engine.min_driver
    for gpu in s.host.gpus:
        if gpu.driver_major is not None and gpu.driver_major < least:
            yield Finding(
                id="driver-too-old",
                severity="error",
                summary=f"driver {gpu.driver} on GPU {gpu.index}, the image needs {least}",
                why=s.resolved.engine.min_driver_source,
                fix=f"install NVIDIA driver {least} or newer and reboot",
                source="host facts",
            )
            return


def gpus_as_described(s: Subject) -> Iterator[Finding]:
    """A plan for another machine says nothing of this one."""
    wanted = s.resolved.hardware.gpu
    if s.host is None or wanted is None:
        return
    if s.host.gpu_trouble is not None or not s.host.gpus:
        yield Finding(
            id="no-gpu",
            severity="error",
            summary=f"the host shows no GPU, {wanted.count} x {wanted.name} is planned for",
            why=s.host.gpu_message or "nvidia-smi lists none",
            fix="roost probe HOST says what is wrong with it",
            source="host facts",
        )
        return
    names = [gpu.name for gpu in s.host.gpus]
    if len(set(names)) > 1:
        yield Finding(
            id="unlike-gpus",
            severity="error",
            summary="the host's GPUs differ: " + ", ".join(names),
            why="tensor parallelism gives each card the same share, so the smallest sets the "
            "budget "
            "and no profile describes the pair",
            fix="plan for one kind: tensor_parallel=1 and CUDA_VISIBLE_DEVICES, or a profile of "
            "its own",
            source="host facts",
        )
    elif len(names) != wanted.count:
        yield Finding(
            id="gpu-count",
            severity="error",
            summary=f"{len(names)} GPU(s), {wanted.count} are planned for",
            why="settings and budget are for that many cards",
            fix="correct roost_hardware",
            source="host facts",
        )
    seen = {gpu.compute_capability for gpu in s.host.gpus} - {None, wanted.compute_capability}
    if seen:
        yield Finding(
            id="compute-capability",
            severity="error",
            summary=f"compute capability {', '.join(sorted(map(str, seen)))}, planned for "
            f"{wanted.compute_capability}",
            why="the image's kernels are built for one",
            fix="correct roost_hardware",
            source="host facts",
        )


CHECKS = (tensor_parallel, idle_gpus, image_platform, driver, gpus_as_described)

"""The machine against what is to run on it."""

from __future__ import annotations

from collections.abc import Iterator

from roost import preflight
from roost.deployment import requirements
from roost.launch.container import CONTAINER
from roost.plan.finding import Finding
from roost.plan.subject import Subject


def _gpus(s: Subject) -> int:
    gpu = s.resolved.hardware.gpu
    if s.host is not None and s.host.gpus:
        return len(s.host.gpus)
    return gpu.count if gpu else 0


def tensor_parallel(s: Subject) -> Iterator[Finding]:
    """An engine is started on one host, so its ranks cannot outnumber that host's GPUs."""
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
        fix=f"tensor_parallel={have}"
        if s.fits_with({"tensor_parallel": have})
        else f"smaller weights, or hardware with {wanted} GPUs: it does not fit on {have}",
        source="source 001" if unified else "logs of vLLM 0.24.0",
    )


def idle_gpus(s: Subject) -> Iterator[Finding]:
    """Cards that nobody uses."""
    wanted = s.resolved.settings.tensor_parallel or 1
    have = _gpus(s)
    if s.resolved.hardware.gpu is not None and have > wanted:
        yield Finding(
            id="idle-gpus",
            severity="warning",
            summary=f"tensor_parallel {wanted} leaves {have - wanted} GPU(s) idle",
            why="weights and KV cache are then on the first card(s) alone",
            fix=f"tensor_parallel={have}"
            if s.fits_with({"tensor_parallel": have})
            else f"hardware with {wanted} GPU(s): the model does not go on {have} of these",
            source="hardware profile",
        )


def image_platform(s: Subject) -> Iterator[Finding]:
    """An image for another processor fails at its first instruction."""
    wanted, built_for = s.resolved.hardware.architecture, s.resolved.image_platforms
    if s.host is None and wanted and built_for and wanted not in built_for:
        yield Finding(
            id="image-architecture",
            severity="error",
            summary=f"the image is not built for {wanted}",
            why="its manifest lists " + ", ".join(built_for),
            fix="name an image that is: image=repository@sha256:…",
            source=s.resolved.lock_file or "its manifest",
        )


def host(s: Subject) -> Iterator[Finding]:
    """Whether a probed host is what is planned for, as the preflight sees it."""
    if s.host is None:
        return
    needs, running = requirements(s.resolved), CONTAINER in s.host.containers
    for found in [
        *preflight.machine(s.host, needs),
        *preflight.memory(s.host, needs, running=running),
    ]:
        yield Finding(
            id=found.id.replace("_", "-"),
            severity=found.severity,
            summary=f"saw {found.saw}; wants {found.wants}",
            why=found.why,
            fix=found.fix,
            source="host facts",
        )


def unlike_gpus(s: Subject) -> Iterator[Finding]:
    """Tensor parallelism gives each card the same share."""
    if s.host is None or s.resolved.hardware.gpu is None:
        return
    names = [gpu.name for gpu in s.host.gpus]
    if len(set(names)) > 1:
        yield Finding(
            id="unlike-gpus",
            severity="error" if (s.resolved.settings.tensor_parallel or 1) > 1 else "warning",
            summary="the host's GPUs differ: " + ", ".join(names),
            why="tensor parallelism gives each card the same share, so the smallest sets the "
            "budget, and no profile describes the pair",
            fix=("tensor_parallel=1, or " if s.fits_with({"tensor_parallel": 1}) else "")
            + "a profile of your own that describes them",
            source="host facts",
        )


CHECKS = (tensor_parallel, idle_gpus, image_platform, unlike_gpus)
#: Left out where a deploy's preflight says the same.
HOST_CHECKS = (host,)

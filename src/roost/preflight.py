"""The preflight: what a host must be before anything is fetched or changed.

A pure function from host facts and a deployment to findings. Each says what was seen, what is
wanted, why, and how to mend it; one ``error`` among them refuses the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict

from roost import pulls
from roost.catalog_schema import Gpu
from roost.deployment import Deployment, Requirements
from roost.diagnose import diagnose
from roost.hosts import GpuFacts, GpuTrouble, HostFacts
from roost.launch.container import CONTAINER
from roost.onhost import DISK_HEADROOM_BYTES, lease
from roost.pins import BUILD_LABEL
from roost.units import MIB, size

#: Layers are stored unpacked; engines of this kind take about this many times their packed size.
UNPACKED_RATIO = 2.5

#: A card may report a little less than its profile (firmware, ECC, carve-outs).
MEMORY_TOLERANCE = 0.97

Severity = Literal["error", "warning", "info"]


class Finding(BaseModel):
    """One result of the preflight."""

    model_config = ConfigDict(frozen=True)

    id: str
    severity: Severity
    saw: str
    wants: str
    why: str
    fix: str

    def text(self) -> str:
        """The finding as a person reads it."""
        return (
            f"{self.id}: saw {self.saw}; wants {self.wants}\n  why: {self.why}\n  fix: {self.fix}"
        )


def check(facts: HostFacts, deployment: Deployment) -> list[Finding]:
    """Everything that stands between this host and this deployment, errors first."""
    needs = deployment.requirements
    running = bool(facts.releases)
    found = [
        *machine(facts, needs),
        *_docker(facts, needs),
        *_port(facts, deployment.port),
        *memory(facts, needs, running=running),
    ]
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


def of_a_rollout(facts: HostFacts, owner: str) -> list[Finding]:
    """Whether the host takes part in a rollout or an experiment of others.

    Args:
        facts: The host.
        owner: Of the lease of what deploys it; empty: it is deployed by hand.
    """
    if facts.rollout is None or facts.rollout["owner"] == owner:
        return []
    return [
        Finding(
            id="rollout",
            severity="error",
            saw=lease.said(facts.rollout),
            wants="a host that nobody else is changing",
            why="the rollout measures, changes and judges it, and has its gateway send it no "
            "requests meanwhile"
            if "experiment" not in facts.rollout
            else "what serves there is only tried and measured, and another release follows",
            fix=lease.fix(facts.rollout),
        )
    ]


def no_gpu_runtime() -> Finding:
    """Docker cannot hand GPUs to containers."""
    return Finding(
        id="gpu_runtime",
        severity="error",
        saw="no NVIDIA runtime in Docker",
        wants="the NVIDIA container toolkit, configured for Docker",
        why='containers would fail with: could not select device driver "" with '
        "capabilities: [[gpu]]",
        fix="install nvidia-container-toolkit, then `nvidia-ctk runtime configure "
        "--runtime=docker` and restart Docker (a snap Docker cannot do it)",
    )


def machine(facts: HostFacts, needs: Requirements) -> list[Finding]:
    """Whether the host is the kind of machine that was planned for."""
    return [*_architecture(facts, needs), *_gpu(facts, needs)]


def disk(
    facts: HostFacts, *, weights_bytes: int, image_bytes: int | None, model_dir: str
) -> list[Finding]:
    """Whether what still has to be fetched fits, counted per filesystem.

    Args:
        facts: The host.
        weights_bytes: Weights that are not on the host yet.
        image_bytes: Compressed image layers that are not on the host yet; none: not known.
        model_dir: Where weights go, for the message.
    """
    if image_bytes is None:
        unknown = Finding(
            id="image_size",
            severity="warning",
            saw="the lock does not say how large the image is",
            wants="its size, to know whether it fits",
            why="whether the image fits cannot be told before it is pulled",
            fix="run `roost lock -i INVENTORY` where the registry can be reached",
        )
        known = disk(facts, weights_bytes=weights_bytes, image_bytes=0, model_dir=model_dir)
        return [*known, unknown]
    image_need = int(image_bytes * UNPACKED_RATIO)
    if facts.models_filesystem == facts.docker_filesystem:
        return list(
            _disk(
                facts.models_filesystem,
                facts.models_free_bytes,
                weights_bytes + image_need,
                f"weights ({size(weights_bytes)}) and image (about {size(image_need)} unpacked)",
                f"set roost_model_dir (now {model_dir}) to a larger filesystem, or free space",
            )
        )
    return [
        *_disk(
            facts.models_filesystem,
            facts.models_free_bytes,
            weights_bytes,
            f"weights ({size(weights_bytes)})",
            f"set roost_model_dir (now {model_dir}) to a larger filesystem, or free space",
        ),
        *_disk(
            facts.docker_filesystem,
            facts.docker_free_bytes,
            image_need,
            f"image (about {size(image_need)} unpacked)",
            "move Docker's data-root to a larger filesystem, or `docker image prune`",
        ),
    ]


#: What each cause is called here, and how much it weighs: an outage only where something is pulled.
_REGISTRY: dict[pulls.Cause, tuple[str, Severity | None]] = {
    "gone": ("image", "error"),
    "repository": ("image_repository", "error"),
    "architecture": ("image_architecture", "error"),
    # The daemon was asked without the credentials that `docker login` left with the client, so
    # this is no proof that the pull will fail.
    "login": ("registry_login", "warning"),
    "rate_limit": ("registry_rate_limit", None),
    "tls": ("registry_tls", None),
    "trouble": ("registry_trouble", None),
    "unreachable": ("registry_unreachable", None),
}


def registry(said: str, image: str, other_images: str, *, check_mode: bool) -> Finding:
    """What it means that Docker could not find an image in its registry.

    Args:
        said: The error message of Docker's daemon.
        image: What was asked for.
        other_images: The choices that the recipe names, see :mod:`roost.fallbacks`.
        check_mode: Then nothing is pulled, and an outage is worth a warning only.
    """
    cause = pulls.cause(said)
    name, severity = _REGISTRY.get(cause, ("registry_error", None))
    why, fix = pulls.explain(cause, other_images)
    return Finding(
        id=name,
        severity=severity or ("warning" if check_mode else "error"),
        saw=f"{said} (asked for {image})",
        wants="the pinned image in its registry, or on the host",
        why=why,
        fix=f"if the pull fails too: {fix}" if severity == "warning" else fix,
    )


def unasked(image: str) -> Finding:
    """Nobody can say whether the host has an image that no registry has."""
    return Finding(
        id="image",
        severity="error",
        saw=f"Docker does not run, and cannot be asked for {image}",
        wants="it on the host: nobody publishes it, so there is no registry to pull it from",
        why="the recipe's engine is built from source",
        fix="systemctl start docker, then deploy again",
    )


def unbuilt(image: str, how: str) -> Finding:
    """An image that no registry has, and that is not on the host either."""
    return Finding(
        id="image",
        severity="error",
        saw=f"no image {image} on the host",
        wants="it there: nobody publishes it, so there is no registry to pull it from",
        why="the recipe's engine is built from source",
        fix=how,
    )


def built_otherwise(image: str, how: str) -> Finding:
    """An image of the right name that does not say it was built as the recipe says."""
    return Finding(
        id="image",
        severity="error",
        saw=f"{image} on the host, built from something else, or by hand without the label "
        f"{BUILD_LABEL}",
        wants="the build that the recipe names: commit, directory, Dockerfile and arguments",
        why="a name and tag can be given to anything",
        fix=f"{how}\n  Or take it as it is: roost_allow_unlocked: true",
    )


def _disk(
    filesystem: str | None, free: int | None, need: int, what: str, fix: str
) -> Iterator[Finding]:
    if need == 0:
        return
    if free is None:
        yield Finding(
            id="disk",
            severity="warning",
            saw="free space could not be read",
            wants=f"{size(need)} for {what}",
            why="df gave no figure",
            fix="check the filesystem by hand",
        )
    elif free < need + DISK_HEADROOM_BYTES:
        yield Finding(
            id="disk",
            severity="error",
            saw=f"{size(free)} free on {filesystem}",
            wants=f"{size(need + DISK_HEADROOM_BYTES)}: {what}, and "
            f"{size(DISK_HEADROOM_BYTES)} headroom",
            why="the download would fill the disk half-way and take the host with it",
            fix=fix,
        )


def _architecture(facts: HostFacts, needs: Requirements) -> Iterator[Finding]:
    if needs.architecture and facts.architecture != needs.architecture:
        yield Finding(
            id="architecture",
            severity="error",
            saw=facts.machine,
            wants=f"{needs.architecture} ({needs.hardware})",
            why="this host is not the hardware that the inventory says",
            fix="correct roost_hardware for this host",
        )
    elif needs.image_bytes:
        yield from image_architecture(facts.architecture, needs.image_bytes)


def image_architecture(host: str, image: Iterable[str]) -> Iterator[Finding]:
    """Whether an image has anything for a host, by the architectures that its manifests name."""
    if host not in image:
        yield Finding(
            id="image_architecture",
            severity="error",
            saw=host,
            wants="one of " + ", ".join(sorted(image)),
            why="the pinned image is not built for this architecture",
            fix="name an image that is: roost_settings.image",
        )


#: What is wrong, why, and how to mend it, where nvidia-smi does not say it in words that are known.
_SILENT: dict[GpuTrouble, tuple[str, str, str]] = {
    "missing": (
        "no nvidia-smi",
        "the NVIDIA driver is not installed",
        "install the NVIDIA driver",
    ),
    "no_devices": (
        "nvidia-smi finds no GPU",
        "the driver runs, but no device answers it",
        "check `lspci | grep -i nvidia` and the kernel log",
    ),
}
_UNREADABLE = (
    "nvidia-smi gave no table",
    "its output is not of a known form",
    "run nvidia-smi by hand on the host",
)


def explain(facts: HostFacts, trouble: GpuTrouble) -> tuple[str, str, str]:
    """What it means that nvidia-smi does not list the GPUs: what was seen, why, and the fix."""
    what, why, fix = _SILENT.get(trouble, _UNREADABLE)
    if trouble not in _SILENT:
        found = (item for item in diagnose(facts.gpu_message) if item.id != "unknown")
        if known := next(found, None):
            what, why, fix = known.title, known.why, known.fix
    return f"{what} ({facts.gpu_message})" if facts.gpu_message else what, why, fix


def gpu_trouble(facts: HostFacts, trouble: GpuTrouble, wants: str) -> Finding:
    """What it means that nvidia-smi does not list the GPUs."""
    saw, why, fix = explain(facts, trouble)
    return Finding(id="gpu", severity="error", saw=saw, wants=wants, why=why, fix=fix)


def _gpu(facts: HostFacts, needs: Requirements) -> Iterator[Finding]:
    if needs.gpu is None:
        return
    if facts.gpu_trouble is not None:
        yield gpu_trouble(facts, facts.gpu_trouble, f"{needs.gpu.count} x {needs.gpu.name}")
        return
    if len(facts.gpus) != needs.gpu.count:
        yield Finding(
            id="gpu_count",
            severity="error",
            saw=f"{len(facts.gpus)} GPU: " + ", ".join(gpu.name for gpu in facts.gpus),
            wants=f"{needs.gpu.count} x {needs.gpu.name}",
            why="the recipe's settings are for that many cards",
            fix="correct roost_hardware for this host, or check why a card is missing",
        )
    # Two cards of one kind have one and the same thing against them.
    found = (one for gpu in facts.gpus for one in _one_gpu(gpu, needs, needs.gpu))
    yield from dict.fromkeys(found)


def _one_gpu(gpu: GpuFacts, needs: Requirements, wanted: Gpu) -> Iterator[Finding]:
    if gpu.compute_capability != wanted.compute_capability:
        yield Finding(
            id="compute_capability",
            severity="error",
            saw=f"{gpu.name} with {gpu.compute_capability or 'no compute capability reported'}",
            wants=f"{wanted.compute_capability} ({needs.hardware})",
            why="the image's kernels are built for that compute capability",
            fix="correct roost_hardware for this host",
        )
    if gpu.driver_major is None or gpu.driver_major < needs.min_driver:
        yield Finding(
            id="driver",
            severity="error",
            saw=f"driver {gpu.driver or 'unknown'}",
            wants=f"{needs.min_driver} or newer",
            why=f"the image needs it: {needs.min_driver_source}",
            fix=f"install NVIDIA driver {needs.min_driver} or newer and reboot",
        )
    if (
        wanted.memory == "discrete"
        and gpu.memory_total_mib is not None
        and gpu.memory_total_mib < wanted.memory_mib * MEMORY_TOLERANCE
    ):
        yield Finding(
            id="gpu_memory",
            severity="error",
            saw=f"{gpu.memory_total_mib} MiB on {gpu.name}",
            wants=f"{wanted.memory_mib} MiB ({needs.hardware})",
            why="the recipe's memory settings are for that much",
            fix="correct roost_hardware for this host",
        )


def _docker(facts: HostFacts, needs: Requirements) -> Iterator[Finding]:
    if facts.docker is None and not facts.docker_installed:
        if needs.install_docker:
            yield Finding(
                id="docker",
                severity="info",
                saw="no Docker",
                wants="Docker",
                why="the engine runs in a container",
                fix="nothing to do: it will be installed (roost_install_docker: false forbids it)",
            )
        else:
            yield Finding(
                id="docker",
                severity="error",
                saw="no Docker",
                wants="Docker",
                why="this site forbids installing it (roost_install_docker: false)",
                fix="install Docker on the host, or allow roost to",
            )
    elif facts.docker is None:
        denied = "permission denied" in facts.docker_message
        yield Finding(
            id="docker",
            severity="error" if denied else "warning",
            saw=facts.docker_message or "Docker does not answer",
            wants="a running Docker daemon that this user may use",
            why="the login user may not use Docker's socket" if denied else "dockerd is not up",
            fix="deploy with become, or add the user to the docker group and log in anew"
            if denied
            else "nothing to do: a deploy starts it; if it does not stay up, journalctl -u docker",
        )
    elif needs.min_docker and facts.docker.major < needs.min_docker:
        yield Finding(
            id="docker_version",
            severity="warning",
            saw=f"Docker {facts.docker.version}",
            wants=f"Docker {needs.min_docker} or newer",
            why="whoever published the image asks for it",
            fix="upgrade Docker where the container does not start",
        )
    # Also where Docker is still to be installed: nobody would install the toolkit.
    if needs.gpu is not None and not facts.gpu_runtime:
        yield no_gpu_runtime()


def _port(facts: HostFacts, port: int) -> Iterator[Finding]:
    if port not in facts.listening or any(port in ports for ports in facts.releases.values()):
        return
    holder = next((name for name, ports in facts.containers.items() if port in ports), None)
    yield Finding(
        id="port",
        severity="error",
        saw=f"port {port} is taken" + (f" by container {holder}" if holder else ""),
        wants=f"port {port} free, or held by {CONTAINER}",
        why="the endpoint is published there",
        fix=(f"docker stop {holder}" if holder else f"stop what listens (ss -ltnp sport = :{port})")
        + ", or set roost_port",
    )


def memory(facts: HostFacts, needs: Requirements, *, running: bool) -> Iterator[Finding]:
    """Memory that is there at all; what an engine takes of a GPU's is the plan's work.

    While a container of ours runs, what it holds comes back at the swap, so only the totals count.
    """
    gpu = needs.gpu
    total, available = facts.memory_total_bytes, facts.memory_available_bytes
    if gpu is None:
        need = needs.weights_bytes + (needs.memory_bytes or 0)
        if available is not None and not running and available < need:
            yield _short_of_memory(
                f"{size(available)} MemAvailable",
                size(need),
                "weights and the engine's own memory",
                "free memory on the host, or take a smaller recipe",
            )
    elif gpu.memory == "unified" and (
        total is not None and total < gpu.memory_mib * MIB * MEMORY_TOLERANCE
    ):
        yield _short_of_memory(
            f"{size(total)} MemTotal",
            f"{size(gpu.memory_mib * MIB)} ({needs.hardware})",
            "the recipe's memory settings are for that machine",
            "correct roost_hardware for this host",
        )


def _short_of_memory(saw: str, wants: str, why: str, fix: str) -> Finding:
    return Finding(id="memory", severity="error", saw=saw, wants=wants, why=why, fix=fix)

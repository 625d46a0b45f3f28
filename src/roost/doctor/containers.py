"""Checks of Docker and of what hands GPUs to its containers."""

from __future__ import annotations

from collections.abc import Iterator

from roost import preflight
from roost.condition import CdiSpec
from roost.doctor.check import Check, has_gpu, judged, of_preflight, unseen
from roost.hosts import DockerFacts, HostFacts

#: Storage drivers that should be changed, and why.
_SLOW_STORAGE = {
    "vfs": "copies every layer whole",
    "aufs": "is gone from current kernels",
    "devicemapper": "was removed from Docker 25",
}


def gpu_runtime(facts: HostFacts) -> Iterator[Check]:
    """Whether Docker can hand GPUs to containers."""
    if not has_gpu(facts):
        return
    toolkit = facts.condition.toolkit
    if not facts.gpu_runtime:
        found = of_preflight(preflight.no_gpu_runtime())
        if toolkit:
            saw = f"NVIDIA container toolkit {toolkit} is installed, but Docker does not know it"
            yield found.model_copy(update={"saw": saw})
        else:
            yield found
        return
    yield Check(
        id="gpu_runtime",
        severity="ok",
        saw=f"NVIDIA's, for Docker{f' (toolkit {toolkit})' if toolkit else ''}",
        wants="the NVIDIA container toolkit, configured for Docker",
    )


def cdi(facts: HostFacts) -> Iterator[Check]:
    """Whether CDI specifications name the libraries of the driver that runs."""
    specs = facts.condition.cdi
    driver = next((gpu.driver for gpu in facts.gpus if gpu.driver), None)
    if not facts.gpus or driver is None:
        return
    wants = f"none, or one made for driver {driver}"
    if specs is None:
        yield unseen("cdi", wants, "CDI specifications could not be listed")
        return
    stale = [spec for spec in specs if spec.driver not in (None, driver)]
    if stale:
        runtimes = facts.docker.runtimes if facts.docker else []
        alone = not facts.condition.hook and "nvidia" not in runtimes
        yield Check(
            id="cdi",
            severity="fail" if alone else "warn",
            saw=", ".join(f"{spec.path} is of driver {spec.driver}" for spec in stale),
            wants=wants,
            why="it names libraries that are gone since the driver was upgraded: containers that "
            "get their GPUs by it do not start (unresolvable CDI devices, no such file)",
            fix=_regenerate(stale),
        )
        return
    unread = [spec.path for spec in specs if spec.driver is None]
    if unread:
        yield unseen("cdi", wants, f"{', '.join(unread)}: names no driver, or cannot be read")
        return
    yield Check(
        id="cdi",
        severity="ok",
        saw=", ".join(spec.path for spec in specs) or "no CDI specification",
        wants=wants,
    )


def _regenerate(stale: list[CdiSpec]) -> str:
    made = [
        f"sudo nvidia-ctk cdi generate --output={spec.path}"
        for spec in stale
        if spec.path.startswith("/etc/")
    ]
    if len(made) < len(stale):
        # The toolkit's own service writes below /var/run; what a person made it leaves alone.
        made.append("sudo systemctl restart nvidia-cdi-refresh.service")
    return "; ".join(made)


def docker(facts: HostFacts) -> Iterator[Check]:
    """Whether Docker runs, for whom, and from where."""
    seen = facts.condition
    wants = "a running Docker daemon"
    if facts.docker is not None:
        yield from _daemon(facts.docker, has_gpu(facts))
    elif not facts.docker_installed:
        yield Check(
            id="docker", severity="ok", saw="not installed", wants="nothing: a deploy installs it"
        )
    elif "permission denied" in facts.docker_message:
        user = seen.user or "the login user"
        listed = seen.user is not None and seen.user in (seen.docker_members or [])
        yield unseen("docker", wants, f"{user} may not ask Docker")
        if listed:
            saw = f"{user} is in the group docker, but this session is older"
            why = "groups are read at login, and Ansible keeps its connection open"
            fix = "log in anew: ssh -O exit HOST, or restart the machine"
        else:
            saw = f"{user} is not in the group docker"
            why = "Docker's socket belongs to root and the group docker"
            fix = (
                f"sudo usermod -aG docker {user}, then log in anew (members are as good as root); "
                "or leave it: deploys use sudo"
            )
        yield Check(
            id="docker_group",
            severity="warn",
            saw=saw,
            wants="a login user who may use Docker, or a deploy with sudo",
            why=why,
            fix=fix,
        )
    else:
        yield Check(
            id="docker",
            severity="fail",
            saw=facts.docker_message or "Docker does not answer",
            wants=wants,
            why="dockerd is not up",
            fix="systemctl start docker, and see journalctl -u docker",
        )


def _daemon(docker: DockerFacts, gpu: bool) -> Iterator[Check]:
    driver, root = docker.storage_driver, docker.root or ""
    if root.startswith("/var/snap/"):
        yield Check(
            id="docker_snap",
            severity="fail" if gpu else "warn",
            saw=f"Docker from a snap ({root})",
            wants="Docker from the distribution or from Docker",
            why="a snap sees neither NVIDIA's toolkit nor directories outside of its own",
            fix="sudo snap remove docker, then deploy: it installs Docker and pulls images anew",
        )
    slow = _SLOW_STORAGE.get(driver)
    yield judged(
        "docker",
        "warn" if slow else None,
        saw=f"Docker {docker.version}, storage driver {driver}",
        wants="overlay2 or overlayfs",
        why=f"{driver} {slow}",
        fix="take storage-driver out of /etc/docker/daemon.json, or move data-root to ext4 or xfs; "
        "images are pulled anew",
    )

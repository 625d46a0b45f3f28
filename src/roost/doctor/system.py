"""Checks of memory, disks, limits and the operating system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roost.doctor.check import Check, Severity, judged, unseen
from roost.hosts import HostFacts
from roost.launch.container import CONTAINER
from roost.onhost import DISK_HEADROOM_BYTES
from roost.units import GIB, size

#: MemAvailable below which a machine whose GPU shares it begins to swap and hang (source 001 tells
#: of the hang; the figure is roost's).
MEMORY_FLOOR_BYTES = 4 * GIB
#: With more than this swapped out, the machine was short of memory.
SWAP_USED_BYTES = 1 * GIB
#: Share of unified memory that page cache may hide from an engine which counts free memory.
PAGE_CACHE_SHARE = 0.1
#: An engine's image takes 10 to 20 GiB unpacked.
LOW_DISK_BYTES = 20 * GIB
#: vLLM asks for 65535 and serves with less; each connection and each shard is an open file.
OPEN_FILES = 4096
#: The catalogue's smallest shared memory of a container; Docker's own 64 MiB are too little.
SHARED_MEMORY_BYTES = 1 * GIB
#: Seconds of difference. Registries' tokens tolerate a minute, signed URLs some minutes.
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 60.0


@dataclass(frozen=True)
class Skew:
    """How far a host's clock is ahead of the controller's, give or take, in seconds."""

    seconds: float
    uncertainty: float


@dataclass(frozen=True)
class BadKernel:
    """A kernel of which harm was reported."""

    release: str
    why: str
    fix: str
    source: str
    date: str


BAD_KERNELS = (
    BadKernel(
        release="7.0.0-1019-nvidia",
        why="on GB10, engines that span machines over RoCE die in NCCL's set-up for want of memory "
        "(ibv_reg_mr_iova2, NV_ERR_NO_MEMORY); 6.17.0-1032-nvidia with the same driver does not",
        fix="boot 6.17.0-1032-nvidia where an engine spans machines or the kernel log shows "
        "NV_ERR_NO_MEMORY; keep apt from moving to the next kernel unseen",
        source="NVIDIA/open-gpu-kernel-modules#1358, MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks#14",
        date="2026-09-13",
    ),
)


def memory(facts: HostFacts) -> Iterator[Check]:
    """Memory: what is available, what is swapped out, and what page cache hides."""
    total, available = facts.memory_total_bytes, facts.memory_available_bytes
    wants = f"at least {size(MEMORY_FLOOR_BYTES)} available"
    if total is None or available is None:
        yield unseen("memory", wants, "/proc/meminfo gave no MemTotal or MemAvailable")
    else:
        short = available < min(MEMORY_FLOOR_BYTES, total // 8)
        yield judged(
            "memory",
            "warn" if short else None,
            saw=f"{size(available)} of {size(total)} available",
            wants=wants,
            why="below that a machine begins to swap, and one whose GPU shares the memory hangs",
            fix="end what else runs there; lower gpu_memory_utilization or kv_cache_bytes",
        )
    yield from _swap(facts)
    yield from _page_cache(facts)


def _swap(facts: HostFacts) -> Iterator[Check]:
    total, free = facts.condition.swap_total_bytes, facts.condition.swap_free_bytes
    wants = "swap that is not in use"
    if total is None or free is None:
        yield unseen("swap", wants, "/proc/meminfo gave no SwapTotal or SwapFree")
        return
    used = total - free
    saw = f"{size(used)} of {size(total)} in use" if total else "no swap"
    if used < SWAP_USED_BYTES:
        yield Check(id="swap", severity="ok", saw=saw, wants=wants)
        return
    yield Check(
        id="swap",
        severity="warn",
        saw=saw,
        wants=wants,
        why="memory was short. Too much asked for on unified memory does not end the engine: the "
        "machine swaps and stops answering"
        if facts.unified_memory
        else "memory was short, and what was swapped out answers slowly",
        fix="lower gpu_memory_utilization or kv_cache_bytes, or end what else runs there; then "
        "sudo swapoff -a && sudo swapon -a",
    )


def _page_cache(facts: HostFacts) -> Iterator[Check]:
    """Page cache that an engine counts as taken, though the kernel would give it back."""
    if not facts.unified_memory:
        return
    wants = "free memory near the available memory before an engine starts"
    total, available = facts.memory_total_bytes, facts.memory_available_bytes
    free = facts.condition.memory_free_bytes
    if total is None or available is None or free is None:
        yield unseen("page_cache", wants, "/proc/meminfo gave no MemFree or MemAvailable")
        return
    hidden = available - free
    saw = f"{size(free)} free, {size(available)} available"
    if CONTAINER in facts.containers or hidden <= total * PAGE_CACHE_SHARE:
        yield Check(id="page_cache", severity="ok", saw=saw, wants=wants)
        return
    yield Check(
        id="page_cache",
        severity="warn",
        saw=f"{saw}: page cache holds the difference",
        wants=wants,
        why="engines that ask CUDA for free memory count page cache as taken on a GB10 and refuse "
        "to start (vllm#48140), or plan less KV cache than fits",
        fix="before a start: sync; echo 3 | sudo tee /proc/sys/vm/drop_caches",
    )


def disks(facts: HostFacts) -> Iterator[Check]:
    """Free space of each file system that models, Docker or the system fill."""
    root = facts.condition.root
    places: dict[str, tuple[int, list[str]]] = {}
    for what, mount, free in (
        ("models", facts.models_filesystem, facts.models_free_bytes),
        ("Docker", facts.docker_filesystem, facts.docker_free_bytes),
        ("system", root.mount if root else None, root.free_bytes if root else None),
    ):
        if mount is None or free is None:
            yield unseen("disk", "its free space", f"df gave no figure for {what}")
        else:
            places.setdefault(mount, (free, []))[1].append(what)
    for mount, (free, uses) in places.items():
        engine = {"models", "Docker"} & set(uses)
        full = free < DISK_HEADROOM_BYTES
        low = bool(engine) and free < LOW_DISK_BYTES
        wanted = LOW_DISK_BYTES if engine else DISK_HEADROOM_BYTES
        yield judged(
            "disk",
            "fail" if full else "warn" if low else None,
            saw=f"{size(free)} free on {mount} ({', '.join(uses)})",
            wants=f"at least {size(wanted)} free",
            why="a full file system takes logs, releases and Docker with it"
            if full
            else "an image takes 10 to 20 GiB unpacked, weights as much again",
            fix="docker system df, docker image prune; du -xh --max-depth=2 " + mount,
        )


def shared_memory(facts: HostFacts) -> Check:
    """Shared memory for containers that use the host's IPC namespace."""
    seen, wants = facts.condition.shared_memory, f"{size(SHARED_MEMORY_BYTES)} free in /dev/shm"
    if seen is None:
        return unseen("shared_memory", wants, "df gave no figure for /dev/shm")
    short = seen.free_bytes < SHARED_MEMORY_BYTES
    return judged(
        "shared_memory",
        "warn" if short else None,
        saw=f"{size(seen.free_bytes)} of {size(seen.total_bytes)} free",
        wants=wants,
        why="containers that share the host's IPC (--ipc host) pass tensors between workers there",
        fix="sudo mount -o remount,size=50% /dev/shm; ls -la /dev/shm shows what fills it",
    )


def open_files(facts: HostFacts) -> Check:
    """The limit on open files, which containers inherit from Docker's daemon."""
    limit, wants = facts.condition.open_files, f"{OPEN_FILES} open files or more"
    if limit is None:
        return unseen("open_files", wants, "no Docker daemon whose limits could be read")
    short = limit < OPEN_FILES
    return judged(
        "open_files",
        "warn" if short else None,
        saw=f"containers may open {limit}",
        wants=wants,
        why="every connection and every weight file is one; beyond it an engine refuses clients "
        "with: Too many open files",
        fix='LimitNOFILE=1048576 for docker.service, or "default-ulimits" in daemon.json',
    )


def kernel(facts: HostFacts) -> Check:
    """Whether the kernel is one of which harm was reported."""
    wants = "a kernel without reports of harm"
    for bad in BAD_KERNELS:
        if facts.kernel == bad.release:
            return Check(
                id="kernel",
                severity="warn",
                saw=facts.kernel,
                wants=wants,
                why=f"{bad.why} ({bad.source}, {bad.date})",
                fix=bad.fix,
            )
    return Check(id="kernel", severity="ok", saw=facts.kernel, wants=wants)


def clock(facts: HostFacts, skew: Skew | None) -> Check:
    """Whether the host's clock agrees with the controller's."""
    wants = f"within {SKEW_WARN_S:.0f} s of the controller's"
    service = "synchronised" if facts.condition.time_synchronised else "no time service to be seen"
    if skew is None:
        return unseen("clock", wants, f"{service}; could not be compared")
    off = max(0.0, abs(skew.seconds) - skew.uncertainty)
    bad: Severity | None = "fail" if off > SKEW_FAIL_S else "warn" if off > SKEW_WARN_S else None
    ahead = "ahead" if skew.seconds > 0 else "behind"
    return judged(
        "clock",
        bad,
        saw=f"{abs(skew.seconds):.1f} s {ahead} (± {skew.uncertainty:.1f} s), {service}",
        wants=wants,
        why="registries and hubs refuse tokens and certificates from another time, and results of "
        "several hosts cannot be put in order",
        fix="sudo timedatectl set-ntp true; timedatectl status (and the controller's own clock: "
        "all hosts are compared with it)",
    )


def remove_ipc(facts: HostFacts) -> Check:
    """Whether logind deletes shared memory that is in use."""
    wants = "RemoveIPC=no where login users' processes keep shared memory"
    removes, owners = facts.condition.remove_ipc, facts.condition.shared_memory_owners
    if removes is False:
        return Check(id="remove_ipc", severity="ok", saw="RemoveIPC=no", wants=wants)
    if removes is None or owners is None:
        return unseen("remove_ipc", wants, "logind was not asked: no systemd, or no message bus")
    # logind leaves system users alone, and an engine's container runs as root.
    people = [owner for owner in owners if owner >= 1000]
    if not people:
        saw = "RemoveIPC=yes, and /dev/shm holds nothing of a login user"
        return Check(id="remove_ipc", severity="ok", saw=saw, wants=wants)
    return Check(
        id="remove_ipc",
        severity="warn",
        saw="RemoveIPC=yes, and /dev/shm holds objects of user " + ", ".join(map(str, people)),
        wants=wants,
        why="when that user's last session ends, logind deletes them: an engine of theirs dies "
        "minutes after they log out",
        fix="RemoveIPC=no in /etc/systemd/logind.conf.d/roost.conf, then sudo systemctl restart "
        "systemd-logind; or sudo loginctl enable-linger USER",
    )


#: How the names of interfaces begin that lead to no cable.
_VIRTUAL = ("lo", "veth", "br-", "docker", "virbr", "ifb", "tap", "dummy")


def network(facts: HostFacts) -> Check:
    """Interfaces and their MTU."""
    interfaces, uplink = facts.condition.interfaces, facts.condition.uplink
    wants = "an uplink whose MTU is not below that of Docker's bridge"
    if interfaces is None or uplink is None:
        return unseen("network", wants, "no interfaces, or no default route")
    mtus = {interface.name: interface.mtu for interface in interfaces}
    physical = [one for one in interfaces if one.up and not one.name.startswith(_VIRTUAL)]
    saw = ", ".join(f"{one.name} MTU {one.mtu}" for one in physical) + f"; uplink {uplink}"
    bridge, outside = mtus.get("docker0"), mtus.get(uplink)
    if bridge is None or outside is None or bridge <= outside:
        return Check(id="network", severity="ok", saw=saw, wants=wants)
    return Check(
        id="network",
        severity="warn",
        saw=f"{saw}; docker0 MTU {bridge}",
        wants=wants,
        why="large packets of containers may be lost on the way out: small requests work, "
        "downloads hang",
        fix=f'"mtu": {outside} in /etc/docker/daemon.json, then restart Docker',
    )

"""Checks of GPUs, their driver and their clocks."""

from __future__ import annotations

from collections.abc import Iterator

from roost import preflight
from roost.condition import GpuState
from roost.deployment import Deployment
from roost.doctor.check import Check, Severity, of_preflight, unseen
from roost.hosts import HostFacts

#: A GPU that is this busy has had time to raise its clocks.
BUSY_PERCENT = 50
#: Share of the highest SM clock below which a busy GPU is stuck. Stuck GB10 are reported at 500 to
#: 850 MHz of 3003, healthy ones at about 2400; power-capped cards stay above a half.
STUCK_CLOCK = 0.4
#: Bits of NVML's mask of clock event reasons that tell of trouble (NVML API reference).
_SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_APPLICATION_CLOCKS = 0x2


def driver(facts: HostFacts) -> Iterator[Check]:
    """Whether nvidia-smi lists the GPUs."""
    module = facts.condition.driver_module
    if facts.gpu_trouble == "missing" and module is None:
        yield Check(
            id="gpu",
            severity="ok",
            saw="no nvidia-smi and no NVIDIA driver: a machine without NVIDIA GPU, it seems",
            wants="the driver, where there is a GPU",
        )
        return
    if facts.gpu_trouble is not None:
        found = of_preflight(
            preflight.gpu_trouble(facts, facts.gpu_trouble, "nvidia-smi to list the GPUs")
        )
        loaded = f"; loaded kernel module: {module}" if module else ""
        yield found.model_copy(update={"saw": found.saw + loaded})
        return
    names = ", ".join(gpu.name for gpu in facts.gpus)
    drivers = {gpu.driver for gpu in facts.gpus if gpu.driver}
    yield Check(
        id="gpu",
        severity="ok",
        saw=f"{names}, driver {', '.join(sorted(drivers)) or 'not reported'}, "
        + ("memory shared with the CPU" if facts.unified_memory else "memory of their own"),
        wants="nvidia-smi to list the GPUs",
    )


def clocks(facts: HostFacts) -> Iterator[Check]:
    """Clocks, power and what holds them down, one check a GPU."""
    if not facts.gpus:
        return
    states = facts.condition.gpus
    if states is None:
        yield unseen("gpu_clocks", "clocks that rise under load", "nvidia-smi gave no clocks")
        return
    for state in states:
        yield _one_clock(state, unified=facts.unified_memory)


def _one_clock(state: GpuState, *, unified: bool) -> Check:
    saw, wants = _doing(state), "clocks that rise under load, and nothing that holds them down"
    slowed = [name for bit, name in _SLOWDOWNS.items() if (state.reasons or 0) & bit]
    if slowed:
        return Check(
            id="gpu_clocks",
            severity="warn",
            saw=f"{saw}: {' and '.join(slowed)}",
            wants=wants,
            why="the card slows itself down for heat or for its power supply",
            fix="check fans, dust and room for air; for a power brake the supply and its cables. "
            "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER shows which limit it is",
        )
    if state.busy_percent is None or state.sm_mhz is None or state.sm_max_mhz is None:
        return unseen("gpu_clocks", wants, f"{saw}: nvidia-smi does not report enough")
    if state.busy_percent < BUSY_PERCENT:
        return unseen(
            "gpu_clocks", wants, f"{saw}: idle clocks are low on a healthy card too"
        ).model_copy(update={"fix": "ask again while it serves"})
    if state.sm_mhz >= state.sm_max_mhz * STUCK_CLOCK:
        return Check(id="gpu_clocks", severity="ok", saw=saw, wants=wants)
    why, fix = _stuck(bool((state.reasons or 0) & _APPLICATION_CLOCKS), unified=unified)
    return Check(
        id="gpu_clocks",
        severity="fail",
        saw=f"{saw}: stuck at low clocks under load",
        wants=f"at least {state.sm_max_mhz * STUCK_CLOCK:.0f} MHz while busy",
        why=why,
        fix=fix,
    )


def _stuck(locked: bool, *, unified: bool) -> tuple[str, str]:
    """Why the clocks of a busy GPU stay low, and what to do about it."""
    if locked:
        return "somebody set these clocks", "sudo nvidia-smi -rgc; sudo nvidia-smi -rac"
    if unified:
        return (
            "a GB10 whose power supply negotiated too little stays at 500 to 850 MHz and says "
            "nothing of it; it serves at a fraction of its speed",
            "sudo nvidia-smi -rgc; if that does not help, shut it down, take the power supply off "
            "the wall and off the machine for a minute, and start it: a reboot is not enough. If "
            "it comes back, another supply or cable, then the vendor",
        )
    return (
        "something limits the card that it does not name",
        "sudo nvidia-smi -rgc, then nvidia-smi -q -d PERFORMANCE,CLOCK,POWER; check the card's "
        "power cables",
    )


def _doing(state: GpuState) -> str:
    parts = [
        f"{state.busy_percent} % busy" if state.busy_percent is not None else "",
        f"{state.sm_mhz} of {state.sm_max_mhz or '?'} MHz" if state.sm_mhz is not None else "",
        f"{state.power_w:.0f} W" if state.power_w is not None else "",
        f"of {state.power_limit_w:.0f} W" if state.power_limit_w is not None else "",
        f"{state.temperature_c} C" if state.temperature_c is not None else "",
        state.pstate or "",
    ]
    return f"GPU {state.index}: " + (", ".join(filter(None, parts)) or "nothing reported")


def peers(facts: HostFacts, deployment: Deployment | None) -> Iterator[Check]:
    """Whether NCCL is told not to use a path between cards that does not exist."""
    if len(facts.gpus) < 2:
        return
    cards, reached = f"{len(facts.gpus)} GPUs", facts.condition.peer_access
    consumer = all("GeForce" in gpu.name for gpu in facts.gpus)
    wants = "NCCL_P2P_DISABLE=1 where cards cannot read each other's memory"
    setting = "env: {NCCL_P2P_DISABLE: '1'}"
    if reached or (reached is None and not consumer):
        saw = "reach each other" if reached else "may reach each other: nvidia-smi does not say"
        severity: Severity = "ok" if reached else "unknown"
        yield Check(id="nccl", severity=severity, saw=f"{cards} {saw}", wants=wants)
        return
    saw = f"{cards} that do not reach each other" + (
        "" if reached is False else " (consumer cards)"
    )
    if deployment is None:
        yield Check(
            id="nccl",
            severity="unknown",
            saw=f"{saw}; what will run there is not said",
            wants=wants,
            why="tensor parallelism hangs at its start where NCCL tries the path all the same",
            fix=f"the hardware profile must have {setting}, as rtx5070ti-x2 has",
        )
    elif deployment.spec.env.get("NCCL_P2P_DISABLE") == "1":
        yield Check(id="nccl", severity="ok", saw=f"{saw}, and NCCL knows", wants=wants)
    else:
        yield Check(
            id="nccl",
            severity="warn",
            saw=f"{saw}, and NCCL is not told",
            wants=wants,
            why="tensor parallelism hangs at its start where NCCL tries the path all the same",
            fix=f"add {setting} to the hardware profile {deployment.hardware}",
        )

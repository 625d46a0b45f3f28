"""The host doctor: what keeps a machine from running an engine well, and how to mend it.

Pure functions from host facts to checks. What a deploy's preflight judges is taken from there; the
checks here are about what refuses no host, or what can be judged without a deployment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from roost import preflight
from roost.deployment import Deployment
from roost.doctor import containers, gpus, system, watching
from roost.doctor.check import WORST_FIRST, Check, Severity, of_preflight
from roost.doctor.system import Skew
from roost.errors import RoostError
from roost.hosts import HostFacts

__all__ = ["Check", "Severity", "Skew", "between", "examine"]


def examine(
    facts: HostFacts,
    *,
    skew: Skew | None = None,
    deployment: Deployment | RoostError | None = None,
) -> list[Check]:
    """Every check of a host, worst first.

    Args:
        facts: What the probe saw.
        skew: Of the host's clock; none where it could not be compared.
        deployment: What its inventory wants to run there, or why that cannot be told.
    """
    checks = list(_deployed(facts, deployment))
    said = {check.id for check in checks}
    own = [
        *gpus.driver(facts),
        *gpus.clocks(facts),
        *gpus.peers(facts, deployment if isinstance(deployment, Deployment) else None),
        *containers.gpu_runtime(facts),
        *containers.cdi(facts),
        *containers.docker(facts),
        *watching.engine(facts),
        *system.memory(facts),
        *system.disks(facts),
        system.shared_memory(facts),
        system.open_files(facts),
        system.kernel(facts),
        system.clock(facts, skew),
        system.remove_ipc(facts),
        system.network(facts),
    ]
    checks += [check for check in own if check.id not in said]
    return sorted(checks, key=lambda check: WORST_FIRST[check.severity])


def between(hosts: Mapping[str, HostFacts]) -> list[Check]:
    """What hosts differ in that should be the same."""
    mtus = {
        name: interface.mtu
        for name, facts in hosts.items()
        for interface in facts.condition.interfaces or []
        if interface.name == facts.condition.uplink
    }
    if len(set(mtus.values())) < 2:
        return []
    by_mtu: dict[int, list[str]] = {}
    for name, mtu in mtus.items():
        by_mtu.setdefault(mtu, []).append(name)
    return [
        Check(
            id="mtu_between_hosts",
            severity="warn",
            saw="; ".join(f"{mtu} on {', '.join(names)}" for mtu, names in sorted(by_mtu.items())),
            wants="one MTU on all uplinks",
            why="within one network large packets of one host are lost on the way to another: "
            "small requests work and downloads from a mirror hang",
            fix="set the same MTU on them and on the switch, where they share one network",
        )
    ]


def _deployed(facts: HostFacts, deployment: Deployment | RoostError | None) -> Iterator[Check]:
    """What the preflight of a deploy would say."""
    if isinstance(deployment, RoostError):
        yield Check(
            id="deployment",
            severity="unknown",
            saw=deployment.what,
            wants="a deployment that can be resolved, to compare the host with it",
            why=deployment.why,
            fix=deployment.fix,
        )
    elif deployment is not None:
        # The doctor's own check of the toolkit says more. And the user of the doctor may not be
        # allowed to ask or start Docker, as the one who deploys is.
        silent = facts.docker is None and facts.docker_installed
        left_out = {"gpu_runtime"} | ({"docker"} if silent else set())
        found = [item for item in preflight.check(facts, deployment) if item.id not in left_out]
        yield from map(of_preflight, found)
        if not found:
            yield Check(
                id="deployment",
                severity="ok",
                saw=f"fit for {deployment.recipe} as {deployment.hardware}",
                wants="what the preflight of a deploy wants",
            )

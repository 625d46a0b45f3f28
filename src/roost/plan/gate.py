"""The gate of a deploy: every host is planned from its probed facts before anything is fetched."""

from __future__ import annotations

from collections.abc import Iterable

from roost import catalog
from roost.deployment import Deployment, resolved_again
from roost.hosts import HostFacts
from roost.plan import planner, reading
from roost.plan.fleet import once
from roost.plan.planner import Plan, Reader


def plan(deployment: Deployment, facts: HostFacts, hub_token: str | None = None) -> Plan:
    """The plan of a host's deployment, read from its hub where that answers.

    A checkpoint that cannot be read is no error here: the weights may be on the host already, and
    whether they can be fetched is asked elsewhere.

    Args:
        deployment: What the host is to run.
        facts: What the probe saw.
        hub_token: For gated repositories, whose config is read too.
    """
    return plans([deployment], facts, hub_token)[0]


def plans(
    deployments: Iterable[Deployment], facts: HostFacts, hub_token: str | None = None
) -> list[Plan]:
    """The plans of several deployments of one host, whose hub is asked for each repository once.

    Args:
        deployments: What the host may run.
        facts: What the probe saw.
        hub_token: For gated repositories, whose config is read too.
    """
    known = catalog.current()
    readers: dict[str | None, Reader] = {}
    found = []
    for deployment in deployments:
        endpoint = deployment.hub_endpoint
        if endpoint not in readers:
            readers[endpoint] = once(_reader(endpoint, hub_token))
        subject = planner.examine(
            resolved_again(deployment, known), catalog=known, facts=facts, read=readers[endpoint]
        )
        accept = deployment.accept_findings
        found.append(planner.judge(subject, accept=accept, preflighted=True))
    return found


def _reader(endpoint: str | None, token: str | None) -> Reader:
    return lambda weights: reading.from_hub(weights, endpoint, token)

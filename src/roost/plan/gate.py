"""The gate of a deploy: every host is planned from its probed facts before anything is fetched."""

from __future__ import annotations

from roost import catalog
from roost.deployment import Deployment, resolved_again
from roost.hosts import HostFacts
from roost.plan import planner, reading
from roost.plan.planner import Plan


def plan(deployment: Deployment, facts: HostFacts, hub_token: str | None = None) -> Plan:
    """The plan of a host's deployment, read from its hub where that answers.

    What stands in the way of reading is a remark: the weights may be on the host already, and
    whether they can be fetched is asked elsewhere.

    Args:
        deployment: What the host is to run.
        facts: What the probe saw.
        hub_token: For gated repositories, whose config is read too.
    """
    known = catalog.current()
    subject = planner.examine(
        resolved_again(deployment, known),
        catalog=known,
        facts=facts,
        read=lambda weights: reading.from_hub(weights, deployment.hub_endpoint, hub_token),
    )
    return planner.judge(subject, accept=deployment.accept_findings, preflighted=True)

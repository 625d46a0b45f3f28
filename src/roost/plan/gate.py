"""The gate of a deploy: every host is planned from its probed facts before anything is fetched."""

from __future__ import annotations

from roost import catalog
from roost.deployment import Deployment, resolved_again
from roost.hosts import HostFacts
from roost.plan import planner, reading
from roost.plan.planner import Plan


def plan(deployment: Deployment, facts: HostFacts) -> Plan:
    """The plan of a host's deployment, read from its hub where that answers.

    What stands in the way of reading is a remark: the weights may be on the host already, and
    whether they can be fetched is asked elsewhere.
    """
    known = catalog.current()
    subject = planner.examine(
        resolved_again(deployment, known),
        catalog=known,
        facts=facts,
        read=lambda weights: reading.from_hub(weights, deployment.hub_endpoint),
    )
    return planner.judge(subject, accept=deployment.accept_findings, preflighted=True)

"""One host, several deployments in turn, each measured, and the host back where it was.

Every variant comes by the ordinary deploy playbook and is measured by the benchmark notebook, both
with the same ``roost_*`` variables on top of the inventory's. The release that served before is
*held* on the host (a link beside ``current``), so that the host does not forget it however many
variants come after it, and so that it is known where to go back to after this process was killed.

The host takes part in the experiment as it would in a rollout (:mod:`roost.onhost.lease`): others
leave it alone. Whoever deploys there all the same, and passes, has the host forget the experiment,
which then does not go back.

What was measured is noted in the experiment's folder as it comes; the same experiment begun again
goes on from there.

:mod:`roost.experiment.planning` begins one, :mod:`roost.experiment.trying` deploys and measures,
:mod:`roost.experiment.host` has the host meanwhile and brings it back, and
:mod:`roost.experiment.notes` is what is kept of it.
"""

from roost.experiment.host import lost, on_host
from roost.experiment.notes import FILE, Experiment, Notes, Tried, Variant
from roost.experiment.planning import begin, or_nothing, resolve
from roost.experiment.trying import preflight, try_variant

__all__ = [
    "FILE",
    "Experiment",
    "Notes",
    "Tried",
    "Variant",
    "begin",
    "lost",
    "on_host",
    "or_nothing",
    "preflight",
    "resolve",
    "try_variant",
]

"""What the watchdog of a host has seen."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from roost.doctor.check import Check, judged
from roost.hosts import HostFacts
from roost.onhost import WATCHDOG_STATE

#: How old an event may be that still says something of the engine's condition.
RECENT = dt.timedelta(days=1)
_LOOK = f"roost status -i INVENTORY, and the evidence under {WATCHDOG_STATE}/cases"


def engine(facts: HostFacts) -> Iterator[Check]:
    """Whether an engine was stopped, or has ended lately; nothing where nobody watches."""
    seen = facts.condition.watchdog
    if seen is None:
        return
    wants = "an engine that nobody had to end for a day"
    if seen.held:
        yield Check(
            id="watchdog",
            severity="fail",
            saw=f"the engine was stopped: {seen.held}",
            wants=wants,
            why="memory that runs out takes the whole machine along, not only the engine",
            fix="end what else runs there, or lower gpu_memory_utilization or kv_cache_bytes; then "
            "deploy, which starts it. roost_memory_floor_mib is the floor",
        )
    elif not seen.active:
        yield Check(
            id="watchdog",
            severity="warn",
            saw="the watchdog does not run",
            wants="the service roost-watchdog, which a deploy installs",
            why="a wedged engine then stays wedged, and memory that runs out takes the machine",
            fix="systemctl status roost-watchdog; deploy again",
        )
    else:
        since = (dt.datetime.now(dt.UTC) - RECENT).strftime("%Y-%m-%dT%H:%M:%SZ")
        recent = [event for event in seen.events if event["at"] > since]
        yield judged(
            "watchdog",
            "warn" if recent else None,
            saw=f"{len(recent)} events in a day, the last: {recent[-1]['said']}"
            if recent
            else "nothing for a day",
            wants=wants,
            why="an engine that ends is started again, and its requests are lost",
            fix=_LOOK,
        )

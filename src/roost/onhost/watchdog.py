"""The watchdog on a host, a systemd service of its own: ``python3 -m onhost.watchdog``.

It needs no controller. One thread watches the engine and another one the memory, because a question
to an engine that hangs is waited for. Everything that it does or sees is a line of JSON in the
journal and an event in ``state.json``, which `roost status` and `roost doctor` read.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from typing import Callable, Sequence

from .chronicle import Chronicle
from .docker_api import DockerApi
from .engine_watch import EngineWatch
from .machine import Machine
from .memory_guard import MemoryGuard
from .store import Store
from .vigil import Limits

#: Seconds between two looks at an engine.
INTERVAL = 15.0


def for_ever(look: Callable[[], float]) -> None:
    """Look again and again, each time after as many seconds as the last look says."""
    try:
        while True:
            time.sleep(look())
    except BaseException:  # noqa: BLE001  # a thread that ends alone would go unnoticed
        traceback.print_exc()
        # systemd starts it again: half a watchdog would look like a whole one.
        os._exit(1)


def main(argv: Sequence[str]) -> None:
    """Entry point of the service."""
    parser = argparse.ArgumentParser(prog="roost-watchdog", allow_abbrev=False)
    parser.add_argument("--releases", required=True)
    parser.add_argument("--state", required=True)
    parser.add_argument("--floor-mib", type=int, required=True)
    parser.add_argument("--frozen", type=float, required=True)
    parser.add_argument("--silent", type=float, required=True)
    parser.add_argument("--ends-a-day", type=int, required=True)
    parser.add_argument("--interval", type=float, default=INTERVAL)
    given = parser.parse_args(argv)
    limits = Limits(frozen=given.frozen, silent=given.silent)
    facts = {"floor_mib": given.floor_mib, **limits._asdict()}
    chronicle = Chronicle(given.state, given.ends_a_day, facts)
    machine, docker, store = Machine(), DockerApi(), Store(given.releases)
    engine = EngineWatch(limits, machine, docker, store, chronicle)
    # A store of its own, because a store holds at most one turn.
    memory = MemoryGuard(given.floor_mib, machine, docker, Store(given.releases), chronicle)

    def look() -> float:
        engine.look(time.monotonic())
        return float(given.interval)

    threading.Thread(target=for_ever, args=[look], daemon=True).start()
    for_ever(memory.look)


if __name__ == "__main__":
    main(sys.argv[1:])

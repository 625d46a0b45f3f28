"""What the watchdog has done and seen: lines in the journal, events in its state, and evidence."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

from . import evidence
from .store import Store, now

#: Events that are remembered.
EVENTS = 20
#: Seconds in which ends of an engine are counted.
DAY = 86400.0
#: Events that are such an end.
ENDS = {"ended", "restarted"}


class Chronicle:
    """The watchdog's own directory.

    Args:
        folder: ``state.json``, and ``cases`` with the evidence.
        ends_a_day: Ends of an engine in 24 hours, above which it is called restless.
        facts: What else readers of the state want to know.
    """

    def __init__(self, folder: str, ends_a_day: int, facts: Mapping[str, Any]) -> None:
        self._own = Store(folder)
        self._ends_a_day = ends_a_day
        self._writing = threading.RLock()
        self.cases = Path(folder, "cases")
        before = self._own.read("state.json") or {}
        self._state: dict[str, Any] = {"events": [], "held": None, **before, **facts}
        self._write()

    @property
    def held(self) -> bool:
        """Whether an engine was stopped that is to stay so."""
        return self._state["held"] is not None

    def release(self) -> None:
        """Note that an engine runs again, so that none is held any more."""
        with self._writing:
            self._state["held"] = None
            self._write()

    def knows(self, what: str, life: str) -> bool:
        """Whether such an event was told already since a container's last start."""
        events = self._state["events"]
        return any(one["what"] == what and one["life"] == life for one in events)

    def keep(self, why: str, said: str, *containers: str, **more: Any) -> str:
        """Keep evidence; see :func:`evidence.capture`."""
        about = {"why": why, "said": said, "at": now()}
        return evidence.capture(self.cases, about, *containers, **more)

    def tell(
        self,
        what: str,
        why: str,
        said: str,
        *,
        case: str = "",
        life: str = "",
        release: str | None = None,
        held: bool = False,
    ) -> None:
        """Tell an event.

        Args:
            what: ``restarted``, ``cannot_end``, ``left``, ``stopped``, ``none``: what was done;
                ``ended``, ``gave_up``, ``restless``: what was seen.
            why: ``frozen``, ``silent``, ``unready``, ``memory``, ``dead``, ``attempts``, ``ends``.
            said: One sentence.
            case: Of the evidence.
            life: When the container was started, which tells its starts apart.
            release: The one that serves.
            held: The engine is to stay stopped.
        """
        event = {
            "at": now(),
            "what": what,
            "why": why,
            "said": said,
            "release": release,
            "evidence": str(self.cases / case) if case else None,
        }
        # journald reads the priority of a line from its beginning; 4 is a warning.
        print(f"<4>{json.dumps(event)}", flush=True)
        with self._writing:
            self._state["events"] = [
                *self._state["events"][1 - EVENTS :],
                {**event, "life": life, "second": time.time()},
            ]
            if held:
                self._state["held"] = event
            self._write()
            ends = self._ends(self._state["events"])
        if what in ENDS and ends == self._ends_a_day + 1:
            self.tell("restless", "ends", f"it has ended {ends} times in 24 hours", release=release)

    @staticmethod
    def _ends(events: Sequence[Mapping[str, Any]]) -> int:
        since = time.time() - DAY
        return sum(one["what"] in ENDS and one["second"] > since for one in events)

    def _write(self) -> None:
        # A full disk must not keep the watchdog from acting; the journal has the event.
        with contextlib.suppress(OSError):
            self._own.write(self._state, "state.json")

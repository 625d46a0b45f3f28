"""What is missing of a revision, brought from its hub to its place."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import shards, xet
from .arrival import Arrival
from .failures import SnapshotError
from .hub import Hub
from .listing import ask
from .patience import Patience
from .place import Place
from .revision import File

#: Files that come at the same time.
WORKERS = 4


class Download:
    """Fetches what is missing of a revision.

    Args:
        place: Of what, and where to.
        params: The module's, by name, as its documentation has them.
    """

    def __init__(self, place: Place, params: Mapping[str, Any]) -> None:
        self.place = place
        self.revision = place.revision
        self.hub = Hub(
            self.revision.endpoint, params["token"], params["timeout"], params["stall_timeout"]
        )
        self.patience = Patience(params["retries"], params["max_wait"])
        self.headroom: int = params["headroom"]

    def ask(self) -> list[File]:
        """The files of the revision, as the hub records them; tried again where that may help."""
        failures = 0
        while True:
            try:
                return ask(self.hub, self.revision)
            except SnapshotError as failure:  # noqa: PERF203  # asking costs more
                failures += 1
                if not self.patience.may_try_again(failure, failures):
                    raise

    def run(self, files: list[File]) -> int:
        """Fetch what is missing, verify, and make it visible.

        Returns:
            Bytes that came over the network.
        """
        self.place.begin(files, self.headroom)
        offered = xet.is_offered(self.place, self.hub, files)
        moved = xet.fetch(self.place, self.hub, files) if offered else 0
        moved += self.by_http(files)
        self.place.tidy(files)
        shards.check(self.place.partial, self.revision)
        self.place.publish(files)
        return moved

    def by_http(self, files: list[File]) -> int:
        """Every missing file by HTTP, some at a time."""
        # Large ones first, so that none is left alone at the end.
        missing = sorted(
            (file for file, _ in self.place.missing(files)), key=lambda file: -file.size
        )
        arrivals = [Arrival(self.place, self.hub, self.patience, file) for file in missing]
        with ThreadPoolExecutor(WORKERS) as pool:
            futures = [pool.submit(self._until_one_fails, arrival) for arrival in arrivals]
        failures = [error for future in futures if (error := future.exception())]
        if failures:
            # A disk or a revision that is gone says more than the transfers it ended.
            raise min(failures, key=lambda error: getattr(error, "outage", False))
        return sum(arrival.moved for arrival in arrivals)

    def _until_one_fails(self, arrival: Arrival) -> None:
        try:
            arrival.fetch()
        except BaseException:
            self.patience.stopped.set()
            raise

"""Whether an engine that runs still works: what its counters say from one look to the next.

A wedged engine answers /health, and its GPU looks busy; what tells is that requests are held and
nothing of the engine moves. Nothing here touches a host: a look goes in, a suspicion comes out.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from . import counters

#: How many times longer an engine may be still that shows signs of work: its GPU draws the power of
#: work, compilers run, or no token has come since its start (the first request compiles kernels and
#: captures graphs).
WORKING = 3.0


class Limits(NamedTuple):
    """How long is too long, in seconds.

    Attributes:
        frozen: That requests may be held without any progress.
        silent: That an engine which was ready may leave questions unanswered.
        ready: That a start may take.
    """

    frozen: float = 300.0
    silent: float = 180.0
    ready: float = 1800.0


class Look(NamedTuple):
    """What was seen of an engine at one moment.

    Attributes:
        at: By a clock that only goes forward, in seconds.
        started: Docker's time of the container's last start; another one is another life.
        age: Seconds since that.
        metrics: Prometheus text; none: no answer.
        healthy: What /health said; none: it was not asked this time.
        watts: Of the GPU that draws most; none: not read.
        compiling: Whether a compiler runs in the container.
    """

    at: float
    started: str
    age: float
    metrics: str | None
    healthy: bool | None
    watts: float | None = None
    compiling: bool = False


class Suspicion(NamedTuple):
    """What seems wrong, for how long, and how long it may last.

    Attributes:
        kind: ``frozen``, ``silent`` or ``unready``.
        seconds: Since the last sign of life.
        limit: Seconds after which it is taken for dead.
        said: One sentence.
    """

    kind: str
    seconds: float
    limit: float
    said: str

    @property
    def certain(self) -> bool:
        """Whether it has lasted too long."""
        return self.seconds >= self.limit


class Vigil:
    """One engine, watched.

    Args:
        names: ``generated`` and ``progress``: the names of its series, from the catalogue; none:
            it is not known what they are, and only its answers count.
        held: Gauges that add up to the requests it holds.
        limits: How long is too long.
        working_watts: Power that a GPU at work does not fall below; none: not known of it.
    """

    def __init__(
        self,
        names: Mapping[str, Any] | None,
        held: Sequence[str],
        limits: Limits,
        working_watts: float | None,
    ) -> None:
        self._names = names
        self._gauges = held
        self._limits = limits
        self._working_watts = working_watts
        self._started = ""
        self._ready = self._healthy = False
        #: Last sign of life of each kind.
        self._answered = self._moved = 0.0
        self._series: dict[str, float | None] = {}
        #: Of the looks since the last progress.
        self._watts: list[float] = []
        self._compiled = False

    @property
    def wants_health(self) -> bool:
        """Whether the next look should ask /health; some engines generate a token for it."""
        return not (self._ready and self._healthy)

    def see(self, look: Look) -> Suspicion | None:
        """Take one look into account."""
        if look.started != self._started:
            self._started, self._ready, self._healthy = look.started, False, False
            self._answered = look.at
            self._move(look, {})
        if look.healthy is not None:
            self._healthy = look.healthy
        if look.watts is not None:
            self._watts.append(look.watts)
        self._compiled = self._compiled or look.compiling
        series = self._read(look)
        progress = any(series[name] != self._series.get(name) for name in series)
        held = self._held(look)
        if progress or held == 0:
            self._move(look, series)
        if look.metrics is not None and self._healthy:
            self._ready = True
            self._answered = look.at
        elif progress and self._ready:
            # In one long step it may be late with its health, and is alive.
            self._answered = look.at
        return self._suspects(look, held or 0.0)

    def answered(self, at: float) -> None:
        """A question was answered after all: whatever its counters say, it works."""
        self._moved = at

    def _suspects(self, look: Look, held: float) -> Suspicion | None:
        silent, still = look.at - self._answered, look.at - self._moved
        if not self._ready:
            if look.age < self._limits.ready:
                return None
            said = f"it is not ready {look.age:.0f} s after its start"
            return Suspicion("unready", silent, self._limits.silent, said)
        if silent > 0:
            what = "/health" if look.metrics else "/metrics"
            said = f"for {silent:.0f} s there was no good answer from {what}"
            return Suspicion("silent", silent, self._limits.silent, said)
        if held > 0 and still > 0:
            signs = self._signs(look)
            limit = self._limits.frozen * (WORKING if signs else 1.0)
            said = f"{held:.0f} requests are held, and no token or block moved for {still:.0f} s"
            if self._watts:
                said += f", at {min(self._watts):.0f} to {max(self._watts):.0f} W"
            if signs:
                said += f" ({', '.join(signs)})"
            return Suspicion("frozen", still, limit, said)
        return None

    def _signs(self, look: Look) -> list[str]:
        """Signs that an engine which stands still is at work all the same."""
        signs = []
        if self._working_watts and self._watts and max(self._watts) >= self._working_watts:
            signs.append("the GPU draws the power of work")
        if self._compiled:
            signs.append("compilers ran")
        if not counters.total(look.metrics or "", (self._names or {})["generated"]):
            signs.append("no token since its start")
        return signs

    def _held(self, look: Look) -> float | None:
        """Requests that run or wait; none where nobody says."""
        if look.metrics is None:
            return None
        # Without series that tell of progress, requests that are held prove nothing.
        gauges = self._gauges if self._names else []
        return sum(counters.total(look.metrics, name) or 0.0 for name in gauges)

    def _read(self, look: Look) -> dict[str, float | None]:
        if look.metrics is None or not self._names:
            return {}
        return {name: counters.total(look.metrics, name) for name in self._names["progress"]}

    def _move(self, look: Look, series: dict[str, float | None]) -> None:
        self._moved = look.at
        self._series = series
        self._watts = []
        self._compiled = False

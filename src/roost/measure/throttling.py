"""Was the host slowed down while it was measured? GPU clocks, power and temperature, sampled.

``nvidia-smi`` runs on the host every few seconds beside the load. Fields that a GPU does not have
(a GB10 has no power limit, for one) are left out; where there is no ``nvidia-smi`` nothing is
sampled, and that is said.

A GPU may be slow all the time and name no reason: a GB10 that its power supply starves runs every
repetition at the same low clock. So clocks are also compared with the highest that the GPU has.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from roost import smi, ssh
from roost.doctor.gpus import BUSY_PERCENT, STUCK_CLOCK
from roost.errors import RoostError
from roost.parquet import Table

#: What was sampled, in a run's folder: one row a GPU and moment.
FILE = "gpu.parquet"
COLUMNS: dict[str, type] = {
    "point": str,
    "repetition": int,
    "at": float,
    "gpu": str,
    "clock": float,
    "power": float,
    "temperature": float,
    "slowed": str,
}
#: Columns that may be empty: not every GPU reports them.
NOT_ALWAYS = frozenset({"clock", "power", "temperature"})
INTERVAL_S = 2.0
#: Fewest samples for a GPU's clock: one or two may fall after the load, while the harness ends.
FEWEST_MOMENTS = 5
#: A clock this much below the fastest repetition's is a host that was slowed down.
CLOCK_DROP = 0.10
#: Moments at which a GPU must have been busy, to be called stuck at its clock.
_BUSY_MOMENTS = 3
_FIELDS = (
    "index",
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "clocks_throttle_reasons.hw_slowdown",
    "clocks_throttle_reasons.sw_thermal_slowdown",
)
_QUERY = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class Sample:
    """One GPU at one moment: MHz, W, °C; ``None`` where it does not say.

    Attributes:
        slowed: Reasons for a low clock that tell of trouble.
        at: Seconds since the watch began.
        highest: The highest clock that it has, MHz.
        busy: How much of the time it worked, %.
    """

    gpu: str
    clock: float | None
    power: float | None
    temperature: float | None
    slowed: tuple[str, ...] = ()
    at: float = 0.0
    highest: float | None = None
    busy: float | None = None

    @property
    def works(self) -> bool:
        """Whether it may be one of those that the load ran on."""
        return self.busy is None or self.busy >= BUSY_PERCENT


@dataclass(frozen=True)
class Pace:
    """How fast a GPU ran, and on how much: MHz, W."""

    clock: float
    power: float | None


@dataclass
class Watch:
    """What was sampled during one load; ``why_not`` says why nothing was."""

    samples: list[Sample] = field(default_factory=list)
    why_not: str = ""
    #: Seconds that it lasted.
    lasted: float = 0.0

    def clock(self, load_s: float) -> float | None:
        """SM clock of the slowest GPU while the load ran, MHz; none if the load was too short.

        Args:
            load_s: How long the load took; it ended with the watch.
        """
        pace = self.pace(load_s)
        return pace.clock if pace else None

    def pace(self, load_s: float) -> Pace | None:
        """The slowest GPU while the load ran; none if the load was too short.

        Tensor parallelism waits for the slowest. A GPU that has little to do is left out: it draws
        a screen, or serves somebody else.
        So are samples from before the load: the harness takes seconds to start, and an idle GPU
        lowers its clock. Over all samples of a short load the median would be either of the two.

        Args:
            load_s: How long the load took; it ended with the watch.
        """
        clocks: dict[str, list[float]] = {}
        powers: dict[str, list[float]] = {}
        for one in self.samples:
            if one.clock is not None and one.works and one.at >= self.lasted - load_s:
                clocks.setdefault(one.gpu, []).append(one.clock)
                powers.setdefault(one.gpu, []).extend([] if one.power is None else [one.power])
        paces = [
            Pace(statistics.median(found), statistics.median(powers[gpu]) if powers[gpu] else None)
            for gpu, found in clocks.items()
            if len(found) >= FEWEST_MOMENTS
        ]
        return min(paces, key=lambda pace: pace.clock, default=None)

    def marks(self) -> list[str]:
        """Why the load cannot be taken for the machine's own speed.

        A GPU that was never busy ran none of the load, and what slowed it down did not slow that.
        """
        used = {one.gpu for one in self.samples if one.works}
        samples = [one for one in self.samples if one.gpu in used]
        reasons = sorted({reason for one in samples for reason in one.slowed})
        hottest = max((s.temperature for s in samples if s.temperature is not None), default=0)
        found = [f"the GPU was slowed down ({reason}, {hottest:.0f} °C)" for reason in reasons]
        return found + self._stuck()

    def _stuck(self) -> list[str]:
        """GPUs that worked, and never raised their clocks."""
        shares: dict[str, list[tuple[float, float]]] = {}
        for one in self.samples:
            if one.clock and one.highest and one.busy is not None and one.works:
                shares.setdefault(one.gpu, []).append((one.clock, one.highest))
        return [
            f"GPU {gpu} was stuck at {clock:.0f} of {of[0][1]:.0f} MHz; `roost doctor` says what "
            "helps"
            for gpu, of in shares.items()
            if len(of) >= _BUSY_MOMENTS
            and (clock := statistics.median(now for now, _ in of)) < STUCK_CLOCK * of[0][1]
        ]

    def told(self) -> str:
        """What was sampled, in words."""
        parts = [f"{len(self.samples)} samples"]
        for unit, values in (
            ("MHz", [one.clock for one in self.samples if one.works]),
            ("W", [one.power for one in self.samples]),
            ("°C", [one.temperature for one in self.samples]),
        ):
            known = [value for value in values if value is not None]
            parts += [f"{min(known):.0f} to {max(known):.0f} {unit}"] if known else []
        return ", ".join(parts)


@contextmanager
def watching(remote: ssh.Remote, interval_s: float = INTERVAL_S) -> Iterator[Watch]:
    """Sample in the background for the length of a ``with``."""
    watch = Watch()
    done = threading.Event()

    began = time.monotonic()

    def sample() -> None:
        while not done.is_set() and not watch.why_not:
            try:
                answer = remote.run(_QUERY)
                if answer.rc != 0:
                    # nvidia-smi writes its errors to standard output.
                    said = (answer.err + answer.out).strip() or f"exit status {answer.rc}"
                    watch.why_not = " ".join(said.split())[:200]
                else:
                    at = time.monotonic() - began
                    watch.samples += [replace(one, at=at) for one in parse(answer.out)]
            except RoostError as error:
                watch.why_not = error.what
            done.wait(interval_s)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.lasted = time.monotonic() - began
        done.set()
        thread.join(ssh.COMMAND_TIMEOUT_S)


def parse(text: str) -> list[Sample]:
    """Rows of ``nvidia-smi --query-gpu`` in the order of the fields asked for.

    Raises:
        RoostError: A row has another number of fields.
    """
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS):
            raise RoostError("nvidia-smi answered something else", why=line[:200])
        gpu, clock, highest, power, temperature, busy, *reasons = cells
        slowed = tuple(
            name.rpartition(".")[2].replace("_", " ")
            for name, said in zip(_FIELDS[-len(reasons) :], reasons, strict=True)
            if said.lower() == "active"
        )
        found.append(
            Sample(
                gpu,
                smi.figure(clock),
                smi.figure(power),
                smi.figure(temperature),
                slowed,
                highest=smi.figure(highest),
                busy=smi.figure(busy),
            )
        )
    return found


def table(watches: Mapping[tuple[str, int], Watch]) -> Table:
    """Every sample of a benchmark, by point and repetition."""
    found = Table(COLUMNS)
    for (point, number), watch in watches.items():
        found.rows += [
            {
                "point": point,
                "repetition": number,
                "at": sample.at,
                "gpu": sample.gpu,
                "clock": sample.clock,
                "power": sample.power,
                "temperature": sample.temperature,
                "slowed": ", ".join(sample.slowed),
            }
            for sample in watch.samples
        ]
    return found


def clock_marks(clocks: Sequence[float | None]) -> list[str]:
    """For each repetition of a cell, why its clock is not to be trusted; empty where it is."""
    known = [clock for clock in clocks if clock is not None]
    fastest = max(known, default=0.0)
    return [
        f"the GPU ran at {clock:.0f} MHz, at {fastest:.0f} MHz in another repetition"
        if clock is not None and clock < fastest * (1 - CLOCK_DROP)
        else ""
        for clock in clocks
    ]


def slow_points(paces: Mapping[str, Pace]) -> dict[str, str]:
    """Points whose clock is not explained by their load, with a remark on each.

    Another load may rightly have another clock: where the power is capped, the one that draws more
    runs slower. A lower clock at no more power has another cause. It is no reason to leave the
    point out, for what else decides on a clock (a processor that shares the power) is not sampled.

    Args:
        paces: By point.
    """
    found = {}
    for point, own in paces.items():
        faster = {
            name: other
            for name, other in paces.items()
            if own.clock < other.clock * (1 - CLOCK_DROP)
            and own.power is not None
            and other.power is not None
            and own.power <= other.power
        }
        if faster:
            name, other = max(faster.items(), key=lambda each: each[1].clock)
            found[point] = (
                f"the GPU ran at {own.clock:.0f} MHz and {own.power:.0f} W, at {other.clock:.0f} "
                f"MHz and {other.power:.0f} W at {name}: something held it back"
            )
    return found

"""Does a comparison flag a regression, and only that? Twenty pairs of benchmarks of each kind.

The stand-in engine is served on loopback; requests, their times, counters, benchmark and comparison
are real. Only Docker is missing: its ``exec`` runs the load generator here. In each round every
engine is started and measured once, in turn, so that what the machine does meanwhile meets all
alike; the first engine of a round is the baseline of the others.

The stand-in's jitter is that of a request. Four requests make a repetition, whose deviation is then
1.5 % for speed and accept length, beside what this machine adds to the former. Where other
processes want its processors, one start of an engine really is slower than the next, which no
repetitions tell: run it while nothing else runs.

``make bench-regressions``, or ``python -m benchmarks.regressions --help``. Exits with 1 if a
regression is missed, or if more than one pair in twenty of another kind is flagged: an interval of
95 % promises no more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.unit.deployments import deployment
from tests.unit.kept_runs import result
from tests.unit.servers import free_port
from tests.unit.stand_in_engine import Container

from roost import ssh
from roost.errors import RoostError
from roost.inventory import Connection, Host
from roost.lab.standins import engine_standin
from roost.measure import compare, points
from roost.measure.benchmark import measuring
from roost.measure.benchmark.planning import Plan
from roost.measure.checks import Target
from roost.measure.client import Client
from roost.measure.compare import Compared, Gap
from roost.measure.points import Benchmark
from roost.measure.suites import Repetitions, cells, suite

STANDINS = Path(engine_standin.__file__).parent
PAIRS = 20
#: Tokens/s, tokens per step, and the tokens in whose time a prompt is read.
SPEED, LENGTH, PREFILL = 400.0, 3.4, 8
PROMPTS, JITTER = 4, 0.03
#: Of pairs of a kind that is no regression, the share that may be flagged.
ALARMS = 0.05
_START_S = 30.0


@dataclass(frozen=True)
class Kind:
    """What an engine is like beside the baseline, and what a comparison must find worse.

    Attributes:
        caught_by: The metrics of which one must be flagged.
        follows: Those that may be flagged beside; of all others it is a false alarm.
    """

    name: str
    speed: float = SPEED
    length: float = LENGTH
    caught_by: frozenset[str] = frozenset()
    follows: frozenset[str] = frozenset()


BASELINE = Kind("baseline")
KINDS = (
    Kind("equal"),
    Kind("2 % slower", speed=0.98 * SPEED),
    # Whoever generates more slowly also has the first token later.
    Kind(
        "15 % slower",
        speed=0.85 * SPEED,
        caught_by=frozenset({"output_throughput", "tpot"}),
        follows=frozenset({"ttft"}),
    ),
    Kind("accept length 2.9 for 3.4", length=2.9, caught_by=frozenset({"accept_length"})),
)


class Machine:
    """This machine as a host of an inventory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deployment = deployment(folder, port=free_port())
        self.port = self.deployment.port
        chosen = suite("smoke").model_copy(
            update={
                "per_category": PROMPTS,
                "repetitions": Repetitions(least=3, most=3, tight=0.02),
            }
        )
        self.plan = Plan("smoke", chosen, cells(chosen), "roost's own")
        self._install()

    def _install(self) -> None:
        """A ``docker`` that runs here what it is to run in the engine's container."""
        container = Container.of(self.deployment)
        (self.folder / "container").write_text(json.dumps([container.inspect]))
        (self.folder / "image").write_text(json.dumps([container.image]))
        (self.folder / "transformers.py").symlink_to(STANDINS / "tokenizer_standin.py")
        scripts = {
            "docker": f'case "$1" in\ncontainer|image) cat "{self.folder}/$1";;\n'
            'exec) shift; [ "$1" != -i ] || shift; shift; exec "$@";;\nesac\n',
            # The container's port is not the host's, and there is no container.
            "vllm": f'exec {sys.executable} {STANDINS}/harness_standin.py "$@" '
            f"--base-url http://127.0.0.1:{self.port}\n",
        }
        for name, script in scripts.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{script}")
            (self.folder / name).chmod(0o755)
        os.environ["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        os.environ["PYTHONPATH"] = str(self.folder)

    @contextmanager
    def serving(self, kind: Kind) -> Iterator[Client]:
        """The stand-in engine, for the length of a ``with``."""
        command = [sys.executable, str(STANDINS / "engine_standin.py")]
        command += self.deployment.spec.command
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--standin-tokens-per-second", str(kind.speed)]
        command += ["--standin-prefill-seconds", str(PREFILL / kind.speed)]
        command += ["--standin-accepted", str(kind.length - 1), "--standin-jitter", str(JITTER)]
        engine = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with Client(f"http://127.0.0.1:{self.port}") as client:
                until = time.monotonic() + _START_S
                while not _answers(client):
                    if engine.poll() is not None or time.monotonic() > until:
                        raise RoostError("the stand-in engine did not start")
                    time.sleep(0.05)
                yield client
        finally:
            engine.terminate()
            engine.wait()

    def measure(self, kind: Kind) -> Benchmark:
        """One benchmark of one start of an engine."""
        host = Host("host-01", {}, Connection(address="127.0.0.1", local=True))
        with (
            self.serving(kind) as client,
            ssh.connect(host) as remote,
            tempfile.TemporaryDirectory() as kept,
        ):
            target = Target(host, self.deployment, remote, client=client)
            found = measuring.measure(target, self.plan, folder=Path(kept), say=lambda _: None)
        if not found.ok:
            raise RoostError(
                f"{kind.name}: the benchmark failed",
                why="; ".join(f"{one.id}: {one.why}" for one in found.checks if not one.ok),
            )
        return points.of(found)


def _answers(client: Client) -> bool:
    try:
        return client.health() == 200
    except RoostError:
        return False


def judged(*measured: Benchmark) -> list[Gap]:
    """What a comparison says of the metrics that decide."""
    compared = [Compared(Path(str(at)), result(), one) for at, one in enumerate(measured)]
    return [gap for gap in compare.gaps(compared) if gap.metric.key in compare.DECISIVE]


def worse(gaps: list[Gap]) -> set[str]:
    """The metrics that a comparison fails for."""
    return {gap.metric.key for gap in gaps if gap.verdict == "worse"}


def _over_all(pairs: list[list[Gap]], key: str) -> str:
    """Median, least and most of the ratios over all points, in percent."""
    found = [
        gap.value.value * 100 - 100
        for gaps in pairs
        for gap in gaps
        if (gap.cell, gap.metric.key) == (compare.ALL, key)
    ]
    return f"{statistics.median(found):+.1f} % ({min(found):+.1f} to {max(found):+.1f} %)"


def table(found: dict[Kind, list[list[Gap]]]) -> bool:
    """Print what was flagged; whether it was what should be."""
    print("| pair | throughput | accept length | flagged | by | missed | false alarms |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for kind, pairs in found.items():
        flagged = [worse(gaps) for gaps in pairs]
        by = Counter(key for keys in flagged for key in keys)
        missed = sum(1 for keys in flagged if kind.caught_by and not keys & kind.caught_by)
        alarms = sum(1 for keys in flagged if keys - kind.caught_by - kind.follows)
        good = good and not missed and alarms <= math.ceil(ALARMS * len(pairs))
        row = [
            kind.name,
            _over_all(pairs, "output_throughput"),
            _over_all(pairs, "accept_length"),
            f"{sum(1 for keys in flagged if keys)} of {len(pairs)}",
            ", ".join(f"{key} {count}" for key, count in by.most_common()),
            str(missed),
            str(alarms),
        ]
        print(f"| {' | '.join(row)} |")
    return good


def main() -> int:
    """Measure in rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each kind")
    asked = parser.parse_args()
    found: dict[Kind, list[list[Gap]]] = {kind: [] for kind in KINDS}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        for number in range(1, asked.pairs + 1):
            first = machine.measure(BASELINE)
            for kind in KINDS:
                found[kind].append(judged(first, machine.measure(kind)))
            said = "; ".join(f"{kind.name}: {sorted(worse(found[kind][-1]))}" for kind in KINDS)
            spent = time.monotonic() - began
            print(f"round {number} of {asked.pairs}, {spent:.0f} s: {said}", file=sys.stderr)
    return 0 if table(found) else 1


if __name__ == "__main__":
    sys.exit(main())

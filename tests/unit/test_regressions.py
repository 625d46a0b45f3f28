"""A seeded regression, from the load generator's files to the verdict: flagged, or rightly not.

The stand-ins of load generator and engine are as noisy as a host; everything that reads, marks,
repeats and compares is the real thing. Twenty pairs of benchmarks of each kind.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
from tests.unit import stand_in_engine, stand_in_harness
from tests.unit.deployments import deployment
from tests.unit.stand_in_engine import Container, Engine
from tests.unit.test_measure_compare import result

from roost.inventory import Connection, Host
from roost.measure import compare, points
from roost.measure.benchmark import measuring
from roost.measure.benchmark.planning import Plan
from roost.measure.client import Client
from roost.measure.compare import Compared
from roost.measure.points import Benchmark
from roost.measure.suites import cells, suite
from roost.measure.verify import Target
from roost.ssh import Completed, Tunnel

PAIRS = 20
#: Deviation of the logarithm of a speed from repetition to repetition.
NOISE = 0.015


class InProcess:
    """A host whose ``docker exec`` is the stand-in load generator, without a process each."""

    def __init__(self, container: Container) -> None:
        self.docker = {"container": container.inspect, "image": container.image}

    def run(
        self,
        argv: Sequence[str],
        input: str | None = None,  # noqa: A002
        timeout: float = 0,  # noqa: ARG002
        *,
        attended: bool = False,  # noqa: ARG002
    ) -> Completed:
        if argv[0] == "docker" and argv[1] in self.docker:
            return Completed(0, json.dumps([self.docker[argv[1]]]), "")
        if argv[:2] != ["docker", "exec"]:
            return Completed(127, "", "not found")
        out, before = io.StringIO(), sys.stdin
        sys.stdin = io.StringIO(input or "")
        try:
            with redirect_stdout(out):
                stand_in_harness.main(list(argv[1:]))
        finally:
            sys.stdin = before
        return Completed(0, out.getvalue(), "")

    @contextmanager
    def tunnel(self, port: int, address: str = "") -> Iterator[Tunnel]:
        raise NotImplementedError


class Bench:
    """One point of a suite, measured again and again with other draws of the noise."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.deployment = deployment(folder, port=engine.port)
        chosen = suite("spec-bench").model_copy(update={"warmups": 0})
        self.plan = Plan("spec-bench", chosen, cells(chosen)[:1], "roost's own")

    def measure(self, seed: int, **scenario: float) -> Benchmark:
        said = {"port": self.engine.port, "noise": NOISE, "seed": seed, **scenario}
        (self.folder / "scenario.json").write_text(json.dumps(said))
        host = Host("host-01", {}, Connection(address="127.0.0.1", local=True))
        with Client(f"http://127.0.0.1:{self.engine.port}") as client:
            target = Target(
                host, self.deployment, InProcess(Container.of(self.deployment)), client=client
            )
            found = measuring.measure(target, self.plan, folder=self.folder, say=lambda _: None)
        return points.of(found)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("STAND_IN_SCENARIO", str(tmp_path / "scenario.json"))
    with stand_in_engine.serving() as engine:
        yield Bench(engine, tmp_path)


def worse(*measured: Benchmark) -> set[str]:
    """What a comparison would fail for."""
    compared = [Compared(Path(f"/runs/{at}"), result(), one) for at, one in enumerate(measured)]
    return {
        gap.metric.key
        for gap in compare.gaps(compared)
        if gap.verdict == "worse" and gap.metric.key in compare.DECISIVE
    }


@pytest.mark.parametrize(
    ("change", "flagged"),
    [
        pytest.param({"speed": 85.0}, {"output_throughput", "tpot"}, id="15 % slower"),
        pytest.param({"accept_length": 2.9}, {"accept_length"}, id="accept length 2.9 for 3.4"),
        pytest.param({"speed": 98.0}, set(), id="2 % slower"),
        pytest.param({"accept_length": 3.332}, set(), id="accept length 2 % shorter"),
        pytest.param({}, set(), id="nothing"),
    ],
)
def test_what_is_flagged_in_twenty_pairs(
    bench: Bench, change: dict[str, float], flagged: set[str]
) -> None:
    found = [
        worse(bench.measure(seed), bench.measure(1000 + seed, **change)) for seed in range(PAIRS)
    ]
    missed = [one for one in found if not flagged <= one]
    alarms = [one for one in found if one - flagged]
    assert (len(missed), len(alarms)) == (0, 0), found

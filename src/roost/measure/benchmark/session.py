"""A benchmark that is under way, and the ways to its host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from roost import atomic, catalog, site, ssh
from roost.deployment import Deployment
from roost.errors import RoostError
from roost.measure import demands, metrics, throttling
from roost.measure.benchmark.planning import Plan
from roost.measure.checks import Check, Evidence, Target, hidden
from roost.measure.client import EngineError
from roost.measure.points import CellPoints
from roost.measure.suites import Cell, Suite
from roost.runs import PROGRESS
from roost.settings import Settings

#: Characters of the bar.
_BAR = 20
#: Seconds that a command in the container may take, unless it is the load itself.
COMMAND_S = 600.0


@dataclass
class Session:
    """A benchmark that is under way."""

    target: Target
    plan: Plan
    cells: list[Cell]
    folder: Path
    say: Callable[[str], None]
    evidence: Evidence = field(default_factory=Evidence)
    measured: list[CellPoints] = field(default_factory=list)
    watches: dict[tuple[str, int], throttling.Watch] = field(default_factory=dict)
    #: Where the prompts that were prepared last lie in the container; none: none were yet.
    directory: PurePosixPath | None = None
    #: Characters of filler in prompts that are made to length, by the name of their file.
    filler: dict[str, int] = field(default_factory=dict)
    #: Tokens that prompt and answer may have together; none: the engine does not say.
    context: int | None = None
    #: SSH connections that were lost.
    breaks: int = 0
    started: float = field(default_factory=time.monotonic)
    share: float = 0.0
    #: What was said to the engine, by flags or by variables. Of a release that the catalogue does
    #: not give any more nothing is known.
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.settings = demands.examine(self.deployment).resolved.settings
        except RoostError:
            self.settings = Settings()

    @property
    def suite(self) -> Suite:
        return self.plan.suite

    @property
    def deployment(self) -> Deployment:
        return self.target.deployment

    @property
    def style(self) -> str:
        known = catalog.current()
        return known.engines[known.recipe(self.deployment.recipe).engine].style

    def progress(self, doing: str, share: float | None = None) -> None:
        """One line with a bar over the whole suite, for whoever waits.

        Args:
            doing: What begins now.
            share: How much of the suite is done; none: as much as the last time.
        """
        if share is not None:
            self.share = share
        at = min(len(self.measured) + 1, len(self.cells))
        done = round(self.share * _BAR)
        line = f"[{'#' * done}{'.' * (_BAR - done)}] {self.share:4.0%} {self.plan.name}: "
        line += f"point {at} of {len(self.cells)}, {doing}"
        line += f", {time.monotonic() - self.started:.0f} s"
        self.say(line)
        atomic.write(self.folder / PROGRESS, line + "\n")

    @property
    def name(self) -> str:
        """The container's name."""
        return self.deployment.spec.name

    @property
    def remote(self) -> ssh.Remote:
        """The SSH connection; raises the reason where there is none."""
        return self.target.reached()

    @property
    def in_container(self) -> PurePosixPath:
        """Where the prompts lie in the container; raises where none were prepared."""
        if self.directory is None:
            raise RoostError("no prompts were prepared in the container")
        return self.directory

    def check(self, check_id: str, *, ok: bool, expected: str, observed: str, why: str) -> None:
        """Add a check to the evidence."""
        self.evidence.checks.append(
            Check(id=check_id, ok=ok, expected=expected, observed=observed, why=why)
        )

    @contextmanager
    def over_the_tunnel(self) -> Iterator[None]:
        """Around requests to the engine: tells a broken connection from a failing engine.

        Raises:
            BrokenConnectionError: A request had no answer, and the SSH connection broke meanwhile.
        """
        tunnel = self.target.tunnel
        before = tunnel.broken if tunnel else 0
        try:
            yield
        except EngineError as error:
            # The host is asked first: meanwhile the tunnel notices what became of its connections.
            if error.status is not None or (
                self._answers() and (tunnel is None or tunnel.broken == before)
            ):
                raise
            raise ssh.BrokenConnectionError(
                f"{self.target.host.name}: the SSH connection broke", why=str(error)
            ) from error

    def _answers(self) -> bool:
        try:
            self.remote.run(["true"])
        except ssh.SshError:
            return False
        return True

    def keep(self, name: str, content: str) -> None:
        """Write a raw file into the run's folder, without the site's key."""
        variables = self.target.host.variables
        told = hidden(name, content, lambda said: site.hide_key(said, variables))
        atomic.write(self.folder / name, told)

    def reading(self, name: str) -> metrics.Reading:
        """The engine's counters now; their page is kept under a name."""
        client = self.target.endpoint()
        with self.over_the_tunnel():
            page = client.metrics(self.deployment.metrics_path)
        self.keep(name, page)
        return metrics.parse(page)

    def docker(self, words: Sequence[str], given: str | None = None) -> str:
        """What a command of Docker writes on the host.

        Raises:
            RoostError: It failed.
        """
        done = self.run(["docker", *words], given=given, timeout=COMMAND_S)
        if done.rc != 0:
            said = (done.err.strip() or done.out.strip() or f"exit status {done.rc}").splitlines()
            raise RoostError(
                f"{self.target.host.name}: docker {' '.join(words[:3])} failed",
                why=said[-1][-400:],
            )
        return done.out

    def run(
        self,
        argv: Sequence[str],
        *,
        given: str | None = None,
        timeout: float,
        attended: bool = False,
    ) -> ssh.Completed:
        """As :func:`roost.ssh.run_privileged`, for commands with input or without a quick end."""
        done = self.remote.run(argv, given, timeout, attended=attended)
        if done.rc != 0 and "permission denied" in (done.err + done.out).lower():
            argv = ["sudo", "-n", "--", *argv]
            return self.remote.run(argv, given, timeout, attended=attended)
        return done


def file_of(cell_id: str, number: int) -> str:
    """What the files of a cell's repetition are called after."""
    return f"{cell_id}_{number}"


def kept_files(name: str) -> tuple[str, str, str]:
    """Files of a repetition in the run's folder: counters before and after, the harness's own."""
    return f"metrics_{name}_before.txt", f"metrics_{name}_after.txt", f"harness_{name}.json"

"""Ending an engine that is dead or wedged, and telling of those that end by themselves.

It never starts one: the engine's unit does, counts attempts, and gives up in the end. While
somebody holds the host's turn it judges nobody, for a deploy judges what it starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from . import NAME, evidence
from .chronicle import Chronicle
from .docker_api import DockerApi
from .endpoint import Endpoint, endpoint_of, keys_of
from .machine import Machine, MachineError
from .store import BusyError, Store
from .vigil import Limits, Look, Suspicion, Vigil

#: Seconds between two questions for a health that is good.
HEALTH_INTERVAL = 60.0
#: Seconds that an answer may take; some engines generate a token to answer /health.
ANSWER = 25.0
#: Seconds to wait for the one token that is asked for before an engine is ended as frozen; where
#: the limit for frozen engines is shorter, that counts.
LAST_QUESTION = 60.0
#: Processes that compile for an engine.
COMPILERS = {"nvcc", "cicc", "ptxas", "cudafe++", "fatbinary", "ninja", "cc1", "cc1plus"}


class EngineWatch:
    """The engine that serves.

    Args:
        limits: How long is too long. That of a start is taken from the deployment instead.
        machine: This host.
        docker: Its daemon.
        store: Its releases.
        chronicle: Where events are told and evidence is kept.
    """

    def __init__(
        self,
        limits: Limits,
        machine: Machine,
        docker: DockerApi,
        store: Store,
        chronicle: Chronicle,
    ) -> None:
        self._limits = limits
        self._machine = machine
        self._docker = docker
        self._store = store
        self._chronicle = chronicle
        self._forget()

    def look(self, at: float) -> None:
        """Look once, and do what is to be done.

        Args:
            at: Seconds of a clock that only goes forward.
        """
        if self._store.holder() is not None:
            self._forget()
            return
        try:
            inspected = self._docker.inspect(NAME)
            if inspected is None:
                self._forget()
            elif inspected["State"]["Running"]:
                self._watch(inspected, at)
            else:
                self._down(inspected)
        except (MachineError, OSError):
            # Docker is away, or the engine went between two questions: the next look sees it.
            self._forget()

    def _forget(self) -> None:
        self._vigil: Vigil | None = None
        #: Id and start of the container.
        self._life: tuple[str, str] | None = None
        self._release: str | None = None
        self._deployment: dict[str, Any] = {}
        self._suspicion: Suspicion | None = None
        self._metrics: str | None = None
        self._asked_health = 0.0

    def _watch(self, inspected: dict[str, Any], at: float) -> None:
        life = (inspected["Id"], inspected["State"]["StartedAt"])
        if self._vigil is None or life != self._life:
            self._vigil = self._begin(inspected, life)
        if self._vigil is None:
            return
        endpoint = endpoint_of(self._deployment)
        reply = endpoint.get(self._deployment["gate"]["metrics_path"], ANSWER)
        metrics = str(reply.body) if reply.status == 200 else None
        healthy = None
        if self._vigil.wants_health or at - self._asked_health >= HEALTH_INTERVAL:
            self._asked_health = at
            healthy = endpoint.get(self._deployment["health_path"], ANSWER).status == 200
        # Each of these starts a process, so only an engine that seems to stand still is asked.
        still = self._suspicion is not None
        look = Look(
            at=at,
            started=life[1],
            age=self._machine.age(inspected),
            metrics=metrics,
            healthy=healthy,
            watts=watts() if still and self._watched.get("working_watts") else None,
            compiling=still and compiles(inspected["Id"]),
        )
        self._suspicion = self._vigil.see(look)
        self._metrics = metrics or self._metrics
        if self._suspicion is None or not self._suspicion.certain:
            return
        if self._suspicion.kind == "frozen" and self._answers(endpoint):
            self._vigil.answered(at)
            return
        self._end(inspected, self._suspicion)

    def _answers(self, endpoint: Endpoint) -> bool:
        """Whether it gives a token, in spite of counters that may be stale or have other names."""
        question = {**self._deployment["gate"]["requests"][0], "max_tokens": 1}
        return endpoint.chat(question, min(LAST_QUESTION, self._limits.frozen)).status == 200

    @property
    def _watched(self) -> Mapping[str, Any]:
        # Releases that were recorded by an older roost have none.
        return self._deployment.get("watched") or {}

    def _begin(self, inspected: dict[str, Any], life: tuple[str, str]) -> Vigil | None:
        """Begin to watch a container that was started, or that is seen for the first time."""
        same = self._life is not None and self._life[0] == life[0]
        if same and int(self._machine.unit(NAME).get("NRestarts") or 0) > 0:
            # Its end came between two looks, and the container shows the next life already.
            self._tell("ended", "dead", "it has ended, and was started again", inspected)
        if self._chronicle.held:
            self._chronicle.release()
        self._forget()
        self._release = self._store.pointed("current")
        deployment = self._release and self._store.read(self._release, "deployment.json")
        if not deployment:
            return None
        self._life, self._deployment = life, deployment
        limits = self._limits._replace(ready=deployment["ready_timeout"])
        watched = self._watched
        gauges = deployment.get("busy_gauges", [])
        return Vigil(watched.get("series"), gauges, limits, watched.get("working_watts"))

    def _down(self, inspected: dict[str, Any]) -> None:
        """Tell of an engine that does not run, unless somebody has stopped it on purpose."""
        state = inspected["State"]
        unit = self._machine.unit(NAME)["ActiveState"]
        killed = ", killed by the kernel for memory" if state.get("OOMKilled") else ""
        code = f"exit code {state['ExitCode']}{killed}"
        if unit == "failed" and not self._chronicle.knows("gave_up", state["StartedAt"]):
            said = f"it was given up after several starts ({code})"
            self._tell("gave_up", "attempts", said, inspected)
        elif unit == "activating" and self._life is not None:
            self._tell("ended", "dead", f"it has ended with {code}", inspected)
        self._forget()

    def _end(self, inspected: dict[str, Any], suspicion: Suspicion) -> None:
        """Keep the evidence, end it, and leave the start to its unit."""
        try:
            self._store.take_turn("the watchdog ends a dead engine", 0)
        except BusyError:
            self._forget()
            return
        try:
            if self._machine.unit(NAME)["ActiveState"] == "active":
                self._tell("restarted", suspicion.kind, suspicion.said, inspected, act=True)
                self._forget()
            elif not self._chronicle.knows("left", inspected["State"]["StartedAt"]):
                # Nobody but its unit would start it again.
                said = f"{suspicion.said}; its unit does not run it, so it was left alone"
                self._tell("left", suspicion.kind, said, inspected)
        finally:
            self._store.end_turn()

    def _tell(
        self, what: str, why: str, said: str, inspected: dict[str, Any], *, act: bool = False
    ) -> None:
        case = self._chronicle.keep(
            why,
            said,
            NAME,
            inspected=inspected,
            metrics=self._metrics,
            secrets=keys_of(self._deployment) if self._deployment else [],
        )
        if act:
            try:
                self._machine.stop(NAME)
            except MachineError as error:
                what, said = "cannot_end", f"{said}; and it cannot be ended: {error}"
        life = inspected["State"]["StartedAt"]
        release = self._store.pointed("current")
        self._chronicle.tell(what, why, said, case=case, life=life, release=release)


def watts() -> float | None:
    """Power of the GPU that draws most, W; none where nvidia-smi does not say."""
    query = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    try:
        return max(float(line) for line in evidence.said(query).splitlines())
    except ValueError:
        return None


def compiles(container: str, proc: Path = Path("/proc")) -> bool:
    """Whether a compiler runs in a container."""
    return any(
        evidence.text_of(comm).strip() in COMPILERS
        and container in evidence.text_of(comm.with_name("cgroup"))
        for comm in proc.glob("[0-9]*/comm")
    )

"""A host whose Docker and systemd are a few dictionaries, and whose engine is the stand-in.

What is done to it can be cut off before any step, as a kill or a power cut would.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.unit.stand_in_engine import ANSWERS, Engine, serving

from roost.onhost import NAME
from roost.onhost.logs import Log
from roost.onhost.machine import Machine, MachineError


class Killed(BaseException):
    """The process that worked on the host is no more."""


@dataclass
class Behaviour:
    """What an engine does once its container runs."""

    answers: dict[str, str] = field(default_factory=lambda: dict(ANSWERS))
    accepted: float = 3.0
    tokens: int = 20
    healthy: bool = True
    exit_code: int | None = None
    log: tuple[str, ...] = ()
    #: Requests until it ends.
    lives: int | None = None


@dataclass
class Container:
    """One container."""

    made_of: str
    behaviour: Behaviour
    running: bool = False
    exit_code: int = 0
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: str = "2026-01-01T00:00:00.0Z"
    #: Requests that the endpoint had got when it was started.
    asked: int = 0


class Followed(Log):
    """What a follower of a log has read."""

    begun = 0.0

    def __init__(self, lines: tuple[str, ...]) -> None:
        super().__init__()
        for line in lines:
            self.add(line)

    def __enter__(self) -> Followed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def settle(self, seconds: float) -> None:
        pass


class FakeMachine(Machine):
    """See the module.

    Attributes:
        found: Containers by name.
        kill_at: Number of the step before which whoever works is killed; none: nobody is.
        steps: Changes so far.
        refuse: Docker's answer to starts of a container, by name.
        killed: What the kernel's log says of whoever ended.
        docker_stopped: Whether Docker answers nobody.
        gave_up: The unit's state after an engine has ended by itself, until it is started.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.found: dict[str, Container] = {}
        self.enabled = False
        self.active = False
        self.kill_at: int | None = None
        self.steps = 0
        self.refuse: dict[str, str] = {}
        self.killed: list[str] = []
        self.gave_up = ""
        self.docker_stopped = False
        self.slept = 0.0
        self.behave()

    # -- what tests do to it

    def made(self, name: str, made_of: str, behaviour: Behaviour | None = None) -> str:
        """Create a container as the role does, unless it is there; its id."""
        if name not in self.found:
            self.found[name] = Container(made_of, behaviour or Behaviour())
        return self.found[name].id

    def reboot(self) -> None:
        """Power off and on: what systemd keeps comes back."""
        for container in self.found.values():
            container.running = False
        self.kill_at = None
        self.active = self.enabled and NAME in self.found
        if self.active:
            self._run_container(self.found[NAME])
        self.behave()

    def running(self) -> list[str]:
        """What runs, by what it was made of."""
        return [found.made_of for found in self.found.values() if found.running]

    def step(self) -> None:
        """Something is about to change."""
        if self.steps == self.kill_at:
            raise Killed
        self.steps += 1

    def behave(self) -> None:
        """Let the endpoint do what the running container's engine does."""
        now = next((found for found in self.found.values() if found.running), None)
        behaviour = now.behaviour if now else Behaviour(healthy=False)
        self.engine.health = 200 if behaviour.healthy else 503
        self.engine.chat_status = 200 if now else 500
        self.engine.answers = behaviour.answers
        self.engine.accepted_per_draft = behaviour.accepted
        self.engine.tokens = behaviour.tokens

    # -- Docker

    def inspect(self, container: str) -> dict[str, Any] | None:
        if self.docker_stopped:
            raise MachineError("Cannot connect to the Docker daemon")
        known = {**self.found, **{found.id: found for found in self.found.values()}}
        found = known.get(container)
        if found is None:
            return None
        lives = found.behaviour.lives
        asked = len(self.engine.requests) - found.asked
        if found.running and lives is not None and asked >= lives:
            found.running = False
            self.behave()
        return {
            "Id": found.id,
            "State": {"Running": found.running, "ExitCode": found.exit_code},
            "Config": {"Hostname": found.id, "Cmd": found.made_of},
            "HostConfig": {},
            "Image": "sha256:x",
            "Created": found.created,
        }

    def containers(self, prefix: str) -> dict[str, dict[str, Any]]:
        names = [name for name in self.found if name.startswith(prefix)]
        return {name: found for name in names if (found := self.inspect(name))}

    def start(self, container: str) -> None:
        self.step()
        if container not in self.found:
            raise MachineError(f"no such container: {container}")
        if container in self.refuse:
            raise MachineError(self.refuse[container])
        mine = self.found[container]
        if any(other.running for other in self.found.values() if other is not mine):
            raise MachineError("port is already allocated")
        self._run_container(mine)
        self.behave()

    def _run_container(self, found: Container) -> None:
        found.exit_code = found.behaviour.exit_code or 0
        found.running = found.behaviour.exit_code is None
        found.asked = len(self.engine.requests)

    def stop(self, container: str) -> None:
        self.step()
        self.found[container].running = False
        self.behave()

    def remove(self, container: str) -> None:
        self.step()
        self.found.pop(container, None)
        self.behave()

    def rename(self, container: str, name: str) -> None:
        self.step()
        assert name not in self.found, "Docker refuses a name that is taken"
        self.found[name] = self.found.pop(container)

    def follow(self, container: str, *, whole: bool) -> Any:  # noqa: ARG002  # as the real one
        return Followed(self.found[container].behaviour.log)

    def log(self, container: str) -> str:
        return Followed(self.found[container].behaviour.log).text()

    def kernel(
        self,
        container: dict[str, Any],  # noqa: ARG002  # as the real one
        since: float | None = None,  # noqa: ARG002
    ) -> list[str]:
        return list(self.killed)

    def age(self, inspected: dict[str, Any]) -> float:  # noqa: ARG002  # as the real one
        return 1e6

    # -- systemd

    def start_docker(self) -> None:
        self.docker_stopped = False
        self.refuse.clear()

    def unit(self, name: str) -> dict[str, str]:  # noqa: ARG002  # as the real one
        return {
            "ActiveState": self.gave_up or ("active" if self.active else "inactive"),
            "UnitFileState": "enabled" if self.enabled else "disabled",
        }

    def unit_start(self, name: str) -> None:
        self.step()
        self.enabled = self.active = True
        self.gave_up = ""
        self._run_container(self.found[name])
        self.behave()

    def unit_disable(self, name: str) -> None:  # noqa: ARG002  # as the real one
        self.step()
        self.enabled = False

    def unit_stop(self, name: str) -> None:
        self.step()
        if self.active and name in self.found:
            self.found[name].running = False
        self.active = False
        self.behave()

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@contextmanager
def fake_machine() -> Iterator[FakeMachine]:
    """A fresh host with nothing on it, its endpoint on a free port."""
    with serving() as engine:
        yield FakeMachine(engine)


def counted(machine: FakeMachine, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the store that counts as a step of the machine."""

    def step(*args: Any, **kwargs: Any) -> Any:
        machine.step()
        return function(*args, **kwargs)

    return step

"""The lab as pytest fixtures, for everything that needs real hosts.

A plugin: ``pytest_plugins = ["roost.lab.fixtures"]`` in the root conftest.

A test marked ``lab`` asks for ``lab`` and then for the hosts it needs, by what they must be::

    host = lab.host("gb10", driver="570.86")

Hosts are started when first asked for and shared by all tests that ask for the same properties;
``fresh=True`` gives one that no other test sees. All of it is gone when the session ends.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from roost.errors import RoostError
from roost.lab import controller
from roost.lab.hosts import Host, HostSpec
from roost.lab.lab import Lab, LabSpec, Rootfs

if TYPE_CHECKING:
    from roost.lab.build import Artefacts


class Place(NamedTuple):
    """Where a test session may have its lab."""

    name: str
    subnet: str
    lock: Path


#: Half of what a session does is waiting, so some sessions may test labs at the same time.
PLACES = (
    Place("pytest", "10.78.0.0/24", Path("/run/lock/roost-lab-tests.lock")),
    Place("pytest-2", "10.81.0.0/24", Path("/run/lock/roost-lab-tests-2.lock")),
    Place("pytest-3", "10.83.0.0/24", Path("/run/lock/roost-lab-tests-3.lock")),
)
_PLACE = pytest.StashKey[Place]()


class SharedLab:
    """The test session's lab: its hub and registry, and hosts on demand."""

    def __init__(self, name: str, subnet: str, rootfs: Rootfs | None = None) -> None:
        self._spec = LabSpec.model_validate({"name": name, "subnet": subnet, "hosts": ()})
        self._rootfs = rootfs
        self._by_properties: dict[HostSpec, str] = {}
        self.lab = Lab(self._spec, rootfs=rootfs)

    def up(self) -> Lab:
        """The lab without (more) hosts: hub, registry, bridge."""
        self.lab.up(_say)
        return self.lab

    def host(
        self,
        profile: str = "cpu",
        *,
        fresh: bool = False,
        image: str | None = None,
        **properties: Any,
    ) -> Host:
        """A running host that plays ``profile``; properties are those of ``HostSpec``.

        Args:
            profile: The machine it plays.
            fresh: One that no other test sees.
            image: ``repository@sha256:…`` of the lab's registry, to be there without a pull.
            properties: Of its ``HostSpec``.
        """
        key = HostSpec(name="any", profile=profile, **properties)
        name = None if fresh else self._by_properties.get(key)
        if name is None:
            name = f"h{len(self.lab.hosts) + 1:02}-{profile}"
            if not fresh:
                self._by_properties[key] = name
        spec = key.model_copy(update={"name": name})
        self.lab = Lab(
            self._spec.model_copy(update={"hosts": (spec,)}),
            rootfs=self._rootfs,
        )
        self.lab.up(_say)
        host = self.lab.hosts[name]
        if image is not None:
            from roost.lab import preload

            preload.have(host, image, self.lab.cache, _say)
        return host

    def down(self) -> None:
        """Take it down, with all hosts."""
        self.lab.down(_say)


def _say(line: str) -> None:
    # Shown by pytest only when the test fails.
    print(line, file=sys.stderr)


def require_lab() -> None:
    """Skip where no lab can be, with the reason; in CI that is a failure."""
    try:
        controller.check_machine()
        controller.check_tools()
    except RoostError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must be able to run the lab: {error}")
        pytest.skip(f"no lab here: {error}")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """Wait for a place for the session's lab, if any test needs one.

    Not in a fixture: the wait would count towards a test's time limit.
    """
    with contextlib.ExitStack() as stack:
        runs = not session.config.option.collectonly
        if runs and any(item.get_closest_marker("lab") for item in session.items):
            with contextlib.suppress(RoostError):  # require_lab says it
                controller.check_machine()
                place = stack.enter_context(_a_place())
                session.config.stash[_PLACE] = place
        return (yield)


@contextlib.contextmanager
def _a_place() -> Iterator[Place]:
    """A place that no other session has, as soon as there is one."""
    said = False
    while True:
        for place in PLACES:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(controller.turn(_say, lock=place.lock, wait=False))
                except BlockingIOError:
                    continue
                yield place
                return
        if not said:
            said = True
            print("other test sessions have the labs; waiting for one", flush=True)
        time.sleep(1)


@pytest.fixture(scope="session")
def lab_turn(request: pytest.FixtureRequest) -> Place:
    """The place that this session has on this machine, for tests that are marked ``lab``."""
    require_lab()
    return request.config.stash[_PLACE]


@pytest.fixture(scope="session")
def shared_lab(lab_turn: Place) -> Iterator[SharedLab]:
    """The session's one lab."""
    shared = SharedLab(lab_turn.name, lab_turn.subnet)
    # What an earlier, killed session left would be shared hosts in an unknown state.
    shared.down()
    try:
        shared.up()
        yield shared
    finally:
        shared.down()


@pytest.fixture
def lab(shared_lab: SharedLab) -> SharedLab:
    """The session's lab, with hub and registry running whatever the test before did to them."""
    shared_lab.lab.hub.start()
    shared_lab.lab.registry.start()
    return shared_lab


@pytest.fixture(scope="session")
def artefacts(shared_lab: SharedLab) -> Artefacts:
    """Everything that a lab serves (image, model, drafter), built if the cache lacks it."""
    from roost.lab import build

    return build.build_all(shared_lab.lab.cache, _say)

"""The lab's registry and hub, as processes of their own that can be stopped and started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from roost import registry_server, servers
from roost.errors import RoostError
from roost.lab import hubserver, processes
from roost.lab.hosts import Site

_START_SECONDS = 120.0


@dataclass(frozen=True)
class Service:
    """A server of the lab on the bridge's address.

    Attributes:
        name: ``hub`` or ``registry``.
        url: Answers 200 when it is ready.
        config: Text of its configuration file; empty for none.
    """

    name: str
    url: str
    folder: Path
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    config: str = ""

    def running(self) -> bool:
        """Whether its process runs."""
        return processes.recorded(self._pid_file) is not None

    def start(self) -> bool:
        """Start it and wait until it answers; False if it ran already.

        Raises:
            RoostError: It does not come up; with the end of its log.
        """
        if self.running():
            return False
        # One that was started and killed before it could be recorded holds the port.
        for orphan in processes.marked(str(self.folder)):
            orphan.end()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.config:
            self._config_file.write_text(self.config)
        process = processes.spawn(
            self.argv,
            pid_file=self._pid_file,
            log=self._log,
            marker=str(self.folder),
            env=self.environment,
        )
        servers.wait(self.url, f"the lab's {self.name}", self._log, _START_SECONDS)
        if not process.alive():
            raise RoostError(
                f"the lab's {self.name} ended, and something else answers at {self.url}",
                why=servers.tail(self._log),
            )
        return True

    def stop(self) -> None:
        """Stop it; clients get "connection refused"."""
        process = processes.recorded(self._pid_file)
        if process:
            process.end()
        self._pid_file.unlink(missing_ok=True)

    @property
    def _pid_file(self) -> Path:
        return self.folder / "pid"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    @property
    def _config_file(self) -> Path:
        return self.folder / "config.json"


def registry_service(site: Site, storage: Path) -> Service:
    """The registry of a lab."""
    folder = site.state / "services" / "registry"
    return Service(
        name="registry",
        url=f"http://{site.registry}/v2/",
        folder=folder,
        argv=tuple(registry_server.command(folder / "config.json")),
        environment=registry_server.environment(),
        config=registry_server.configuration(storage, str(site.gateway.ip), site.registry_port),
    )


def hub_service(site: Site, store: Path, folders: Mapping[str, Path]) -> Service:
    """The hub of a lab; ``folders`` are served beside the models."""
    argv = hubserver.command(sys.executable, store, str(site.gateway.ip), site.hub_port, folders)
    return Service(
        name="hub",
        url=f"{site.hub_url}/health",
        folder=site.state / "services" / "hub",
        argv=tuple(argv),
        environment=registry_server.environment(),
    )

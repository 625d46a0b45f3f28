"""The container that runs: every option that Docker is given, and where things are inside it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from roost import onhost

#: The one name of roost's container on a host.
CONTAINER = onhost.NAME

MODEL_PATH = "/model"
DRAFTER_PATH = "/drafter"

#: The endpoint's API key, on the host (mode 0600) and inside the container.
KEY_SOURCE = "/var/lib/roost/secrets/api-key"
KEY_PATH = "/run/secrets/roost-api-key"

#: How an entry of ``unresolved`` begins that is an image.
IMAGE = "image "


class Mount(BaseModel):
    """A bind mount."""

    model_config = ConfigDict(frozen=True)

    source: str
    target: str
    read_only: bool = True


class Secret(BaseModel):
    """A file on the host that root and the engine read, and nobody else; one of the mounts."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str
    target: str


class Port(BaseModel):
    """A published port; ``listen`` is an IP address."""

    model_config = ConfigDict(frozen=True)

    listen: str
    host: int
    container: int

    @property
    def published(self) -> str:
        """Docker's short form, ``listen:host:container``."""
        return f"{_bracketed(self.listen)}:{self.host}:{self.container}"

    @property
    def connect(self) -> str:
        """The address that reaches it from the host itself."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)  # noqa: S104  # says where to connect, binds nothing

    @property
    def url(self) -> str:
        """Where the endpoint is, from the host itself."""
        return f"http://{_bracketed(self.connect)}:{self.host}"


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class Security(BaseModel):
    """What the container may not do."""

    model_config = ConfigDict(frozen=True)

    cap_drop: list[str] = ["ALL"]
    no_new_privileges: bool = True
    privileged: bool = False

    @property
    def options(self) -> list[str]:
        """The options of ``docker run`` that take rights away."""
        words = [word for name in self.cap_drop for word in ("--cap-drop", name)]
        if self.no_new_privileges:
            words += ["--security-opt", "no-new-privileges"]
        return words


class LaunchSpec(BaseModel):
    """One container, every option said."""

    model_config = ConfigDict(frozen=True)

    name: str
    image: str = Field(description="repository@sha256:… (repository:tag while unresolved)")
    entrypoint: list[str]
    command: list[str]
    env: dict[str, str]
    mounts: list[Mount]
    secrets: list[Secret] = Field(description="which of the mounts are secret, by what they hold")
    ports: list[Port]
    gpus: str | None = Field(description="`all`, or none on a machine without")
    ipc: str | None = Field(description="`host`, or the engine's default")
    shm_size: str | None = Field(description="none where the host's IPC namespace is shared")
    security: Security
    ulimits: dict[str, int]
    pids_limit: int
    log_options: dict[str, str]
    labels: dict[str, str]
    build: str | None = Field(description="the command that makes the image; none: it is pulled")
    untrusted: str | None = Field(description="why the image gets no credentials, nor host IPC")
    unresolved: list[str] = Field(description="what `roost lock` has not pinned yet")

    @property
    def lockable(self) -> list[str]:
        """What of it a lock can pin: an image that is built is in no registry to be asked."""
        return [one for one in self.unresolved if not (self.build and one.startswith(IMAGE))]

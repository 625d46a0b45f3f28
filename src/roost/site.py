"""Inventory variables: every name a user may write, its default and its meaning, in one place.

Ansible lets a misspelt variable pass in silence; here every ``roost_*`` variable of a host is
checked against this list, and a near miss is named.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import PydanticCustomError

from roost import near
from roost import settings as settings_module
from roost.errors import UsageError
from roost.references import MIRROR
from roost.settings import Settings, Strict

PREFIX = "roost_"
KEY_VARIABLE = "roost_api_key"
#: Their values are never shown or stored, and are no part of a deployment.
SECRET_VARIABLES = {KEY_VARIABLE, "roost_hub_token", "roost_registry_logins"}

#: Type of the error for a value that holds credentials; such a value is never shown.
_ACCOUNT = "account"


class Site(BaseModel):
    """What a site decides, not the recipe: addresses, places, names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_dir: str = "/var/lib/roost/models"
    listen: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    served_name: str | None = None
    api_key: bool = Field(False, description="whether the site has one; never the key itself")
    registry_mirror: str | None = Field(
        None,
        description="host[:port] that serves every repository instead of its own registry, with "
        "http:// before it where it has no TLS",
    )


#: What holds where an inventory says nothing; `roost show` has no inventory and uses it as it is.
_SITE = Site()

Name = Annotated[str, Field(min_length=1)]


def _ip_address(value: str) -> str:
    """An address that Docker can publish on; a name would only fail after the swap."""
    return str(ipaddress.ip_address(value))


def _key(value: SecretStr) -> SecretStr:
    """What a header can carry; an empty key would ask nobody, an empty token open nothing."""
    if not value.get_secret_value():
        raise ValueError("is empty; set it, or take the variable away to do without")
    if not re.fullmatch(r"[!-~]+", value.get_secret_value()):
        raise ValueError("must be visible ASCII without blanks")
    return value


def _no_account(value: str) -> str:
    """Words that end up in arguments and records, which everybody on the host may read."""
    if re.search(r"://[^/\s]*@", value):
        raise PydanticCustomError(
            _ACCOUNT, "holds an account, and would show it in arguments and records on the host"
        )
    return value


Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+(/[^\s]*)?$"), AfterValidator(_no_account)]
PipOption = Annotated[str, AfterValidator(_no_account)]
Key = Annotated[SecretStr, AfterValidator(_key)]
Address = Annotated[str, AfterValidator(_ip_address)]
Mirror = Annotated[str, Field(pattern=MIRROR)]
Share = Annotated[float, Field(ge=0, le=1)]
AbsolutePath = Annotated[str, Field(pattern=r"^/[^:\s]+$")]


class Login(Strict):
    """An account at a container registry."""

    registry: Name = Field(description="host[:port] as images name it; docker.io for Docker Hub")
    username: Name
    password: Key = Field(description="or an access token; from a vault or the environment")


class HostVars(Strict):
    """The variables of one host, without their ``roost_`` prefix."""

    # `-e roost_port=8001` arrives as text, so "8001" and "false" are taken for what they say.
    model_config = ConfigDict(strict=False)

    hardware: Name = Field(description="hardware id, see `roost recipes`")
    recipe: Name = Field(description="recipe id, see `roost recipes`")
    speculation: Name | None = Field(None, description="one of the recipe's choices")
    variant: Name | None = Field(None, description="one of the recipe's variants")
    settings: dict[str, Any] = Field({}, description="engine-neutral settings, override all else")
    model_dir: AbsolutePath = Field(_SITE.model_dir, description="weights on the host")
    listen: Address = Field(_SITE.listen, description="IP address the endpoint is published on")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        _SITE.port, description="its port on the host"
    )
    served_name: Name | None = Field(None, description="model name that clients use")
    gateway: Name | None = Field(
        None, description="inventory name of the gateway before this host, see docs/gateway.md"
    )
    address: Address | None = Field(
        None,
        description="IP address at which the gateway reaches this host; none: roost_listen, or "
        "ansible_host where it listens on all",
    )
    api_key: Key | None = Field(
        None,
        description="key that the endpoint asks clients for; from a vault or the environment",
    )
    hub_endpoint: Url | None = Field(None, description="hub or hub mirror to fetch weights from")
    hub_token: Key | None = Field(
        None,
        description="token for private and gated repositories; from a vault or the environment",
    )
    hub_client: bool = Field(
        True,
        description="install the hub's own client on the host, for Xet storage; behind a mirror "
        "nothing comes from there, and hosts without a package index have none",
    )
    registry_mirror: Mirror | None = Field(
        None, description="registry (host:port, http:// before it without TLS) for every image"
    )
    registry_logins: list[Login] = Field(
        [], description="accounts for private images: a list of registry, username, password"
    )
    lock_file: Name = Field("roost.lock.yml", description="relative to the repository root")
    allow_unlocked: bool = Field(
        False,
        description="deploy an image by its tag where the lock pins no digest, or one on the host "
        "that is not labelled as built by the recipe; weights always need a commit",
    )
    install_docker: bool = Field(True, description="install Docker where it is missing")
    pip_args: list[PipOption] = Field(
        [],
        description="options for pip in the host's small environment, e.g. a wheel directory; "
        "accounts belong into the host's own /etc/pip.conf or /root/.netrc",
    )
    accept_findings: list[str] = Field(
        [], description="ids of the plan's errors to go on with, see docs/plan.md"
    )
    ready_timeout: Annotated[int, Field(ge=10)] = Field(
        1800, description="seconds an engine may take until it is healthy"
    )
    memory_floor_mib: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="MemAvailable below which the engine is stopped, in MiB; none: the hardware's "
        "figure, 0: never",
    )
    same_answers: bool = Field(
        True,
        description="the same model and settings must answer a deploy's questions as they did "
        "first, word for word",
    )
    min_accept_length: Annotated[float, Field(ge=1)] | None = Field(
        None,
        description="tokens per step that a deploy must reach; none: the recipe's figure, else "
        "more than 1",
    )
    accept_length_floor: Share = Field(
        0.8, description="share of the replaced release's accept length that a deploy must reach"
    )
    speed_floor: Share = Field(
        0.5, description="share of the replaced release's tokens/s that a deploy must reach"
    )

    def site(self) -> Site:
        """The part that a launch spec needs."""
        return Site(
            model_dir=self.model_dir,
            listen=self.listen,
            port=self.port,
            served_name=self.served_name,
            api_key=self.api_key is not None,
            registry_mirror=self.registry_mirror,
        )

    def token(self, hub: str | None = None) -> str | None:
        """The site's token, for its own hub, or for the one that is asked instead.

        Args:
            hub: Asked instead of the site's own. A token for an endpoint that the inventory names,
                such as a mirror's key, opens no other.
        """
        if self.hub_token is None:
            return None
        if hub and self.hub_endpoint and hub.rstrip("/") != self.hub_endpoint.rstrip("/"):
            return None
        return self.hub_token.get_secret_value()

    def lock_path(self, root: Path) -> Path:
        """The lock file, with a relative name taken from the repository root."""
        return root / self.lock_file

    def require_lock(self, host: str, root: Path) -> None:
        """Nothing, or that the inventory names a lock that is not there.

        Raises:
            UsageError: Naming host, variable and file.
        """
        path = self.lock_path(root)
        if "lock_file" in self.model_fields_set and not path.exists():
            raise UsageError(
                f"{host}: roost_lock_file: {path}: no such file",
                why="what the names in a recipe mean is read from there",
                fix="correct the name, or write it: roost lock -i INVENTORY",
            )

    def overrides(self, host: str) -> Settings:
        """``roost_settings``, validated."""
        return settings_module.from_mapping(self.settings, f"{host}: roost_settings")


def known_variables() -> list[str]:
    """Every variable a user may set, with its prefix."""
    return [PREFIX + name for name in HostVars.model_fields]


def from_variables(host: str, variables: Mapping[str, Any]) -> HostVars:
    """Validate the ``roost_*`` variables of one host; other variables are ignored.

    Raises:
        UsageError: Naming host, variable, value and reason for every defect at once.
    """
    given = {
        name.removeprefix(PREFIX): _plain(value)
        for name, value in variables.items()
        if name.startswith(PREFIX)
    }
    try:
        return HostVars.model_validate(given)
    except ValidationError as error:
        reasons, fix = [], ""
        for item in error.errors():
            name = PREFIX + ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                # Without the prefix, by which all are alike.
                said = name.removeprefix(PREFIX)
                hint = near.miss(said, HostVars.model_fields, PREFIX)
                reasons.append(f"{name} is no variable of roost{hint}")
                fix = fix if hint else "variables are: " + ", ".join(known_variables())
            elif item["type"] == "missing":
                reasons.append(f"{name} is not set")
                fix = "set it in group_vars or host_vars of the inventory; ids: `roost recipes`"
            elif PREFIX + str(item["loc"][0]) in SECRET_VARIABLES or item["type"] == _ACCOUNT:
                reasons.append(f"{name}: {item['msg']}")
            else:
                value = repr(item["input"])
                shown = "" if value in item["msg"] else f" (it is {value})"
                reasons.append(f"{name}: {item['msg']}{shown}")
        raise UsageError(f"{host}: " + "; ".join(reasons), fix=fix) from None


def api_key(variables: Mapping[str, Any]) -> str | None:
    """The site's key among a host's variables; none where it has none."""
    value = variables.get(KEY_VARIABLE)
    return str(value) if value else None


def hide_key(said: str, variables: Mapping[str, Any]) -> str:
    """A text without the site's key, as whatever is kept or shown of a host must be.

    An engine may print the key, and whoever starts one by hand writes it into its command.
    """
    if key := api_key(variables):
        for written in (key, json.dumps(key)[1:-1]):
            said = said.replace(written, "[the API key]")
    return said


def _plain(value: Any) -> Any:
    """A value without the string and container subclasses that Ansible hands out."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value

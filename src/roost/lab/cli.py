"""``roost lab``: a fleet on one machine, up, looked at, down."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from roost.errors import UsageError
from roost.interruptions import terminable
from roost.lab import controller, network, paths
from roost.lab.controller import Say
from roost.lab.hosts import USUAL_NAME, HostSpec, up_command
from roost.lab.lab import EMBEDDED_DEFAULT, Lab, LabSpec, LabStatus

_name = click.option(
    "--name", default=USUAL_NAME, show_default=True, help="Which lab of this machine."
)


@click.group()
def lab() -> None:
    """A fleet on one machine: real sshd, dockerd, registry, hub and engine; only the GPU is
    pretended."""


@lab.command()
@_name
@click.option("--subnet", metavar="A.B.C.0/24", help="A /24 of its own. [default: 10.77.0.0/24]")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME=PROFILE[,KEY=VALUE]…",
    help="A host and the machine it plays. Without any: those it has, or lab-01 and lab-02 as cpu.",
)
@click.option("--install", is_flag=True, help="Install the Debian packages that are missing.")
def up(name: str, subnet: str | None, hosts: tuple[str, ...], install: bool) -> None:
    """Bring a lab up, or mend what is missing of it.

    Builds what the cache lacks: minutes the first time, seconds later. A second `up` changes
    nothing; `up` after a kill cleans and goes on.
    """
    say = clock()
    spec = _spec(name, subnet, hosts)
    controller.check_machine()
    with terminable():
        if install:
            controller.install_tools(say)
        brought = Lab(spec, rootfs=_build_all)
        changed = brought.up(say)
    say(f"lab {name} is up" if changed else f"lab {name} was up already; nothing changed")
    status = brought.status()
    if status:
        _show(status, brought)


@lab.command()
@click.option("--install", is_flag=True, help="Install the Debian packages that are missing.")
def build(install: bool) -> None:
    """Build everything that labs serve, without bringing one up.

    Minutes the first time, seconds later; what was built stays in the cache.
    """
    say = clock()
    controller.check_machine()
    with terminable():
        if install:
            controller.install_tools(say)
        controller.check_tools()
        with controller.turn(say):
            _build_all(say)
    say(f"built: {paths.cache_dir()}")


@lab.command()
@_name
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def status(name: str, as_json: bool) -> None:
    """Say what runs of a lab; exit 1 if not all of it does."""
    controller.check_machine()
    found = Lab(_spec(name))
    seen = found.status()
    if as_json:
        nothing = {"name": name, "up": False, "hosts": []}
        content = {**dataclasses.asdict(seen), "up": seen.up} if seen else nothing
        click.echo(json.dumps(content, indent=2))
    elif seen:
        _show(seen, found)
    else:
        click.echo(f"lab {name} is down; `{up_command(name)}` brings it up")
    if seen is None or not seen.up:
        sys.exit(1)


@lab.command()
@_name
def down(name: str) -> None:
    """Take a lab down and leave nothing of it but the cache."""
    with terminable():
        if not Lab(_spec(name)).down(clock()):
            click.echo(f"lab {name} is down already")


def clock() -> Say:
    """Progress lines that say how long it has been, on stderr."""
    began = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"[{time.monotonic() - began:6.1f} s] {line}", err=True)

    return say


def parse_host(text: str) -> HostSpec:
    """``NAME=PROFILE[,KEY=VALUE]…`` as a host.

    Raises:
        UsageError: Not of that form, or no such property.
    """
    first, *rest = text.split(",")
    name, separator, profile = first.partition("=")
    properties: dict[str, Any] = {"name": name, "profile": profile}
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals:
            separator = ""
        properties[key] = value
    if not separator or not profile:
        raise UsageError(
            f"--host {text}: is not of the form NAME=PROFILE[,KEY=VALUE]…",
            fix="for example --host spark-01=gb10,gpu_runtime=false",
        )
    try:
        return HostSpec.model_validate(properties)
    except ValidationError as error:
        raise UsageError(f"--host {text}: {_first(error)}", fix=_properties()) from None


def _properties() -> str:
    return "properties of a host: " + ", ".join(
        key for key in HostSpec.model_fields if key not in ("name", "profile")
    )


def _first(error: ValidationError) -> str:
    defect = error.errors()[0]
    place = ".".join(str(part) for part in defect["loc"])
    message = str(defect["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _spec(name: str, subnet: str | None = None, hosts: Sequence[str] = ()) -> LabSpec:
    """The lab that is asked for: what is not said is as it is now, or else the default."""
    chosen: dict[str, Any] = {"name": name}
    if subnet:
        chosen["subnet"] = subnet
    if hosts:
        chosen["hosts"] = tuple(parse_host(text) for text in hosts)
    try:
        spec = LabSpec.model_validate(chosen)
    except ValidationError as error:
        raise UsageError(
            f"no such lab can be: {_first(error)}",
            fix=f"a name has at most {network.MAX_LAB_NAME} of a-z, 0-9 and '-'; "
            "a subnet looks like 10.77.0.0/24",
        ) from None
    now = Lab(spec).spec
    return spec.model_copy(
        update={
            "subnet": spec.subnet if subnet else now.subnet,
            "hosts": spec.hosts if hosts else now.hosts,
        }
    )


def _build_all(say: Say) -> Sequence[Path]:
    """Everything that a lab serves, then the hosts' root layers."""
    from roost.lab import build

    build.build_all(paths.cache_dir(), say)
    return build.host_rootfs(paths.cache_dir(), say)


def _show(seen: LabStatus, shown: Lab) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("host", "address", "profile", "state", "log in"):
        table.add_column(heading, no_wrap=True)
    for host in seen.hosts:
        login = " ".join(shown.ssh_command(host.name))
        table.add_row(host.name, host.address, host.profile, host.state, login)
    # As wide as it is: a command that is cut or folded cannot be pasted.
    console = Console(width=240, soft_wrap=True)
    console.print(table)
    for service, place, running in (
        ("hub", seen.hub, seen.hub_running),
        ("registry", seen.registry, seen.registry_running),
    ):
        console.print(f"{service:<9} {place}  {'running' if running else 'stopped'}")
    console.print(f"next: {next_command(shown)}")


def next_command(lab: Lab) -> str:
    """What to do with a lab that is up, ready to paste: deploy what its hub and registry have.

    No recipe that they have runs on a host that plays a GPU; such hosts can be looked at.
    """
    if lab.spec == LabSpec().addressed() and lab.state.parent == paths.USUAL_STATE:
        return "ansible-playbook deploy.yml -i inventory/lab"
    able = [host for host in lab.spec.hosts if host.profile == "cpu"]
    if all(host.gateway for host in able):
        return shlex.join(["roost", "probe", "-i", str(lab.inventory_file)])
    chosen = [] if len(able) == len(lab.spec.hosts) else ["--limit", ",".join(h.name for h in able)]
    given = {"roost_recipe": EMBEDDED_DEFAULT, "roost_lock_file": lab.lock_file}
    extra = [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
    command = ["ansible-playbook", "deploy.yml", "-i", str(lab.inventory_file), *extra, *chosen]
    return shlex.join(command)

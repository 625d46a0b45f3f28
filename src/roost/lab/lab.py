"""A fleet on one machine: hosts, a registry and a hub on a bridge of their own.

What a lab is to be is written to its state directory before anything of it is made, and every
part can be found by name as well. So bringing up is the same as repairing, and taking down needs
no record at all.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from roost import atomic
from roost.errors import RoostError, UsageError
from roost.lab import controller, mounts, network, paths, processes, profiles, services
from roost.lab.controller import Say
from roost.lab.hosts import (
    USUAL_NAME,
    Host,
    HostSpec,
    Site,
    State,
    host_key,
    known_to_kernel,
    make_key,
    power_off,
    user_key,
)

#: Gives the read-only root layers of hosts, uppermost first: the layer with Docker, then Debian.
Rootfs = Callable[[Say], Sequence[Path]]

#: The recipe whose model, drafter and image the lab's own hub and registry have.
EMBEDDED_DEFAULT = "smollm2-135m"
#: Branch of the drafter whose training was stopped early.
WORSE_DRAFTER = "early"

_FIRST_HOST = 11


class LabSpec(BaseModel):
    """What a lab is to be.

    Attributes:
        name: Also names its interfaces, so at most eight characters.
        subnet: A /24 that nothing else on this machine uses; ``.1`` is the controller.
        hosts: Its hosts; an address is given to those that name none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=network.MAX_LAB_NAME)] = (
        USUAL_NAME
    )
    subnet: ipaddress.IPv4Network = ipaddress.IPv4Network("10.77.0.0/24")
    hosts: tuple[HostSpec, ...] = (HostSpec(name="lab-01"), HostSpec(name="lab-02"))
    registry_port: int = 5000
    hub_port: int = 8080

    @model_validator(mode="after")
    def _is_consistent(self) -> LabSpec:
        if self.subnet.prefixlen != 24:
            raise ValueError(f"the subnet of a lab is a /24, and {self.subnet} is none")
        names = [host.name for host in self.hosts]
        if len(names) != len(set(names)):
            raise ValueError("two hosts have the same name")
        taken = [host.address for host in self.hosts if host.address is not None]
        if len(taken) != len(set(taken)):
            raise ValueError("two hosts have the same address")
        for address in taken:
            if address not in self.subnet or int(address) & 0xFF in (0, 1, 255):
                raise ValueError(f"no host can have the address {address} in {self.subnet}")
        return self

    @property
    def gateway(self) -> ipaddress.IPv4Interface:
        """The controller's address on the bridge."""
        return ipaddress.IPv4Interface(f"{self.subnet[1]}/{self.subnet.prefixlen}")

    def addressed(self) -> LabSpec:
        """The same lab with an address for every host.

        Raises:
            UsageError: The subnet has no address left.
        """
        taken = {host.address for host in self.hosts}
        free = (self.subnet[octet] for octet in range(_FIRST_HOST, 255))
        hosts = []
        for host in self.hosts:
            address = host.address or next((one for one in free if one not in taken), None)
            if address is None:
                raise UsageError(f"{self.subnet} has no address left for {host.name}")
            hosts.append(host.model_copy(update={"address": address}))
        return self.model_copy(update={"hosts": tuple(hosts)})

    def joined_by(self, hosts: Sequence[HostSpec]) -> LabSpec:
        """The same lab with more hosts; those it has already must be as they are.

        Raises:
            UsageError: A host of that name is another machine.
        """
        present = {host.name: host for host in self.hosts}
        added = []
        for host in hosts:
            old = present.get(host.name)
            if old is None:
                added.append(host)
                continue
            asked = host if host.address else host.model_copy(update={"address": old.address})
            if asked != old:
                raise UsageError(
                    f"host {host.name} of lab {self.name} is there with other properties",
                    why=f"it is {_differences(old, asked)}",
                    fix=f"roost lab down --name {self.name}, or choose another name",
                )
        return self.model_copy(update={"hosts": (*self.hosts, *added)}).addressed()


def _differences(old: HostSpec, asked: HostSpec) -> str:
    before, after = old.model_dump(mode="json"), asked.model_dump(mode="json")
    return ", ".join(
        f"{key}={before[key]}, not {after[key]}" for key in before if before[key] != after[key]
    )


@dataclass(frozen=True)
class HostStatus:
    """One line of a lab's status."""

    name: str
    address: str
    profile: str
    state: State


@dataclass(frozen=True)
class LabStatus:
    """What runs of a lab; ``up`` is true if all of it does."""

    name: str
    subnet: str
    hub: str
    hub_running: bool
    registry: str
    registry_running: bool
    hosts: tuple[HostStatus, ...]

    @property
    def up(self) -> bool:
        """Whether everything runs and can be reached."""
        return (
            self.hub_running
            and self.registry_running
            and all(host.state == "running" for host in self.hosts)
        )


class Lab:
    """A lab of this machine, up or not.

    Args:
        spec: What :meth:`up` makes; hosts that run already and are not named here stay.
        rootfs: Gives the hosts' root layers; the lab's own builder if left out.
    """

    def __init__(self, spec: LabSpec | None = None, *, rootfs: Rootfs | None = None) -> None:
        wanted = spec or LabSpec()
        self.name = wanted.name
        self.cache = paths.cache_dir()
        self.state = paths.state_dir(self.name).resolve()
        self._rootfs = rootfs or build_rootfs
        self._wanted = wanted
        try:
            self.spec = self._saved() or wanted.addressed()
        except RoostError:
            # Taking down needs no record; whatever else is asked says what is wrong with it.
            self.spec = wanted.addressed()

    # -- parts

    @property
    def site(self) -> Site:
        """What its hosts know of it."""
        return Site(
            self.name,
            self.state,
            self.spec.gateway,
            self.spec.registry_port,
            self.spec.hub_port,
        )

    @property
    def hosts(self) -> Mapping[str, Host]:
        """Its hosts by name."""
        site = self.site
        return {spec.name: Host(site, spec) for spec in self.spec.hosts}

    @property
    def hub(self) -> services.Service:
        """Its hub; ``stop()`` and ``start()`` make and mend an outage."""
        folders = {
            "wheels": paths.wheelhouse(self.cache),
            # Resolved now: another checkout of roost may point the link at other packages later.
            "apt": paths.apt_repository(self.cache).resolve(),
        }
        return services.hub_service(self.site, paths.hub_store(self.cache), folders)

    @property
    def registry(self) -> services.Service:
        """Its registry; ``stop()`` and ``start()`` make and mend an outage."""
        return services.registry_service(self.site, paths.registry_storage(self.cache))

    @property
    def key(self) -> Path:
        """The private key that opens its hosts."""
        return user_key(self.state)

    @property
    def known_hosts(self) -> Path:
        """The hosts' public keys, known before they first booted."""
        return self.state / "ssh" / "known_hosts"

    @property
    def inventory_file(self) -> Path:
        """:meth:`inventory` as a file for ``ansible -i``."""
        return self.state / "inventory.yml"

    @property
    def lock_file(self) -> Path:
        """The lock of what its hub and registry have."""
        return self.state / "roost.lock.yml"

    # -- acts

    def up(self, say: Say) -> bool:
        """Bring it up, or mend what is missing of it.

        Args:
            say: Told what happens, one line at a time.

        Returns:
            Whether anything had to be done.

        Raises:
            RoostError: It cannot be; whatever this call had started is gone again.
        """
        controller.check_machine()
        controller.check_tools()
        for spec in self._wanted.hosts:
            profiles.load(spec.profile)
        with controller.turn(say):
            controller.make_room(say)
            before = self._saved()
            self.spec = before.joined_by(self._wanted.hosts) if before else self._wanted.addressed()
            self._check_place(before)
            layers = self._rootfs(say)
            try:
                return self._up(say, layers)
            except BaseException:
                say("taking back what was started")
                self._take_back(before)
                raise

    def down(self, say: Say) -> bool:
        """Take it down and leave nothing of it; False if there was nothing.

        Raises:
            RoostError: Something cannot be removed, or the lab is another state directory's.
        """
        controller.check_machine()
        with controller.turn(say):
            self._check_owner()
            return self._down(say)

    def status(self) -> LabStatus | None:
        """What runs of it; None if it is down."""
        if self._saved() is None:
            return None
        return LabStatus(
            name=self.name,
            subnet=str(self.spec.subnet),
            hub=self.site.hub_url,
            hub_running=self.hub.running(),
            registry=self.site.registry,
            registry_running=self.registry.running(),
            hosts=tuple(
                HostStatus(host.name, str(host.address), host.spec.profile, host.state())
                for host in self.hosts.values()
            ),
        )

    def inventory(self) -> dict[str, Any]:
        """An Ansible inventory of its hosts, in the YAML plugin's form."""
        gateways = [host.name for host in self.hosts.values() if host.spec.gateway]
        ssh_options = (
            f"-o UserKnownHostsFile={self.known_hosts} -o GlobalKnownHostsFile=/dev/null"
            " -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes"
        )
        return {
            "all": {
                "vars": {
                    "ansible_user": "root",
                    "ansible_ssh_private_key_file": str(self.key),
                    "ansible_ssh_common_args": ssh_options,
                    # A later lab has other machines at the same addresses; a connection that
                    # Ansible keeps must not outlive this one.
                    "ansible_control_path_dir": str(self.state / "ssh" / "cp"),
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "roost_hub_endpoint": self.site.hub_url,
                    "roost_registry_mirror": f"http://{self.site.registry}",
                    "roost_pip_args": [
                        "--no-index",
                        "--find-links",
                        f"{self.site.hub_url}/wheels/",
                        "--trusted-host",
                        str(self.spec.gateway.ip),
                    ],
                    # A lab's hosts share one machine, whose speed varies with what else it does.
                    "roost_speed_floor": 0.02,
                },
                "hosts": {
                    host.name: {
                        "ansible_host": str(host.address),
                        "roost_hardware": host.spec.profile,
                        **(_behind(host, gateways[0]) if gateways else {}),
                    }
                    for host in self.hosts.values()
                },
                "children": {"gateways": {"hosts": dict.fromkeys(gateways)}} if gateways else {},
            }
        }

    def ssh_command(self, host: str) -> list[str]:
        """How to log in to one of its hosts, host key checked."""
        return [
            "ssh",
            "-i",
            str(self.key),
            "-o",
            f"UserKnownHostsFile={self.known_hosts}",
            f"root@{self.hosts[host].address}",
        ]

    # -- steps of up

    def _saved(self) -> LabSpec | None:
        """What the lab was last meant to be; None if it is down.

        Raises:
            RoostError: The record cannot be read: cut off, or of another version.
        """
        record = self.state / "lab.json"
        try:
            return LabSpec.model_validate_json(record.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise RoostError(
                f"{record}: the lab's record cannot be read",
                why="it is cut off, or another version of roost wrote it",
                fix=f"roost lab down --name {self.name}, then up again",
            ) from None

    def _save(self, spec: LabSpec) -> None:
        atomic.write(self.state / "lab.json", spec.model_dump_json(indent=1))

    def _check_owner(self) -> None:
        owner = network.owner(self.name)
        if owner and owner != str(self.state) and (Path(owner) / "lab.json").exists():
            raise RoostError(
                f"another lab named {self.name} is up, with its state in {owner}",
                fix=f"ROOST_LAB_STATE={Path(owner).parent} roost lab down --name {self.name}",
            )

    def _check_place(self, before: LabSpec | None) -> None:
        """Refuse addresses and ports that something else on this machine has."""
        self._check_owner()
        if before and before.subnet != self._wanted.subnet:
            raise UsageError(
                f"lab {self.name} is up on {before.subnet}, not on {self._wanted.subnet}",
                fix=f"roost lab down --name {self.name}, or choose another name",
            )
        other = network.conflict(self.spec.subnet, self.name)
        if other:
            raise RoostError(
                f"subnet {self.spec.subnet} is in use on this machine: {other}",
                fix="choose another one with --subnet",
            )
        for service, port in (
            (self.registry, self.spec.registry_port),
            (self.hub, self.spec.hub_port),
        ):
            if service.running() or processes.marked(str(service.folder)):
                continue
            user = network.port_user(self.spec.gateway.ip, port)
            if user:
                raise RoostError(
                    f"port {port}, for the lab's {service.name}, is taken on this machine: {user}",
                    fix="stop that program while the lab is up",
                )

    def _up(self, say: Say, layers: Sequence[Path]) -> bool:
        self._save(self.spec)
        self._make_keys()
        changed = network.ensure_bridge(self.name, self.spec.gateway, self.state)
        for service in (self.registry, self.hub):
            if service.start():
                say(f"{service.name} started: {service.url}")
                changed = True
        booting = []
        for host in self.hosts.values():
            state = host.state()
            if state == "running":
                continue
            changed = True
            if state == "cut":
                say(f"{host.name}: its link is up again")
                host.join()
                continue
            say(f"{host.name}: booting as {host.spec.profile} at {host.address}")
            host.start(layers if host.spec.docker else layers[-1:])
            booting.append(host)
        for host in booting:
            host.wait()
            say(f"{host.name}: ready")
        self._write_inventory()
        write_lock(self, say)
        return changed

    def _make_keys(self) -> None:
        make_key(self.key, f"roost-lab-{self.name}")
        lines = []
        for host in self.hosts.values():
            key = host_key(self.state, host.name)
            make_key(key, host.name)
            lines.append(f"{host.address} {key.with_suffix('.pub').read_text()}")
        self.known_hosts.write_text("".join(lines))

    def _write_inventory(self) -> None:
        text = yaml.safe_dump(self.inventory(), sort_keys=False)
        self.inventory_file.write_text(f"# Written by `roost lab up`.\n{text}")

    # -- steps of down

    def _take_back(self, before: LabSpec | None) -> None:
        if before is None:
            self._down(lambda _: None)
            return
        known = {host.name for host in before.hosts}
        for host in self.hosts.values():
            if host.name not in known:
                host.remove()
        self.spec = before
        self._save(before)
        self._make_keys()

    def _down(self, say: Say) -> bool:
        """Take down whatever there is, by what the kernel says and not by the record."""
        folders = self.state.glob("hosts/*")
        names = {folder.name for folder in folders} | known_to_kernel(self.name)
        for name in sorted(names):
            power_off(self.name, self.state, name)
            say(f"{name}: off")
        servers = processes.marked(str(self.state))
        for process in servers:
            process.end()
        links = network.links(self.name)
        for link in links:
            network.delete_link(link)
        found = bool(names or servers or links or self.state.exists())
        mounts.unmount_below(self.state)
        mounts.remove_tree(self.state)
        with contextlib.suppress(OSError):
            # Only where no other lab has its state in it.
            self.state.parent.rmdir()
        if found:
            say(f"lab {self.name} is down; what was built stays in {self.cache}")
        return found


def _behind(host: Host, gateway: str) -> dict[str, str]:
    """Variables of a lab's hosts where one of them is the gateway."""
    if host.spec.gateway:
        return {"gateway_listen": str(host.address)}
    return {"roost_gateway": gateway, "roost_listen": str(host.address)}


def build_rootfs(say: Say) -> Sequence[Path]:
    """The hosts' root layers from the lab's builder, made now if the cache lacks them."""
    from roost.lab import build

    return build.host_rootfs(paths.cache_dir(), say)


def write_lock(lab: Lab, say: Say) -> None:
    """Pin what the lab's hub and registry have, in :attr:`Lab.lock_file`.

    Called at the end of every ``up``, under the lab's lock, with hub and registry running. Both
    of the drafter's branches are pinned, so that a host can be given the worse one. A lab without
    the embedded default (some tests need only hosts) goes without, and says so.
    """
    from roost import locking
    from roost.settings import Settings

    job = locking.plan(
        [EMBEDDED_DEFAULT],
        hub=lab.site.hub_url,
        registry=f"http://{lab.site.registry}",
        lock_file=lab.lock_file,
        overrides=Settings(drafter_revision=WORSE_DRAFTER),
    )
    for failure in locking.run(job, write=True).failures:
        say(f"not locked: {failure.error.what}")

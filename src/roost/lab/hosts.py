"""One lab host: a Debian that systemd-nspawn boots, with its own network, sshd and dockerd.

Everything of a host lies in ``<state>/hosts/<name>``: the overlay's upper layer and work
folder, Docker's data (a plain folder: overlay2 cannot sit on an overlay), the file its network
namespace is bound to, the pid file of its nspawn and the console's log. Each step leaves the
next one possible after a kill at any moment: a host is ready, or is finished or undone later.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from roost import servers
from roost.errors import RoostError
from roost.lab import cgroups, mounts, network, processes, profiles

#: The name of a lab that nobody gave one.
USUAL_NAME = "lab"


def up_command(name: str) -> str:
    """What brings a lab up, ready to paste."""
    return shlex.join(["roost", "lab", "up", *(["--name", name] if name != USUAL_NAME else [])])


_STANDINS = Path(__file__).parent / "standins"

#: The user of hosts with ``sudo_user``: logs in with the lab's key, and sudo asks for this.
SUDO_USER = "ops"
SUDO_PASSWORD = "roost-lab-ops"  # noqa: S105  # on purpose no secret: it opens lab hosts only

# Generous: what is slow is mostly a machine that several labs boot on.
_BOOT_SECONDS = 300.0
_HALT_SECONDS = 20.0
_KILL_SECONDS = 120.0
# How long nspawn may tidy up once its container has ended.
_TIDY_SECONDS = 3.0

# The timers would hold apt's lock at unlucky moments; nobody sits at a console.
_MASKED_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "console-getty.service",
)

_DOCKER_DROP_IN = """\
# nspawn mounts the version 1 hierarchies read-only; dockerd makes a group for each container.
[Service]
ExecStartPre=/bin/sh -c \
'for c in /sys/fs/cgroup/*; do mount -o remount,bind,rw "$c" 2>/dev/null || true; done'
"""

_MEMINFO_UNIT = """\
[Unit]
Description=Stand-in: the memory of the machine that this lab host plays
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/mount --bind /etc/roost-lab/meminfo /proc/meminfo

[Install]
WantedBy=sysinit.target
"""

State = Literal["running", "cut", "dead"]


class HostSpec(BaseModel):
    """What a host is to be.

    Attributes:
        name: Its hostname and inventory name.
        profile: The machine it plays; see :mod:`roost.lab.profiles`.
        address: Its address; the next free one of the lab's subnet from ``.11`` if left out.
        docker: False for a host without Docker (apt reaches the lab's own repository).
        gpu_runtime: False where Docker does not know GPUs, as without NVIDIA's toolkit.
        driver: An NVIDIA driver version other than the profile's.
        gpu_fault: What is wrong with its GPUs or their driver.
        disk_mb: Size in MiB of a small file system on ``/var/lib/roost``.
        gateway: It is to stand before the other hosts: in the inventory's group ``gateways``.
        sudo_user: Adds the user ``ops``, for whom sudo asks for a password.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,29}[a-z0-9])?$")]
    profile: str = "cpu"
    address: ipaddress.IPv4Address | None = None
    docker: bool = True
    gpu_runtime: bool = True
    driver: Annotated[str, Field(pattern=r"^\d+(\.\d+){1,2}$")] | None = None
    gpu_fault: profiles.GpuFault | None = None
    disk_mb: Annotated[int, Field(ge=1)] | None = None
    gateway: bool = False
    sudo_user: bool = False


@dataclass(frozen=True)
class Site:
    """What a host has to know of the lab it stands in."""

    lab: str
    state: Path
    gateway: ipaddress.IPv4Interface
    registry_port: int
    hub_port: int

    @property
    def hub_url(self) -> str:
        """The hub's endpoint, for ``HF_ENDPOINT``."""
        return f"http://{self.gateway.ip}:{self.hub_port}"

    @property
    def registry(self) -> str:
        """``address:port`` of the registry, as it begins an image reference."""
        return f"{self.gateway.ip}:{self.registry_port}"


class Host:
    """A host of a lab, running or not."""

    def __init__(self, site: Site, spec: HostSpec) -> None:
        if spec.address is None:
            raise ValueError(f"host {spec.name} has no address yet")
        self.site = site
        self.spec = spec
        self.name = spec.name
        self.address: ipaddress.IPv4Address = spec.address
        self.folder = site.state / "hosts" / spec.name
        self._root = self.folder / "root"
        self._namespace = self.folder / "netns"
        self._pid_file = self.folder / "nspawn.pid"
        self._log = self.folder / "console.log"
        self._layers = self.folder / "layers.json"

    def __repr__(self) -> str:
        return f"Host({self.name!r}, {self.address}, {self.spec.profile!r})"

    # -- what it is now

    def _init(self) -> processes.Process | None:
        """The host's own PID 1, as this machine numbers it."""
        for process in processes.in_network_namespace(self._namespace):
            if processes.is_init_of_container(process):
                return process
        return None

    def state(self) -> State:
        """``running``, ``cut`` (its cable is pulled) or ``dead``."""
        if self._init() is None:
            return "dead"
        return "running" if network.link_is_up(self.site.lab, self.address) else "cut"

    # -- acts

    def start(self, layers: Sequence[Path] | None = None) -> None:
        """Boot the host, unless it runs already; :meth:`wait` returns when it is ready.

        Args:
            layers: Read-only root layers, uppermost first; needed when it is new.

        Raises:
            RoostError: It is new and there are no layers, or a step failed.
        """
        if self._init() is not None:
            return
        self._bury()
        layers = self._known_layers() or layers
        if not layers:
            raise RoostError(
                f"host {self.name} of lab {self.site.lab} is gone", fix=up_command(self.site.lab)
            )
        self._mount_root(layers)
        if not (self.folder / "prepared").exists():
            self._prepare()
        self._connect()
        self._boot()

    def wait(self, seconds: float = _BOOT_SECONDS) -> None:
        """Wait until all its services run and sshd answers.

        Raises:
            RoostError: It died or did not get there in time; with what it said last.
        """
        deadline = time.monotonic() + seconds
        verdict = ""
        while time.monotonic() < deadline:
            if self._init() is None and processes.recorded(self._pid_file) is None:
                raise RoostError(f"host {self.name} died while it booted", why=self._last_words())
            if self._init() is not None:
                verdict = self.exec(["systemctl", "is-system-running"]).stdout.strip()
                if verdict == "running" and self._sshd_answers():
                    return
                if verdict == "degraded":
                    failed = self.exec(["systemctl", "--failed", "--plain", "--no-legend"])
                    raise RoostError(
                        f"host {self.name} booted, but not all of its services",
                        why=failed.stdout.strip(),
                    )
            time.sleep(0.1)
        raise RoostError(
            f"host {self.name} is not ready after {seconds:.0f} s",
            why=f"systemd says {verdict or 'nothing'}; {self._last_words()}",
        )

    def stop(self) -> None:
        """Shut it down in order; its disk stays. Does nothing if it is not running."""
        init = self._init()
        if init:
            # systemd(1): halt, as if somebody had asked for it on the console.
            init.end(first=signal.SIGRTMIN + 3, grace=_HALT_SECONDS)
        self._bury()

    def cut(self) -> None:
        """Pull its cable: the host runs on, unreachable."""
        network.set_link(self.site.lab, self.address, up=False)

    def join(self) -> None:
        """Plug its cable in again."""
        network.set_link(self.site.lab, self.address, up=True)

    def exec(
        self, argv: Sequence[str], *, text_in: str | None = None, timeout: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root in the host, not by its network; its exit status is not checked.

        Raises:
            RoostError: The host does not run.
            subprocess.TimeoutExpired: The command took longer than ``timeout`` seconds.
        """
        init = self._init()
        if init is None:
            raise RoostError(f"host {self.name} is not running", fix=up_command(self.site.lab))
        clean = ["env", "-i", "HOME=/root", "LANG=C.UTF-8"]
        clean += ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        # --root: where this process is in a chroot itself, nspawn cannot make the host's root the
        # root of its mount namespace.
        return subprocess.run(
            ["nsenter", f"--target={init.pid}", "--all", "--root", "--wd", *clean, *argv],
            input=text_in,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def remove(self) -> None:
        """End it at once and leave nothing of it."""
        self._bury()
        mounts.unmount_below(self.folder)
        mounts.remove_tree(self.folder)

    # -- steps

    def _bury(self) -> None:
        """Remove what an ended or half-started host leaves behind, except its disk."""
        power_off(self.site.lab, self.site.state, self.name)
        network.delete_link(network.link_name(self.site.lab, self.address))
        mounts.unmount(self._namespace)
        self._namespace.unlink(missing_ok=True)
        self._pid_file.unlink(missing_ok=True)

    def _known_layers(self) -> list[Path]:
        """The layers it was made from; none if it is new or they are no longer in the cache."""
        try:
            layers = [Path(layer) for layer in json.loads(self._layers.read_text())]
        except FileNotFoundError:
            return []
        if all(layer.is_dir() for layer in layers):
            return layers
        self.remove()
        return []

    def _mount_root(self, layers: Sequence[Path]) -> None:
        upper, work, docker = (self.folder / part for part in ("upper", "work", "docker"))
        if not (self.folder / "prepared").exists():
            # Half-made by a run that was killed: start over.
            mounts.unmount_below(self.folder)
            mounts.remove_tree(self.folder)
        for folder in (upper, work, docker, self._root):
            folder.mkdir(parents=True, exist_ok=True)
        if not mounts.is_mounted(self._root):
            lower = ":".join(map(str, layers))
            options = f"lowerdir={lower},upperdir={upper},workdir={work}"
            network.run(["mount", "-t", "overlay", "roost-lab", "-o", options, str(self._root)])
        self._layers.write_text(json.dumps([str(layer) for layer in layers]))

    def _connect(self) -> None:
        network.make_namespace(self._namespace)
        prefix = self.site.gateway.network.prefixlen
        network.connect(
            self.site.lab,
            self._namespace,
            ipaddress.IPv4Interface(f"{self.address}/{prefix}"),
            self.site.gateway.ip,
        )

    def _boot(self) -> None:
        argv = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--console=passive"]
        argv += [f"--directory={self._root}", f"--machine={machine_name(self.site.lab, self.name)}"]
        argv += [f"--hostname={self.name}", f"--network-namespace-path={self._namespace}"]
        # A copy of this machine's resolver would cost every refused look-up a timeout.
        argv += ["--resolv-conf=off"]
        argv += [f"--bind={self.folder / 'docker'}:/var/lib/docker"]
        # What dockerd and the containers' runtime need, and nspawn withholds from a container.
        argv += ["--capability=all", "--system-call-filter=add_key keyctl bpf @keyring"]
        if self.spec.disk_mb:
            argv += [f"--tmpfs=/var/lib/roost:size={self.spec.disk_mb}M,mode=0755"]
        if not cgroups.managed_by_systemd():
            argv += ["--keep-unit"]
            argv = cgroups.joining(cgroups.make(self.site.lab, self.name), argv)
        processes.spawn(
            argv,
            pid_file=self._pid_file,
            log=self._log,
            marker=str(self.folder),
            env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1"},
        )

    def _sshd_answers(self) -> bool:
        try:
            with socket.create_connection((str(self.address), 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _last_words(self) -> str:
        return servers.tail(self._log)

    # -- the disk of a new host

    def _prepare(self) -> None:
        """Write what makes this host itself onto its fresh disk."""
        etc = self._root / "etc"
        self._write("etc/hostname", f"{self.name}\n")
        self._write("etc/machine-id", f"{uuid.uuid4().hex}\n")
        self._write(
            "etc/hosts",
            f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n{self.site.gateway.ip} lab\n",
        )
        # A dangling link in some images; and there is no name server to name.
        (etc / "resolv.conf").unlink(missing_ok=True)
        self._write("etc/resolv.conf", "# the lab has no name server\n")
        self._prepare_ssh()
        self._prepare_packages()
        self._write(
            "etc/docker/daemon.json",
            json.dumps({"insecure-registries": [self.site.registry]}, indent=2) + "\n",
        )
        self._write("etc/systemd/system/docker.service.d/roost-lab.conf", _DOCKER_DROP_IN)
        for unit in _MASKED_UNITS:
            link = etc / "systemd/system" / unit
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")
        if self.spec.sudo_user:
            self._prepare_sudo_user()
        self._prepare_standins()
        (self.folder / "prepared").touch()

    def _write(self, path: str, text: str, mode: int = 0o644) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    def _prepare_ssh(self) -> None:
        ssh = self._root / "etc/ssh"
        for stale in ssh.glob("ssh_host_*"):
            # Made when the image was built, so every host would have the same.
            stale.unlink()
        key = host_key(self.site.state, self.name)
        self._write("etc/ssh/ssh_host_ed25519_key", key.read_text(), 0o600)
        public = key.with_suffix(".pub").read_text()
        self._write("etc/ssh/ssh_host_ed25519_key.pub", public)
        self._write(
            "etc/ssh/sshd_config.d/roost-lab.conf",
            "HostKey /etc/ssh/ssh_host_ed25519_key\nPasswordAuthentication no\n",
        )
        self._authorise("root")

    def _authorise(self, home: str) -> None:
        public = (user_key(self.site.state).with_suffix(".pub")).read_text()
        self._write(f"{home}/.ssh/authorized_keys", public, 0o600)
        (self._root / home / ".ssh").chmod(0o700)

    def _prepare_packages(self) -> None:
        """Point apt and pip at the lab: nothing outside can be reached from a host."""
        apt = self._root / "etc/apt"
        for source in (apt / "sources.list.d").glob("*"):
            source.unlink()
        self._write("etc/apt/sources.list", f"deb [trusted=yes] {self.site.hub_url}/apt/ ./\n")
        self._write(
            "etc/pip.conf",
            "[global]\nno-index = true\n"
            f"find-links = {self.site.hub_url}/wheels/\ntrusted-host = {self.site.gateway.ip}\n",
        )

    def _prepare_sudo_user(self) -> None:
        if not (self._root / "usr/bin/sudo").exists():
            raise RoostError(f"host {self.name} cannot have a sudo user: its image has no sudo")
        home = f"home/{SUDO_USER}"
        chroot = ["chroot", str(self._root)]
        network.run([*chroot, "useradd", "--create-home", "--shell=/bin/bash", SUDO_USER])
        network.run([*chroot, "chpasswd"], text_in=f"{SUDO_USER}:{SUDO_PASSWORD}\n")
        self._authorise(home)
        network.run([*chroot, "chown", "-R", f"{SUDO_USER}:", f"/{home}/.ssh"])
        # Asked every time: a right password must not cover for a wrong one a minute later.
        rules = f"Defaults:{SUDO_USER} timestamp_timeout=0\n{SUDO_USER} ALL=(ALL:ALL) ALL\n"
        self._write(f"etc/sudoers.d/{SUDO_USER}", rules, 0o440)

    def _prepare_standins(self) -> None:
        """Install what pretends to be the profile's machine; nothing else in a lab is pretended."""
        profile = profiles.load(self.spec.profile)
        if not profile.gpus:
            return
        report = profile.gpu_report(
            f"{self.name}.{self.site.lab}", self.spec.driver, self.spec.gpu_fault
        )
        self._write("etc/roost-lab/gpus.json", report)
        self._install("nvidia-smi-standin", "usr/bin/nvidia-smi")
        if self.spec.gpu_runtime:
            self._install(
                "nvidia-container-runtime-hook-standin", "usr/bin/nvidia-container-runtime-hook"
            )
        if profile.meminfo_kb:
            self._write("etc/roost-lab/meminfo", profile.meminfo())
            unit = "roost-meminfo-standin.service"
            self._write(f"etc/systemd/system/{unit}", _MEMINFO_UNIT)
            wants = self._root / "etc/systemd/system/sysinit.target.wants"
            wants.mkdir(exist_ok=True)
            (wants / unit).symlink_to(f"/etc/systemd/system/{unit}")
        if profile.architecture and profile.architecture != os.uname().machine:
            self._write("etc/roost-lab/architecture", f"{profile.architecture}\n")
            self._install("uname-standin", "usr/local/bin/uname")
            packages = "usr/lib/python3/dist-packages"
            self._install("architecture_standin.py", f"{packages}/architecture_standin.py")
            self._write(f"{packages}/architecture_standin.pth", "import architecture_standin\n")

    def _install(self, standin: str, path: str) -> None:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_STANDINS / standin, target)
        target.chmod(0o755)


def machine_name(lab: str, host: str) -> str:
    """What nspawn calls a host's container; dots, which no name has in it, keep it unique."""
    return f"roost-lab.{lab}.{host}"


def power_off(lab: str, state: Path, host: str) -> None:
    """End everything that runs of a host, and undo what its nspawn would have; at once.

    Needs no record. nspawn tidies up when its container ends, so the container is ended first; an
    nspawn that was killed or has only half started is ended too, and its traces are removed here.

    Raises:
        RoostError: Something does not end.
    """
    folder = state / "hosts" / host
    deadline = time.monotonic() + _KILL_SECONDS
    tidy_until = time.monotonic() + _TIDY_SECONDS
    while running := _running(lab, folder, host):
        inits = [one for one in running if processes.is_init_of_container(one)]
        supervisors = processes.marked(str(folder))
        if inits:
            # The end of a host's PID 1 is the end of all its processes.
            victims = inits
        elif supervisors and time.monotonic() < tidy_until:
            victims = []
        else:
            victims = running
        for victim in victims:
            victim.end(first=signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RoostError(
                f"host {host} of lab {lab} cannot be ended",
                why=f"process {running[0].pid} does not die",
            )
        time.sleep(0.01)
    cgroups.remove(lab, host)
    propagation = Path("/run/systemd/nspawn/propagate") / machine_name(lab, host)
    if propagation.exists():
        shutil.rmtree(propagation)
    root = folder / "root"
    if root.is_dir():
        lock = f"inode-{root.stat().st_dev}:{root.stat().st_ino}"
        (Path("/run/systemd/nspawn/locks") / lock).unlink(missing_ok=True)


def _running(lab: str, folder: Path, host: str) -> list[processes.Process]:
    """All processes of a host: its nspawn, what is in its network, what is in its groups."""
    grouped = (processes.identify(pid) for pid in cgroups.members(lab, host))
    found = {one for one in grouped if one is not None}
    found |= set(processes.in_network_namespace(folder / "netns"))
    found |= set(processes.marked(str(folder)))
    return sorted(found, key=lambda one: one.pid)


def known_to_kernel(lab: str) -> set[str]:
    """Names of hosts of a lab that left something outside of its state directory."""
    prefix = machine_name(lab, "")
    left = Path("/run/systemd/nspawn/propagate").glob(f"{prefix}*")
    return cgroups.hosts(lab) | {path.name.removeprefix(prefix) for path in left}


def user_key(state: Path) -> Path:
    """The private key that opens every host of a lab."""
    return state / "ssh" / "id_ed25519"


def host_key(state: Path, host: str) -> Path:
    """The private host key of one host, made before it boots."""
    return state / "ssh" / "hosts" / host


def make_key(path: Path, comment: str) -> None:
    """An ed25519 key pair, if it is not there; a half-written one is made anew."""
    public = path.with_suffix(".pub")
    if path.exists() and public.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.new")
    for stale in (draft, draft.with_name(f"{draft.name}.pub")):
        stale.unlink(missing_ok=True)
    network.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(draft)])
    draft.with_name(f"{draft.name}.pub").rename(public)
    draft.rename(path)

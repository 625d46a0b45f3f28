"""Facts of a host: what the probe printed, parsed once and typed.

The probe (``probe.sh``) only reads and runs without root; whatever it could not see is ``None``
here, never a zero. Row formats follow public reports of GB10 and RTX 5070 Ti machines.
"""

from __future__ import annotations

import csv
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from roost import condition, smi
from roost.condition import Condition, Facts
from roost.errors import RoostError
from roost.onhost import NAME, lease

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_LISTEN = "0A"

GpuTrouble = Literal["missing", "driver_not_loaded", "reboot_required", "no_devices", "unreadable"]


class GpuFacts(Facts):
    """One row of nvidia-smi."""

    index: int
    name: str
    memory_total_mib: int | None
    memory_free_mib: int | None
    driver: str | None
    compute_capability: str | None

    @property
    def driver_major(self) -> int | None:
        """Leading number of the driver version (580 of 580.173.02)."""
        match = re.match(r"\d+", self.driver or "")
        return int(match[0]) if match else None


class DockerFacts(Facts):
    """What dockerd says of itself."""

    version: str
    storage_driver: str
    runtimes: list[str]
    root: str | None = None
    #: Registries that it speaks to without TLS, beside those of its own machine.
    plain_registries: list[str] = []

    @property
    def major(self) -> int:
        """Leading number of the version; 0 where it has none."""
        match = re.match(r"\d+", self.version)
        return int(match[0]) if match else 0


class HostFacts(Facts):
    """Everything the probe saw."""

    machine: str
    architecture: str
    kernel: str
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    gpus: list[GpuFacts]
    gpu_trouble: GpuTrouble | None
    gpu_message: str
    gpu_runtime: bool
    docker: DockerFacts | None
    docker_installed: bool
    docker_message: str
    # Facts that were written down by an older roost do not say it.
    docker_at_boot: bool = False
    container_modules: bool = False
    watchdog_at_boot: bool = False
    #: SHA-256 of roost's unit files by name, of those with owner and mode as a deploy writes them.
    units: dict[str, str] = {}
    #: SHA-256 of the files of the watchdog's program by path.
    program: dict[str, str] = {}
    #: The lease of the rollout that the host takes part in, see :mod:`roost.onhost.lease`.
    rollout: dict[str, Any] | None = None
    #: What Docker's API answers about the image that was asked for: ``{status, json}``, as
    #: Ansible's ``uri`` would register it; status -1 where nobody asked, or nobody answered.
    image: dict[str, Any] = {"status": -1}
    containers: dict[str, list[int]]
    models_free_bytes: int | None
    models_filesystem: str | None
    docker_free_bytes: int | None
    docker_filesystem: str | None
    listening: list[int]
    python: str | None
    # Facts that were written down by an older roost have none.
    condition: Condition = Condition()

    @property
    def releases(self) -> dict[str, list[int]]:
        """Containers of roost, in place or on trial, with the ports they publish."""
        return {
            name: ports
            for name, ports in self.containers.items()
            if name == NAME or name.startswith(f"{NAME}-")
        }

    def holds_containers(self, plain_registry: str | None) -> bool:
        """Whether containers can be run here with nothing left to install or configure.

        Args:
            plain_registry: The site's registry without TLS, as ``host:port``, if it has one.
        """
        return (
            self.docker is not None
            and self.docker_at_boot
            and self.container_modules
            and (plain_registry is None or plain_registry in self.docker.plain_registries)
        )

    @property
    def unified_memory(self) -> bool:
        """A GPU that reports no memory of its own shares the host's."""
        return bool(self.gpus) and all(gpu.memory_total_mib is None for gpu in self.gpus)


def probe_script() -> str:
    """The shell text to run as ``sh -s -- MODEL_DIR [IMAGE]``."""
    return resources.files("roost").joinpath("probe.sh").read_text(encoding="utf-8")


def parse(text: str) -> HostFacts:
    """Turn the probe's output into facts.

    Raises:
        RoostError: The text is not the probe's output (cut off, or something else altogether).
    """
    sections = _sections(text)
    if "python" not in sections or "machine" not in sections:
        raise RoostError(
            "the host probe did not finish",
            why="its output is cut off: " + (text.strip()[-200:] or "(empty)"),
        )
    machine = sections["machine"][1].strip()
    gpus, trouble, message = _gpus(*sections["gpu"])
    docker, docker_message = _docker(*sections["docker"])
    meminfo = _meminfo(sections["meminfo"][1])
    models = condition.space(sections["disk_models"][1])
    docker_data = condition.space(sections["disk_docker"][1])
    return HostFacts(
        machine=machine,
        architecture=_ARCHITECTURES.get(machine, machine),
        kernel=sections["kernel"][1].strip(),
        memory_total_bytes=meminfo.get("MemTotal"),
        memory_available_bytes=meminfo.get("MemAvailable"),
        gpus=gpus,
        gpu_trouble=trouble,
        gpu_message=message,
        gpu_runtime=sections["runtime_hook"][0] == 0
        or bool(docker and "nvidia" in docker.runtimes),
        docker=docker,
        docker_installed=sections["docker"][0] != 127,
        docker_message=docker_message,
        docker_at_boot=sections.get("docker_unit", (1, ""))[1].strip() == "enabled",
        container_modules=sections.get("container_modules", (1, ""))[0] == 0,
        watchdog_at_boot=sections.get("watchdog_at_boot", (1, ""))[1].strip() == "enabled",
        units={
            Path(path).name: digest
            for path, digest in _digests(sections.get("units", (1, ""))[1]).items()
        },
        program=_digests(sections.get("program", (1, ""))[1]),
        rollout=_lease(*sections.get("rollout", (1, ""))),
        image=_image(*sections.get("image", (1, ""))),
        containers=_containers(*sections["containers"]),
        models_free_bytes=models.free_bytes if models else None,
        models_filesystem=models.mount if models else None,
        docker_free_bytes=docker_data.free_bytes if docker_data else None,
        docker_filesystem=docker_data.mount if docker_data else None,
        listening=sorted(_listening(sections["tcp"][1]) | _listening(sections["tcp6"][1])),
        python=sections["python"][1].strip() or None,
        condition=condition.read(sections, meminfo),
    )


def _sections(text: str) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    parts = re.split(r"^==> (\w+) (\d+)\r?\n", text, flags=re.MULTILINE)
    for name, code, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        found[name] = (int(code), body.replace("\r\n", "\n").rstrip("\n"))
    return found


def _gpus(code: int, output: str) -> tuple[list[GpuFacts], GpuTrouble | None, str]:
    # nvidia-smi prints its errors on standard output, so the exit status is looked at first.
    flat = " ".join(output.split()).replace("\u2019", "'")
    if code == 127:
        return [], "missing", "nvidia-smi is not installed"
    if "Driver/library version mismatch" in flat:
        return [], "reboot_required", flat
    if "couldn't communicate with the NVIDIA driver" in flat:
        return [], "driver_not_loaded", flat
    if "No devices were found" in flat:
        return [], "no_devices", flat
    if code != 0:
        return [], "unreadable", flat
    gpus = []
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if len(row) != 7 or not row[0].strip().isdigit():
            return [], "unreadable", flat
        gpus.append(
            GpuFacts(
                index=int(row[0]),
                name=row[2].strip(),
                memory_total_mib=smi.number(row[3]),
                memory_free_mib=smi.number(row[4]),
                driver=smi.word(row[5]),
                compute_capability=smi.word(row[6]),
            )
        )
    return (gpus, None, "") if gpus else ([], "no_devices", "nvidia-smi lists no GPU")


def _docker(code: int, output: str) -> tuple[DockerFacts | None, str]:
    if code == 127:
        return None, "docker is not installed"
    if code != 0:
        return None, _without_document(output)
    try:
        info = json.loads(output.splitlines()[-1])
        configs = (info.get("RegistryConfig") or {}).get("IndexConfigs") or {}
        return (
            DockerFacts(
                version=str(info["ServerVersion"]),
                storage_driver=str(info["Driver"]),
                runtimes=sorted(info.get("Runtimes") or {}),
                root=info.get("DockerRootDir") or None,
                plain_registries=sorted(
                    name for name, registry in configs.items() if not registry["Secure"]
                ),
            ),
            "",
        )
    except (ValueError, KeyError, IndexError, TypeError):
        # With no daemon behind it `docker info` still exits 0 in some versions and prints
        # a document without server fields.
        return None, _without_document(output)


def _without_document(output: str) -> str:
    """What docker says of a failure, without the empty document it may print before that."""
    lines = [line for line in output.splitlines() if not line.startswith("{")]
    return " ".join((" ".join(lines) or output[-300:]).split())


def _containers(code: int, output: str) -> dict[str, list[int]]:
    if code != 0:
        return {}
    containers = {}
    for line in output.splitlines():
        name, _, ports = line.partition("\t")
        containers[name] = sorted({int(port) for port in re.findall(r":(\d+)->", ports)})
    return containers


def _digests(output: str) -> dict[str, str]:
    lines = (line.split() for line in output.splitlines())
    return {words[1]: words[0] for words in lines if len(words) == 2}


def _image(code: int, output: str) -> dict[str, Any]:
    if code != 0:
        # Its command says only in words that there is none: "No such image: …", in newer ones
        # "no such object: …".
        absent = re.search(r"no such (image|object)", output, flags=re.IGNORECASE)
        return {"status": 404 if absent else -1}
    try:
        found = json.loads(output.splitlines()[-1])
        labels = (found.get("Config") or {}).get("Labels") or {}
        return {"status": 200, "json": {"Id": str(found["Id"]), "Config": {"Labels": labels}}}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return {"status": -1}


def _lease(code: int, output: str) -> dict[str, Any] | None:
    """A lease that still counts."""
    age, _, text = output.partition("\n")
    try:
        found = json.loads(text) if code == 0 and abs(int(age)) < lease.ABANDONED else None
    except ValueError:  # damaged, which is no lease for those on the host either
        return None
    return found if isinstance(found, dict) and found else None


def _meminfo(output: str) -> dict[str, int]:
    return {
        match[1]: int(match[2]) * 1024
        for match in re.finditer(r"^(\w+):\s+(\d+) kB$", output, flags=re.MULTILINE)
    }


def _listening(table: str) -> set[int]:
    ports = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTEN:
            ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports

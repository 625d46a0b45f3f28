"""What a probed host is: its hardware profile, a readable account, an inventory to start from.

Pure functions of host facts and the catalogue; who asks the hosts is ``roost.probe_cli``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from roost.catalog import Catalog
from roost.catalog_schema import Gpu, Hardware, Recipe
from roost.errors import RoostError, UsageError
from roost.hosts import GpuFacts, HostFacts
from roost.inventory import Connection, Host
from roost.preflight import MEMORY_TOLERANCE, explain
from roost.units import MIB, size

_LABEL = r"[A-Za-z0-9_\-]{1,63}"
_DESTINATION = re.compile(
    r"(ssh://)?((?P<user>[^@:/\s]+)@)?"
    rf"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)"
    rf"|(?P<name>{_LABEL}(\.{_LABEL})*\.?))"
    r"(:(?P<port>\d{1,5}))?/?"
)


@dataclass(frozen=True)
class Recognition:
    """Which hardware profile a host is.

    ``hardware`` is none where no profile fits; then ``nearest`` is the one with the fewest
    ``differences``, each a phrase "this, not that". Both are empty where the host's GPUs could not
    be read: nothing is known to compare.
    """

    hardware: Hardware | None
    nearest: Hardware | None = None
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probed:
    """One host after its probe: facts, or the error that kept it from having any.

    ``asked`` is the host as the command line or the inventory names it, ``user`` who logged in.
    """

    asked: str
    host: Host
    facts: HostFacts | None = None
    user: str | None = None
    error: RoostError | None = None


def destination(text: str) -> Connection:
    """The connection that an ssh destination means: ``[user@]host[:port]``.

    What it does not say is left to ``~/.ssh/config``, as ssh does.

    Raises:
        UsageError: It is not of that form.
    """
    match = _DESTINATION.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if not match or (port is not None and not 1 <= port <= 65535):
        raise UsageError(
            f"{text!r} is no ssh destination",
            fix="write host, user@host, user@host:port or a name of ~/.ssh/config; "
            "a host of an inventory needs -i INVENTORY",
        )
    address = match["six"] or match["bare"] or match["name"]
    return Connection(address=address, port=port, user=match["user"])


def destinations(texts: Sequence[str]) -> dict[str, Host]:
    """A host for each ssh destination, by the destination; inventory names are unique.

    Raises:
        UsageError: One of them is no ssh destination.
    """
    found: dict[str, Host] = {}
    taken: set[str] = set()
    for text in dict.fromkeys(texts):
        connection = destination(text)
        # A colon would be a port to Ansible, a dot at the end is DNS's own.
        stem = connection.address.replace(":", "-").strip("-.") or "host"
        name, count = stem, 1
        while name in taken:
            count += 1
            name = f"{stem}-{count}"
        taken.add(name)
        found[text] = Host(name=name, variables={}, connection=connection)
    return found


def recognise(facts: HostFacts, catalog: Catalog) -> Recognition:
    """Find the profile whose preflight this host would pass as that hardware.

    A host without nvidia-smi has no GPU as far as can be seen; one whose nvidia-smi fails has a
    GPU that is not known yet.
    """
    if not facts.gpus:
        if facts.gpu_trouble not in (None, "missing"):
            return Recognition(None)
        return Recognition(
            next(
                (
                    item
                    for item in catalog.hardware.values()
                    if item.gpu is None and item.architecture in (None, facts.architecture)
                ),
                None,
            )
        )
    compared = [
        (tuple(_differences(facts, item, item.gpu)), _likeness(facts, item.gpu), item)
        for item in catalog.hardware.values()
        if item.gpu is not None
    ]
    if not compared:
        return Recognition(None)
    differences, _, nearest = min(compared, key=lambda each: (len(each[0]), -each[1]))
    if not differences:
        return Recognition(nearest)
    return Recognition(None, nearest, differences)


def verified_on(hardware: Hardware | None, catalog: Catalog) -> list[Recipe]:
    """Recipes that somebody saw run on this hardware."""
    if hardware is None:
        return []
    return [
        recipe
        for recipe in catalog.recipes.values()
        if recipe.support_on(hardware.id) == "verified"
    ]


def as_json(probed: Probed, catalog: Catalog) -> dict[str, object]:
    """One host of ``roost probe --json``; ``hardware`` and ``recipes`` are catalogue ids."""
    hardware = recognise(probed.facts, catalog).hardware if probed.facts else None
    return {
        "host": probed.asked,
        "facts": probed.facts.model_dump(mode="json") if probed.facts else None,
        "hardware": hardware.id if hardware else None,
        "recipes": [recipe.id for recipe in verified_on(hardware, catalog)],
        "error": str(probed.error) if probed.error else None,
    }


def describe(probed: Probed, catalog: Catalog) -> str:
    """The host as a person reads it: a line for its name, indented rows below."""
    if probed.facts is None:
        return f"{probed.asked}\n  not probed: " + str(probed.error).replace("\n", "\n  ")
    facts = probed.facts
    known = recognise(facts, catalog)
    rows: list[tuple[str, Sequence[str]]] = [
        ("hardware", [*_hardware(facts, known), *_contradiction(probed.host, known)]),
        ("machine", [facts.machine]),
        ("kernel", [facts.kernel]),
        ("memory", [_host_memory(facts)]),
        ("GPU", list(_gpus(facts))),
        ("Docker", [_docker(facts)]),
        ("GPU runtime", [_gpu_runtime(facts)]),
        ("disk", list(_disks(facts))),
        ("python", [facts.python or "none: Ansible cannot work there; install python3"]),
        ("recipes", list(_recipes(facts, known.hardware, catalog))),
    ]
    lines = [probed.asked]
    for title, texts in rows:
        for at, text in enumerate(texts):
            lines.append(f"  {'' if at else title:<12} {text}")
    return "\n".join(lines)


def inventory(probed: Sequence[Probed], catalog: Catalog, source: str | None = None) -> str:
    """An Ansible inventory (YAML) of the hosts that answered.

    Args:
        probed: All of them; those without facts are named in a comment.
        catalog: Where hardware and recipes come from.
        source: The inventory that the hosts are from, for what is not repeated here.
    """
    lines = ["---", "# From `roost probe`; for inventory/NAME/hosts.yml.", "all:", "  hosts:"]
    for item in probed:
        if item.facts is None:
            lines.append(f"    # {item.host.name} is left out: it was not probed.")
            continue
        lines.append(f"    {_scalar(item.host.name)}:")
        lines += [f"      {line}" for line in _reached(item, source)]
        lines += [f"      {line}" for line in _chosen(item.facts, catalog)]
    return "\n".join(lines) + "\n"


# --- recognition --------------------------------------------------------------------------------


def _differences(facts: HostFacts, hardware: Hardware, wanted: Gpu) -> Iterator[str]:
    if hardware.architecture not in (None, facts.architecture):
        yield f"architecture {facts.architecture}, not {hardware.architecture}"
    if len(facts.gpus) != wanted.count:
        yield f"{len(facts.gpus)} GPU, not {wanted.count}"
    for name in dict.fromkeys(gpu.name for gpu in facts.gpus):
        if name.casefold() != wanted.name.casefold():
            yield f"{name}, not {wanted.name}"
    for capability in dict.fromkeys(gpu.compute_capability for gpu in facts.gpus):
        if capability != wanted.compute_capability:
            yield f"compute capability {capability or 'unknown'}, not {wanted.compute_capability}"
    yield from _memory_differences(facts, wanted)


def _memory_differences(facts: HostFacts, wanted: Gpu) -> Iterator[str]:
    """Less memory than the profile's; more is no difference, as in the preflight."""
    least = wanted.memory_mib * MEMORY_TOLERANCE
    if wanted.memory == "unified":
        total = facts.memory_total_bytes
        if not facts.unified_memory:
            yield "GPU memory of its own, not unified"
        elif total is not None and total < least * MIB:
            yield f"MemTotal {size(total)}, not {size(wanted.memory_mib * MIB)}"
        return
    for memory in dict.fromkeys(gpu.memory_total_mib for gpu in facts.gpus):
        if memory is None:
            yield "no GPU memory of its own, not discrete"
        elif memory < least:
            yield f"{memory} MiB a GPU, not {wanted.memory_mib}"


def _likeness(facts: HostFacts, wanted: Gpu) -> float:
    return max(difflib.SequenceMatcher(None, gpu.name, wanted.name).ratio() for gpu in facts.gpus)


# --- the account of one host --------------------------------------------------------------------


def _hardware(facts: HostFacts, known: Recognition) -> Iterator[str]:
    if known.hardware:
        yield f"{known.hardware.id} ({known.hardware.title})"
    elif known.nearest:
        yield f"not in the catalogue; nearest is {known.nearest.id} ({known.nearest.title}),"
        yield "which differs: " + "; ".join(known.differences)
    elif facts.gpus or facts.gpu_trouble in (None, "missing"):
        yield "not in the catalogue, and nothing like it"
    else:
        yield "cannot be told until nvidia-smi works"


def _contradiction(host: Host, known: Recognition) -> Iterator[str]:
    said = host.variables.get("roost_hardware")
    if said and said != (known.hardware.id if known.hardware else None):
        yield f"but the inventory says {said}"


def _host_memory(facts: HostFacts) -> str:
    if facts.memory_total_bytes is None:
        return "not reported"
    available = facts.memory_available_bytes
    free = "available: not reported" if available is None else f"{size(available)} available"
    return f"{size(facts.memory_total_bytes)} (MemTotal), {free}"


def _gpus(facts: HostFacts) -> Iterator[str]:
    if facts.gpu_trouble == "missing":
        yield "none to be seen: nvidia-smi is not installed"
        yield "(if there is an NVIDIA GPU: install its driver, then probe again)"
    elif facts.gpu_trouble is not None:
        saw, why, fix = explain(facts, facts.gpu_trouble)
        yield saw
        yield f"why: {why}"
        yield f"fix: {fix}"
    for gpu in facts.gpus:
        capability = gpu.compute_capability or "not reported"
        yield f"{gpu.index}: {gpu.name}, compute capability {capability}, driver " + (
            gpu.driver or "not reported"
        )
        yield f"   {_gpu_memory(gpu, facts)}"


def _gpu_memory(gpu: GpuFacts, facts: HostFacts) -> str:
    if facts.unified_memory:
        return f"memory is unified, shared with the CPU: {_host_memory(facts)}"
    if gpu.memory_total_mib is None:
        return "memory: not reported"
    free = "free: not reported" if gpu.memory_free_mib is None else f"{gpu.memory_free_mib} free"
    return f"memory {gpu.memory_total_mib} MiB, {free}"


def _docker(facts: HostFacts) -> str:
    if facts.docker:
        return f"{facts.docker.version}, storage driver {facts.docker.storage_driver}"
    if not facts.docker_installed:
        return "not installed; a deploy installs it"
    if "permission denied" in facts.docker_message:
        return "installed; this user may not ask it, a deploy does with sudo"
    return f"installed, but does not answer: {facts.docker_message or 'no reason given'}"


def _gpu_runtime(facts: HostFacts) -> str:
    if facts.gpu_runtime:
        return "NVIDIA's, for Docker"
    if not facts.gpus:
        return "none"
    if facts.docker is None and facts.docker_installed:
        return "none to be seen, but Docker could not be asked"
    return "none: install nvidia-container-toolkit, and configure Docker for it"


def _disks(facts: HostFacts) -> Iterator[str]:
    for what, free, filesystem in (
        ("models", facts.models_free_bytes, facts.models_filesystem),
        ("Docker", facts.docker_free_bytes, facts.docker_filesystem),
    ):
        yield f"{what}: " + (
            "not reported" if free is None else f"{size(free)} free on {filesystem}"
        )


def _recipes(facts: HostFacts, hardware: Hardware | None, catalog: Catalog) -> Iterator[str]:
    if hardware is None:
        yield "none verified: the hardware is not known"
        return
    recipes = verified_on(hardware, catalog)
    if not recipes:
        yield f"none verified on {hardware.id}"
    for recipe in recipes:
        yield f"{recipe.id}, verified ({recipe.hardware[hardware.id].source})"
        engine = catalog.engines[recipe.engine]
        drivers = {gpu.driver for gpu in facts.gpus if (gpu.driver_major or 0) < engine.min_driver}
        for driver in sorted(drivers, key=str):
            yield f"  but driver {driver or 'unknown'} is too old: {engine.min_driver} or newer"


# --- the inventory ------------------------------------------------------------------------------


def _reached(item: Probed, source: str | None) -> Iterator[str]:
    connection = item.host.connection
    if connection.local:
        yield "ansible_connection: local"
        return
    yield f"ansible_host: {_scalar(connection.address)}"
    if item.user:
        yield f"ansible_user: {_scalar(item.user)}"
    # Said is said, 22 too: ~/.ssh/config may know another one.
    if connection.port is not None:
        yield f"ansible_port: {connection.port}"
    if connection.key_file:
        yield f"ansible_ssh_private_key_file: {_scalar(str(connection.key_file))}"
    if source:
        yield f"# Whatever else is said of it stays in {source}."


def _chosen(facts: HostFacts, catalog: Catalog) -> Iterator[str]:
    known = recognise(facts, catalog)
    if known.hardware is None:
        yield "# " + " ".join(_hardware(facts, known))
        yield f"# roost_hardware: {known.nearest.id if known.nearest else 'see `roost recipes`'}"
        yield "# roost_recipe: see `roost recipes`"
        return
    yield f"roost_hardware: {known.hardware.id}"
    recipes = [recipe.id for recipe in verified_on(known.hardware, catalog)]
    if len(recipes) == 1:
        yield f"roost_recipe: {recipes[0]}"
        return
    yield "# Choose one:" if recipes else f"# None is verified on {known.hardware.id}:"
    for recipe in recipes or ["see `roost recipes`"]:
        yield f"# roost_recipe: {recipe}"


def _scalar(text: str) -> str:
    """A string as YAML, quoted where YAML would read it as anything else."""
    dumped: str = yaml.safe_dump(text, width=10_000)
    return dumped.removesuffix("...\n").strip()

"""A container for people: the engine's own command, Docker's, and plain data."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from roost.launch.container import LaunchSpec


def argv(spec: LaunchSpec) -> list[str]:
    """The engine's own command inside the container."""
    return [*spec.entrypoint, *spec.command]


def docker_argv(spec: LaunchSpec) -> list[str]:
    """The ``docker run`` that starts the same container by hand."""
    words = ["docker", "run", "-d", "--name", spec.name]
    if spec.gpus:
        words += ["--gpus", spec.gpus]
    if spec.ipc:
        words += ["--ipc", spec.ipc]
    if spec.shm_size:
        words += ["--shm-size", spec.shm_size]
    words += ["--pids-limit", str(spec.pids_limit)]
    for name, limit in spec.ulimits.items():
        words += ["--ulimit", f"{name}={limit}:{limit}"]
    words += spec.security.options
    for key, value in spec.log_options.items():
        words += ["--log-opt", f"{key}={value}"]
    for key, value in spec.labels.items():
        words += ["--label", f"{key}={value}"]
    for key, value in spec.env.items():
        words += ["-e", f"{key}={value}"]
    for mount in spec.mounts:
        words += ["-v", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"]
    for port in spec.ports:
        words += ["-p", port.published]
    if spec.entrypoint:
        words += ["--entrypoint", spec.entrypoint[0]]
    return [*words, spec.image, *spec.entrypoint[1:], *spec.command]


def docker_command(spec: LaunchSpec) -> str:
    """:func:`docker_argv` as shell text, one option a line."""
    return _fold(docker_argv(spec))


def _fold(words: Sequence[str]) -> str:
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines)


def as_json(spec: LaunchSpec) -> dict[str, Any]:
    """The spec as plain data; ``ports`` and ``mounts`` in Docker's own short forms."""
    data = spec.model_dump()
    data["mounts"] = [f"{m.source}:{m.target}{':ro' if m.read_only else ''}" for m in spec.mounts]
    data["ports"] = [port.published for port in spec.ports]
    return data

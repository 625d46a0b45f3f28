"""Does CUDA start inside the pinned image? Tried as soon as the host has it, while weights load.

nvidia-smi on the host answers though no container can use the GPU: an old driver, a stale CDI
specification or a libcuda of the image's own show only when CUDA starts there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roost.deployment import Deployment
from roost.errors import RoostError
from roost.units import GIB

#: Seconds for the container; the probe in it gives up earlier (``cuda_probe.PATIENCE``).
PATIENCE = 180
#: CUDA_ERROR_OUT_OF_MEMORY (CUDA driver API).
_OUT_OF_MEMORY = 2
#: Exit statuses of a command that could not be run, and of one that was killed: by timeout(1)
#: itself, by SIGKILL or by the probe's own SIGALRM.
_NOT_RUN = (126, 127)
_KILLED = (124, 137, 142, -9)
_PROBE = Path(__file__).with_name("cuda_probe.py")


def argv(deployment: Deployment) -> list[str]:
    """The command that tries it, with the GPUs, rights and environment of the launch alone."""
    spec = deployment.spec
    words = ["timeout", "--signal=KILL", str(PATIENCE), "docker", "run", "--rm", "--interactive"]
    words += ["--network", "none", "--gpus", str(spec.gpus), *spec.security.options]
    for key, value in spec.env.items():
        words += ["--env", f"{key}={value}"]
    return [*words, "--entrypoint", "python3", spec.image, "-"]


def program() -> str:
    """What the command reads from its standard input."""
    return _PROBE.read_text(encoding="utf-8")


def verdict(
    deployment: Deployment, rc: int, out: str, err: str, *, serving: bool
) -> tuple[str, RoostError | None]:
    """What the try showed.

    Args:
        deployment: Whose image it was.
        rc: Exit status of :func:`argv`.
        out: Its standard output.
        err: Its standard error.
        serving: Whether an engine ran meanwhile, which may have taken all of the GPU's memory.

    Returns:
        A line for people, and the reason where an engine would not start either.
    """
    gpu = deployment.requirements.gpu
    if rc in _NOT_RUN:
        return "the image has no python3 to try CUDA with; its start will tell", None
    if rc in _KILLED:
        return "", _failure(
            deployment,
            f"CUDA did not answer within {PATIENCE} s",
            "the driver hangs, which a reboot ends",
            "sudo dmesg | grep -i nvrm, then reboot the host",
        )
    found = _answer(out)
    if found is None:
        return "", _explained(deployment, err or out or f"exit status {rc}")
    if "devices" not in found:
        if found["code"] == _OUT_OF_MEMORY and serving:
            return "CUDA starts in the image; what serves has the GPU's memory", None
        code = f"{found['name']} ({found['code']}): " if found["code"] is not None else ""
        return "", _explained(deployment, f"{found['call']}: {code}{found['text']}")
    devices = found["devices"]
    if gpu is not None and len(devices) < gpu.count:
        return "", _failure(
            deployment,
            f"the container sees {len(devices)} of {gpu.count} GPUs",
            "the others are not given to containers, or fell off their bus",
            "nvidia-smi -L on the host; NVIDIA_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, if set",
        )
    cards = ", ".join(
        f"{one['name']} with {one['free'] / GIB:.1f} of {one['total'] / GIB:.1f} GiB free"
        for one in devices
    )
    major, minor = divmod(found["driver"], 1000)
    return f"CUDA starts in the image: {cards}; the driver goes up to {major}.{minor // 10}", None


def _answer(out: str) -> Mapping[str, Any] | None:
    """The probe's line; images may print a banner before it."""
    for line in reversed(out.strip().splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and {"devices", "call"} & set(found):
            return found
    return None


def _explained(deployment: Deployment, said: str) -> RoostError:
    # Imported here: it reads a few hundred fingerprints, which only a failure needs.
    from roost.diagnose import diagnose

    causes = [one for one in diagnose(said) if one.severity == "error" and one.id != "unknown"]
    what = " ".join(said.split())[-500:]
    if not causes:
        return _failure(
            deployment,
            what,
            "an engine would stop there too",
            f"try it by hand: docker run --rm --gpus all --entrypoint nvidia-smi "
            f"{deployment.spec.image}",
        )
    cause = causes[0]
    return _failure(deployment, f"{what}\n  cause: {cause.title}", cause.why, cause.fix)


def _failure(deployment: Deployment, what: str, why: str, fix: str | None) -> RoostError:
    return RoostError(
        f"{deployment.host}: CUDA does not start in {deployment.spec.image}: {what}",
        why=why,
        fix=f"{fix}\n  No more weights come, what arrived is kept; what served before serves on",
    )

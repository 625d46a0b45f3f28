"""CUDA in the pinned image: the command, the program and a libcuda that misbehaves, the verdict."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import deployment

from roost import cuda_context, cuda_probe
from roost.deployment import Deployment

#: A libcuda that says what it is told to: a stand-in in C, for the real one needs a driver.
LIBRARY = r"""
#include <stdlib.h>
#include <string.h>
static int code(const char *call) {
    const char *fails = getenv("STANDIN_CUDA_FAILS");
    return fails && !strcmp(fails, call) ? atoi(getenv("STANDIN_CUDA_CODE")) : 0;
}
int cuInit(unsigned flags) { return code("cuInit"); }
int cuDriverGetVersion(int *version) { *version = 13010; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return code("cuDeviceGetCount"); }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strcpy(name, device ? "Card B" : "Card A");
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)1;
    return code("cuDevicePrimaryCtxRetain");
}
int cuCtxSetCurrent(void *context) { return context == (void *)1 ? 0 : 201; }
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = 15UL << 30;
    *total = 16UL << 30;
    return code("cuMemGetInfo_v2");
}
int cuGetErrorName(int error, const char **name) {
    *name = error == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : "CUDA_ERROR_UNKNOWN";
    return error == 12345;
}
int cuGetErrorString(int error, const char **text) {
    *text = error == 803 ? "system has unsupported display driver / cuda driver combination"
                         : "unknown error";
    return error == 12345;
}
"""


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libcuda")
    source = folder / "libcuda_standin.c"
    source.write_text(LIBRARY)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", source], check=True
    )
    return folder


def probe(libcuda: Path, **environment: str) -> dict[str, Any]:
    """What the program prints, run as in the container: from standard input."""
    done = subprocess.run(
        [sys.executable, "-"],
        input=cuda_context.program(),
        env={"LD_LIBRARY_PATH": str(libcuda), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_context_is_made_on_every_gpu(libcuda: Path) -> None:
    assert probe(libcuda) == {
        "driver": 13010,
        "devices": [
            {"name": "Card A", "free": 15 << 30, "total": 16 << 30},
            {"name": "Card B", "free": 15 << 30, "total": 16 << 30},
        ],
    }


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain"])
def test_the_call_that_fails_is_named_in_libcudas_words(libcuda: Path, call: str) -> None:
    assert probe(libcuda, STANDIN_CUDA_FAILS=call, STANDIN_CUDA_CODE="803") == {
        "call": call,
        "code": 803,
        "name": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        "text": "system has unsupported display driver / cuda driver combination",
    }


def test_a_code_that_libcuda_does_not_know_is_told_as_it_is(libcuda: Path) -> None:
    found = probe(libcuda, STANDIN_CUDA_FAILS="cuInit", STANDIN_CUDA_CODE="12345")
    assert found == {"call": "cuInit", "code": 12345, "name": "", "text": ""}


def test_without_libcuda_the_loader_says_so(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        found = probe(tmp_path)
        assert found["call"] == "dlopen"
        assert found["text"].startswith("libcuda.so.1: cannot open shared object file")
    else:
        pytest.skip("this machine has a driver")


def test_a_driver_that_hangs_is_not_waited_for() -> None:
    # Docker's own command has to end later than the program in the container.
    assert cuda_probe.PATIENCE < cuda_context.PATIENCE


# The command


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return deployment(tmp_path_factory.mktemp("cuda"), "rtx5070ti-x2", allow_unlocked=True)


def test_it_has_the_gpus_and_rights_of_the_launch_and_nothing_else(wanted: Deployment) -> None:
    argv = cuda_context.argv(wanted)
    assert argv[:7] == ["timeout", "--signal=KILL", "180", "docker", "run", "--rm", "--interactive"]
    assert argv[argv.index("--gpus") + 1] == "all"
    assert argv[-4:] == ["--entrypoint", "python3", wanted.spec.image, "-"]
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "--env"] == [
        f"{key}={value}" for key, value in wanted.spec.env.items()
    ]
    assert wanted.spec.env["NCCL_P2P_DISABLE"] == "1"
    assert not {"-v", "--mount", "-p", "--privileged"} & set(argv)


# The verdict


def judged(wanted: Deployment, found: Any = None, **given: Any) -> tuple[str, str]:
    out = f"a banner of the image\n{json.dumps(found)}\n" if found else ""
    told = {"rc": 0, "out": out, "err": "", "serving": False, **given}
    line, failure = cuda_context.verdict(wanted, **told)
    return line, str(failure or "")


CARD = {"name": "NVIDIA GeForce RTX 5070 Ti", "free": 15 << 30, "total": 16 << 30}


def test_a_host_that_is_well(wanted: Deployment) -> None:
    line, failure = judged(wanted, {"driver": 13010, "devices": [CARD, CARD]})
    assert failure == ""
    card = "NVIDIA GeForce RTX 5070 Ti with 15.0 of 16.0 GiB free"
    assert line == f"CUDA starts in the image: {card}, {card}; the driver goes up to 13.1"


def failed(code: int | None, name: str, text: str, call: str = "cuInit") -> dict[str, Any]:
    return {"call": call, "code": code, "name": name, "text": text}


@pytest.mark.parametrize(
    ("found", "title"),
    [
        (
            failed(None, "", "libcuda.so.1: cannot open shared object file: No such file or "
                   "directory", "dlopen"),
            "the container has no libcuda",
        ),
        (
            failed(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
                   "system has unsupported display driver / cuda driver combination"),
            "libcuda and the kernel's driver are of different versions",
        ),
        (
            failed(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
                   "forward compatibility was attempted on non supported HW"),
            "the driver is older than CUDA in the image, and this card has no forward",
        ),
        (
            failed(802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
            "the GPUs wait for their fabric manager",
        ),
        (
            failed(999, "CUDA_ERROR_UNKNOWN", "unknown error"),
            "the driver does not start CUDA, and does not say why",
        ),
        (
            failed(100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
            "the driver finds no GPU",
        ),
        (
            failed(46, "CUDA_ERROR_DEVICE_UNAVAILABLE",
                   "CUDA-capable device(s) is/are busy or unavailable"),
            "all GPUs are in use by others",
        ),
        (
            failed(35, "", "CUDA driver version is insufficient for CUDA runtime version"),
            "the driver is older than CUDA in the image",
        ),
    ],
    ids=lambda value: str(value.get("code")) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_libcuda_says_is_explained(
    wanted: Deployment, found: dict[str, Any], title: str
) -> None:
    _, failure = judged(wanted, found)
    assert failure.startswith(
        f"host-01: CUDA does not start in {wanted.spec.image}: {found['call']}:"
    )
    assert f"\n  cause: {title}" in failure
    assert "No more weights come, what arrived is kept; what served before serves on" in failure


@pytest.mark.parametrize(
    ("error", "title"),
    [
        (
            'docker: Error response from daemon: could not select device driver "" with '
            "capabilities: [[gpu]].",
            "Docker knows no GPUs",
        ),
        (
            "docker: Error response from daemon: failed to inject CDI devices: unresolvable CDI "
            "devices nvidia.com/gpu=all.",
            "the CDI description lacks",
        ),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please "
            "update your driver to a newer version",
            "the driver is too old for this image (CUDA 13.0)",
        ),
    ],
)
def test_what_docker_says_is_explained(wanted: Deployment, error: str, title: str) -> None:
    _, failure = judged(wanted, rc=125, err=error)
    assert f"\n  cause: {title}" in failure


def test_what_nobody_knows_is_told_as_it_is(wanted: Deployment) -> None:
    _, failure = judged(wanted, failed(719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch"))
    assert "cuInit: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch" in failure
    assert "docker run --rm --gpus all --entrypoint nvidia-smi" in failure


def test_a_missing_card_is_counted(wanted: Deployment) -> None:
    _, failure = judged(wanted, {"driver": 13010, "devices": [CARD]})
    assert "the container sees 1 of 2 GPUs" in failure


@pytest.mark.parametrize("rc", [124, 137, 142])
def test_a_driver_that_hangs(wanted: Deployment, rc: int) -> None:
    _, failure = judged(wanted, rc=rc)
    assert "CUDA did not answer within 180 s" in failure


def test_memory_that_an_engine_has_taken_is_no_failure(wanted: Deployment) -> None:
    full = failed(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", "cuDevicePrimaryCtxRetain")
    assert judged(wanted, full, serving=True)[1] == ""
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in judged(wanted, full)[1]


@pytest.mark.parametrize("rc", [126, 127])
def test_an_image_without_python_is_not_judged(wanted: Deployment, rc: int) -> None:
    line, failure = judged(wanted, rc=rc, err='exec: "python3": executable file not found in $PATH')
    assert (line, failure) == ("the image has no python3 to try CUDA with; its start will tell", "")

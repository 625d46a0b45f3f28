"""The engine's image: vLLM's CPU build on Debian, pushed to the lab's registry."""

from __future__ import annotations

import shutil
from pathlib import Path

from roost.lab import paths
from roost.lab.build import cached, commands, images, packages, rootfs
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

IMAGE = images.Image(REPOSITORY, TAG, ENTRYPOINT, ENVIRONMENT, LABELS)

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

    def make(folder: Path) -> None:
        layout = images.copy_layout(base, folder)
        image = f"{layout}:image"
        inside = f"/{packages.SITE_PACKAGES}"
        commands.run(["umoci", "insert", "--image", image, engine, inside])
        small = folder / "small"
        _make_small_layer(small, engine)
        commands.run(["umoci", "insert", "--image", image, small, "/"])
        shutil.rmtree(small)
        images.configure(layout, IMAGE)
        images.push(layout, IMAGE, storage, folder / "digest")
        # What was pushed is in the registry's storage.
        shutil.rmtree(layout)

    inputs = (base.name, engine.name, *IMAGE.inputs, _COMMAND, _TAKE_NOTES)
    folder = cached.build(cache, "engine-image", inputs, make, say)
    digest = (folder / "digest").read_text().strip()
    if not images.stored(storage, REPOSITORY, digest):
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

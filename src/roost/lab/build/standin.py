"""The image of the stand-in engine: Debian and three files. Small, and known for what it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from roost.lab import paths
from roost.lab.build import cached, commands, images
from roost.lab.build.cached import Say
from roost.lab.build.engine import base_image

_STANDINS = Path(__file__).parents[1] / "standins"
#: Where each file goes in the image.
PROGRAMS = {
    "usr/local/bin/vllm": _STANDINS / "engine_standin.py",
    "usr/local/bin/harness-standin": _STANDINS / "harness_standin.py",
    "usr/local/lib/python3.11/dist-packages/transformers.py": _STANDINS / "tokenizer_standin.py",
}

IMAGE = images.Image(
    repository="roost-lab/engine-standin",
    tag="1",
    # As launch specs for vLLM spell it.
    entrypoint=("vllm", "serve"),
    environment={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
    labels={"org.opencontainers.image.title": "Stand-in for an engine, for roost's lab"},
)


def standin_image(cache: Path, say: Say) -> str:
    """Build it and push it to the registry in the cache.

    Returns:
        ``repository@sha256:…``, for ``roost_settings.image``.

    Raises:
        RoostError: A tool is missing or failed.
    """
    base = base_image(cache, say)
    storage = paths.registry_storage(cache)

    def make(folder: Path) -> None:
        layout = images.copy_layout(base, folder)
        tree = folder / "layer"
        for place, program in PROGRAMS.items():
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(program, tree / place)
            (tree / place).chmod(0o755)
        commands.run(["umoci", "insert", "--image", f"{layout}:image", tree, "/"])
        images.configure(layout, IMAGE)
        images.push(layout, IMAGE, storage, folder / "digest")
        shutil.rmtree(layout)

    inputs: list[cached.Input] = [base.name, *PROGRAMS.values(), *IMAGE.inputs]
    folder = cached.build(cache, "engine-standin", inputs, make, say)
    digest = (folder / "digest").read_text().strip()
    if not images.stored(storage, IMAGE.repository, digest):
        say("engine-standin: no longer in the registry, once more")
        shutil.rmtree(folder)
        return standin_image(cache, say)
    return f"{IMAGE.repository}@{digest}"

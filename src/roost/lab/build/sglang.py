"""SGLang's Python sources, for what reads its command lines. Nothing here can serve a model."""

from __future__ import annotations

import shutil
from pathlib import Path

from roost.lab.build import cached, packages
from roost.lab.build.cached import Say

#: The first release with DFlash2, the newest one, and those on both sides of the release that
#: dropped old spellings.
VERSIONS = ("0.5.19", "0.5.20", "0.5.23")

# Four fifths of a release are of no use to an argument parser; these parts are large and apart.
_SPARE = ("bin", "sglang/multimodal_gen", "sglang/test", "sglang/benchmark")


def sglang_sources(version: str, cache: Path, say: Say) -> Path:
    """One release as a folder for ``PYTHONPATH``, without anything it depends on.

    Raises:
        RoostError: pip found no such release.
    """

    def make(folder: Path) -> None:
        packages.pip(
            "install", "--no-compile", "--no-deps", "--target", folder, f"sglang=={version}"
        )
        for part in _SPARE:
            shutil.rmtree(folder / part, ignore_errors=True)

    return cached.build(cache, f"sglang-{version}", [version, *_SPARE], make, say)

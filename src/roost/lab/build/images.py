"""Container images: layers on a base, configured, pushed to the registry in the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roost import registry_server
from roost.lab.build import commands


@dataclass(frozen=True)
class Image:
    """An image's name and what its configuration says."""

    repository: str
    tag: str
    entrypoint: Sequence[str]
    environment: Mapping[str, str]
    labels: Mapping[str, str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """What a cached build of it depends on, besides its layers."""
        return (
            self.repository,
            self.tag,
            str(tuple(self.entrypoint)),
            str(dict(self.environment)),
            str(dict(self.labels)),
        )


def copy_layout(base: Path, folder: Path) -> Path:
    """A copy of an OCI layout, by hard links: umoci adds layers in place, and the base is kept."""
    layout = folder / "oci"
    shutil.copytree(base / "oci", layout, copy_function=os.link)
    shutil.copy2(base / "oci/index.json", folder / "index.json")
    (layout / "index.json").unlink()
    (folder / "index.json").rename(layout / "index.json")
    return layout


def configure(layout: Path, image: Image) -> None:
    """Write the configuration of ``layout``'s image ``image``."""
    options = [f"--config.entrypoint={word}" for word in image.entrypoint]
    options += [f"--config.env={name}={value}" for name, value in image.environment.items()]
    options += [f"--config.label={name}={value}" for name, value in image.labels.items()]
    options += ["--config.exposedports=8000/tcp", "--author=roost"]
    commands.run(["umoci", "config", "--image", f"{layout}:image", *options])


def push(layout: Path, image: Image, storage: Path, digest_file: Path) -> None:
    """Push it to a registry's storage, and write the manifest's digest into a file."""
    with registry_server.serve(storage) as address:
        target = f"docker://{address}/{image.repository}:{image.tag}"
        insecure = ["--dest-tls-verify=false", f"--digestfile={digest_file}"]
        commands.run(["skopeo", "copy", "--quiet", *insecure, f"oci:{layout}:image", target])


def stored(storage: Path, repository: str, digest: str) -> bool:
    """Whether a registry's storage still has a manifest (tests take images away)."""
    manifests = storage / "docker/registry/v2/repositories" / repository / "_manifests"
    return (manifests / "revisions/sha256" / digest.removeprefix("sha256:") / "link").is_file()

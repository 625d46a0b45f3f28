"""What a recipe's names mean by the lock: commits, digests, and where they are found on a host."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from roost.lock import Lock
from roost.pins import Image, Repository
from roost.references import split_mirror, split_registry
from roost.site import Site


class Weights(BaseModel):
    """One repository at one revision, and the directory it has on a host."""

    model_config = ConfigDict(frozen=True)

    repo: str
    name: str = Field(description="the revision as the recipe writes it")
    revision: str = Field(description="a full commit, or the name that is still to be resolved")
    directory: str
    bytes: int | None = Field(None, description="of all files, where the lock knows it")


def weights(repository: Repository, lock: Lock, site: Site, unresolved: list[str]) -> Weights:
    """A repository at the commit that is locked.

    Args:
        repository: As the recipe names it.
        lock: What its revision means.
        site: Where weights are on a host.
        unresolved: Gets a line where the lock does not know it.
    """
    locked = lock.model(repository)
    commit = repository.revision.commit or (locked.commit if locked else None)
    if commit is None:
        unresolved.append(f"revision {repository.repo}@{repository.revision.name}")
    revision = commit or repository.revision.name
    directory = PurePosixPath(site.model_dir, repository.repo.replace("/", "--"), revision)
    return Weights(
        repo=repository.repo,
        name=repository.revision.name,
        revision=revision,
        directory=str(directory),
        bytes=locked.bytes if locked else None,
    )


def reference(image: Image, digest: str | None, mirror: str | None) -> str:
    """A reference by digest alone: a tag beside it would make every later deploy a change."""
    repository = image.repository
    if mirror and not image.build:  # what the host built is under its own name there
        _, host = split_mirror(mirror)
        _, path = split_registry(repository)
        repository = f"{host}/{path}"
    return f"{repository}@{digest}" if digest else f"{repository}:{image.name}"

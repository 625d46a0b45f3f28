"""``roost.lock.yml``: what every branch, tag and shortened commit meant when somebody looked.

Only :func:`resolve` asks anyone (the hub and the registry); reading, looking up and writing are
local. A revision or digest that a recipe gives in full is recorded too, with the sizes that the
disk check needs.
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import Field

from roost import yamlfile
from roost.errors import RoostError
from roost.pins import Image, Repository
from roost.settings import Strict

#: Version of the file's layout; a reader refuses any other.
VERSION = 1

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

_HEADER = """\
# Written by `roost lock`: which commit and which digest every name in the recipes means.
# Commit this file; a deploy takes only what stands here.
"""


class LockedModel(Strict):
    """One repository at one revision."""

    commit: Commit
    bytes: Annotated[int, Field(ge=0)] = Field(description="sum of all files at that commit")
    files: Annotated[int, Field(ge=1)]
    resolved: dt.date


class LockedImage(Strict):
    """One image: the digest that is pulled, and the platforms behind it."""

    digest: Digest
    platforms: list[str] = Field(description="architectures, as manifests spell them")
    bytes: dict[str, int] = Field(description="compressed layers, by architecture")
    resolved: dt.date


class Lock(Strict):
    """The whole file: repository or image name → name as written in the recipe → what it is."""

    version: int = VERSION
    models: dict[str, dict[str, LockedModel]] = {}
    images: dict[str, dict[str, LockedImage]] = {}

    def model(self, repository: Repository) -> LockedModel | None:
        """The entry of a repository at the revision its recipe names, if there is one."""
        return self.models.get(repository.repo, {}).get(repository.revision.name)

    def image(self, image: Image) -> LockedImage | None:
        """The entry of an image at the tag or digest its recipe names, if there is one."""
        return self.images.get(image.repository, {}).get(image.name)


def read(path: Path) -> Lock:
    """Read a lock; a file that does not exist is an empty lock.

    Raises:
        RoostError: The file is damaged or of another version.
    """
    if not path.exists():
        return Lock()
    document = yamlfile.read(path)
    if document.data is None:
        return Lock()
    lock = yamlfile.validate(document, Lock)
    if lock.version != VERSION:
        raise RoostError(
            f"{path}: version {lock.version} of the lock is not known here",
            fix=f"this roost reads version {VERSION}; run `roost lock` again to rewrite the file",
        )
    return lock


class _PlainDumper(yaml.SafeDumper):
    """Writes equal dates out each time: an alias is nothing to read, and is refused on reading."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # its caller names it
        return True


def write(path: Path, lock: Lock) -> None:
    """Write a lock whole or not at all (a new file renamed over the old one)."""
    text = _HEADER + yaml.dump(lock.model_dump(mode="python"), Dumper=_PlainDumper)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise RoostError(f"{path}: cannot be written", why=str(error.strerror)) from None


def resolve(
    lock: Lock,
    repositories: Iterable[Repository],
    images: Iterable[Image],
    *,
    ask_hub: Callable[[Repository], LockedModel],
    ask_registry: Callable[[Image], LockedImage],
) -> tuple[Lock, list[RoostError]]:
    """A new lock with everything asked for resolved, and what could not be.

    What cannot be resolved keeps the entry it had: a lock never gets poorer by an outage.
    """
    models = {repo: dict(entries) for repo, entries in lock.models.items()}
    locked_images = {repo: dict(entries) for repo, entries in lock.images.items()}
    failures: list[RoostError] = []
    for repository in repositories:
        try:
            found = ask_hub(repository)
        except RoostError as error:
            failures.append(error)
            continue
        entries = models.setdefault(repository.repo, {})
        entries[repository.revision.name] = _keep_date(entries.get(repository.revision.name), found)
    for image in images:
        try:
            found_image = ask_registry(image)
        except RoostError as error:
            failures.append(error)
            continue
        kept = locked_images.setdefault(image.repository, {})
        kept[image.name] = _keep_date(kept.get(image.name), found_image)
    return Lock(models=models, images=locked_images), failures


Entry = TypeVar("Entry", LockedModel, LockedImage)


def _keep_date(old: Entry | None, new: Entry) -> Entry:
    """The old entry where nothing but the date differs, so that a re-run leaves no diff."""
    if old is not None and old == new.model_copy(update={"resolved": old.resolved}):
        return old
    return new


def drift(old: Lock, new: Lock) -> list[str]:
    """What differs between two locks, one line per entry; dates do not count."""
    lines = []
    for kind, olds, news in (
        ("model", _flat(old.models), _flat(new.models)),
        ("image", _flat(old.images), _flat(new.images)),
    ):
        for key in sorted(set(olds) | set(news)):
            before, after = olds.get(key, "not locked"), news.get(key, "not locked")
            if before != after:
                lines.append(f"{kind} {key}: {before} → {after}")
    return lines


def _flat(
    entries: dict[str, dict[str, LockedModel]] | dict[str, dict[str, LockedImage]],
) -> dict[str, str]:
    flat: dict[str, str] = {}
    for repository, names in entries.items():
        for name, entry in names.items():
            pinned = entry.commit if isinstance(entry, LockedModel) else entry.digest
            flat[f"{repository}@{name}"] = pinned
    return flat

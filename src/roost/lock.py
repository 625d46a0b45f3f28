"""``roost.lock.yml``: what every branch, tag and shortened commit meant when somebody looked.

Only :func:`resolve` asks anyone (the hub and the registry); reading, looking up and writing are
local. A revision or digest that a recipe gives in full is recorded too, with the sizes that the
disk check needs; where nobody could be asked for those, without them.
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import Field, PrivateAttr

from roost import atomic, yamlfile
from roost.errors import RoostError, UsageError
from roost.pins import Image, Repository
from roost.settings import Strict

#: Version of the file's layout that is written.
VERSION = 2

#: Versions that are read. What version 1 says is still true: it has no fingerprints and no digests
#: of single platforms, and the next `roost lock` adds them.
READ = (1, 2)

Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_HEADER = """\
# Written by `roost lock`: which commit and which digest every name in the recipes means.
# Commit this file; a deploy takes only what stands here.
"""


class LockedModel(Strict):
    """One repository at one revision."""

    commit: Commit
    bytes: Annotated[int, Field(ge=0)] | None = Field(
        None, description="sum of all files at that commit; none: nobody could be asked"
    )
    files: Annotated[int, Field(ge=1)] | None = None
    fingerprints: dict[str, Sha256 | None] | None = Field(
        None,
        description="SHA-256 of config.json and of the index of the weights, none for a file that "
        "the repository does not have; none altogether: not recorded",
    )
    resolved: dt.date

    @property
    def pin(self) -> str:
        """What is fetched."""
        return self.commit


class LockedImage(Strict):
    """One image: the digest that is pulled, and the platforms behind it."""

    digest: Digest = Field(description="of the index, or of the manifest of an image without one")
    platforms: list[str] = Field(
        [], description="architectures, as manifests spell them; empty: nobody could be asked"
    )
    manifests: dict[str, Digest] = Field({}, description="by architecture")
    bytes: dict[str, int] = Field({}, description="compressed layers, by architecture")
    resolved: dt.date

    @property
    def pin(self) -> str:
        """What is pulled."""
        return self.digest


class Lock(Strict):
    """The whole file: repository or image name → name as written in the recipe → what it is."""

    version: int = VERSION
    models: dict[str, dict[str, LockedModel]] = {}
    images: dict[str, dict[str, LockedImage]] = {}
    _file: Path | None = PrivateAttr(None)
    _there: bool = PrivateAttr(True)

    @property
    def file(self) -> Path | None:
        """Where it was looked for; none: it was not read from a file."""
        return self._file

    @property
    def missing(self) -> bool:
        """Whether it is empty because there is no such file."""
        return not self._there

    def __eq__(self, other: object) -> bool:
        """Whether both say the same, wherever they stand."""
        return isinstance(other, Lock) and self.__dict__ == other.__dict__

    def model(self, repository: Repository) -> LockedModel | None:
        """The entry of a repository at the revision its recipe names, if there is one."""
        return self.models.get(repository.repo, {}).get(repository.revision.name)

    def image(self, image: Image) -> LockedImage | None:
        """The entry of an image at the tag or digest its recipe names, if there is one."""
        return self.images.get(image.repository, {}).get(image.name)


def read(path: Path) -> Lock:
    """Read a lock; a file that does not exist is an empty lock, which says that it is missing.

    Raises:
        RoostError: The file is damaged or of another version.
    """
    there = path.exists()
    found = _read(path) if there else Lock()
    found._file, found._there = path, there
    return found


def _read(path: Path) -> Lock:
    document = yamlfile.read(path)
    if document.data is None:
        return Lock()
    version = document.data.get("version", 1) if isinstance(document.data, dict) else VERSION
    if version not in READ:
        raise RoostError(
            f"{path}: version {version!r} of the lock is not known here",
            fix=f"this roost reads versions {READ[0]} to {VERSION}; update roost, or let "
            "`roost lock` write a new file beside it (--lock-file)",
        )
    return yamlfile.validate(document, Lock).model_copy(update={"version": VERSION})


class _PlainDumper(yaml.SafeDumper):
    """Writes equal dates out each time: an alias is nothing to read, and is refused on reading."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # its caller names it
        return True


def require_writable(path: Path) -> None:
    """Nothing, or why :func:`write` cannot write there; leaves nothing behind.

    Raises:
        UsageError: It is a directory, or no file can be made where it is to be.
    """
    why = "it is a directory"
    # A link stays one, and what it leads to is written.
    folder = Path(os.path.realpath(path)).parent
    try:
        if not path.is_dir():
            # What is missing of its folders is made with it.
            while not folder.exists():
                folder = folder.parent
            # Tried, for rights alone do not tell of read-only and foreign file systems.
            with tempfile.TemporaryFile(dir=folder):
                return
    except OSError as error:
        why = f"{folder}: {error.strerror}"
    raise UsageError(
        f"{path}: cannot be written; nothing was asked",
        why=why,
        fix="name another place with --lock-file, or ask without writing: --check",
    )


def write(path: Path, lock: Lock) -> None:
    """Write a lock, whole or not at all.

    Raises:
        RoostError: It cannot be written.
    """
    text = yaml.dump(lock.model_dump(mode="python"), Dumper=_PlainDumper)
    atomic.write(path, _HEADER + text)


@dataclass(frozen=True)
class Failure:
    """Something that could not be resolved, and what the lock keeps for it."""

    error: RoostError
    kept: str

    def __str__(self) -> str:
        return f"{self.error}\n  kept: {self.kept}"


def told(failures: Iterable[Failure]) -> Iterator[str]:
    """Failures as a person reads them; of those that are alike, why and what to do is said once."""
    alike: dict[tuple[str, str, int], list[Failure]] = {}
    for at, failure in enumerate(failures):
        # Of no reason nobody knows whether it is the same.
        own = 0 if failure.error.why else at + 1
        alike.setdefault((failure.error.why, failure.error.fix, own), []).append(failure)
    for (why, fix, _), found in alike.items():
        if len(found) == 1:
            yield str(found[0])
            continue
        each = [f"{one.error.what}\n    kept: {one.kept}" for one in found]
        said = f"{len(found)} could not be resolved, for the same reason:\n  " + "\n  ".join(each)
        yield str(RoostError(said, why=why, fix=fix))


def resolve(
    lock: Lock,
    repositories: Iterable[Repository],
    images: Iterable[Image],
    *,
    ask_hub: Callable[[Repository], LockedModel],
    ask_registry: Callable[[Image], LockedImage],
    today: dt.date,
) -> tuple[Lock, list[Failure]]:
    """A new lock with everything asked for resolved, and what could not be.

    What cannot be resolved keeps the entry it had: a lock never gets poorer by an outage. What the
    recipe pins in full is locked as it stands, for there is nothing to resolve about it.
    """
    models = {repo: dict(entries) for repo, entries in lock.models.items()}
    locked_images = {repo: dict(entries) for repo, entries in lock.images.items()}
    failures = []
    for repository in repositories:
        revision = repository.revision
        entries = models.setdefault(repository.repo, {})
        given = LockedModel(commit=revision.commit, resolved=today) if revision.commit else None
        try:
            entries[revision.name] = _newer(entries.get(revision.name), ask_hub(repository))
        except RoostError as error:
            failures.append(Failure(error, _keep(entries, revision.name, given)))
    for image in images:
        locked = locked_images.setdefault(image.repository, {})
        pinned = LockedImage(digest=image.digest, resolved=today) if image.digest else None
        try:
            locked[image.name] = _newer(locked.get(image.name), ask_registry(image))
        except RoostError as error:
            failures.append(Failure(error, _keep(locked, image.name, pinned)))
    return Lock(models=_without_empty(models), images=_without_empty(locked_images)), failures


Entry = TypeVar("Entry", LockedModel, LockedImage)


def _newer(old: Entry | None, new: Entry) -> Entry:
    """The old entry where nothing but the date differs, so that a re-run leaves no diff."""
    if old is not None and old == new.model_copy(update={"resolved": old.resolved}):
        return old
    return new


def _keep(entries: dict[str, Entry], name: str, given: Entry | None) -> str:
    """Leave an entry as it is, or as its recipe pins it; gives what that is."""
    if name in entries:
        return f"{entries[name].pin} of {entries[name].resolved}"
    if given is None:
        return "nothing: it was not locked before"
    entries[name] = given
    return f"{given.pin}, as the recipe pins it; its size is not known"


def _without_empty(entries: dict[str, dict[str, Entry]]) -> dict[str, dict[str, Entry]]:
    return {repository: names for repository, names in entries.items() if names}


def drift(old: Lock, new: Lock) -> list[str]:
    """What differs between two locks, one line a fact: what it was → what it is.

    Dates do not count. Of an entry that is new, only what it is pinned to is told; of one that
    moved, sizes are not.
    """
    before, after = _facts(old), _facts(new)
    lines = []
    for entry in sorted({*before, *after}):
        was, now = before.get(entry, {}), after.get(entry, {})
        moved = was.get(_PIN) != now.get(_PIN)
        for fact in dict.fromkeys([*was, *now]):
            told = fact == _PIN or (bool(was) and not (moved and fact.endswith(_SIZES)))
            if told and was.get(fact) != now.get(fact):
                name = "" if fact == _PIN else f"{fact} "
                absent = "not recorded" if was else "not locked"
                lines.append(
                    f"{entry}: {name}{was.get(fact, absent)} → {now.get(fact, 'not recorded')}"
                )
    return lines


_PIN = "pin"
_SIZES = ("bytes", "files")


def _facts(lock: Lock) -> dict[str, dict[str, str]]:
    """Every entry by kind and name, as facts in words."""
    facts: dict[str, dict[str, str]] = {}
    for repository, models in lock.models.items():
        for name, model in models.items():
            told = facts[f"model {repository}@{name}"] = {_PIN: model.pin}
            for file, digest in (model.fingerprints or {}).items():
                told[file] = f"sha256 {digest[:12]}" if digest else "absent"
            told |= {
                key: str(value)
                for key, value in (("bytes", model.bytes), ("files", model.files))
                if value is not None
            }
    for repository, images in lock.images.items():
        for name, image in images.items():
            told = facts[f"image {repository}@{name}"] = {_PIN: image.pin}
            told |= image.manifests
            told |= {f"{platform} bytes": str(count) for platform, count in image.bytes.items()}
    return facts

"""A bundle: weights and images in one directory, as a mirror serves them where nothing else can.

``hub/`` is laid out like a hub's addresses, so that any web server is a hub of it;
``registry/`` is the storage of CNCF Distribution; ``roost.lock.yml`` is what all of it was pinned
by; ``SHA256SUMS`` lists every file and is written last, so without it a bundle is not finished.
Weights are fetched by the module ``hf_snapshot``, images by skopeo into a registry that runs
meanwhile: both go on where an earlier run stopped, and verify what they keep.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roost import catalog, lock, modules, registry_server, site
from roost.errors import RefusedError, RoostError, UsageError
from roost.launch import resolving
from roost.launch.pinning import Weights
from roost.launch.resolving import Resolved
from roost.onhost import DISK_HEADROOM_BYTES, atomic
from roost.onhost.weights import RECORD, TURN, partial_of
from roost.references import split_mirror, split_registry
from roost.root import repository_root

SUMS = "SHA256SUMS"
LOCK = "roost.lock.yml"

#: Told what happens, one line at a time.
Say = Callable[[str], None]


@dataclass(frozen=True)
class PinnedImage:
    """An image by its digest.

    Attributes:
        repository: As the recipe names it.
        digest: ``sha256:…``, of the index where there is one.
        bytes: Compressed layers of all architectures; none: the lock does not say.
    """

    repository: str
    digest: str
    bytes: int | None


@dataclass(frozen=True)
class Contents:
    """What a bundle is to hold, and where that comes from.

    Attributes:
        hub: Address of the hub; none: the public one.
        registry: Serves every image instead of the image's own registry; with ``http://`` before
            it where it has no TLS. None: each image's own.
    """

    weights: list[Weights]
    images: list[PinnedImage]
    lock_file: Path
    hub: str | None
    registry: str | None


def of_recipes(
    recipes: Sequence[str],
    hardware: Sequence[str],
    lock_file: Path,
    *,
    hub: str | None = None,
    registry: str | None = None,
) -> Contents:
    """What these recipes need on this hardware, with each speculation that runs there.

    Raises:
        UsageError: Unknown recipe or hardware.
        RefusedError: A recipe does not run there, or something is not locked.
    """
    known, locked = catalog.current(), lock.read(lock_file)
    found: list[Resolved] = []
    for recipe in recipes:
        for machine in hardware:
            refusal: RefusedError | None = None
            before = len(found)
            for choice in known.recipe(recipe).speculation:
                try:
                    found.append(
                        resolving.resolve(known, recipe, machine, speculation=choice, lock=locked)
                    )
                except RefusedError as error:
                    refusal = error
            if refusal is not None and len(found) == before:
                raise refusal
    return _contents(found, lock_file, hub, registry)


def of_inventory(
    path: Path,
    *,
    hub: str | None = None,
    registry: str | None = None,
    lock_file: Path | None = None,
) -> Contents:
    """What the hosts of an inventory deploy.

    Hub and registry are not the inventory's: those are the mirror that will serve the bundle.

    Raises:
        UsageError: A variable is wrong, or hosts name several locks.
        RefusedError: Something is not locked.
    """
    from roost import inventory as inventories

    root, known = repository_root(), catalog.current()
    found: list[Resolved] = []
    locks: set[Path] = set()
    for host in inventories.load(path).hosts.values():
        given = site.from_variables(host.name, host.variables)
        if lock_file is None:
            given.require_lock(host.name, root)
        where = lock_file or given.lock_path(root)
        locks.add(where)
        found.append(resolving.resolve_host(known, host.name, given, lock.read(where)))
    if len(locks) != 1:
        raise UsageError(
            f"{path}: hosts name {len(locks)} lock files, and a bundle has one",
            fix="name it with --lock-file, or bundle the hosts one by one",
        )
    return _contents(found, locks.pop(), hub, registry)


def _contents(
    found: Iterable[Resolved], lock_file: Path, hub: str | None, registry: str | None
) -> Contents:
    weights: dict[tuple[str, str], Weights] = {}
    images: dict[tuple[str, str], PinnedImage] = {}
    for resolved in found:
        resolving.require_resolved(resolved)
        for one in (resolved.model, resolved.drafter):
            if one is not None:
                weights[one.repo, one.revision] = one
        image, digest = resolved.image, resolved.image_digest
        if image.build is not None or digest is None:
            raise RefusedError(
                f"{resolved.recipe.id} on {resolved.hardware.id}: its image cannot be packed",
                why="it is built on the host, and no registry has it",
                fix="push it to a registry and name it there (roost_settings.image), or leave this "
                "recipe out",
            )
        size = sum(resolved.image_bytes.values()) or None
        images[image.repository, digest] = PinnedImage(image.repository, digest, size)
    return Contents(list(weights.values()), list(images.values()), lock_file, hub, registry)


# -- packing


def pack(contents: Contents, folder: Path, say: Say) -> None:
    """Fetch what the bundle lacks and list every file: afterwards it is whole.

    Raises:
        RoostError: A tool is missing, no room, or something could not be fetched. What had arrived
            is kept for the next run.
    """
    if contents.images:
        _require_tools()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMS).unlink(missing_ok=True)
        _check_room(contents, folder)
        for number, weights in enumerate(contents.weights, 1):
            say(f"weights {number} of {len(contents.weights)}: {_named(weights)}")
            _fetch_weights(weights, contents.hub, folder)
        if contents.images:
            _fetch_images(contents, folder, say)
        shutil.copyfile(contents.lock_file, folder / LOCK)
        atomic.write(
            folder / SUMS, "".join(f"{sha}  {path}\n" for path, sha in sorted(_sums(folder)))
        )
    except OSError as error:
        raise RoostError(
            f"{folder}: the bundle cannot be written",
            why=str(error.strerror),
            fix="what arrived is kept: free space or name another directory, and run it again",
        ) from None
    say(f"{folder}: whole")


def _named(weights: Weights) -> str:
    return f"{weights.repo}@{weights.revision[:12]}"


def _directory(folder: Path, weights: Weights) -> Path:
    """Where a web server looks for ``/<repo>/resolve/<revision>/…``."""
    return folder / "hub" / weights.repo / "resolve" / weights.revision


def _require_tools() -> None:
    missing = [name for name in ("skopeo", "docker-registry") if shutil.which(name) is None]
    if missing:
        raise RoostError(
            f"{' and '.join(missing)} must be on this machine to pack images",
            fix=f"apt-get install {' '.join(missing)}",
        )


def _check_room(contents: Contents, folder: Path) -> None:
    need = DISK_HEADROOM_BYTES
    for weights in contents.weights:
        dest = _directory(folder, weights)
        there = _used(dest) + _used(partial_of(dest))
        need += max(0, (weights.bytes or 0) - there)
    images = sum(image.bytes or 0 for image in contents.images)
    need += max(0, images - _used(folder / "registry"))
    free = shutil.disk_usage(folder).free
    if free < need:
        raise RoostError(
            f"{folder}: not enough room for the bundle",
            why=f"{need:,} bytes are to come ({DISK_HEADROOM_BYTES:,} of them headroom), "
            f"{free:,} are free",
            fix="free space, or name a directory on a larger disk (--to)",
        )


def _used(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _fetch_weights(weights: Weights, hub: str | None, folder: Path) -> None:
    params: dict[str, Any] = {
        "repo_id": weights.repo,
        "revision": weights.revision,
        "dest": str(_directory(folder, weights)),
    }
    if hub is not None:
        params["endpoint"] = hub
    # As for `roost lock`: a token that the environment happens to hold does not go in the clear.
    token = os.environ.get("HF_TOKEN")
    if token and not (hub or "").startswith("http://"):
        params["token"] = token
    done = subprocess.run(
        modules.command("hf_snapshot"),
        input=json.dumps({"ANSIBLE_MODULE_ARGS": params}),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        result = json.loads(done.stdout)
    except ValueError:
        raise RoostError(
            f"{_named(weights)}: hf_snapshot ended without a word",
            why=(done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1],
        ) from None
    if result.get("failed"):
        saw, _, fix = str(result["msg"]).partition(". ")
        raise RoostError(saw, fix=fix or "run it again: what arrived is kept")
    atomic.write(
        folder / "hub" / "api" / "models" / weights.repo / "revision" / weights.revision,
        json.dumps(_model_info(weights, _record(folder, weights)), indent=1) + "\n",
    )


def _record(folder: Path, weights: Weights) -> dict[str, Any]:
    """What the hub said of each file: path → size, sha256 (in LFS) or blob."""
    text = (_directory(folder, weights) / RECORD).read_text(encoding="utf-8")
    files: dict[str, Any] = json.loads(text)["files"]
    return files


#: What hubs say of a Git LFS pointer's size; of a file of nine digits it is true.
_POINTER_BYTES = 134


def _model_info(weights: Weights, files: dict[str, Any]) -> dict[str, Any]:
    """A hub's answer to ``/api/models/<repo>/revision/<revision>?blobs=true``."""
    siblings = []
    for path, file in files.items():
        entry = {"rfilename": path, "size": file["size"], "blobId": file["blob"]}
        if file["sha256"]:
            entry["lfs"] = {
                "sha256": file["sha256"],
                "size": file["size"],
                "pointerSize": _POINTER_BYTES,
            }
        siblings.append(entry)
    return {
        "id": weights.repo,
        "modelId": weights.repo,
        "sha": weights.revision,
        "private": False,
        "tags": [],
        "siblings": siblings,
    }


def _fetch_images(contents: Contents, folder: Path, say: Say) -> None:
    with registry_server.serve(folder / "registry") as local:
        for number, image in enumerate(contents.images, 1):
            say(f"image {number} of {len(contents.images)}: {image.repository}@{image.digest[:19]}")
            _copy(image, contents.registry, local)


def _copy(image: PinnedImage, mirror: str | None, local: str) -> None:
    scheme, source = "https", image.repository
    registry, path = split_registry(image.repository)
    if mirror is not None:
        scheme, host = split_mirror(mirror)
        source = f"{host}/{path}"
    elif registry is None and "/" not in path:
        source = f"docker.io/library/{path}"
    options = ["--all", "--preserve-digests", "--retry-times", "3", "--dest-tls-verify=false"]
    if scheme == "http":
        options.append("--src-tls-verify=false")
    # With its digest at both ends: skopeo and the registry each refuse another content.
    ends = [f"docker://{name}@{image.digest}" for name in (source, f"{local}/{path}")]
    done = subprocess.run(
        ["skopeo", "copy", "--quiet", *options, *ends], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        raise RoostError(
            f"{source}@{image.digest}: skopeo cannot copy the image",
            why=said,
            fix="run it again, layers that are whole are kept; private images want a "
            "`docker login` on this machine",
        )


def _sums(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file's path in the bundle and its SHA-256; what was verified is not read again."""
    known: dict[Path, str] = {}
    for record in folder.glob(f"hub/*/*/resolve/*/{RECORD}"):
        for path, file in json.loads(record.read_text(encoding="utf-8"))["files"].items():
            if file["sha256"]:
                known[record.parent / path] = file["sha256"]
    for name in _files(folder):
        path = folder / name
        if path.name == "data" and name.startswith("registry/") and "/blobs/sha256/" in name:
            known[path] = path.parent.name  # a registry names a blob by its content
        yield name, known.get(path) or _sha256(path)


def _files(folder: Path) -> Iterator[str]:
    """What belongs to a bundle and is listed, by its path in it."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != SUMS and not _unfinished(name):
            yield name


def _unfinished(name: str) -> bool:
    """Whether a file is a download in progress, of weights or layers, the weights' lock, or what a
    run that was killed had begun to write.
    """
    if ".partial/" in name or "/_uploads/" in name:
        return True
    last = name.rpartition("/")[2]
    return last == TURN or atomic.is_draft(last)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- checking


def check(folder: Path, say: Say) -> list[str]:
    """Read every file of a bundle again.

    Returns:
        What is wrong, one line a file; empty for a bundle that is whole.

    Raises:
        RoostError: It is no bundle, or was not finished.
    """
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise RoostError(
            f"{folder}: is no bundle, or one that was not finished",
            why=f"it has no {SUMS}, which is written last",
            fix="run `roost bundle` again with the same directory (it goes on), or copy all of it",
        ) from None
    say(f"{folder}: {len(lines)} files to read")
    wrong = []
    listed = dict(line.split("  ", 1)[::-1] for line in lines if "  " in line)
    # A list that was cut off in copying would pass every file that it no longer names.
    if lacks := sorted({LOCK, *_files(folder)} - listed.keys()):
        wrong.append(f"{SUMS}: is not whole: it lacks {len(lacks)} files, {lacks[0]} the first")
    for name, sha in listed.items():
        try:
            if _sha256(folder / name) != sha:
                wrong.append(f"{name}: has another content than was packed")
        except OSError as error:
            wrong.append(f"{name}: {error.strerror}")
    return wrong

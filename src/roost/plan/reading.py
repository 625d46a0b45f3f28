"""Target and drafter as they really are: read from a hub or a directory, beside the catalogue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from roost.errors import RoostError
from roost.launch.pinning import Weights
from roost.pins import Repository, Revision
from roost.plan.architecture import Architecture, Dtype
from roost.plan.subject import Side
from roost.plan.widths import Widths

if TYPE_CHECKING:
    from roost.plan.checkpoint import Checkpoint


class NotReadError(RoostError):
    """There was nothing to read, which says nothing about the repository."""


def from_hub(weights: Weights, endpoint: str | None, token: str | None = None) -> Checkpoint:
    """What a hub has, or what is kept of it.

    Raises:
        NotReadError: The commit is not known yet.
        RoostError: See :func:`roost.plan.checkpoint.read_hub`.
    """
    from roost.plan import checkpoint

    if weights.revision == weights.name and len(weights.revision) != 40:
        raise NotReadError(
            f"{weights.repo}@{weights.name} is not locked to a commit", fix="roost lock"
        )
    repository = Repository(repo=weights.repo, revision=Revision(commit=weights.revision))
    return checkpoint.read_hub(repository, weights.revision, endpoint, token)


def from_directory(weights: Weights, root: Path) -> Checkpoint:
    """What a model directory has (``<org>--<name>/<revision>``, as on a host).

    Raises:
        NotReadError: Nothing of this revision.
        RoostError: See :func:`roost.plan.checkpoint.read_directory`.
    """
    from roost.plan import checkpoint

    place = root / weights.repo.replace("/", "--") / weights.revision
    if not place.is_dir():
        raise NotReadError(f"there is no {place}", fix="roost plan … --hub URL")
    return checkpoint.read_directory(place)


def _widths(found: Checkpoint) -> Widths | None:
    """Only the budget's estimates want them."""
    try:
        return Widths.from_config(found.config, found.where)
    except RoostError:
        return None


def observed(known: Side, found: Checkpoint, *, drafter: bool, dtype: Dtype | None = None) -> Side:
    """A side as it was read, with what the catalogue got wrong about it.

    Args:
        known: From the catalogue.
        found: What was read.
        drafter: Whether it is one.
        dtype: What the engine is told to load a target in; none: the config's own.

    Raises:
        RoostError: The config gives no architecture.
    """
    from roost.plan.disagreements import disagreements

    model = known.model
    wrong = disagreements(
        found,
        architecture=known.architecture,
        drafter=known.drafter,
        contents=known.contents,
        method=model.method if model else None,
        weights=model.weights if model else None,
    )
    return replace(
        known,
        read_from=found.where,
        architecture=None
        if drafter
        else Architecture.from_config(found.config, found.where, dtype=dtype),
        widths=None if drafter else _widths(found) or known.widths,
        drafter=found.drafter() if drafter else None,
        contents=found.contents,
        method=found.quantization.method if found.quantization else None,
        # Without some shards what is there says nothing of the size.
        loaded_bytes=known.loaded_bytes if found.absent else None,
        disk_bytes=known.disk_bytes if found.absent else found.bytes,
        declares_vision="vision_config" in found.config,
        disagreements=tuple(
            f"{one.key}: the catalogue says {one.catalogue}, it is {one.observed}" for one in wrong
        ),
        missing_shards=tuple(found.absent),
        missing_tensors=tuple(found.missing_tensors),
    )

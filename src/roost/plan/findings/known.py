"""What the catalogue and the lock say of the combination as such."""

from __future__ import annotations

from collections.abc import Iterator

from roost.hub import HubRefusedError
from roost.plan.finding import TO_READ, Finding
from roost.plan.names import NOT_TO_RUN
from roost.plan.subject import Subject


def not_to_run(s: Subject) -> Iterator[Finding]:
    """Somebody tried it and it did not run."""
    found = s.resolved.known_not_to_run
    if found is None:
        return
    recipe, hardware = s.resolved.recipe, s.resolved.hardware.id
    others = s.other_choices
    whole = recipe.support_on(hardware) == "unsupported"
    yield Finding(
        id=NOT_TO_RUN,
        severity="error",
        summary=f"{recipe.id} does not run on {hardware}"
        if whole
        else f"speculation {s.resolved.speculation_name} of {recipe.id} does not run on {hardware}",
        why=found.reason or "",
        fix="" if whole or not others else f"roost_speculation: {others[0]}",
        source=found.source,
        date=found.date,
    )


def no_image(s: Subject) -> Iterator[Finding]:
    """What is planned with here is the image of another machine; a deploy has none."""
    if s.resolved.image_borrowed:
        recipe, image = s.resolved.recipe, s.resolved.image
        yield Finding(
            id="no-image",
            severity="error",
            summary=f"no image is known for {recipe.id} on {s.resolved.hardware.id}",
            why=f"it is planned with {image.reference}, which the recipe names for other hardware",
            fix="name one: image=repository@sha256:…, engine_version=…",
            source=recipe.source,
        )


def version_assumed(s: Subject) -> Iterator[Finding]:
    """Everything that goes by the engine's version goes by one that nobody stated."""
    if s.resolved.version_assumed:
        yield Finding(
            id="engine-version-assumed",
            severity="warning",
            summary=f"nobody says which version the image {s.resolved.image.reference} has",
            why=f"it is planned as {s.resolved.engine.title} {s.version}, the version of the image "
            "that it replaces; pool, defaults and flags differ between versions",
            fix="engine_version=… as the image's engine prints it",
            source=s.resolved.recipe.source,
        )


def untested(s: Subject) -> Iterator[Finding]:
    """Nobody says that they ran it."""
    recipe, hardware = s.resolved.recipe, s.resolved.hardware.id
    if s.resolved.known_not_to_run is not None:
        return
    if recipe.support_on(hardware, s.resolved.speculation_name) == "untested":
        yield Finding(
            id="untested",
            severity="warning",
            summary=f"no run of {recipe.id} with speculation {s.resolved.speculation_name} on "
            f"{hardware} is known, as it stands here",
            why="what is planned here is computed, and no more than that",
            source=recipe.source,
        )


def doubtful(s: Subject) -> Iterator[Finding]:
    """Somebody reports that it cannot work."""
    doubt = s.resolved.speculation.doubt
    looked = s.resolved.speculation.method == "mtp" and s.target.contents is not None
    if doubt is not None and not looked:
        yield Finding(
            id="doubtful",
            severity="warning",
            summary=f"speculation {s.resolved.speculation_name} may not work with "
            f"{s.target.weights.repo}",
            why=doubt.says,
            fix=TO_READ,
            source=doubt.source,
        )


def bounds(s: Subject) -> Iterator[Finding]:
    """How far a setting may go here, as somebody found out the hard way."""
    support = s.resolved.recipe.hardware.get(s.resolved.hardware.id)
    for bound in support.bounds if support else []:
        value = getattr(s.settings, bound.setting)
        if value is not None and value > bound.most:
            yield Finding(
                id=f"{bound.setting.replace('_', '-')}-beyond-known",
                severity=bound.severity,
                summary=f"{bound.setting} {value} is beyond {bound.most}, known to work on "
                f"{s.resolved.hardware.id}",
                why=bound.reason,
                fix=f"{bound.setting}={bound.most}",
                source=bound.source,
                date=support.date if support else None,
            )


def not_pinned(s: Subject) -> Iterator[Finding]:
    """A branch, tag or short commit that no lock has resolved, or no lock at all."""
    spec, missing = s.resolved.spec, s.resolved.lock_missing
    if not spec.unresolved and not missing:
        return
    summary, why = "sizes of what is pinned are not known", []
    if missing:
        why.append(f"there is no lock {s.resolved.lock_file}")
    if spec.unresolved:
        summary = "not pinned yet: " + ", ".join(spec.unresolved)
        why.append("a branch or tag can mean something else tomorrow")
        why.append("a deploy refuses what is not locked")
    lockable = spec.lockable or not spec.unresolved
    fixes = [f"roost lock -i INVENTORY, or {s.resolved.lock_command}"] if lockable else []
    yield Finding(
        id="not-pinned",
        severity="info",
        summary=summary,
        why="; ".join(why),
        fix="; ".join([*fixes, *([spec.build] if spec.build else [])]),
        source=s.resolved.lock_file or "no lock was given",
    )


def untrusted(s: Subject) -> Iterator[Finding]:
    """An image that is not trusted with credentials."""
    if s.resolved.spec.untrusted:
        yield Finding(
            id="untrusted-image",
            severity="warning",
            summary=f"the image {s.resolved.image.reference} is untrusted",
            why=s.resolved.spec.untrusted,
            source=s.resolved.recipe.source,
        )


def _to_read(s: Subject) -> str:
    """What reads a hub; a branch can only be read of once it is known which commit it is."""
    if not s.resolved.spec.lockable:
        return TO_READ
    return f"roost lock {s.resolved.recipe.id}, then {TO_READ}"


def facts(s: Subject) -> Iterator[Finding]:
    """Where the plan's facts are from, and where they contradict the catalogue."""
    sides = [side for side in (s.target, s.drafter) if side is not None]
    for side in sides:
        if side.disagreements:
            yield Finding(
                id="catalogue-disagrees",
                severity="warning",
                summary=f"{side.weights.repo}: the catalogue is wrong about this revision",
                why="; ".join(side.disagreements),
                source=side.read_from,
            )
        if isinstance(side.unread, HubRefusedError):
            yield Finding(
                id="checkpoint-unreadable",
                severity="warning",
                summary=side.unread.what,
                why=side.unread.why or "the hub does not give it",
                fix=side.unread.fix,
                source=side.weights.repo,
            )
        if side.defect is not None:
            yield Finding(
                id="checkpoint-defective",
                severity="error",
                summary=side.defect.what,
                why=side.defect.why or "an engine would stop on it, or answer nonsense",
                fix=side.defect.fix,
                source=side.weights.repo,
            )
    offline = [side for side in sides if side.read_from == "catalogue" and side.defect is None]
    if offline:
        unread = [side.unread for side in offline if side.unread]
        yield Finding(
            id="planned-from-catalogue",
            severity="info",
            summary="planned from the catalogue's facts: "
            + ", ".join(side.weights.repo for side in offline),
            why="; ".join(error.what for error in unread)
            or "neither config.json nor index of these revisions was read",
            fix=next((error.fix for error in unread if error.fix), _to_read(s)),
            source="roost.plan",
        )


CHECKS = (
    not_to_run,
    no_image,
    version_assumed,
    untested,
    doubtful,
    bounds,
    not_pinned,
    untrusted,
    facts,
)

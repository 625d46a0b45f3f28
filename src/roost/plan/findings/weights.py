"""What the checkpoints hold against what they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from roost import versions
from roost.plan.finding import TO_READ, Finding
from roost.plan.subject import Subject


def mtp(s: Subject) -> Iterator[Finding]:
    """A config may declare a head that the checkpoint does not hold."""
    contents, model = s.target.contents, s.target.architecture
    if contents is None:
        if s.resolved.speculation.method == "mtp":
            yield Finding(
                id="mtp-not-seen",
                severity="info",
                summary="whether the checkpoint holds the MTP head is not known",
                why="a config declares the head, only the index shows its tensors",
                fix=TO_READ,
                source="source 001",
            )
        return
    if contents.mtp.tensors:
        return
    declared = model.mtp_layers if model else 0
    if s.resolved.speculation.method == "mtp":
        yield Finding(
            id="mtp-tensors-missing",
            severity="error",
            summary=f"{s.target.weights.repo} holds no MTP tensors to draft with",
            why=f"the config declares {declared} MTP layer(s), of {contents.tensors:,} tensors "
            "in the index none is of MTP; at best every draft would be rejected",
            fix="roost_speculation: " + _other_choice(s),
            source=s.target.read_from,
        )
    elif declared:
        yield Finding(
            id="mtp-declared-only",
            severity="info",
            summary="the config declares an MTP head that the checkpoint does not hold",
            why=f"of {contents.tensors:,} tensors in the index none is of MTP",
            source=s.target.read_from,
        )


def _other_choice(s: Subject) -> str:
    speculation = s.resolved.recipe.speculation
    return next((name for name in s.other_choices if speculation[name].method != "mtp"), "none")


def vision(s: Subject) -> Iterator[Finding]:
    """The tower is built when the config has one, whether or not its tensors are there."""
    contents = s.target.contents
    if contents is None or s.resolved.engine.style == "sglang":
        return
    text_only = bool(s.resolved.settings.language_model_only)
    if text_only and contents.vision.tensors:
        yield Finding(
            id="vision-switched-off",
            severity="warning",
            summary=f"language_model_only drops the {contents.vision.tensors:,} vision tensors "
            "that the checkpoint holds",
            why="images in a request are then refused; what it saves is the tower's memory",
            fix="language_model_only=false",
            source="source 001",
        )
    if not text_only and s.target.declares_vision and not contents.vision.tensors:
        yield Finding(
            id="vision-tensors-missing",
            severity="error",
            summary=f"{s.target.weights.repo} declares a vision tower and holds no tensor of it",
            why="the engine builds the tower from the config and stops on its uninitialized "
            "weights",
            fix="language_model_only=true",
            source="source 001",
        )


def shards(s: Subject) -> Iterator[Finding]:
    """An index may name files that are not there."""
    for side in filter(None, (s.target, s.drafter)):
        if side.missing_shards:
            yield Finding(
                id="shards-missing",
                severity="error",
                summary=f"{side.weights.repo}: {len(side.missing_shards)} file(s) of the index are "
                "absent: " + ", ".join(side.missing_shards[:3]),
                why="vLLM up to 0.25.1 and SGLang 0.5.14 load such a checkpoint in silence, and "
                "serve garbage",
                fix="choose a revision that is whole",
                source=side.read_from,
            )


def tensors(s: Subject) -> Iterator[Finding]:
    """An index may name tensors that their file does not hold."""
    for side in filter(None, (s.target, s.drafter)):
        if side.missing_tensors:
            yield Finding(
                id="tensors-missing",
                severity="error",
                summary=f"{side.weights.repo}: {len(side.missing_tensors):,} tensor(s) of the "
                "index are not in their files: " + ", ".join(side.missing_tensors[:3]),
                why="an engine stops on them, or leaves those weights as they happen to be",
                fix="choose a revision that is whole",
                source=side.read_from,
            )


def abilities(s: Subject) -> Iterator[Finding]:
    """A model may need what this version of the engine does not have yet."""
    limits = {limit.id: limit for limit in s.resolved.engine.limits}
    for side in filter(None, (s.target, s.drafter)):
        for need in side.model.needs if side.model else []:
            limit = limits.get(need)
            if limit is not None and versions.within(s.version, limit.versions):
                yield Finding(
                    id=f"engine-lacks-{need}",
                    severity="error",
                    summary=f"{side.weights.repo} does not run on {s.resolved.engine.title} "
                    f"{s.version}",
                    why=limit.says,
                    fix="choose an image whose engine is not among: " + limit.versions,
                    source=limit.source,
                )


def depth(s: Subject) -> Iterator[Finding]:
    """A block drafter proposes no more than its block holds."""
    drafter = s.drafter.drafter if s.drafter else None
    wanted = s.resolved.settings.num_speculative_tokens
    if drafter is None or drafter.block_size is None or wanted is None:
        return
    most = drafter.block_size - 1
    if wanted > most:
        yield Finding(
            id="drafts-beyond-block",
            severity="warning",
            summary=f"num_speculative_tokens {wanted} is more than the drafter was trained for",
            why=f"a block holds {drafter.block_size} tokens, the first of which is given",
            fix=f"num_speculative_tokens={most}",
            source=s.drafter.read_from if s.drafter else "",
        )


def context(s: Subject) -> Iterator[Finding]:
    """A window beyond what the model was made for."""
    wanted, model = s.resolved.settings.max_model_len, s.target.architecture
    if wanted is None or model is None or wanted <= model.context:
        return
    allowed = s.may_exceed_context
    yield Finding(
        id="context-beyond-model",
        severity="warning" if allowed else "error",
        summary=f"max_model_len {wanted:,} is beyond the model's {model.context:,} tokens",
        why="answers degrade past the positions it was trained on"
        if allowed
        else "the engine refuses to start",
        fix=f"max_model_len={model.context}",
        source=s.target.read_from,
    )


CHECKS = (mtp, vision, shards, tensors, abilities, depth, context)

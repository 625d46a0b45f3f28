"""What to run where an image cannot be had: the choices its recipe names, ready to paste."""

from __future__ import annotations

import json
import shlex

from roost.lock import Lock
from roost.pins import Fallback, Image


def choices(image: Image, lock: Lock) -> str:
    """Every other image that may do, with what is known of it and the setting that takes it.

    Args:
        image: That cannot be had.
        lock: Where the digest of a fallback that is named by a tag may stand.

    Returns:
        A text of several lines, the first of which reads on from "fix: ".
    """
    if not image.fallbacks:
        return (
            "nothing names another image for it: name one by digest (roost_settings: {image: "
            '"repository@sha256:…", engine_version: "…"}), or a mirror that still has this one '
            "(roost_registry_mirror)"
        )
    lines = ["take one of the images that the recipe names instead:"]
    for fallback in image.fallbacks:
        known = fallback.support or "untested"
        when = f" on {fallback.date}" if fallback.date else ""
        lines.append(
            f"- {fallback.image.reference}: {known}{when}. {fallback.reason} ({fallback.source})"
        )
        if fallback.support != "unsupported":
            lines.append(f"    {setting(fallback, lock)}")
    return "\n".join(lines)


def setting(fallback: Fallback, lock: Lock) -> str:
    """How an inventory takes a fallback, or what has to be done before it can."""
    image = fallback.image
    if image.build is not None:
        return built(image)
    locked = lock.image(image)
    digest = image.digest or (locked.digest if locked else None)
    if digest is None:
        return "its digest is not locked yet: `roost lock` with the recipe's id asks for it"
    return pinned(f"{image.repository}@{digest}", image.engine_version)


def pinned(reference: str, engine_version: str) -> str:
    """The inventory line that takes an image by digest."""
    return (
        f"roost_settings: {{image: {json.dumps(reference)}, "
        f"engine_version: {json.dumps(engine_version)}}}"
    )


def built(image: Image) -> str:
    """How to come by an image that no registry has, by hand."""
    return (
        f"build it on a machine of the host's architecture: {image.build_command()}\n"
        f"    then push it to a registry of yours and pin it: "
        f"{pinned(image.repository + '@sha256:…', image.engine_version)}"
        f"\n    (without an inventory: --set image={shlex.quote(image.repository)}@sha256:…)"
    )


def to_build(image: Image) -> str:
    """How to come by a recipe's own image, where it is one that is built."""
    return (
        "`roost build -i INVENTORY` builds it on the host (an engine takes hours); then deploy "
        f"again.\n  Or {built(image)}"
    )

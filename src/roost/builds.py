"""Images that a host builds from source: what from, and what a build that fails means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from roost import pulls
from roost.pins import Image

if TYPE_CHECKING:
    from roost.deployment import Deployment


class ImageBuild(BaseModel):
    """What a host makes an image from; the arguments of the module ``image_build``."""

    model_config = ConfigDict(frozen=True)

    name: str = Field(description="repository:tag that it gets")
    digest: str = Field(description="of all the rest, for the image's label")
    git: str
    commit: str
    directory: str | None
    dockerfile: str | None
    args: dict[str, str]


def of(image: Image) -> ImageBuild | None:
    """How a host builds an image; none where it is published, or its build names no commit."""
    build = image.build
    if build is None or build.revision.commit is None:
        return None
    return ImageBuild(
        name=image.reference,
        digest=build.digest,
        git=build.git,
        commit=build.revision.commit,
        directory=build.directory,
        dockerfile=build.dockerfile,
        args=build.args,
    )


Cause = Literal[
    "room",
    "git_commit",
    "git_repository",
    "git_unreachable",
    "git",
    "dockerfile",
    "buildkit",
    "disk",
    "memory",
    "daemon",
    "base",
    "step",
    "gone",
]

# By what the module was doing. The first pattern that matches decides; the last matches anything.
_SAYS: dict[str, tuple[tuple[Cause, str], ...]] = {
    "room": (("room", ""),),
    "git": (
        ("disk", r"no space left on device"),
        ("git_commit", r"not our ref|unadvertised object|couldn't find remote ref|bad object"),
        (
            "git_repository",
            r"repository .*not found|authentication failed|could not read username"
            r"|not exported|returned error: 40[134]|access denied",
        ),
        (
            "git_unreachable",
            r"could not resolve|unable to (access|connect)|connection (refused|reset|timed out)"
            r"|no route to host|network is unreachable|timed out|low speed|early eof|hung up",
        ),
        ("git", ""),
    ),
    "context": (("dockerfile", ""),),
    "buildkit": (("buildkit", ""),),
    "docker": (
        ("disk", r"no space left on device"),
        ("daemon", r"cannot connect to the docker daemon|error reading from server: eof"),
        (
            "memory",
            r"exit code: 137|returned a non-zero code: 137|signal: killed|killed signal"
            r"|cannot allocate",
        ),
        (
            "base",
            r"failed to (resolve source metadata|load cache key|create llb definition)"
            r"|manifest (for \S+ not found|unknown)|pull access denied|get \"https?://\S+/v2/",
        ),
        ("step", ""),
    ),
    "gone": (("gone", ""),),
}

_EXPLAINED: dict[Cause, tuple[str, str]] = {
    "room": (
        "an engine's build takes tens of GB of Docker's disk, and would fill it half-way",
        "`docker system prune`, move Docker's data-root to a larger disk, or if you know that it "
        "takes less: engine_image_free_gib",
    ),
    "git_commit": (
        "the repository answers, and does not have this commit: it never was there, or its branch "
        "was rewritten",
        "name a commit that it has (build: in the recipe)",
    ),
    "git_repository": (
        "there is no such repository, or it is private: forges answer both alike",
        "check build: {git: …} in the recipe",
    ),
    "git_unreachable": (
        "the repository cannot be reached from this host",
        "check the network, a proxy (https_proxy of root's git), or have git take a mirror: "
        "`git config --system url.MIRROR.insteadOf URL` on the host",
    ),
    "git": ("git could not fetch the commit", "read its words; `git fetch` says the same"),
    "dockerfile": (
        "the commit does not have what the recipe names",
        "check build: {directory: …, dockerfile: …} in the recipe",
    ),
    "buildkit": (
        "the Dockerfile is written for BuildKit (RUN --mount, here-documents), and Docker's client "
        "has none",
        "install it on the host: docker-buildx-plugin with Docker's own packages, docker-buildx "
        "with Debian's or Ubuntu's",
    ),
    "disk": (
        "the disk is full",
        "`docker system prune`, or a larger disk for Docker's data-root; then build again, what "
        "Docker has of it is not built twice",
    ),
    "memory": (
        "a process of the step was killed, most likely because memory ran out",
        "build on a host with more memory and the same architecture, and bring it here: "
        "docker save IMAGE | ssh HOST docker load",
    ),
    "daemon": (
        "Docker's daemon does not answer any more",
        "systemctl status docker, journalctl -u docker; then build again",
    ),
    "base": ("", ""),  # roost.pulls explains it
    "step": (
        "the step says it itself",
        "mend what it names (packages that are gone, a server that was down), then build again: "
        "the steps before it are not repeated",
    ),
    "gone": (
        "the build was killed, or the host was restarted",
        "build again; what Docker has of it is not built twice",
    ),
}


def cause(during: str, said: str) -> Cause:
    """The cause of a failure.

    Args:
        during: What the module was doing, a key of :data:`_SAYS`.
        said: The end of its output.
    """
    for kind, pattern in _SAYS[during]:
        if re.search(pattern, said, re.IGNORECASE):
            return kind
    raise AssertionError(during)


def failure(result: Mapping[str, Any], deployment: Deployment) -> str:
    """A build that failed, as text for a person.

    Args:
        result: Of the module ``image_build``, or of a job that is gone.
        deployment: The one that needs the image.
    """
    said: Sequence[str] = result.get("said") or [str(result.get("msg", "no reason given"))]
    text = "\n".join(said)
    kind = cause(result.get("during", "gone"), text)
    why, fix = _EXPLAINED[kind]
    if kind == "base":
        other = "name a base image that is there (build: args: in the recipe)"
        why, fix = pulls.explain(pulls.cause(text), other)
        why = f"the image that it is built on cannot be had: {why}"
    at = f" at {result['step']}" if result.get("step") else ""
    lines = [
        f"{deployment.spec.image} was not built{at}; nothing was tagged.",
        f"  why: {why}",
        f"  fix: {fix}",
        f"  the end of its output{_where(result)}:",
        indent(text, "    "),
    ]
    return "\n".join(lines)


def _where(result: Mapping[str, Any]) -> str:
    return f" (all of it: {result['log']} on the host)" if result.get("log") else ""

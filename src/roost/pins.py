"""What has to be pinned: revisions of repositories, images, and builds of images.

A recipe may name a branch, a tag or a shortened commit, since often that is all its author
published; a lock resolves them (:mod:`roost.lock`).
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import shlex
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from roost.errors import UsageError
from roost.settings import Strict

Id = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]
RepoId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*$", max_length=96)]

#: The label by which a built image says what it was built from.
BUILD_LABEL = "roost.build"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PREFIX = re.compile(r"[0-9a-f]{7,39}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


def _one_line(error: ValidationError) -> UsageError:
    """What is wrong with a value that a setting gave in one piece."""
    reasons = (str(item["msg"]).removeprefix("Value error, ") for item in error.errors())
    return UsageError("; ".join(dict.fromkeys(reasons)))


class Revision(Strict):
    """Which state of a repository: a full commit, or something a lock still has to resolve."""

    commit: str | None = None
    branch: str | None = None
    prefix: str | None = None

    @field_validator("commit")
    @classmethod
    def _full(cls, value: str | None) -> str | None:
        if value is not None and not _COMMIT.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a full commit (40 hex digits); a shortened one goes under "
                "`prefix:`, a branch or tag under `branch:`, and `roost lock` resolves them"
            )
        return value

    @field_validator("prefix")
    @classmethod
    def _short(cls, value: str | None) -> str | None:
        if value is not None and not _PREFIX.fullmatch(value):
            raise ValueError(f"{value!r} is not the beginning of a commit (7 to 39 hex digits)")
        return value

    @field_validator("branch")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][\w./\-]*", value):
            raise ValueError(f"{value!r} is not the name of a branch or tag")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Revision:
        if sum(part is not None for part in (self.commit, self.branch, self.prefix)) != 1:
            raise ValueError("must be exactly one of `commit`, `branch` and `prefix`")
        return self

    @property
    def name(self) -> str:
        """The revision as written, which is also its key in the lock."""
        return self.commit or self.branch or self.prefix or ""

    @classmethod
    def parse(cls, text: str) -> Revision:
        """A revision given as one word (``drafter_revision``).

        40 hex digits are a commit, 7 to 39 the beginning of one, anything else a branch or tag.

        Raises:
            UsageError: It is none of them.
        """
        try:
            if _COMMIT.fullmatch(text):
                return cls(commit=text)
            return cls(prefix=text) if _PREFIX.fullmatch(text) else cls(branch=text)
        except ValidationError as error:
            raise _one_line(error) from None


class Repository(Strict):
    """A model or drafter on the hub; what is known of it stands in ``catalog/models``."""

    repo: RepoId
    revision: Revision
    note: str | None = None


class Build(Strict):
    """How an image is built where none is published."""

    git: Annotated[str, Field(pattern=r"^https://[\w.\-/]+\.git$")] = Field(
        description="repository of the build context; without .git Docker takes an archive"
    )
    revision: Revision = Field(description="of that repository")
    directory: Annotated[str, Field(pattern=r"^[\w.\-][\w.\-/]*$")] | None = Field(
        None, description="build context inside it; none: all of it"
    )
    dockerfile: Annotated[str, Field(pattern=r"^[\w.\-][\w.\-/]*$")] | None = Field(
        None, description="relative to the context; none: Dockerfile"
    )
    args: dict[str, str] = {}
    licence: str | None = None
    note: str | None = None

    @property
    def digest(self) -> str:
        """Names all that the image is made of, in its label :data:`BUILD_LABEL`; hex digits."""
        made_of = {"git", "revision", "directory", "dockerfile", "args"}
        text = json.dumps(self.model_dump(mode="json", include=made_of), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def argv(self, tag: str) -> list[str]:
        """The ``docker build`` that makes it."""
        words = ["docker", "build", "--tag", tag, "--label", f"{BUILD_LABEL}={self.digest}"]
        if self.dockerfile:
            words += ["--file", self.dockerfile]
        for name, value in self.args.items():
            words += ["--build-arg", f"{name}={value}"]
        place = f":{self.directory}" if self.directory else ""
        return [*words, f"{self.git}#{self.revision.name}{place}"]


class Fallback(Strict):
    """Another image that may do where a recipe's own is gone."""

    image: Image
    support: Literal["verified", "unsupported"] | None = Field(None, description="none: untested")
    date: dt.date | None = None
    reason: str = Field(description="what it is, or why it does not do")
    source: str


class Image(Strict):
    """A container image: by digest, by a tag that a lock still has to resolve, or built."""

    repository: str
    digest: str | None = None
    tag: str | None = None
    build: Build | None = None
    engine_version: str = Field(description="the engine's version inside the image")
    untrusted: str | None = Field(
        None,
        description="why it gets no credentials and no IPC with the host; none: as trusted as its "
        "publisher",
    )
    fallbacks: list[Fallback] = []
    note: str | None = None

    @field_validator("repository")
    @classmethod
    def _bare(cls, value: str) -> str:
        last = value.rsplit("/", 1)[-1]
        if "@" in value or ":" in last:
            raise ValueError(
                f"{value!r} carries a tag or digest; write it under `tag:` or `digest:`"
            )
        if not re.fullmatch(r"[a-z0-9][a-z0-9._:\-]*(/[a-z0-9][a-z0-9._\-]*)*", value):
            raise ValueError(f"{value!r} is not the name of an image repository")
        return value

    @field_validator("digest")
    @classmethod
    def _sha256(cls, value: str | None) -> str | None:
        if value is not None and not _DIGEST.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a digest (sha256: and 64 hex digits); a tag goes under `tag:` "
                "and `roost lock` resolves it"
            )
        return value

    @field_validator("tag")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        if value is not None and not _TAG.fullmatch(value):
            raise ValueError(f"{value!r} is not an image tag")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Image:
        if sum(part is not None for part in (self.digest, self.tag, self.build)) != 1:
            raise ValueError("must have exactly one of `digest`, `tag` and `build`")
        return self

    @property
    def name(self) -> str:
        """The tag or digest as written, which is also its key in the lock."""
        if self.build:
            return self.build.revision.name[:12]
        return self.digest or self.tag or ""

    @property
    def reference(self) -> str:
        """The image as it is written, without what a lock knows."""
        return f"{self.repository}{'@' if self.digest else ':'}{self.name}"

    def build_command(self) -> str | None:
        """The shell text that builds it; none where it is published."""
        return shlex.join(self.build.argv(self.reference)) if self.build else None

    @classmethod
    def parse(cls, reference: str, engine_version: str) -> Image:
        """An image given in one piece by a setting: ``repository@sha256:…``.

        Raises:
            UsageError: It is not of that form.
        """
        repository, _, digest = reference.partition("@")
        try:
            return cls(repository=repository, digest=digest, engine_version=engine_version)
        except ValidationError as error:
            raise _one_line(error) from None


Fallback.model_rebuild()

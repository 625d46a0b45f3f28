"""Fingerprints: what a failure looks like in a log, why it happens, and how to mend it.

They are data, in ``fingerprints/*.yml`` beside this module; their schema is the classes below.

Text is compared without white space (a terminal wraps where it likes) and without regard to case.
A pattern is a regular expression in which white space means nothing, ``~`` stands for quotes of any
kind or none, and ``\\s`` would never match.
"""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from roost import versions, yamlfile
from roost.catalog_schema import Versions
from roost.errors import UsageError
from roost.settings import Strict

ROOT = Path(__file__).with_name("fingerprints")

Severity = Literal["error", "warning", "info"]
#: What a named group holds: a figure, one word, several, words as they stand, or the beginning of
#: what goes on to the end of its line.
Kind = Literal["number", "word", "words", "phrase", "rest"]

_QUOTE = r"""[\\'"`]{0,3}"""


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern of a fingerprint, for text without white space."""
    return re.compile(pattern.replace("~", _QUOTE), re.VERBOSE | re.IGNORECASE)


class Text(Strict):
    """Something a log may say."""

    find: str = Field(
        description="words that must stand there, near the beginning of what the pattern matches; "
        "a log is searched for these first, so the rarer the better"
    )
    pattern: str | None = Field(None, description="none: the words alone suffice")
    lines: Annotated[int, Field(ge=1, le=40)] = Field(
        8, description="lines of the same process, wrapped ones counted, that it may stretch over"
    )

    @field_validator("find")
    @classmethod
    def _searchable(cls, value: str) -> str:
        if len("".join(value.split())) < 6:
            raise ValueError("must have six letters at least, or it is found everywhere")
        # Digits are left out where lines are compared, the rest changes with the way it is quoted.
        if strange := sorted(set(value) & set("0123456789'\"`\\<>&")):
            raise ValueError(f"must not hold {' '.join(strange)}; put that into the pattern")
        return value

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                compile_pattern(value)
            except re.error as error:
                raise ValueError(f"is no regular expression: {error}") from None
        return value

    @property
    def regex(self) -> re.Pattern[str]:
        """What the text without white space must match."""
        return compile_pattern(self.pattern or re.escape("".join(self.find.split())))


class Fingerprint(Strict):
    """One thing that goes wrong, or that only looks as if it did."""

    id: Annotated[str, Field(pattern=r"^[a-z][a-z0-9\-]+$")]
    title: str
    severity: Severity
    role: Literal["cause", "consequence", "wrapper"] = Field(
        "cause",
        description="consequence: reported only where nothing before it is found; wrapper: says "
        "that something failed, never what, so it is no answer",
    )
    engine: Literal["vllm", "sglang"] | None = Field(None, description="none: not an engine's")
    versions: Versions = Field("", description="of the engine, as a version specifier; all")
    match: Annotated[list[Text], Field(min_length=1)]
    unless: list[Text] = Field([], description="said anywhere in the same start, it is withdrawn")
    values: dict[str, Kind] = Field({}, description="named groups of the patterns")
    why: str
    fix: str = ""
    source: str
    date: dt.date = Field(description="when this was last compared with its source")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        named = {name for text in self.match for name in text.regex.groupindex}
        if named != set(self.values):
            raise ValueError(
                f"values are {', '.join(self.values) or 'none'}, "
                f"but the patterns name {', '.join(sorted(named)) or 'none'}"
            )
        if self.severity != "info" and not self.fix:
            raise ValueError(f"{self.severity} needs a `fix`")
        return self

    def holds_for(self, version: str | None) -> bool:
        """Whether a version of the engine can say this; an unknown one may."""
        return version is None or versions.within(version, self.versions) is not False


class _File(Strict):
    fingerprints: list[Fingerprint]


def load(root: Path = ROOT) -> tuple[Fingerprint, ...]:
    """Read a directory of fingerprints, in the order of files and within them.

    Raises:
        RoostError: Naming file, line, key and reason of every defect in the first bad file, or an
            id that stands twice.
    """
    known: dict[str, tuple[Path, Fingerprint]] = {}
    for path in sorted(root.glob("*.yml")):
        document = yamlfile.read(path)
        for number, item in enumerate(yamlfile.validate(document, _File).fingerprints):
            if item.id in known:
                raise UsageError(
                    f"{path}:{document.line(('fingerprints', number, 'id'))}: "
                    f"{item.id} stands in {known[item.id][0].name} already"
                )
            known[item.id] = (path, item)
    return tuple(item for _, item in known.values())


@cache
def builtin() -> tuple[Fingerprint, ...]:
    """The fingerprints that ship with roost, read once per process."""
    return load()


def says(engine: str | None, finding: str) -> bool:
    """Whether an engine can say what a finding is of; none and what is not known here may."""
    known = {item.id: item.engine for item in builtin()}
    return engine is None or known.get(finding) in (None, engine)

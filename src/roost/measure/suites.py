"""Benchmark suites and prompt sets, read strictly from the files beside this module.

A suite says what is asked; :func:`cells` takes it apart into the points that are measured, each
with its prompts.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from roost import yamlfile
from roost.errors import RoostError, UsageError
from roost.figures import Condition
from roost.settings import Count, Strict

_HERE = Path(__file__).parent
#: Of a user's own file of prompts.
LARGEST_BYTES = 32 * 2**20
#: Characters of a category: it is part of file names, which may have 255 bytes.
_LONGEST_CATEGORY = 50
#: The prompt set whose texts are made to length on the host.
FILLER = "filler"


class Repetitions(Strict):
    """How often a cell is measured: until the interval is tight, within limits."""

    least: Count
    most: Count
    tight: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="half the interval of the throughput, as a fraction of it"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Repetitions:
        if self.least > self.most:
            raise ValueError("least is above most")
        return self


class Published(Strict):
    """Which published tables had the suite's protocol, and how their rows name a category."""

    tables: list[str] = Field(min_length=1)
    match: dict[str, str] = {}


class Suite(Strict):
    """One protocol."""

    title: str
    protocol: str
    source: str
    prompts: Literal["kinds", "spec", "styles", "filler"]
    categories: list[str] | None = Field(None, description="of the prompt set; none: all")
    per_category: Count | None = Field(None, description="prompts of each; none: all")
    lengths: dict[str, Count] | None = Field(None, description="tokens by category, for filler")
    mixed: bool = Field(False, description="all categories in one queue")
    concurrency: list[Count] = Field(min_length=1)
    requests_per_user: Count = Field(1, description="at least so many, by asking prompts again")
    output_tokens: Annotated[int, Field(ge=4)]
    ignore_eos: bool
    fresh: bool = Field(description="random digits before every prompt, so that none is in a cache")
    warmups: Annotated[int, Field(ge=0)]
    repetitions: Repetitions
    published: Published | None = None

    @model_validator(mode="after")
    def _lengths_belong_to_filler(self) -> Suite:
        if (self.lengths is not None) != (self.prompts == FILLER):
            raise ValueError("lengths go with prompts: filler, and with nothing else")
        return self


class _Row(Strict):
    id: str = Field(pattern=r"^[\w.-]+$")
    category: str = Field(pattern=r"^[\w.-]+$", max_length=_LONGEST_CATEGORY)
    prompt: str = Field(min_length=1)


@dataclass(frozen=True)
class Prompt:
    """One question.

    Attributes:
        tokens: The length that filler text is made to; none: it is asked as it is.
        line: Of the file that it is from.
    """

    id: str
    category: str
    text: str
    tokens: int | None = None
    line: int | None = None

    @property
    def where(self) -> str:
        """How a person finds it."""
        return self.id if self.line is None else f"line {self.line}"


@dataclass(frozen=True)
class Cell:
    """One point of a suite: these prompts, once each, from so many users at a time.

    Attributes:
        id: Unique within a suite, good for a file name.
        match: Conditions that a published figure of the same point has.
    """

    id: str
    category: str
    concurrency: int
    prompts: tuple[Prompt, ...]
    match: Mapping[str, Condition]


@cache
def catalogue() -> dict[str, Suite]:
    """Every suite by name.

    Raises:
        RoostError: The file is not as it must be.
    """
    path = _HERE / "suites.yml"
    document = yamlfile.read(path)
    if not isinstance(document.data, dict):
        raise RoostError(f"{path}: not a map of suites")
    return {str(name): _suite(path, str(name), data) for name, data in document.data.items()}


def suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        UsageError: There is none; near misses or all of them are named.
    """
    known = catalogue()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no suite {name!r}", fix=f"{hint}suites are: {', '.join(known)}")


def cells(chosen: Suite, prompts: Sequence[Prompt] | None = None) -> list[Cell]:
    """The points of a suite, in the order they are measured.

    Args:
        chosen: The suite.
        prompts: The user's own instead of the suite's; their categories then decide.

    Raises:
        UsageError: The suite makes its prompts to length and takes none.
    """
    if prompts is not None and chosen.lengths is not None:
        raise UsageError("this suite makes its prompts to length and takes no file of prompts")
    asked = list(prompts) if prompts is not None else _own_prompts(chosen)
    groups: dict[str, list[Prompt]] = {}
    for prompt in asked:
        groups.setdefault(prompt.category, []).append(prompt)
    if chosen.per_category is not None:
        groups = {name: group[: chosen.per_category] for name, group in groups.items()}
    if chosen.mixed:
        groups = {"mixed": _interleaved(list(groups.values()))}
    return [
        Cell(
            id=f"{category}-c{users}",
            category=category,
            concurrency=users,
            prompts=_at_least(group, users * chosen.requests_per_user),
            match=_match(chosen, category, users),
        )
        for category, group in groups.items()
        for users in chosen.concurrency
    ]


def read_prompts(path: Path) -> list[Prompt]:
    """A user's own prompts: JSON lines with ``prompt`` (and ``category``, ``id``), or Spec-Bench's.

    Spec-Bench's ``question.jsonl`` has ``question_id``, ``category`` and ``turns``; as with vLLM's
    own data set of that name, the first turn is what is asked.

    Raises:
        UsageError: There is no such file, or a line is neither.
    """
    try:
        if (size := path.stat().st_size) > LARGEST_BYTES:
            raise UsageError(
                f"{path}: {size / 2**20:,.0f} MiB of prompts, {LARGEST_BYTES // 2**20} at the most",
                why="each is sent in every repetition, and all of them go to the host first",
                fix="take a sample: shuf -n 200",
            )
        # Some editors put a mark of the byte order before a text.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read", why=str(error)) from None
    found = [_own_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise UsageError(f"{path}: no prompt in it", fix='one a line: {"prompt": "…"}')
    (often, times), *_ = Counter(prompt.id for prompt in found).most_common(1)
    if times > 1:
        raise UsageError(f"{path}: id {often!r} is there {times} times")
    return found


def _own_row(path: Path, number: int, line: str) -> Prompt:
    try:
        data = json.loads(line)
        if "turns" in data:
            data = {
                "id": str(data["question_id"]),
                "category": data["category"],
                "prompt": data["turns"][0],
            }
        row = _Row.model_validate({"id": f"line-{number}", "category": "own", **data})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}:{number}: {where}: {first['msg']}") from None
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise UsageError(
            f"{path}:{number}: neither a prompt nor a Spec-Bench question",
            why=f"{type(error).__name__}: {error}",
            fix='a line is {"prompt": "…", "category": "…", "id": "…"}, the last two as you like',
        ) from None
    return Prompt(row.id, row.category, row.prompt, line=number)


def _suite(path: Path, name: str, data: Any) -> Suite:
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (name, *first["loc"]))
        raise RoostError(f"{path}: {where}: {first['msg']}") from None


def _own_prompts(chosen: Suite) -> list[Prompt]:
    if chosen.lengths is not None:
        return [Prompt(name, name, "", tokens) for name, tokens in chosen.lengths.items()]
    prompts = read_prompts(_HERE / "prompts" / f"{chosen.prompts}.jsonl")
    if chosen.categories is None:
        return prompts
    missing = set(chosen.categories) - {prompt.category for prompt in prompts}
    if missing:
        raise RoostError(f"no prompts of category {', '.join(sorted(missing))}")
    return [prompt for prompt in prompts if prompt.category in chosen.categories]


def _interleaved(groups: Sequence[Sequence[Prompt]]) -> list[Prompt]:
    """One of each kind in turn, so that every moment of a queue has the same mix."""
    longest = max(len(group) for group in groups)
    return [group[at] for at in range(longest) for group in groups if at < len(group)]


def _at_least(group: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    rounds = max(1, -(-count // len(group)))
    return tuple(group) * rounds


def _match(chosen: Suite, category: str, users: int) -> dict[str, Condition]:
    if chosen.published is None:
        return {}
    named = {key: value.format(category=category) for key, value in chosen.published.match.items()}
    return {**named, "concurrency": users}

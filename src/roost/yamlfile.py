"""Strict YAML: what a person wrote, where they wrote it, and nothing silently dropped.

PyYAML keeps the last of two equal keys and forgets line numbers. Both cost a user an evening, so
files of roost (catalogue, lock) are read here: duplicate keys are errors, and every
value's line is kept so that a schema error can say ``file:line: key: reason``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from roost.errors import RoostError

#: Largest file worth reading: the biggest recipe is a few kilobytes, so this only stops accidents.
MAX_BYTES = 1_000_000

Location = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """A parsed YAML file and the 1-based line of every key path in it."""

    path: Path
    data: Any
    lines: dict[Location, int] = field(default_factory=dict)

    def line(self, location: Location) -> int:
        """Line of ``location``, or of its nearest ancestor (a missing key has no line)."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return 1


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and aliases that could expand without end."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(
                    problem="a key must be plain text", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {key!r} stands twice (first on line {seen[key]})",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep=deep)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases are not used here; write the value out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


def _collect_lines(node: yaml.Node | None, at: Location, lines: dict[Location, int]) -> None:
    if node is None:
        return
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            here = (*at, str(key_node.value))
            lines[here] = key_node.start_mark.line + 1
            _collect_lines(value_node, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _collect_lines(item, (*at, number), lines)


def read(path: Path) -> Document:
    """Read one YAML file.

    Raises:
        RoostError: The file is missing, unreadable, too large, not UTF-8, or not strict YAML.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise RoostError(
                f"{path}: {size} bytes, which no file of this kind needs",
                fix=f"check that it is the right file (limit {MAX_BYTES} bytes)",
            )
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RoostError(f"{path}: no such file") from None
    except OSError as error:
        raise RoostError(f"{path}: cannot be read", why=str(error.strerror)) from None
    except UnicodeDecodeError as error:
        raise RoostError(
            f"{path}: is not UTF-8 text", why=f"byte {error.start}: {error.reason}"
        ) from None
    return parse(text, path)


def parse(text: str, path: Path) -> Document:
    """Parse YAML text; ``path`` is only for messages."""
    try:
        loader = _StrictLoader(text)
        try:
            node = loader.get_single_node()
            data = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise RoostError(f"{place}: {error.problem or 'not valid YAML'}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RoostError(f"{path}: not valid YAML", why=reason) from None
    lines: dict[Location, int] = {}
    _collect_lines(node, (), lines)
    return Document(path, data, lines)


def _reason(error: Any, location: Location) -> str:
    """One pydantic error in the words of the person who has to mend it."""
    kind, given = error["type"], error.get("input")
    if kind == "extra_forbidden":
        return "unknown key"
    if kind == "missing":
        return "is missing"
    if kind == "string_type" and isinstance(given, bool | int | float | dt.date):
        return (
            f"is {type(given).__name__} {given} because it is not quoted; "
            f'write it in quotes: {location[-1]}: "…"'
        )
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if isinstance(given, str | int | float | bool) and kind != "value_error":
        shown = repr(given)
        message += f" (it is {shown if len(shown) <= 80 else shown[:77] + '…'})"
    return message


def validate(document: Document, model: type[Model]) -> Model:
    """Turn a document into a model.

    Raises:
        RoostError: One line per defect: file, line, key path, reason.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        defects = []
        for item in error.errors():
            location = tuple(item["loc"])
            key = ".".join(str(part) for part in location) or "(the whole file)"
            defects.append(
                f"{document.path}:{document.line(location)}: {key}: {_reason(item, location)}"
            )
        raise RoostError("\n".join(dict.fromkeys(defects))) from None

"""Strict YAML: what a person wrote, where they wrote it, and nothing silently dropped.

PyYAML keeps the last of two equal keys and forgets line numbers. Both cost a user an evening, so
files of roost (catalogue, lock) are read here: duplicate keys are errors, and every
value's line is kept so that a schema error can say ``file:line: key: reason``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from roost import near
from roost.errors import RoostError

#: Largest file worth reading: the biggest recipe is a few kilobytes, so this only stops accidents.
MAX_BYTES = 1_000_000

Location = tuple[int | str, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Document:
    """A parsed YAML file, and where in it everything stands."""

    path: Path
    data: Any
    node: yaml.Node | None = None

    def line(self, location: Location) -> int:
        """1-based line of a key path, or of its nearest ancestor (a missing key has no line)."""
        node = self.node
        line = node.start_mark.line if node is not None else 0
        for part in location:
            if isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == str(part)), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                node = node.value[part]
                line = node.start_mark.line
            else:
                break
        return int(line) + 1


#: Deepest nesting: the catalogue's own files stay under 12. Far below Python's limit on recursion.
MAX_DEPTH = 50


def _problem(text: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=mark)


class _Strict(Composer, SafeConstructor, Resolver):
    """What is refused, whoever parses: duplicate keys, aliases, tags, bottomless nesting.

    Composing stays in Python also over libyaml's parser, for that is where these are seen; it is
    the scanning that takes the time.
    """

    def __init__(self) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._depth = 0

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _problem("a key must be plain text", key_node.start_mark)
            key = self.construct_object(key_node)
            if key in seen:
                raise _problem(
                    f"key {key!r} stands twice (first on line {seen[key]})", key_node.start_mark
                )
            seen[key] = key_node.start_mark.line + 1
        return super().construct_mapping(node, deep=deep)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[attr-defined]  # the parser's
        if isinstance(event, yaml.AliasEvent):
            raise _problem("aliases are not used here; write the value out", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _problem(f"tags are not used here ({event.tag})", event.start_mark)
        if self._depth == MAX_DEPTH:
            raise _problem(f"nested more than {MAX_DEPTH} levels deep", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _PurePythonLoader(_Strict, Reader, Scanner, Parser):
    """For a PyYAML that was built without libyaml."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        _Strict.__init__(self)


try:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]
except ImportError:
    _Loader: Any = _PurePythonLoader
else:

    class _LibyamlLoader(_Strict, CParser):
        """Reads the catalogue in a fifth of the time."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            _Strict.__init__(self)

    _Loader = _LibyamlLoader


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
    """Parse YAML text; ``path`` is only for messages.

    Raises:
        RoostError: It is not strict YAML; with the line where that is known.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise RoostError(f"{place}: {error.problem or 'not valid YAML'}") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RoostError(f"{path}: not valid YAML", why=reason) from None
    return Document(path, data, node)


def _keys(annotation: Any, location: Location) -> set[str]:
    """The keys that a mapping may have which stands at a place within a value of some type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        if not location:
            return set(fields)
        field = fields.get(str(location[0]))
        return _keys(field.annotation, location[1:]) if field else set()
    inner = get_args(annotation)
    # Lists and mappings take a step of the place, unions and annotations none.
    if get_origin(annotation) in {dict, list, tuple}:
        return set().union(*(_keys(one, location[1:]) for one in inner)) if location else set()
    return set().union(*(_keys(one, location) for one in inner))


def _reason(error: Any, location: Location, model: type[BaseModel]) -> str:
    """One pydantic error in the words of the person who has to mend it."""
    kind, given = error["type"], error.get("input")
    if kind == "extra_forbidden":
        hint = near.miss(str(location[-1]), _keys(model, location[:-1]))
        return f"unknown key{hint} (its value is {_shown(given)})"
    if kind == "missing":
        return "is missing"
    if kind == "model_type":
        return f"must be a mapping of keys (it is {_shown(given)})"
    if kind == "string_type" and isinstance(given, bool | int | float | dt.date):
        return (
            f"is {type(given).__name__} {given} because it is not quoted; "
            f'write it in quotes: {location[-1]}: "…"'
        )
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if kind == "value_error":  # words of the schema's own, which hold the value
        return message if len(message) <= 400 else message[:399] + "…"
    return f"{message} (it is {_shown(given)})"


def _shown(value: Any) -> str:
    """A value in a message: what it is, not all that it holds."""
    if value is None:
        return "empty"
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    text = repr(value) if isinstance(value, str | int | float) else str(value)
    return text if len(text) <= 80 else text[:77] + "…"


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
            reason = _reason(item, location, model)
            defects.append(f"{document.path}:{document.line(location)}: {key}: {reason}")
        raise RoostError("\n".join(dict.fromkeys(defects))) from None

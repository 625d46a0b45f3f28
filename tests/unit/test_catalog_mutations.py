"""Catalogue files broken in every way: loaded, or refused with file, key path, value and reason.

A user's own recipe is such a file sooner or later, and a traceback tells nobody what to mend.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from roost import catalog, yamlfile
from roost.catalog import ROOT
from roost.errors import RoostError

FILES = sorted(ROOT.glob("*/*.yml"))
yamlfile_read = yamlfile.read
parsed_once = functools.cache(yamlfile.read)

#: Mutations of each file, besides those of its first level, which are all tried.
DRAWS = 25

Path_ = tuple[str | int, ...]

#: What may stand where something else belongs.
STRANGERS: list[Any] = [
    None,
    True,
    -1,
    31977,
    10**40,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x y\tz",
    "é" * 500,
    "sha256:" + "g" * 64,
    "../../etc/passwd",
    dt.date(2026, 1, 1),
    [],
    [1, [2, [3]]],
    {},
    {"a": {"b": {"c": None}}},
    {1: 2, None: 3},
]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def paths(node: Any, at: Path_ = ()) -> Iterator[Path_]:
    """Every place in a document."""
    children = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in children:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*at, key))


def mutate(document: Any, at: Path_, how: str, stranger: Any) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for part in at[:-1]:
        parent = parent[part]
    last = at[-1]
    if how == "delete":
        del parent[last]
    elif how == "retype":
        parent[last] = stranger
    elif how == "rename" and isinstance(parent, dict):
        parent[f"{last}x"] = parent.pop(last)
    elif how == "nest":
        parent[last] = {"deeper": parent[last]}
    elif how == "wrap":
        parent[last] = [parent[last]]
    elif isinstance(parent, list):
        parent.insert(int(last), copy.deepcopy(parent[int(last)]))
    else:
        parent["stranger"] = stranger
    return changed


HOWS = ["delete", "retype", "rename", "nest", "wrap", "add"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a single recipe or model refers to; the kinds that are broken are not in it."""
    root = tmp_path_factory.mktemp("small") / "catalog"
    root.mkdir()
    for kind in ("hardware", "engines", "architectures"):
        shutil.copytree(ROOT / kind, root / kind)
    return root


def outcome(root: Path) -> str | None:
    """The message of a catalogue that is refused; nothing for one that loads."""
    try:
        catalog.load(root)
    except RoostError as error:
        return error.what
    return None


def alone(small: Path, original: Path, text: str | bytes) -> tuple[Path, str | None]:
    """Load a catalogue with one file in a new state; gives its place and the message."""
    path = small / original.parent.name / original.name
    before = path.read_bytes() if path.exists() else None
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def read(one: Path) -> yamlfile.Document:
        # Thousands of catalogues differ in one file: the others are parsed once.
        return yamlfile_read(one) if one == path else parsed_once(one)

    try:
        with mock.patch.object(yamlfile, "read", read):
            return path, outcome(small)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


def check(path: Path, said: str, at: Path_ | None = None) -> None:
    """Each line names a file and line and a key, and one of them is about what was changed."""
    lines = said.splitlines()
    keys = []
    for line in lines:
        found = re.match(
            rf"{re.escape(str(path.parents[1]))}/\S+?\.yml(:\d+)?: ([^:]+)(: .+)?", line
        )
        assert found, line
        keys.append(found[2])
    if at is not None and len(at) > 1:
        # A validator of the whole may be what notices; it names the key in its text.
        wanted = {str(part) for part in at}
        assert any(wanted & set(re.split(r"[.\s:'`,]+", line)) for line in lines), (at, said)


@pytest.mark.parametrize("original", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_broken_file_is_refused_in_words(small: Path, original: Path) -> None:
    document = read(original)
    draw = random.Random(original.name)  # noqa: S311
    everywhere = list(paths(document))
    cases = [((key,), how) for key in document for how in ("delete", "retype", "nest")]
    cases += [(draw.choice(everywhere), draw.choice(HOWS)) for _ in range(DRAWS)]
    refused = 0
    for at, how in cases:
        stranger = draw.choice(STRANGERS)
        changed = mutate(document, at, how, stranger)
        text = yaml.dump(changed, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False)
        path, said = alone(small, original, text)
        if said is not None:
            refused += 1
            check(path, said, at if how == "retype" else None)
    assert refused > len(cases) / 3


@pytest.mark.parametrize("original", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_broken_text_is_refused_in_words(small: Path, original: Path) -> None:
    text = original.read_text(encoding="utf-8")
    draw = random.Random(original.name)  # noqa: S311
    middle = draw.randrange(len(text))
    first = text.splitlines(keepends=True)[0]
    for broken in (
        text.encode()[:middle] + b"\xff\xfe" + text.encode()[middle:],
        text[:middle] + "\x00" + text[middle:],
        # At the end: in the middle it may fall into a folded text, where it is words.
        text + "\n\t: [",
        text + first,
        "a: &a [*a]\n" + text,
        text + "deep: " + "[" * 2000,
        text + "deep: " + "{a: " * 200,
        text + "x: !!python/object/apply:os.system [id]\n",
        text + "#" * 1_000_001,
        "",
        "[]",
        "null",
        "just words",
        "--- 1\n--- 2\n",
        draw.randbytes(300),
    ):
        path, said = alone(small, original, broken)
        assert said is not None, broken[:60]
        assert said.startswith(str(path)), said


@pytest.mark.parametrize("original", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_cut_doubled_and_swapped_pieces_never_end_in_a_traceback(
    small: Path, original: Path
) -> None:
    whole = original.read_text(encoding="utf-8")
    draw = random.Random(original.name)  # noqa: S311
    for _ in range(DRAWS):
        text = whole
        for _ in range(draw.randint(1, 3)):
            a, b = sorted(draw.randrange(len(text) + 1) for _ in range(2))
            b = min(b, a + 40)
            text = draw.choice(
                [text[:a] + text[b:], text[:b] + text[a:], text[:a] + "\t: [" + text[b:]]
            )
        path, said = alone(small, original, text)
        assert said is None or said.startswith(str(path.parents[1]))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([1, 2], "(it is a list of 2)"),
        ({"a": 1}, "(it is a mapping of 1)"),
        (None, "(it is empty)"),
        (True, "bool True because it is not quoted"),
        ("é ü" * 200, "…"),
    ],
)
def test_the_value_is_shown_whatever_it_is(small: Path, value: Any, shown: str) -> None:
    original = ROOT / "recipes" / "smollm2-135m.yml"
    document = read(original)
    document["served_name"] = value
    _, said = alone(small, original, yaml.safe_dump(document, allow_unicode=True))
    assert said is not None
    assert shown in said
    assert len(said) < 400

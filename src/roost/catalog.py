"""The catalogue: hardware, engines, models and recipes as strict data, read from files.

The files are in ``catalog/{hardware,engines,architectures,models,recipes}`` beside this module;
their schema is :mod:`roost.catalog_schema`. Nothing here does network or host I/O.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from roost import yamlfile
from roost.catalog_schema import Architectural, Engine, Hardware, Model, Recipe, pick
from roost.errors import UsageError
from roost.root import CATALOG_VARIABLE
from roost.settings import Strict

ROOT = Path(__file__).with_name("catalog")

Described = TypeVar("Described", Hardware, Engine, Recipe, Model, Architectural)


class Catalog(Strict):
    """Everything that is known, by id."""

    hardware: dict[str, Hardware]
    engines: dict[str, Engine]
    recipes: dict[str, Recipe]
    models: dict[str, Model] = Field({}, description="by repository")
    architectures: dict[str, Architectural] = {}

    def recipe(self, recipe_id: str) -> Recipe:
        """The recipe of that id.

        Raises:
            UsageError: There is none; the message lists near misses or all of them.
        """
        return pick(self.recipes, recipe_id, "recipe", "roost recipes")

    def machine(self, hardware_id: str) -> Hardware:
        """The hardware profile of that id; raises :class:`UsageError` like :meth:`recipe`."""
        return pick(self.hardware, hardware_id, "hardware", "roost recipes")


#: The folders that a catalogue may have.
_FOLDERS = ("hardware", "engines", "architectures", "models", "recipes")


def _load_kind(
    roots: Sequence[Path], kind: str, model: type[Described]
) -> tuple[dict[str, Described], dict[str, Path]]:
    """Everything of one kind by id, a later directory before an earlier one, and its files."""
    items: dict[str, Described] = {}
    paths: dict[str, Path] = {}
    for path in (path for root in roots for path in sorted((root / kind).glob("*"))):
        if path.suffix != ".yml":
            if path.suffix in {".yaml", ".json"}:
                raise UsageError(
                    f"{path}: would not be read", fix=f"call it {path.with_suffix('.yml').name}"
                )
            continue
        document = yamlfile.read(path)
        item = yamlfile.validate(document, model)
        if item.id != path.stem:
            raise UsageError(
                f"{path}:{document.line(('id',))}: id: is {item.id!r}, "
                f"but the file is named {path.stem!r}",
                fix="file name and id must be the same",
            )
        items[item.id], paths[item.id] = item, path
    return items, paths


def load(*roots: Path) -> Catalog:
    """Read one or more catalogue directories; none named: the one that ships with roost.

    A file of a later directory takes the place of one of the same kind and name before it.

    Raises:
        RoostError: Naming file, line, key and reason of every defect in the first bad file, or
            the name of an engine or hardware that a recipe refers to and nobody describes.
    """
    roots = roots or (ROOT,)
    for root in roots:
        if not any((root / kind).is_dir() for kind in _FOLDERS):
            raise UsageError(
                f"{root}: is no catalogue" if root.is_dir() else f"{root}: no such directory",
                why="a catalogue has one or more of the folders " + ", ".join(_FOLDERS),
            )
    hardware, _ = _load_kind(roots, "hardware", Hardware)
    engines, engine_paths = _load_kind(roots, "engines", Engine)
    engines = _with_flags(engines, engine_paths)
    recipes, recipe_paths = _load_kind(roots, "recipes", Recipe)
    models, model_paths = _load_kind(roots, "models", Model)
    architectures, _ = _load_kind(roots, "architectures", Architectural)
    for engine in engines.values():
        for setting, candidates in engine.defaults.items():
            for hardware_id in (name for one in candidates for name in one.hardware):
                key = f"defaults.{setting}.hardware"
                _described(engine_paths[engine.id], key, hardware_id, hardware)
    by_repo: dict[str, Model] = {}
    for model in models.values():
        if (twin := by_repo.setdefault(model.repo, model)) is not model:
            raise UsageError(
                f"{model_paths[model.id]}: repo: {model.repo} is described already, in "
                f"{model_paths[twin.id]}",
                fix="one file a repository",
            )
        if model.architecture is not None:
            _described(model_paths[model.id], "architecture", model.architecture, architectures)
    for recipe in recipes.values():
        path = recipe_paths[recipe.id]
        _described(path, "engine", recipe.engine, engines)
        for hardware_id in recipe.hardware:
            _described(path, f"hardware.{hardware_id}", hardware_id, hardware)
        for name, choice in recipe.speculation.items():
            for hardware_id in choice.hardware:
                key = f"speculation.{name}.hardware.{hardware_id}"
                _described(path, key, hardware_id, hardware)
        for figure in recipe.published():
            if figure.hardware is not None:
                _described(path, f"figures.{figure.table}.hardware", figure.hardware, hardware)
    return Catalog(
        hardware=hardware,
        engines=engines,
        recipes=recipes,
        models=by_repo,
        architectures=architectures,
    )


def _with_flags(engines: dict[str, Engine], paths: Mapping[str, Path]) -> dict[str, Engine]:
    """Give engines that hand flags on to another one that one's flags, log lines and counters.

    It is the other engine that runs in the end. Its flags are left out where there is a variable.
    """
    whole = {}
    for name, engine in engines.items():
        if engine.flags_of is not None:
            _described(paths[name], "flags_of", engine.flags_of, engines)
            handed_on = {
                setting: flag
                for setting, flag in engines[engine.flags_of].flags.items()
                if setting not in engine.variables
            }
            engine = engine.model_copy(
                update={
                    "flags": handed_on | engine.flags,
                    "fatal_lines": [*engine.fatal_lines, *engines[engine.flags_of].fatal_lines],
                    "counters": engine.counters or engines[engine.flags_of].counters,
                    "watch": engine.watch or engines[engine.flags_of].watch,
                }
            )
        whole[name] = engine
    return whole


def _described(path: Path, key: str, name: str, known: Mapping[str, object]) -> None:
    """Refuse a name that a file refers to and no file describes."""
    if name not in known:
        raise UsageError(
            f"{path}: {key}: {name!r} is not described", why="known: " + ", ".join(known)
        )


@cache
def builtin() -> Catalog:
    """The catalogue that ships with roost, read once per process."""
    return load()


@cache
def _with(own: str) -> Catalog:
    return load(ROOT, Path(own))


def current() -> Catalog:
    """What ships with roost, and the user's own catalogue directory on top if one is named.

    Raises:
        RoostError: The directory is none, or a file in it is wrong (see :func:`load`).
    """
    own = os.environ.get(CATALOG_VARIABLE)
    return _with(own) if own else builtin()

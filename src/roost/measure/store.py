"""Every run that was kept, found below a folder and read back.

A run's folder has ``result.json`` or an executed notebook in it, at any depth below the root (a
rollout keeps its hosts' runs within its own). Folders are read with patience: kinds of runs that
this roost does not know, runs that were killed and files that are broken are kept as what they are,
with one message each, and never stop the others from loading.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from roost import kept_files
from roost.errors import RoostError, UsageError
from roost.measure import points
from roost.measure.checks import whole as whole_text
from roost.measure.kept import Kept, KeptHost, KeptResult
from roost.measure.points import METRICS, Benchmark
from roost.measure.running import HOST
from roost.root import places
from roost.runs import RESULT, first_defect

_Model = TypeVar("_Model", bound=BaseModel)

#: What a rollout keeps of itself, above its hosts' runs.
ROLLOUT = "rollout.json"
#: Runs that look at a host; others (a comparison, a search) are of such runs.
OF_A_HOST = {"verify", "benchmark"}
#: Levels of lists and maps within a document; the deepest that a run writes has ten.
_DEEPEST = 100
#: A site that was built among the runs is no run; this file marks it.
SITE_MARK = "roost-site.json"


def locate(root: Any) -> Path:
    """A folder that was given from here or from the repository root."""
    named = places(root)
    return next((place for place in named if place.is_dir()), named[-1])


def require(root: Path) -> None:
    """Nothing where there is a folder of runs.

    Raises:
        UsageError: There is none; with how one comes to be.
    """
    if not root.is_dir():
        raise UsageError(
            f"{root}: no such folder",
            why="runs are kept in runs/ unless told else",
            fix=f"keep a first one there: roost verify -i INVENTORY --runs {root}",
        )


def find(root: Path) -> Iterator[Path]:
    """Every run's folder below a root, and folders that hold nothing; sorted, links not followed.

    A folder that cannot be listed is among them: it may be a run, or have some in it.

    Raises:
        UsageError: There is no such folder.
        RoostError: It cannot be listed.
    """
    require(root)
    within: set[Path] = set()
    closed: list[Path] = []

    def keep(error: OSError) -> None:
        if Path(error.filename) == root:
            raise RoostError(f"{root}: cannot be read", why=str(error.strerror))
        closed.append(Path(error.filename))

    for place, directories, files in os.walk(root, onerror=keep):
        while closed:
            yield closed.pop(0)
        here = Path(place)
        # A folder of this name is no run, but its parent is one that cannot be read.
        documents = {RESULT, ROLLOUT} & {*directories, *files}
        hidden = {name for name in directories if name.startswith(".")}
        # Where a folder is closed to us Path.exists raises.
        sites = {name for name in directories if os.path.exists(here / name / SITE_MARK)}  # noqa: PTH110
        directories[:] = sorted(set(directories) - hidden - sites - documents)
        is_run = bool(documents) or any(name.endswith(".ipynb") for name in files)
        inside = here.parent in within
        if is_run or inside:
            within.add(here)
        if is_run or (not inside and not directories and here != root):
            yield here
    yield from closed


def name_of(folder: Path, root: Path | None = None) -> str:
    """A run's name: its folder from the root, or of its own where it is the root."""
    relative = folder.relative_to(root) if root else Path()
    return relative.as_posix() if relative.parts else folder.resolve().name


def read(folder: Path, root: Path | None = None, *, whole: bool = True) -> Kept:
    """One run; what cannot be read of it is its ``problem``.

    Args:
        folder: The run's.
        root: What its name is from.
        whole: With all requests of a benchmark.
    """
    name = name_of(folder, root)
    problems: list[str] = []

    def attempt(load: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return load()
        except RoostError as error:
            # Names and keys may have half characters, which no terminal takes.
            problems.append(whole_text(f"{error.what} ({error.why})" if error.why else error.what))
            return otherwise

    listed: set[str] | None = attempt(lambda: _names(folder), None)
    there = listed or set()
    document = {} if listed is None else attempt(lambda: _document(folder, there), {})
    result = machine = benchmark = None
    measured: tuple[dict[str, Any], ...] = ()
    if document:
        result = attempt(lambda: _checked(KeptResult, document, folder / RESULT), None)
    if result is not None and points.FILE in there:
        benchmark, measured = attempt(lambda: _benchmark(folder, name, whole), (None, ()))
    if HOST in there:
        path = folder / HOST
        machine = attempt(lambda: _checked(KeptHost, _object(path), path), None)
    return Kept(
        name,
        folder,
        result,
        document,
        benchmark,
        measured,
        machine,
        problem="; ".join(problems),
        unfinished=listed is not None and RESULT not in there,
    )


def read_all(root: Path) -> list[Kept]:
    """Every run below a root, the newest last as far as names tell; benchmarks in short.

    Raises:
        UsageError: There is no such folder.
    """
    # A thousand benchmarks have a million requests, which would fill the memory.
    return [read(folder, root, whole=False) for folder in find(root)]


def _names(folder: Path) -> set[str]:
    """What is in a folder."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries}
    except OSError as error:
        raise RoostError(f"{folder}: cannot be read", why=str(error.strerror)) from None


def _document(folder: Path, there: set[str]) -> dict[str, Any]:
    if ROLLOUT in there and RESULT not in there:
        return _rollout(folder / ROLLOUT)
    if RESULT not in there:
        raise RoostError(f"{folder}: no {RESULT}", why="the run was killed, or is still going on")
    return _object(folder / RESULT)


def _rollout(path: Path) -> dict[str, Any]:
    """What a rollout's document says, in a result's words."""
    data = _object(path)
    if data.get("verdict") == "running":
        raise RoostError(f"{path}: no verdict", why="the rollout goes on, or was interrupted")
    inventory = Path(str(data.pop("inventory", ""))).stem
    return {**data, "notebook": "rollout", "ok": data.get("verdict") == "passed", "host": inventory}


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(kept_files.text(path))
    except OSError as error:
        raise RoostError(f"{path}: cannot be read", why=str(error.strerror)) from None
    except (ValueError, RecursionError) as error:
        raise RoostError(f"{path}: no JSON", why=str(error)) from None
    if not isinstance(data, dict):
        raise RoostError(f"{path}: no JSON object")
    if _is_deep(data):
        raise RoostError(f"{path}: no document of a run", why=f"more than {_DEEPEST} levels deep")
    return data


def _is_deep(data: Any) -> bool:
    """Whether something is so far within that what is to be written again could not be."""
    level = [data]
    for _ in range(_DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [one for part in inner for one in part if isinstance(one, dict | list)]
        if not level:
            return False
    return True


def _checked(model: type[_Model], data: dict[str, Any], path: Path) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise RoostError(f"{path}: {first_defect(error)}") from None


def _benchmark(
    folder: Path, name: str, whole: bool
) -> tuple[Benchmark, tuple[dict[str, Any], ...]]:
    found = points.load(folder)
    try:
        rows = tuple(_point_rows(found, name))
        return found if whole else points.parse(points.document(found)), rows
    except (ValueError, ArithmeticError) as error:
        # Of numbers that no engine reaches even the logarithm's interval has no end.
        raise RoostError(f"{folder / points.FILE}: no figures in it", why=str(error)) from None


def _point_rows(benchmark: Benchmark, run: str) -> Iterator[dict[str, Any]]:
    for cell in benchmark.cells:
        for metric in METRICS:
            found = metric.estimate(cell)
            if found is not None:
                yield {
                    "run": run,
                    "suite": benchmark.suite,
                    "point": cell.id,
                    "category": cell.category,
                    "concurrency": cell.concurrency,
                    "metric": metric.key,
                    "unit": metric.unit,
                    "value": found.value,
                    "low": found.low,
                    "high": found.high,
                    "n": found.n,
                    "repetitions": len(cell.clean),
                    "left_out": len(cell.repetitions) - len(cell.clean),
                }

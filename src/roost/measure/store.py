"""Every run that was kept, read back: for data frames and for the site.

A run's folder has ``result.json`` or an executed notebook in it, at any depth below the root (a
rollout keeps its hosts' runs within its own). Folders are read with patience: kinds of runs that
this roost does not know, runs that were killed and files that are broken are kept as what they are,
with one message each, and never stop the others from loading.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import pandas as pd
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from roost.errors import RoostError, UsageError
from roost.measure import points, throttling
from roost.measure.checks import Figure
from roost.measure.points import METRICS, Benchmark
from roost.measure.running import HOST
from roost.parquet import read as read_parquet
from roost.root import repository_root
from roost.runs import RESULT, first_defect

_Model = TypeVar("_Model", bound=BaseModel)
State = Literal["passed", "failed", "unfinished", "unreadable"]

#: What a rollout keeps of itself, above its hosts' runs.
ROLLOUT = "rollout.json"
#: Runs that look at a host; others (a comparison, a search) are of such runs.
OF_A_HOST = {"verify", "benchmark"}
#: A site that was built among the runs is no run; this file marks it.
SITE_MARK = "roost-site.json"


class KeptCheck(BaseModel):
    """A check of any version: of some it says more than whether it stands against the host."""

    model_config = ConfigDict(frozen=True)

    id: str
    ok: bool
    expected: str = ""
    observed: str = ""
    why: str = ""
    fix: str = ""
    verdict: str = ""

    @property
    def outcome(self) -> str:
        """``passed``, ``failed``, or another verdict in its own words."""
        plain = {"": "passed" if self.ok else "failed", "pass": "passed", "fail": "failed"}
        return plain.get(self.verdict, self.verdict)


#: Of runs there were none before, and calendars end.
_EPOCH = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
_Moment = Annotated[AwareDatetime, Field(gt=_EPOCH, lt=_EPOCH.replace(year=2200))]


class KeptResult(BaseModel):
    """``result.json`` of any kind of run and any version; what else is in it is kept beside."""

    model_config = ConfigDict(frozen=True, extra="allow")

    ok: bool
    notebook: str
    started: _Moment
    finished: _Moment | None = None
    recipe: str = ""
    host: str = ""
    hardware: str = ""
    speculation: str = ""
    lock: dict[str, str | None] = {}
    checks: list[KeptCheck] = []
    figures: dict[str, Figure] = {}
    command: list[str] = []
    env: dict[str, str] = {}
    trial: bool = False

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        return (self.finished - self.started).total_seconds() if self.finished else None


class _Gpu(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = ""
    driver: str | None = None


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    gpus: list[_Gpu] = []


class KeptHost(BaseModel):
    """``host.json``; of the facts, what is shown by name, and all else as it was."""

    model_config = ConfigDict(frozen=True)

    facts: _Facts | None = None
    engine_version: str | None = None
    not_read: str = ""


@dataclass(frozen=True)
class Kept:
    """One run's folder, as far as it can be read.

    Attributes:
        name: The folder, from the root that was searched, with ``/`` in it.
        result: None where ``result.json`` is missing or is none.
        document: What ``result.json`` holds, if it is a JSON object.
        benchmark: Of :func:`read_all` without its requests and draft positions, which are nearly
            all of it; :meth:`whole` has them.
        measured: The rows of a benchmark in :attr:`Frames.points`.
        machine: None in runs from before it was kept.
        problem: What could not be read, and why; empty where everything could.
        unfinished: It has no ``result.json``.
    """

    name: str
    folder: Path
    result: KeptResult | None = None
    document: dict[str, Any] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    measured: tuple[dict[str, Any], ...] = ()
    machine: KeptHost | None = None
    problem: str = ""
    unfinished: bool = False

    @property
    def state(self) -> State:
        if self.result is None:
            return "unfinished" if self.unfinished else "unreadable"
        return "passed" if self.result.ok else "failed"

    @property
    def kind(self) -> str:
        """The notebook that it is a run of, or as much as is known of it."""
        said = self.result.notebook if self.result else self.document.get("notebook")
        return said if isinstance(said, str) and said else "unknown"

    @property
    def engine_version(self) -> str:
        """As the engine said it; empty where nobody asked."""
        asked = self.machine.engine_version if self.machine else None
        checks = self.result.checks if self.result else []
        return str(asked or next((c.observed for c in checks if c.id == "engine_version"), ""))

    @property
    def driver(self) -> str:
        """The GPU driver's version; empty where there is none or nobody asked."""
        facts = self.machine.facts if self.machine else None
        return (facts.gpus[0].driver or "") if facts and facts.gpus else ""

    def facts(self) -> dict[str, str]:
        """Versions and digests that the run was made with; what is not known is left out."""
        lock = self.result.lock if self.result else {}
        machine = self.machine.facts if self.machine else None
        found = {
            # The repository may be a mirror's; the digest says what runs.
            "image": (lock.get("image") or "").rpartition("@")[2],
            "model": lock.get("model") or "",
            "drafter": lock.get("drafter") or "",
            "command": shlex.join(self.result.command) if self.result else "",
            "engine": self.engine_version,
            "driver": self.driver,
            "kernel": str(machine.model_dump().get("kernel", "")) if machine else "",
        }
        return {key: value for key, value in found.items() if value}

    def whole(self) -> Benchmark | None:
        """The benchmark with every request, read again; nothing where there is none.

        Raises:
            RoostError: It was readable, and is no longer.
        """
        return points.load(self.folder) if self.benchmark is not None else None

    def gpu_samples(self) -> list[dict[str, Any]]:
        """Rows of :data:`roost.measure.throttling.FILE`; none where nothing was sampled.

        Raises:
            RoostError: The file is broken.
        """
        path = self.folder / throttling.FILE
        if not os.path.exists(path):  # noqa: PTH110 - of a folder that is closed to us Path raises
            return []
        return read_parquet(path, throttling.COLUMNS, throttling.NOT_ALWAYS)


# --- reading --------------------------------------------------------------------------------------


def find(root: Path) -> Iterator[Path]:
    """Every run's folder below a root, and folders that hold nothing; sorted, links not followed.

    A folder that cannot be listed may be a run, or have some in it: it is one of them.

    Raises:
        UsageError: There is no such folder.
        RoostError: It cannot be listed.
    """
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder", fix="runs are kept in runs/ unless told else")
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


def read(folder: Path, root: Path | None = None) -> Kept:
    """One run; what cannot be read of it is its ``problem``."""
    name = name_of(folder, root)
    problems: list[str] = []

    def attempt(load: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return load()
        except RoostError as error:
            problems.append(f"{error.what} ({error.why})" if error.why else error.what)
            return otherwise

    listed: set[str] | None = attempt(lambda: _names(folder), None)
    there = listed or set()
    document = {} if listed is None else attempt(lambda: _document(folder, there), {})
    result = machine = benchmark = None
    measured: tuple[dict[str, Any], ...] = ()
    if document:
        result = attempt(lambda: _checked(KeptResult, document, folder / RESULT), None)
    if result is not None and points.FILE in there:
        benchmark, measured = attempt(lambda: _benchmark(folder, name), (None, ()))
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
    return [_short(read(folder, root)) for folder in find(root)]


def _short(kept: Kept) -> Kept:
    """Without what would fill the memory: a thousand benchmarks have a million requests."""
    if kept.benchmark is None:
        return kept
    return replace(kept, benchmark=points.parse(points.document(kept.benchmark)))


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
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RoostError(f"{path}: cannot be read", why=str(error.strerror)) from None
    except (ValueError, RecursionError) as error:
        raise RoostError(f"{path}: no JSON", why=str(error)) from None
    if not isinstance(data, dict):
        raise RoostError(f"{path}: no JSON object")
    return data


def _checked(model: type[_Model], data: dict[str, Any], path: Path) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise RoostError(f"{path}: {first_defect(error)}") from None


def _benchmark(folder: Path, name: str) -> tuple[Benchmark, tuple[dict[str, Any], ...]]:
    found = points.load(folder)
    try:
        return found, tuple(_point_rows(found, name))
    except ValueError as error:
        raise RoostError(f"{folder / points.FILE}: no figures in it", why=str(error)) from None


# --- frames ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frames:
    """Runs as data frames; the column ``run`` joins them.

    Attributes:
        runs: A row a run: ``run``, ``kind``, ``state``, ``host``, ``recipe``, ``hardware``,
            ``speculation``, ``started``, ``seconds``, ``suite``, ``image``, ``model``,
            ``drafter``, ``command``, ``trial``, ``engine_version``, ``driver``, ``checks``,
            ``failed``, ``folder``. ``trial``: of settings that tuning or a comparison tried.
        checks: A row a check: ``id``, ``ok``, ``outcome``, ``expected``, ``observed``, ``why``,
            ``fix``.
        figures: A row a figure, with its ``key`` and :class:`roost.measure.checks.Figure`'s fields.
        points: A row a benchmark's point and metric: ``value`` with its 95 % interval ``low`` to
            ``high`` (NaN where there is none) over ``n`` independent values.
        problems: A message for each folder that could not be read as a whole.
    """

    runs: pd.DataFrame
    checks: pd.DataFrame
    figures: pd.DataFrame
    points: pd.DataFrame
    problems: list[str]
    kept: list[Kept] = field(repr=False)

    def requests(self) -> pd.DataFrame:
        """A row a request of every benchmark; times in seconds.

        Raises:
            RoostError: A run's file of them was readable, and is no longer.
        """
        return self._long(points.REQUESTS)

    def acceptance(self) -> pd.DataFrame:
        """A row a draft position of every repetition.

        Raises:
            RoostError: A run's file of them was readable, and is no longer.
        """
        return self._long(points.ACCEPTANCE)

    def gpu_samples(self) -> pd.DataFrame:
        """A row a GPU and moment of every benchmark: seconds, MHz, W, °C.

        Raises:
            RoostError: A run's file of them is broken.
        """
        rows = [{"run": one.name, **row} for one in self.kept for row in one.gpu_samples()]
        return _frame(rows, {"run": str, **throttling.COLUMNS})

    def _long(self, name: str) -> pd.DataFrame:
        # From the benchmark, not the file: runs from before there were files have rows too.
        rows = [
            {"run": one.name, **row}
            for one in self.kept
            if (whole := one.whole()) is not None
            for row in points.tables(whole)[name].rows
        ]
        empty = points.tables(_NOTHING)[name]
        return _frame(rows, {"run": str, **empty.columns})


_NOTHING = Benchmark(suite="", protocol="", prompts="", complete=False, cells=[])


def load_runs(
    root: Any = "runs",
    *,
    kind: str | Sequence[str] = (),
    host: str | Sequence[str] = (),
    recipe: str | Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> Frames:
    """Read every run below a folder.

    Args:
        root: Where runs are kept, from here or from the repository root.
        kind: Only runs of these notebooks (``verify``, ``benchmark``, …); all if empty.
        host: Only of these hosts.
        recipe: Only of these recipes.
        say: Is told of each folder that cannot be read as a whole; the others load.

    Raises:
        UsageError: There is no such folder.
    """
    wanted = {"kind": kind, "host": host, "recipe": recipe}
    filters = {
        key: {value} if isinstance(value, str) else set(value)
        for key, value in wanted.items()
        if value
    }
    kept = [one for one in read_all(locate(root)) if _matches(one, filters)]
    problems = [one.problem for one in kept if one.problem]
    for problem in problems:
        say(problem)
    finished = [(one.name, one.result) for one in kept if one.result is not None]
    return Frames(
        runs=_frame([_run_row(one) for one in kept], _RUN),
        checks=_frame(
            [
                {"run": run, "outcome": check.outcome, **check.model_dump()}
                for run, result in finished
                for check in result.checks
            ],
            _CHECK,
        ),
        figures=_frame(
            [
                {"run": run, "key": key, **figure.model_dump()}
                for run, result in finished
                for key, figure in result.figures.items()
            ],
            _FIGURE,
        ),
        points=_frame([row for one in kept for row in one.measured], _POINT),
        problems=problems,
        kept=kept,
    )


def locate(root: Any) -> Path:
    """A folder that was given from here or from the repository root."""
    given = Path(root).expanduser()
    if given.is_dir():
        return given
    try:
        return repository_root() / given
    except UsageError:
        return given


def _matches(one: Kept, filters: dict[str, set[str]]) -> bool:
    # Of what cannot be read nobody knows whether it was meant; its message must not get lost.
    if one.result is None:
        return True
    row = {"kind": one.kind, "host": one.result.host, "recipe": one.result.recipe}
    return all(row[key] in values for key, values in filters.items())


_CHECK: dict[str, type] = {
    "run": str, "id": str, "ok": bool, "outcome": str, "expected": str, "observed": str,
    "why": str, "fix": str,
}  # fmt: skip
_FIGURE: dict[str, type] = {
    "run": str, "key": str, "title": str, "value": float, "unit": str, "source": str,
    "low": float, "high": float,
}  # fmt: skip
_POINT: dict[str, type] = {
    "run": str, "suite": str, "point": str, "category": str, "concurrency": int, "metric": str,
    "unit": str, "value": float, "low": float, "high": float, "n": int, "repetitions": int,
    "left_out": int,
}  # fmt: skip
_RUN: dict[str, type] = {
    "run": str, "kind": str, "state": str, "host": str, "recipe": str, "hardware": str,
    "speculation": str, "started": dt.datetime, "seconds": float, "suite": str, "image": str,
    "model": str, "drafter": str, "command": str, "trial": bool, "engine_version": str,
    "driver": str, "checks": int, "failed": int, "folder": str,
}  # fmt: skip


def _run_row(one: Kept) -> dict[str, Any]:
    result = one.result
    row: dict[str, Any] = {
        "run": one.name,
        "kind": one.kind,
        "state": one.state,
        "suite": one.benchmark.suite if one.benchmark else "",
        "trial": result is not None and result.trial,
        "engine_version": one.engine_version,
        "driver": one.driver,
        "checks": len(result.checks) if result else 0,
        "failed": sum(not check.ok for check in result.checks) if result else 0,
        "folder": str(one.folder),
    }
    if result is not None:
        row |= {key: getattr(result, key) for key in ("host", "recipe", "hardware", "speculation")}
        row |= {"started": result.started, "seconds": result.seconds}
        row["command"] = shlex.join(result.command)
        row |= {key: result.lock.get(key) or "" for key in ("image", "model", "drafter")}
    return row


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


def _frame(rows: list[dict[str, Any]], columns: dict[str, type]) -> pd.DataFrame:
    """A frame whose columns have their type also where there is no row."""
    made: dict[str, Any] = {}
    for name, kind in columns.items():
        values = [row.get(name) for row in rows]
        if kind is dt.datetime:
            made[name] = pd.to_datetime(pd.Series(values, dtype=object), utc=True)
        elif kind is str:
            made[name] = pd.Series([_text(value) for value in values], dtype=str)
        else:
            made[name] = pd.Series(values, dtype=kind)
    return pd.DataFrame(made, columns=list(columns))


def _text(value: Any) -> str:
    """As a column of text can hold it: JSON may have half a character."""
    return "" if value is None else str(value).encode(errors="replace").decode()

"""Kept runs as data frames, for notebooks of one's own."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from roost.measure import points, store, throttling
from roost.measure.kept import Kept
from roost.measure.points import Benchmark


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
    kept = [one for one in store.read_all(store.locate(root)) if _matches(one, filters)]
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


def _matches(one: Kept, filters: dict[str, set[str]]) -> bool:
    # What cannot be read may be what was asked for: its message must not get lost.
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

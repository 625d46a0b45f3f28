"""What the index says of a run: all that is kept of it once its page is written.

Rows are small, so that those of thousands of runs fit in memory and in a script beside the index.
The site keeps them: a run that has not changed since is not read again.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from roost.measure.kept import Kept
from roost.measure.points import metric
from roost.measure.store import OF_A_HOST

#: The metrics of the table of benchmarks and of what is drawn over time; decode speed is TPOT
#: again, the accept rate follows the length.
SHOWN = ("output_throughput", "accept_length", "ttft", "decode_speed")
#: Bytes of a page's name, or a folder's; file systems take 255.
_LONGEST = 240
#: Median and the ends of its interval; nothing where nothing was measured.
Cell = Sequence[float | None] | None


@dataclass(frozen=True)
class Row:
    """What is said of a run in a line: text, empty where it is not known.

    Attributes:
        href: Its page, from the site's folder.
        started: In UTC, so that it sorts as text; of a run without a result as its folder says.
        failed: Checks that do not hold.
        trial: It is of settings that were only tried.
        points: Each point of a benchmark with its figures in the order of :data:`SHOWN`.
        words: What may be another run's name where its figures say what they come from.
    """

    name: str
    href: str
    kind: str
    state: str
    host: str
    recipe: str
    hardware: str
    speculation: str
    suite: str
    engine_version: str
    started: str
    seconds: float | None
    failed: Sequence[str]
    problem: str
    trial: bool
    points: Sequence[tuple[str, Sequence[Cell]]]
    words: Sequence[str]

    @property
    def called(self) -> str:
        """What stands for it in a list; of a run without a result its name is all that is known."""
        return self.started[:16] if self.state in {"passed", "failed"} else self.name

    @property
    def checks_failed(self) -> str:
        """The first few; a run of a host that is down has dozens."""
        more = len(self.failed) - 3
        return ", ".join(self.failed[:3]) + (f" and {more} more" if more > 0 else "")


def address(name: str) -> str:
    """Where a run's page is in the site; no two runs have one, nor does one lie in the other's way.

    Folders of a page are called as those of its run, unless they would be called as a page
    (``x.html/y`` beside ``x``); the page of a name that is too long for ``.html`` has a hash in it.
    """
    *folders, own = name.split("/")
    folders = [re.sub(r"\.html(~*)\Z", r".html\1~", folder) for folder in folders]
    return "/".join(["runs", *(fitting(one) for one in folders), fitting(own) + ".html"])


def fitting(name: str) -> str:
    """A name with which another one begins: short enough that something may stand behind it."""
    long = os.fsencode(name)
    if len(long) <= _LONGEST:
        return name
    # The cut may go through a letter.
    begin = long[: _LONGEST - 40].decode(errors="ignore")
    return f"{begin}~{hashlib.sha256(long).hexdigest()[:32]}"


def of(run: Kept) -> Row:
    """The row of a run."""
    result = run.result
    return Row(
        name=run.name,
        href=quote(os.fsencode(address(run.name))),
        kind=run.kind,
        state=run.state,
        host=result.host if result else "",
        recipe=result.recipe if result else "",
        hardware=result.hardware if result else "",
        speculation=result.speculation if result else "",
        suite=run.benchmark.suite if run.benchmark else "",
        engine_version=run.engine_version,
        started=_started(run),
        seconds=result.seconds if result else None,
        failed=[check.id for check in result.checks if not check.ok] if result else [],
        problem=run.problem,
        trial=result.trial if result else False,
        points=_points(run),
        words=_words(run),
    )


def _started(run: Kept) -> str:
    if run.result:
        return run.result.started.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    return stamp(run.folder.name)


def stamp(folder: str) -> str:
    """When a run began, as its folder's name says; empty where it says nothing."""
    said = re.match(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z-", folder, re.ASCII)
    return "{}-{}-{} {}:{}:{}".format(*said.groups()) if said else ""


def _points(run: Kept) -> list[tuple[str, list[Cell]]]:
    found: dict[str, dict[str, Cell]] = {}
    for one in run.measured:
        cell = [_short(one[key]) for key in ("value", "low", "high")]
        found.setdefault(one["point"], {})[one["metric"]] = cell if cell[0] is not None else None
    return [(point, [by_metric.get(key) for key in SHOWN]) for point, by_metric in found.items()]


def _short(value: float | None) -> float | None:
    """More digits than anyone reads would be most of the index; JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _words(run: Kept) -> list[str]:
    """A run of a host names no other."""
    if run.result is None or run.kind in OF_A_HOST:
        return []
    said = " ".join(figure.source for figure in run.result.figures.values())
    return sorted({word.rstrip(".:") for word in re.split(r"[\s,;()]+", said)} - {""})


def script(rows: Sequence[Row]) -> str:
    """All rows by columns, as a script: a page that is opened as a file may read nothing else.

    Text that repeats stands once. A point says which run it is of by the place in ``runs``.
    """
    measured = [(at, *point) for at, row in enumerate(rows) for point in row.points]
    data: dict[str, Any] = {
        "runs": {
            "href": [row.href for row in rows],
            "called": [row.called for row in rows],
            "started": [row.started for row in rows],
            "failures": [len(row.failed) for row in rows],
            "seconds": [row.seconds for row in rows],
            "tried": [at for at, row in enumerate(rows) if row.trial],
            "outcome": _coded([row.state for row in rows]),
            "failed": _coded([row.checks_failed for row in rows]),
            # For the search: a cell has but the first few.
            "all_failed": _coded([" ".join(row.failed) for row in rows]),
            "engine": _coded([row.engine_version for row in rows]),
            **{
                name: _coded([getattr(row, name) for row in rows])
                for name in ("host", "kind", "recipe", "hardware", "speculation", "suite")
            },
        },
        "points": {
            "run": [at for at, _, _ in measured],
            "point": _coded([point for _, point, _ in measured]),
        },
        "metrics": [],
    }
    for at, key in enumerate(SHOWN):
        known = metric(key)
        cells = [figures[at] or (None, None, None) for _, _, figures in measured]
        data["metrics"].append(
            {
                "title": known.title,
                "unit": known.unit,
                **{
                    name: [cell[place] for cell in cells]
                    for place, name in enumerate(("value", "low", "high"))
                },
            }
        )
    return f"const INDEX = {json.dumps(data, separators=(',', ':'), allow_nan=False)};\n"


def _coded(values: Sequence[str]) -> dict[str, Any]:
    """Each text once, and for each row which."""
    places = {text: at for at, text in enumerate(dict.fromkeys(values))}
    return {"texts": list(places), "at": [places[value] for value in values]}

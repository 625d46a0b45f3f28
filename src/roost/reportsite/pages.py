"""The site's pages: text from runs' folders, escaped, in templates.

A page's scripts carry a nonce, and its policy runs nothing else. The nonce is a hash of the page
itself: the same for the same page, and nothing that a text within the page could know.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

import roost
from roost import html_templates, runs
from roost.errors import RoostError
from roost.measure import points, store
from roost.measure.kept import Kept, KeptOrigin, KeptResult
from roost.reportsite import charts, notebook
from roost.reportsite import rows as run_rows
from roost.reportsite.rows import SHOWN, Row, address

#: Rows of a table that stand in the page itself, and that its script shows at a time.
PAGE = 100
#: Messages of the index that are shown at once.
_MESSAGES = 10


def index(rows: Sequence[Row], title: str) -> str:
    """The first page: the newest runs and benchmarks, and what could not be read.

    All others come from :func:`roost.reportsite.rows.script`, for who has scripts.

    Args:
        rows: Every run, the newest first.
        title: Its heading.
    """
    days = sorted(row.started[:10] for row in rows if row.started)
    measured = ((row, point, figures) for row in rows for point, figures in row.points)
    return _render(
        "index.html.j2",
        title=title,
        up="",
        rows=rows,
        page=PAGE,
        span=" to ".join(dict.fromkeys([days[0], days[-1]])) if days else "",
        problems=[row.problem for row in rows if row.problem],
        messages=_MESSAGES,
        filters={
            "host": _values(row.host for row in rows),
            "recipe": _values(row.recipe for row in rows),
            "kind": _values(row.kind for row in rows),
            "outcome": _values(row.state for row in rows),
        },
        # As the script draws them: a figure of settings that were not only tried.
        charts=any(any(figures) for row in rows if not row.trial for _, figures in row.points),
        metrics=[points.metric(key) for key in SHOWN],
        points=list(islice(measured, PAGE)),
        measured=sum(len(row.points) for row in rows),
    )


def everything(rows: Sequence[Row], title: str) -> str:
    """Every run in a plain list, for who has no scripts, prints, or searches a page."""
    return _render("all.html.j2", title=title, up="", rows=rows, charts=False)


def run(
    kept: Kept,
    files: Mapping[str, str],
    within: Sequence[Row] = (),
    others: Iterable[str] = (),
) -> tuple[str, list[str]]:
    """A run's page, and a message for each file that it could not show.

    Args:
        kept: The run.
        files: Where each of its raw files is in the site.
        within: The runs that stand in its folder, as a rollout's do.
        others: The names of runs that its figures' sources name; they become links.
    """
    up = "../" * address(kept.name).count("/")
    links = {name: up + quote(os.fsencode(place)) for name, place in files.items()}
    result = kept.result
    named = {name: up + quote(os.fsencode(address(name))) for name in others}
    targets = _targets({**named, **links})
    problems: list[str] = []
    try:
        drawn = charts.of_run(kept)
    except RoostError as error:
        drawn = []
        problems.append(_said(error, kept))
    shown = []
    for name in sorted(files, key=lambda name: (name != runs.EXECUTED, name)):
        if name.endswith(".ipynb"):
            try:
                shown.append((name, Markup(notebook.render(kept.folder / name))))  # noqa: S704 - cleaned there
            except RoostError as error:
                problems.append(_said(error, kept))
    facts = kept.machine.facts if kept.machine else None
    page = _render(
        "run.html.j2",
        up=up,
        row=run_rows.of(replace(kept, problem="; ".join(filter(None, (kept.problem, *problems))))),
        checks=sorted(result.checks, key=lambda check: check.ok) if result else [],
        # What holds without having been seen to pass: it could not be seen, or does not apply.
        beside=Counter(
            check.outcome
            for check in (result.checks if result else [])
            if check.ok and check.outcome != "passed"
        ),
        charts=drawn,
        figures=[(figure, _linked(figure.source, targets)) for figure in result.figures.values()]
        if result
        else [],
        origin=_origin(kept),
        host_facts=_pretty(facts.model_dump(mode="json")) if facts else "",
        rest=_rest(kept),
        within=within,
        files=[
            (name, link, _size((kept.folder / name).stat().st_size)) for name, link in links.items()
        ],
        notebooks=shown,
    )
    return page, problems


def asset(name: str) -> str:
    """A file that pages refer to or contain."""
    return (resources.files("roost") / "templates" / "site" / name).read_text(encoding="utf-8")


def _values(found: Any) -> list[str]:
    return sorted({value for value in found if value})


_Targets = tuple[re.Pattern[str], Mapping[str, str]]


def _targets(links: Mapping[str, str]) -> _Targets:
    """Links by what stands for them in a text, and a pattern that finds them."""
    longest_first = sorted(links, key=len, reverse=True)
    # Whole names only: a host's or a rollout's may be a part of many words.
    names = "|".join(re.escape(name) for name in longest_first)
    return re.compile(rf"(?<![\w.-])(?:{names})(?![\w-])" if names else r"(?!)"), links


def _linked(text: str, targets: _Targets) -> list[tuple[str, str | None]]:
    """A figure's source, with the raw files and runs that it names as links."""
    names, links = targets
    found: list[tuple[str, str | None]] = []
    at = 0
    for match in names.finditer(text):
        found += [(text[at : match.start()], None), (match[0], links[match[0]])]
        at = match.end()
    return [*found, (text[at:], None)]


def _origin(kept: Kept) -> list[tuple[str, str]]:
    """Protocol, pins, engine and machine: what any figure of the page rests on."""
    rows: list[tuple[str, str | None]] = []
    # A comparison has no machine: its runs have.
    unknown, of_a_host = "not recorded", kept.kind in store.OF_A_HOST
    if kept.benchmark is not None:
        whole = "" if kept.benchmark.complete else " (not measured to its end)"
        rows += [
            ("Protocol", f"{kept.benchmark.suite}: {kept.benchmark.protocol}{whole}"),
            ("Prompts", kept.benchmark.prompts),
            ("Chat template", _arguments(kept.benchmark.chat_template_kwargs) or unknown),
        ]
    if kept.result is not None:
        # Of several runs each has its own: together they are nobody's.
        for one in kept.result.compared:
            what = ", ".join((one.recipe, one.speculation, one.hardware, one.host))
            rows.append((f"Run {one.run}", what))
            rows += [(f"{name} of {one.run}", text) for name, text in _pinned(one)]
        if not kept.result.compared:
            rows += _pinned(kept.result)
            if not kept.result.command and of_a_host:
                rows.append(("Command", unknown))
        if kept.result.trial:
            rows.append(("Tried", "these settings were tried; the host went back to its own"))
    rows.append(("Engine version", kept.engine_version or (unknown if of_a_host else "")))
    if kept.machine is not None and kept.machine.facts is not None:
        facts = kept.machine.facts.model_dump()
        gpus = [
            f"{gpu.name}{f', driver {gpu.driver}' if gpu.driver else ''}"
            for gpu in kept.machine.facts.gpus
        ]
        rows += [
            ("Machine", f"{facts.get('machine', '')}, Linux {facts.get('kernel', '')}"),
            ("GPUs", "; ".join(gpus) or "none seen"),
        ]
    elif of_a_host:
        why = kept.machine.not_read if kept.machine else ""
        rows.append(("Machine", f"{unknown}{f': {why}' if why else ''}"))
    rows.append(("Folder", kept.name))
    return list(dict.fromkeys((name, text) for name, text in rows if text))


def _pinned(of: KeptResult | KeptOrigin) -> list[tuple[str, str]]:
    """What a run's container was: pins, command and environment, as far as they were kept."""
    titles = {"image": "Image", "model": "Model", "drafter": "Drafter", "file": "Lock"}
    found = [(titles.get(key, key), of.lock[key]) for key in [*titles, *of.lock] if key in of.lock]
    found += [
        ("Command", shlex.join(of.command)),
        ("Environment", " ".join(f"{key}={value}" for key, value in of.env.items())),
    ]
    return [(name, text) for name, text in dict.fromkeys(found) if text]


def _arguments(of_template: Mapping[str, Any] | None) -> str:
    """What the chat template was given, in words; nothing where that is not known."""
    if of_template is None:
        return ""
    return json.dumps(of_template, ensure_ascii=False) if of_template else "without arguments"


def _said(error: RoostError, kept: Kept) -> str:
    said = f"{error.what} ({error.why})" if error.why else error.what
    return said.replace(f"{kept.folder}/", f"{kept.name}/")


def _rest(kept: Kept) -> str:
    """What a result holds beside what every kind has, as it stands there."""
    known = KeptResult.model_fields if kept.result is not None else {}
    rest = {key: value for key, value in kept.document.items() if value and key not in known}
    return _pretty(rest) if rest else ""


def _pretty(data: Any) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False)


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.0f} KB" if count < 1024**2 else f"{count / 1024**2:.1f} MB"


def _render(name: str, **values: Any) -> str:
    # Stands in for the nonce until the page is known; no text can have guessed it.
    stand_in = secrets.token_hex(16)
    values |= {"nonce": stand_in, "version": roost.__version__}
    values["css"] = Markup(asset("site.css"))  # noqa: S704 - the site's own
    page = _templates().get_template(name).render(values)
    # A string of JSON may hold half a character, which no file can.
    page = page.encode(errors="replace").decode()
    digest = hashlib.sha256(page.replace(stand_in, "").encode()).digest()
    return page.replace(stand_in, base64.b64encode(digest[:18]).decode())


@cache
def _templates() -> jinja2.Environment:
    made = html_templates.environment("templates/site")
    made.filters["finite"] = _finite
    return made


def _finite(data: Any) -> Any:
    """For JSON, which has no infinity and nothing that is not a number; Plotly leaves out null."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list) else data

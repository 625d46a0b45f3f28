"""A rollout for people: one page in HTML and one in Markdown, from ``rollout.json`` alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import jinja2

from roost import atomic, html_templates, runs
from roost.rollout.record import HostRecord, Rollout, now

HTML, MARKDOWN = "report.html", "report.md"

_VERDICTS = {
    "running": "Running, or interrupted",
    "passed": "Passed",
    "refused": "Refused before any host was swapped",
    "stopped": "Stopped",
    "superseded": "Given up for a later rollout",
}


@dataclass(frozen=True)
class Capacity:
    """Which share of the hosts served clients between the first swap and the last.

    Attributes:
        lowest: At the worst moment, 0 to 1.
        mean: Over that time; 1 where nothing was swapped.
        seconds: How long that time was.
    """

    lowest: float
    mean: float
    seconds: float


def capacity(rollout: Rollout) -> Capacity:
    """The capacity during a rollout, from the times in which its hosts were out of service."""
    until = rollout.finished or now()
    spans = [
        (begun, ended or until) for host in rollout.hosts.values() for begun, ended in host.out
    ]
    if not spans:
        return Capacity(1.0, 1.0, 0.0)
    moments = sorted({moment for span in spans for moment in span})
    total = (moments[-1] - moments[0]).total_seconds()
    lost, most = 0.0, 0
    for begun, ended in pairwise(moments):
        out = sum(1 for first, last in spans if first <= begun and last >= ended)
        lost += out * (ended - begun).total_seconds()
        most = max(most, out)
    count = len(rollout.hosts)
    return Capacity(1 - most / count, 1 - lost / (total * count) if total else 1.0, total)


def out_seconds(host: HostRecord, until: dt.datetime) -> float:
    """Seconds in which a host served no clients."""
    return sum(((ended or until) - begun).total_seconds() for begun, ended in host.out)


def write(folder: Path, rollout: Rollout) -> None:
    """Write both pages into the rollout's folder."""
    atomic.write(folder / HTML, html(rollout))
    atomic.write(folder / MARKDOWN, markdown(rollout))


def html(rollout: Rollout) -> str:
    """The page; what engines and Ansible said is escaped."""
    return _template().render(
        rollout=rollout,
        verdict=_VERDICTS[rollout.verdict],
        facts=list(_facts(rollout)),
        batches=[list(_rows(rollout, batch.hosts)) for batch in rollout.batches],
        executed=runs.EXECUTED,
        report=runs.REPORT,
    )


def markdown(rollout: Rollout) -> str:
    """The same for a ticket or a terminal."""
    lines = [f"# Rollout of {Path(rollout.inventory).name}: {_VERDICTS[rollout.verdict]}", ""]
    lines += [f"- {name}: {value}" for name, value in _facts(rollout)]
    if rollout.reason:
        lines += ["", "```", rollout.reason, "```"]
    for number, batch in enumerate(rollout.batches, 1):
        lines += ["", f"## Batch {number}: {batch.verdict}", ""]
        lines += ["| host | kind | verdict | seconds | out of service | notebooks |"]
        lines += ["|---|---|---|---|---|---|"]
        for row in _rows(rollout, batch.hosts):
            links = ", ".join(f"[{what}]({run}/{runs.EXECUTED})" for what, run in row.runs.items())
            cells = [row.name, row.kind, row.verdict, row.seconds, row.out, links]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Row:
    name: str
    kind: str
    verdict: str
    release: str
    seconds: str
    out: str
    compared: str
    runs: dict[str, str]


def _rows(rollout: Rollout, hosts: tuple[str, ...]) -> Iterator[_Row]:
    until = rollout.finished or now()
    for name in hosts:
        host = rollout.hosts[name]
        yield _Row(
            name=name,
            kind=host.kind,
            verdict=host.verdict,
            release=f"{host.before or 'nothing'} → {host.wanted}",
            seconds=", ".join(f"{step} {value:.0f} s" for step, value in host.seconds.items()),
            out=f"{out_seconds(host, until):.0f} s" if host.out else "",
            compared=host.compared,
            runs=host.runs,
        )


def _facts(rollout: Rollout) -> Iterator[tuple[str, str]]:
    count = dict.fromkeys(("passed", "back", "stuck", "waiting"), 0)
    for host in rollout.hosts.values():
        count[host.verdict] += 1
    words = {
        "passed": "serve the new release",
        "back": "are back on the release before",
        "stuck": "need another run",
        "waiting": "were left alone",
    }
    found = capacity(rollout)
    yield "inventory", rollout.inventory
    yield "batches", f"{rollout.sizes}: " + ", ".join(str(len(b.hosts)) for b in rollout.batches)
    yield "hosts", "; ".join(f"{n} {words[key]}" for key, n in count.items() if n)
    yield "started", f"{rollout.started:%Y-%m-%d %H:%M:%S} UTC by {rollout.who}"
    if rollout.finished:
        yield "took", f"{(rollout.finished - rollout.started).total_seconds():.0f} s"
    if found.seconds:
        yield (
            "capacity",
            f"{found.lowest:.0%} of the hosts served at the worst moment, {found.mean:.0%} on "
            f"average, over the {found.seconds:.0f} s from the first swap to the last",
        )


@cache
def _template() -> jinja2.Template:
    return html_templates.environment().get_template("rollout.html.j2")

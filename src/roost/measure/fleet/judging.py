"""The verdict on a fleet: what is kept of it, outliers, drift, and what differs within a class."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from roost.errors import RoostError
from roost.measure.checks import Check, Evidence, Figure
from roost.measure.fleet import outliers, rows
from roost.measure.fleet.drift import FEWEST_RUNS, step, trends
from roost.measure.fleet.looking import Class, Fleet, Measured, benchmarked, benchmarks
from roost.measure.fleet.outliers import FEWEST_HOSTS, Standing
from roost.measure.kept import IN_WORDS

#: What must be the same within a class; a difference of driver or kernel is only told.
_PINNED = ("image", "model", "drafter", "command", "env", "engine")
#: Stands for the suite of a benchmark whose document cannot be read.
_UNREADABLE = "benchmark"


def check(fleet: Fleet) -> Evidence:
    """Judge the fleet: what is kept of it, outliers, drift, and what differs."""
    evidence = Evidence()
    evidence.checks += _kept(fleet)
    standing = outliers.standings(fleet)
    evidence.checks += _outliers(fleet, standing)
    evidence.checks += _drifts(fleet)
    evidence.checks += _differences(fleet)
    for one in standing:
        key = f"{one.host}.{one.suite}.{one.metric.key}/{one.belongs}"
        evidence.figures[key] = Figure(
            title=f"{one.metric.title}, {one.suite}{fleet.named(one.belongs)}: {one.host}",
            value=one.ratio,
            unit="times",
            source=f"{one.verdict}; run {one.run} against the median of {one.hosts} hosts, the "
            "median of all points",
        )
    return evidence


def _kept(fleet: Fleet) -> list[Check]:
    checks = [
        Check(
            id="kept runs",
            ok=bool(fleet.measured),
            expected="runs of these hosts",
            observed=f"{len(fleet.measured)}",
            why="; ".join(fleet.problems),
        )
    ]
    for name in fleet.inventory.hosts:
        kept, verified, failed = fleet.of(name), fleet.of(name, "verify"), _failed(fleet, name)
        why = f"did not hold: {'; '.join(failed)}" if failed else ""
        checks.append(
            Check(
                id=f"runs {name}",
                ok=bool(kept) and not failed,
                expected="kept runs, of which the newest verification and benchmarks hold",
                observed=f"{len(kept)} kept; verified: {rows.newest(verified)}",
                why=why or ("" if kept else "never measured"),
            )
        )
    for name, facts in fleet.live.items():
        error = facts if isinstance(facts, RoostError) else None
        checks.append(
            Check(
                id=f"reached {name}",
                ok=error is None,
                expected="an answer now",
                observed=rows.now(facts),
                why=error.why if error else "",
            )
        )
    return checks


def _failed(fleet: Fleet, host: str) -> list[str]:
    """What did not hold in a host's newest verification, and in its newest benchmark of each suite.

    A host that is throttled all the time has no figures, because every repetition is left out:
    nothing else would show it.
    """
    newest = {}
    for one in fleet.of(host, "verify"):
        newest[""] = one
    for one in fleet.of(host, "benchmark"):
        if one.belongs == fleet.of(host)[-1].belongs:
            if one.kept.benchmark:
                # The suite of an unreadable one is not known: any later readable one replaces it.
                newest.pop(_UNREADABLE, None)
            newest[one.kept.benchmark.suite if one.kept.benchmark else _UNREADABLE] = one
    return [
        f"{suite} {check.id} ({check.why})" if suite else check.id
        for suite, one in newest.items()
        if not one.result.ok
        for check in one.result.checks
        if not check.ok
    ]


def _outliers(fleet: Fleet, standing: Sequence[Standing]) -> list[Check]:
    hosts: dict[tuple[Class, str], dict[str, Measured]] = {}
    for (host, belongs, suite), runs_of in benchmarked(fleet).items():
        hosts.setdefault((belongs, suite), {})[host] = runs_of[-1]
    checks = []
    for (belongs, suite), compared in hosts.items():
        everyone = {
            one.result.host
            for one, asked in benchmarks(fleet)
            if (one.belongs, asked.suite) == (belongs, suite)
        }
        if len(everyone) < 2:
            continue
        here = [one for one in standing if (one.belongs, one.suite) == (belongs, suite)]
        worse = [one for one in here if one.verdict == "worse"]
        better = [one for one in here if one.verdict == "better"]
        most = max((one.hosts for one in here), default=0)
        few = most < FEWEST_HOSTS
        remarks = []
        if few:
            remarks.append(f"{most} of the {FEWEST_HOSTS} hosts that an outlier needs; no verdict")
        if better:
            remarks.append(f"better than the class: {_said(better)}")
        if left := sorted(everyone - compared.keys()):
            remarks.append(f"left out, asked otherwise than the newest run: {', '.join(left)}")
        remarks += _apart(compared)
        observed = _said(worse) if worse else f"none among {most} hosts"
        if few:
            observed = f"furthest behind: {_said([max(here, key=_behind)])}" if here else ""
        checks.append(
            Check(
                id=f"outliers {suite}{fleet.named(belongs)}",
                verdict="fail" if worse else "not seen" if few else "pass",
                expected=f"no host worse than its class by more than {fleet.tolerance:.0%} and "
                "beyond the spread",
                observed=observed,
                why="; ".join(remarks),
            )
        )
    return checks


def _behind(one: Standing) -> float:
    """How far a host is on the worse side of its class's median."""
    log = math.log(one.ratio)
    return -log if one.metric.better == "higher" else log


def _apart(compared: Mapping[str, Measured]) -> list[str]:
    """What some of the compared runs were made with and most were not, by host.

    It goes by the runs and not by what the hosts are now: a benchmark may be older than a deploy.
    """
    found = []
    for key in (*_PINNED, "driver", "kernel"):
        values = {host: one.facts()[key] for host, one in compared.items() if key in one.facts()}
        if len(set(values.values())) > 1:
            ((usual, _),) = Counter(values.values()).most_common(1)
            others = sorted(host for host, value in values.items() if value != usual)
            found.append(f"measured with another {key}: {', '.join(others)}")
    return found


def _said(found: Sequence[Standing]) -> str:
    return "; ".join(
        f"{one.host} {one.metric.title.lower()} {(one.ratio - 1) * 100:+.0f} %" for one in found
    )


def _drifts(fleet: Fleet) -> list[Check]:
    """For each host and suite: the trend of its runs, and the newest beside the one before."""
    checks = []
    for (host, belongs, suite), found in sorted(
        benchmarked(fleet).items(), key=lambda item: str(item[0])
    ):
        if len(found) < 2:
            continue
        drifting = [
            f"{trend.metric.title.lower()} {(trend.change - 1) * 100:+.0f} % over {trend.runs} runs"
            for trend in trends(found)
            if trend.change is not None
            and trend.drifts(fleet.tolerance)
            and (trend.change > 1) != (trend.metric.better == "higher")
        ]
        steps = [f"since the run before: {said}" for said in step(found, fleet.tolerance)]
        changed = _changed(found)
        why = f"changed meanwhile: {', '.join(changed)}" if changed else ""
        if len(found) < FEWEST_RUNS:
            why = "; ".join(filter(None, [why, f"{len(found)} runs; a trend needs {FEWEST_RUNS}"]))
        checks.append(
            Check(
                id=f"drift {host} {suite}{fleet.named(belongs)}",
                ok=not drifting and not steps,
                expected=f"no trend for the worse, and no step, of more than {fleet.tolerance:.0%}",
                observed="; ".join([*drifting, *steps]) or f"none over {len(found)} runs",
                why=why,
            )
        )
    return checks


def _changed(series: Sequence[Measured]) -> list[str]:
    seen: dict[str, list[str]] = {}
    for one in series:
        for key, value in one.facts().items():
            if value not in seen.setdefault(key, []):
                seen[key].append(value)
    return [key for key, found in seen.items() if len(found) > 1]


def _differences(fleet: Fleet) -> list[Check]:
    """Versions and digests within a class, by each host's newest run that knows them."""
    classes: dict[Class, dict[str, dict[str, str]]] = {}
    for name in fleet.inventory.hosts:
        found = fleet.of(name)
        if found:
            belongs = found[-1].belongs
            facts: dict[str, str] = {}
            for one in found:
                if one.belongs == belongs:
                    facts |= one.facts()
            classes.setdefault(belongs, {})[name] = facts
    checks = []
    for belongs, by_host in classes.items():
        for key in (*_PINNED, "driver", "kernel"):
            where: dict[str, list[str]] = {}
            for host, facts in by_host.items():
                if key in facts:
                    where.setdefault(facts[key], []).append(host)
            if not where:
                continue
            differs = len(where) > 1
            shown = _parted(where) if key in IN_WORDS and differs else where
            said = [f"{value}: {', '.join(hosts)}" for value, hosts in sorted(shown.items())]
            pinned = key in _PINNED
            checks.append(
                Check(
                    id=f"same {key}{fleet.named(belongs)}",
                    ok=not (differs and pinned),
                    expected="one for the class",
                    observed="; ".join(said) if differs else next(iter(where)),
                    why="figures of these hosts are not of the same thing"
                    if differs and pinned
                    else "it differs, which may explain an outlier"
                    if differs
                    else "",
                )
            )
    return checks


def _parted(commands: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Of each command, or environment, only the words that not all have."""
    words = {command: shlex.split(command) for command in commands}
    common = set.intersection(*(set(found) for found in words.values()))
    found: dict[str, list[str]] = {}
    for command, hosts in commands.items():
        own = shlex.join(word for word in words[command] if word not in common)
        found.setdefault(own or "(the same words in another order)", []).extend(hosts)
    return found

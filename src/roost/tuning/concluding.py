"""What a search found: checks, figures, a table, and the chosen settings for an inventory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from roost import site
from roost.errors import RoostError
from roost.measure import points
from roost.measure.checks import Check, Evidence, Figure
from roost.measure.points import Benchmark
from roost.measure.statistics import shown
from roost.tuning import choosing, front
from roost.tuning.choosing import Choice
from roost.tuning.front import Dot
from roost.tuning.grid import VARIED
from roost.tuning.searching import Search

SNIPPET = "tuned.yml"


def benchmarks(search: Search) -> dict[str, Benchmark]:
    """What was measured, by point; the present settings first.

    Raises:
        RoostError: A run is no longer there.
    """
    return {
        one.name: points.read(Path(one.run))
        for one in search.experiment.notes.tried
        if one.run is not None
    }


def evidence(search: Search) -> Evidence:
    """Checks, figures and the snippet of a search that has ended."""
    tried = search.experiment.notes.tried
    measured = benchmarks(search)
    found = front.dots(measured)
    best = front.pareto(found)
    refused = [f"{one.name}: {one.refusal}" for one in tried if one.refusal is not None]
    failed = [f"{one.name}: {one.failure}" for one in tried if one.failure is not None]
    left = sum(one.open for one in tried)
    made = Evidence()
    made.checks.append(
        Check(
            id="points",
            ok=len(measured) > 1,
            expected="the present settings and at least one other point measured",
            observed=f"{len(measured)} measured, {len(failed)} failed, {len(refused)} refused by "
            f"the planner and not tried, {left} left out by the limit",
            why="\n".join([*refused, *failed]),
        )
    )
    try:
        choice = choosing.choose(measured, tried, search.users, search.tolerance)
    except RoostError as error:
        made.checks.append(
            Check(id="chosen", ok=False, expected="something to choose from", why=str(error))
        )
    else:
        made.checks.append(
            Check(
                id="chosen",
                ok=True,
                expected=f"the most throughput of {choice.users} users, by more than "
                f"{search.tolerance:.0%} and beyond noise",
                observed=choice.point,
                why=choosing.said(choice),
            )
        )
        made.artefacts[SNIPPET] = snippet(search, choice)
    made.checks.append(_compared(found, front.left_out(measured)))
    for dot in found:
        where = f"{dot.point}, {dot.users} users"
        run = next(Path(str(one.run)).name for one in tried if one.name == dot.point)
        source = f"run {run}; {_over(dot)}" + ("; on the front" if dot in best else "")
        made.figures[f"{dot.point}.c{dot.users}.throughput"] = Figure(
            title=f"Throughput of all users, {where}",
            value=dot.throughput.value,
            unit="tokens/s",
            source=source,
            low=dot.throughput.low,
            high=dot.throughput.high,
        )
        for key, value in (("tpot", dot.tpot), ("ttft", dot.ttft)):
            title = f"{points.metric(key).title}, {where}"
            made.figures[f"{dot.point}.c{dot.users}.{key}"] = Figure(
                title=title, value=value, unit="ms", source=source
            )
    return made


def _compared(found: Sequence[Dot], lacking: Mapping[str, Sequence[str]]) -> Check:
    """Over what the front compares the points."""
    over = dict.fromkeys(cell_id for dot in found for cell_id in dot.cells)
    said = [f"{cell_id} (not measured by {', '.join(of)})" for cell_id, of in lacking.items()]
    return Check(
        id="front",
        verdict="pass" if over else "not seen",
        expected="every point beside the others, over the prompts that all of them measured",
        observed=f"over {', '.join(over)}" if over else "",
        why=f"left out: {'; '.join(said)}" if said else "" if over else "nothing was measured",
    )


def _over(dot: Dot) -> str:
    return f"the mean of {', '.join(dot.cells)}" if len(dot.cells) > 1 else dot.cells[0]


def rows(search: Search) -> Iterator[dict[str, str]]:
    """A table of every point: its settings, what became of it, and what was measured."""
    measured = benchmarks(search)
    found = front.dots(measured)
    best = front.pareto(found)
    for one in search.experiment.notes.tried:
        row = {"point": one.name}
        row |= {VARIED[key]: f"{value:,}" for key, value in one.settings.items()}
        if one.run is None:
            why = (
                f"refused: {one.refusal}"
                if one.refusal
                else one.failure and "failed: " + one.failure
            )
            yield {**row, "outcome": why or "left out by the limit"}
        for dot in found:
            if dot.point == one.name:
                yield {
                    **row,
                    "users": str(dot.users),
                    "over": ", ".join(dot.cells),
                    "tokens/s": shown(dot.throughput),
                    "ms a token": f"{dot.tpot:.4g}",
                    "ms to the first": f"{dot.ttft:.4g}",
                    "outcome": "on the front" if dot in best else "measured",
                }


def snippet(search: Search, choice: Choice) -> str:
    """The chosen settings as variables of an inventory, with all that the host says itself."""
    host = search.experiment.host
    variables = dict(search.experiment.variants[choice.point].variables) or {
        "roost_settings": site.from_variables(host.name, host.variables).settings
    }
    lines = [
        f"# For {host.name}, {choice.users} at a time, by `roost tune` with the suite "
        f"{search.experiment.plan.name}: {choice.point}.",
        f"# {choosing.said(choice)}",
        "# Into host_vars, or: ansible-playbook deploy.yml -i INVENTORY -e @tuned.yml",
    ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(variables, sort_keys=False)

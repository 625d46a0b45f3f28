"""Rows for tables: what each host is, and how it stands beside its class."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from roost import deployment
from roost.errors import RoostError
from roost.hosts import HostFacts
from roost.inventory import Host
from roost.measure.fleet.drift import FEWEST_RUNS, trends
from roost.measure.fleet.looking import Class, Fleet, Measured, benchmarked
from roost.measure.fleet.outliers import Standing
from roost.measure.kept import IN_WORDS, environment
from roost.root import repository_root


def of_hosts(fleet: Fleet) -> list[dict[str, str]]:
    """A row a host: what its newest runs say it is."""
    found = []
    for name, host in fleet.inventory.hosts.items():
        all_of_it = fleet.of(name)
        facts: dict[str, str] = {}
        for one in all_of_it:
            facts |= one.facts()
        belongs = all_of_it[-1].belongs if all_of_it else Class("", "", "")
        row = {
            "host": name,
            "hardware": belongs.hardware,
            "recipe": belongs.recipe,
            "speculation": belongs.speculation,
            "verified": newest(fleet.of(name, "verify")),
            "benchmarked": newest(fleet.of(name, "benchmark")),
            **{key: facts.get(key, "") for key in ("engine", "driver", "kernel")},
            "runs are of": _current(host, all_of_it),
        }
        if fleet.live:
            row["now"] = now(fleet.live[name])
        found.append(row)
    return found


def newest(measured: Sequence[Measured]) -> str:
    """When the newest of a host's runs was, and how it ended."""
    if not measured:
        return "never"
    return f"{measured[-1].result.started:%Y-%m-%d}, {measured[-1].kept.state}"


def _current(host: Host, measured: Sequence[Measured]) -> str:
    """Is what was measured last what the inventory means now?"""
    if not measured:
        return ""
    try:
        now = deployment.from_variables(host.name, host.variables, repository_root())
    except RoostError as error:
        return f"not known: {error.what}"
    wanted = {
        "image": now.image_digest,
        **dict(
            zip(
                ("model", "drafter"),
                (f"{weights.repo}@{weights.revision}" for weights in now.weights),
                strict=False,
            )
        ),
        "command": shlex.join([*now.spec.entrypoint, *now.spec.command]),
        "env": environment(now.spec.env),
    }
    # A run from before its command or its environment was kept has none.
    was = {**{key: wanted[key] for key in IN_WORDS}, **measured[-1].facts()}
    other = [key for key, value in wanted.items() if was.get(key) != value]
    return f"another {' and '.join(other)}" if other else "what the inventory means now"


def now(facts: HostFacts | RoostError) -> str:
    """What a host that was asked now says it is, or why it did not."""
    if isinstance(facts, RoostError):
        return f"not reached: {facts.what}"
    drivers = sorted({gpu.driver for gpu in facts.gpus if gpu.driver})
    return ", ".join([*(f"driver {driver}" for driver in drivers), f"kernel {facts.kernel}"])


def of_standings(fleet: Fleet, standing: Sequence[Standing]) -> list[dict[str, str]]:
    """A row a host, suite and metric: its ratio to its class and its trend, for a table."""
    found = []
    measured = benchmarked(fleet)
    for one in standing:
        of_it = measured[one.host, one.belongs, one.suite]
        of_metric = [trend for trend in trends(of_it) if trend.metric == one.metric]
        said = f"needs {FEWEST_RUNS} runs" if of_metric else "its runs share no point"
        for trend in of_metric:
            if trend.change is not None and trend.p is not None:
                said = f"{(trend.change - 1) * 100:+.1f} % (p {trend.p:.2g})"
        found.append(
            {
                "host": one.host,
                "class": str(one.belongs),
                "suite": one.suite,
                "figure": one.metric.title,
                "of its class": f"{one.ratio:.3f}",
                "verdict": one.verdict,
                "runs": str(len(of_it)),
                "trend": said,
            }
        )
    return found

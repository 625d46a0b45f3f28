"""All hosts of an inventory side by side, from the runs that were kept of them.

A host is compared with its class: the hosts that run the same recipe and speculation on the same
hardware. Its standing in a metric is the median, over a suite's points, of its newest run's value
divided by the class's median there; one point's noise moves it little.

A host is an outlier by the modified z-score of Iglewicz and Hoaglin (How to Detect and Handle
Outliers, ASQC 1993): 0.6745 times its distance from the median in units of the median absolute
deviation, beyond 3.5, of the logarithms; and only beyond the tolerance as well. Median and MAD are
not moved by the outliers themselves as long as they are fewer than half, so five hosts are the
least: with 1.5 % between hosts one that is 15 % slower is found in 97 of 100 classes of five, and
fewer than one class in a hundred raises a false alarm (tests/unit/test_measure_fleet.py).
"""

from __future__ import annotations

import datetime as dt
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from roost import asking, deployment, runs, ssh
from roost import inventory as inventories
from roost.errors import RoostError
from roost.hosts import HostFacts
from roost.inventory import Host, Inventory
from roost.measure import compare, points, store
from roost.measure.checks import Check, Evidence, Figure
from roost.measure.compare import DECISIVE, TOLERANCE
from roost.measure.kept import Kept, KeptResult
from roost.measure.points import Benchmark, Metric
from roost.measure.statistics import CONFIDENCE
from roost.root import repository_root
from roost.runs import Pins, Result

#: Hosts of a class that an outlier needs.
FEWEST_HOSTS = 5
#: Runs of a host that a trend needs: of four, no order at all is significant at 5 %.
FEWEST_RUNS = 5
_Z = 3.5
_SIGNIFICANT = 0.05
#: Hosts asked at a time.
_JOBS = 8

Verdict = Literal["worse", "better", "as its class", "too few hosts"]


@dataclass(frozen=True)
class Class:
    """What hosts must share to be compared."""

    hardware: str
    recipe: str
    speculation: str

    def __str__(self) -> str:
        return f"{self.hardware}, {self.recipe}, {self.speculation}"


@dataclass(frozen=True)
class Measured:
    """A finished run of one of the hosts."""

    kept: Kept
    result: KeptResult

    @property
    def belongs(self) -> Class:
        return Class(self.result.hardware, self.result.recipe, self.result.speculation)

    def facts(self) -> dict[str, str]:
        """Versions and digests that the run was made with; what is not known is left out."""
        return self.kept.facts()


#: Of these a class must have one value; of driver and kernel a difference is only said.
_PINNED = ("image", "model", "drafter", "command", "engine")


@dataclass(frozen=True)
class Standing:
    """How one host stands in its class by one metric of a suite.

    Attributes:
        ratio: To the class's median, over the points of the suite.
        hosts: How many hosts the class has that measured this.
        run: The run it is of.
    """

    belongs: Class
    suite: str
    metric: Metric
    host: str
    ratio: float
    hosts: int
    verdict: Verdict
    run: str


@dataclass(frozen=True)
class Trend:
    """One metric of one host over its runs.

    Attributes:
        change: From the first run to the last along the trend, as a factor; none with too few runs.
        p: The probability of so clear an order without a trend (Mann-Kendall, exact, two-sided).
    """

    metric: Metric
    runs: int
    change: float | None
    p: float | None

    def drifts(self, tolerance: float) -> bool:
        """It goes one way, and far enough to care."""
        if self.change is None or self.p is None or self.p >= _SIGNIFICANT:
            return False
        return abs(self.change - 1) > tolerance


@dataclass(frozen=True)
class Fleet:
    """A look at a fleet that has begun."""

    inventory: Inventory
    folder: Path
    started: dt.datetime
    tolerance: float
    measured: list[Measured]
    problems: list[str] = field(default_factory=list)
    live: Mapping[str, HostFacts | RoostError] = field(default_factory=dict)

    def of(self, host: str, kind: str = "") -> list[Measured]:
        """A host's runs, the newest last."""
        return [
            one for one in self.measured if one.result.host == host and kind in {"", one.kept.kind}
        ]

    def named(self, belongs: Class) -> str:
        """Of which class something is; nothing in a fleet that has only one."""
        return f" ({belongs})" if len({one.belongs for one in self.measured}) > 1 else ""

    def describe(self) -> dict[str, str]:
        """What is about to be looked at, for the first output of a notebook."""
        return {
            "inventory": str(self.inventory.path),
            "hosts": ", ".join(self.inventory.hosts),
            "kept runs": f"{len(self.measured)} of these hosts",
            "live": f"{len(self.live)} hosts asked now" if self.live else "no host is asked",
            "folder": str(self.folder),
        }

    def finish(self, evidence: Evidence) -> Result:
        """Write everything into the folder and return the result."""

        def shared(values: Iterable[str]) -> str:
            return ", ".join(sorted({value for value in values if value}))

        newest = [found[-1] for host in self.inventory.hosts if (found := self.of(host))]
        result = Result(
            ok=evidence.ok,
            notebook="fleet",
            recipe=shared(one.result.recipe for one in newest),
            host=self.inventory.path.stem,
            hardware=shared(one.result.hardware for one in newest),
            speculation=shared(one.result.speculation for one in newest),
            lock=Pins(
                file=shared(one.result.lock.get("file") or "" for one in newest),
                image=shared(one.result.lock.get("image") or "" for one in newest),
                model=shared(one.result.lock.get("model") or "" for one in newest),
                drafter=shared(one.result.lock.get("drafter") or "" for one in newest) or None,
            ),
            started=self.started,
            finished=dt.datetime.now(dt.UTC),
            checks=evidence.checks,
            figures=evidence.figures,
        )
        runs.write(self.folder, result, evidence.artefacts)
        return result


def start(
    inventory: Any,
    *,
    live: Any = False,
    tolerance: Any = TOLERANCE,
    runs_dir: Any = "runs",
    run_dir: Any = None,
) -> Fleet:
    """Check a notebook's parameters, read the runs and make the folder of this look.

    Args:
        inventory: Path, relative to the working directory or the repository root.
        live: Also ask every host now what it is.
        tolerance: The gap that is too small to care about, as a fraction.
        runs_dir: Where runs are kept; relative to the repository root.
        run_dir: This look's own folder, where a caller has made it already.

    Raises:
        UsageError: A parameter makes no sense, or there is no such inventory or folder of runs.
    """
    ask_now, share = runs.switch("live", live), runs.fraction("tolerance", tolerance)
    loaded = inventories.load(runs.text("inventory", inventory))
    home = repository_root() / runs.text("runs_dir", runs_dir)
    own = Path(runs.text("run_dir", run_dir)).absolute() if run_dir is not None else None
    kept = [run for run in store.read_all(home) if run.folder.absolute() != own]
    measured = [
        Measured(run, run.result)
        for run in kept
        if run.result is not None
        and run.result.host in loaded.hosts
        and run.kind in store.OF_A_HOST
        and not run.result.trial
    ]
    measured.sort(key=lambda one: one.result.started)
    return Fleet(
        inventory=loaded,
        folder=runs.given_folder(own) if own else runs.new_folder(home, "fleet", loaded.path.stem),
        started=dt.datetime.now(dt.UTC),
        tolerance=share,
        measured=measured,
        problems=[run.problem for run in kept if run.problem],
        live=ask(loaded.hosts.values()) if ask_now else {},
    )


def ask(hosts: Iterable[Host]) -> dict[str, HostFacts | RoostError]:
    """What each host is now, several at a time, or why it did not say."""

    def one(host: Host) -> HostFacts | RoostError:
        try:
            with ssh.connect(host) as remote:
                return asking.facts(remote, host)
        except RoostError as error:
            return error

    known = list(hosts)
    with ThreadPoolExecutor(_JOBS) as pool:
        return dict(zip((host.name for host in known), pool.map(one, known), strict=True))


# --- side by side ---------------------------------------------------------------------------------


def rows(fleet: Fleet) -> list[dict[str, str]]:
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
            "verified": _newest(fleet.of(name, "verify")),
            "benchmarked": _newest(fleet.of(name, "benchmark")),
            **{key: facts.get(key, "") for key in ("engine", "driver", "kernel")},
            "runs are of": _current(host, all_of_it),
        }
        if fleet.live:
            row["now"] = _now(fleet.live[name])
        found.append(row)
    return found


def _newest(measured: Sequence[Measured]) -> str:
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
    }
    # A run from before its command was kept has none.
    was = {"command": wanted["command"], **measured[-1].facts()}
    other = [key for key, value in wanted.items() if was.get(key) != value]
    return f"another {' and '.join(other)}" if other else "what the inventory means now"


def _now(facts: HostFacts | RoostError) -> str:
    if isinstance(facts, RoostError):
        return f"not reached: {facts.what}"
    drivers = sorted({gpu.driver for gpu in facts.gpus if gpu.driver})
    return ", ".join([*(f"driver {driver}" for driver in drivers), f"kernel {facts.kernel}"])


# --- outliers -------------------------------------------------------------------------------------


def standings(fleet: Fleet) -> list[Standing]:
    """Every host's newest benchmark of each suite against its class."""
    newest: dict[tuple[Class, str], dict[str, Measured]] = {}
    for (host, belongs, suite), runs_of in benchmarked(fleet).items():
        newest.setdefault((belongs, suite), {})[host] = runs_of[-1]
    found = []
    for (belongs, suite), by_host in newest.items():
        for key in DECISIVE:
            metric = points.metric(key)
            ratios = to_median({host: values(one.kept, key) for host, one in by_host.items()})
            judged = judge(ratios, metric, fleet.tolerance)
            found += [
                Standing(
                    belongs, suite, metric, host, ratio, len(ratios), judged[host],
                    by_host[host].kept.name,
                )
                for host, ratio in ratios.items()
            ]  # fmt: skip
    return found


def benchmarked(fleet: Fleet) -> dict[tuple[str, Class, str], list[Measured]]:
    """Benchmarks by host, class and suite, the newest last, of what each host serves now.

    Of a suite that was asked with other prompts, or has changed, only what asked as the class's
    newest did: the rest is no measure of it. Nor is what a host was in a class it has left.
    """
    asked: dict[tuple[Class, str], Benchmark] = {}
    for one, benchmark in _benchmarks(fleet):
        asked[one.belongs, benchmark.suite] = benchmark
    found: dict[tuple[str, Class, str], list[Measured]] = {}
    for one, benchmark in _benchmarks(fleet):
        if benchmark.asks_as(asked[one.belongs, benchmark.suite]):
            key = (one.result.host, one.belongs, benchmark.suite)
            found.setdefault(key, []).append(one)
    return found


def _benchmarks(fleet: Fleet) -> Iterator[tuple[Measured, Benchmark]]:
    """Every benchmark of a host in the class that its newest run is of, the newest last."""
    now = {one.result.host: one.belongs for one in fleet.measured}
    for one in fleet.measured:
        if one.kept.benchmark is not None and one.belongs == now[one.result.host]:
            yield one, one.kept.benchmark


def values(run: Kept, metric: str) -> dict[str, float]:
    """A run's value of a metric at each point, where it is positive."""
    return {
        row["point"]: row["value"]
        for row in run.measured
        if row["metric"] == metric and row["value"] > 0
    }


def to_median(by_host: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Each host's ratio to the median of all, over the points that it measured.

    Of a point that it alone measured nothing can be said; a host with no other is left out.
    """
    at: dict[str, list[float]] = {}
    for measured in by_host.values():
        for point, value in measured.items():
            at.setdefault(point, []).append(value)
    medians = {point: statistics.median(found) for point, found in at.items() if len(found) > 1}
    found = {}
    for host, measured in by_host.items():
        ratios = [value / medians[point] for point, value in measured.items() if point in medians]
        if ratios:
            found[host] = statistics.median(ratios)
    return found


def judge(
    ratios: Mapping[str, float], metric: Metric, tolerance: float = TOLERANCE
) -> dict[str, Verdict]:
    """What each host's ratio says beside the others'; see the module for the rule."""
    if len(ratios) < FEWEST_HOSTS:
        return dict.fromkeys(ratios, "too few hosts")
    logs = {host: math.log(ratio) for host, ratio in ratios.items()}
    middle = statistics.median(logs.values())
    spread = statistics.median(abs(value - middle) for value in logs.values())
    found: dict[str, Verdict] = {}
    for host, value in logs.items():
        far = 0.6745 * abs(value - middle) > _Z * spread
        if not far or abs(math.exp(value - middle) - 1) <= tolerance:
            found[host] = "as its class"
        else:
            found[host] = "better" if (value > middle) == (metric.better == "higher") else "worse"
    return found


# --- drift ----------------------------------------------------------------------------------------


def trends(series: Sequence[Measured]) -> list[Trend]:
    """Every decisive metric of a host over its runs of one suite, the oldest first."""
    found = []
    for key in DECISIVE:
        measured = [values(one.kept, key) for one in series]
        times = [one.result.started.timestamp() for one in series]
        kept = [(at, now) for at, now in zip(times, measured, strict=True) if now]
        shared = set.intersection(*(set(now) for _, now in kept)) if kept else set()
        if not shared:
            continue
        first = kept[0][1]
        logs = [
            statistics.median(math.log(now[point] / first[point]) for point in shared)
            for _, now in kept
        ]
        found.append(_trend(points.metric(key), [at for at, _ in kept], logs))
    return found


def _trend(metric: Metric, times: Sequence[float], logs: Sequence[float]) -> Trend:
    if len(logs) < FEWEST_RUNS:
        return Trend(metric, len(logs), None, None)
    # Theil and Sen's slope: the median of all pairs', which a single odd run does not tilt.
    slopes = [
        (logs[b] - logs[a]) / (times[b] - times[a])
        for a, b in combinations(range(len(logs)), 2)
        if times[b] > times[a]
    ]
    change = math.exp(statistics.median(slopes) * (times[-1] - times[0])) if slopes else 1.0
    return Trend(metric, len(logs), change, mann_kendall(logs))


#: Values up to which all orders are counted; beyond, the normal distribution is as good.
_COUNTED = 40


def mann_kendall(series: Sequence[float]) -> float:
    """The two-sided probability of so ordered a series if every order were as likely."""
    n = len(series)
    score = sum(
        (series[b] > series[a]) - (series[b] < series[a]) for a, b in combinations(range(n), 2)
    )
    if n > _COUNTED:
        deviation = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
        return math.erfc(max(0, abs(score) - 1) / deviation / math.sqrt(2))
    # How many of the n! orders have how many pairs in order, built up one value at a time.
    ways = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(ways) + size - 1)
        for pairs, count in enumerate(ways):
            for more in range(size):
                longer[pairs + more] += count
        ways = longer
    total = n * (n - 1) // 2
    extreme = sum(count for pairs, count in enumerate(ways) if abs(2 * pairs - total) >= abs(score))
    return min(1.0, extreme / math.factorial(n))


def step(series: Sequence[Measured], tolerance: float = TOLERANCE) -> list[str]:
    """Metrics that most points of the newest run are worse in than in the run before."""
    measured = [whole for one in series[-2:] if (whole := one.kept.whole()) is not None]
    if len(measured) < 2:
        return []
    # By itself each: that most of them agree is what chance does not do.
    each = compare.between(measured[0], measured[1], tolerance, CONFIDENCE)
    found = [one for one in each if one[0] != compare.ALL]
    said = []
    for key in DECISIVE:
        here = [(ratio.value, verdict) for _, one, ratio, verdict in found if one.key == key]
        worse = sum(verdict == "worse" for _, verdict in here)
        if 2 * worse > len(here):
            ratio = statistics.median(value for value, _ in here)
            said.append(
                f"{points.metric(key).title.lower()} {(ratio - 1) * 100:+.0f} %, worse at "
                f"{worse} of {len(here)} points"
            )
    return said


# --- the checks -----------------------------------------------------------------------------------


def check(fleet: Fleet) -> Evidence:
    """Judge the fleet: what is kept of it, outliers, drift, and what differs."""
    evidence = Evidence()
    evidence.checks += _kept(fleet)
    standing = standings(fleet)
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
                observed=f"{len(kept)} kept; verified: {_newest(verified)}",
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
                observed=_now(facts),
                why=error.why if error else "",
            )
        )
    return checks


#: Stands for the suite of a benchmark whose document cannot be read.
_UNREADABLE = "benchmark"


def _failed(fleet: Fleet, host: str) -> list[str]:
    """What did not hold in a host's newest verification, and in its newest benchmark of each suite.

    A benchmark whose repetitions were all left out, of a host that is throttled all the time, has
    no figures: nothing else would show that host.
    """
    newest = {}
    for one in fleet.of(host, "verify"):
        newest[""] = one
    for one in fleet.of(host, "benchmark"):
        if one.belongs == fleet.of(host)[-1].belongs:
            if one.kept.benchmark:
                # Of one without a readable document nobody knows the suite.
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
            for one, asked in _benchmarks(fleet)
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
    """In what some of the runs compared differ from most, by host.

    Not what the hosts are now: a benchmark may be older than a deploy.
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
            shown = _parted(where) if key == "command" and differs else where
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
    """Of each command only the words that not all have."""
    words = {command: shlex.split(command) for command in commands}
    common = set.intersection(*(set(found) for found in words.values()))
    found: dict[str, list[str]] = {}
    for command, hosts in commands.items():
        own = shlex.join(word for word in words[command] if word not in common)
        found.setdefault(own or "(the same words in another order)", []).extend(hosts)
    return found


def beside(fleet: Fleet, standing: Sequence[Standing]) -> list[dict[str, str]]:
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

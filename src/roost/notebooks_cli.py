"""``roost verify``, ``roost bench``, ``roost compare`` and ``roost fleet``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from roost import options, terminal
from roost.errors import UsageError

if TYPE_CHECKING:
    from roost.notebooks import Outcome

#: Columns of a terminal below which a check's name takes several lines.
_NARROW = 70


def _over_hosts(jobs: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options of a verb that runs a notebook for hosts of an inventory."""
    shared = [
        options.inventory,
        click.option(
            "--host", "hosts", multiple=True, metavar="HOST", help="Only this host; repeatable."
        ),
        options.limit,
        options.runs_dir,
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            default=jobs,
            show_default=True,
            help="Hosts at a time.",
        ),
        options.as_json,
    ]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(shared):
            verb = option(verb)
        return verb

    return decorate


@click.command()
@click.option(
    "--long-context",
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Length of the long prompt (default: all that fits; 0: none).",
)
@click.option(
    "--long-context-seconds",
    type=options.Finite(min=0, min_open=True),
    default=900,
    show_default=True,
    help="Time that it may take.",
)
@click.option(
    "--bad-requests/--no-bad-requests", default=True, help="Also send what must be refused."
)
@click.option(
    "--reference", metavar="RUN", help="A run of speculation none: its answers must come again."
)
@click.option("--require-seen", is_flag=True, help="What the log does not say is a failure.")
@_over_hosts(jobs=4)
def verify(
    long_context: int | None,
    long_context_seconds: float,
    bad_requests: bool,
    reference: str | None,
    require_seen: bool,
    **given: Any,
) -> None:
    """Prove that each host runs what was pinned and answers right.

    Runs notebooks/verify.ipynb for every host and exits 1 if a check failed anywhere.
    """
    from roost.measure.longcontext import LEAST_TOKENS

    if long_context and long_context < LEAST_TOKENS:
        raise UsageError(
            f"--long-context {long_context}: is too short for a long prompt",
            fix=f"{LEAST_TOKENS} or more, 0 for none, or leave it out for all that fits",
        )
    if reference is not None and Path(reference).is_dir():
        # A notebook looks from elsewhere.
        reference = str(Path(reference).absolute())
    parameters = {
        "runs_dir": _kept(given["runs_dir"]),
        "long_context": long_context,
        "long_context_seconds": long_context_seconds,
        "bad_requests": bad_requests,
        "reference": reference,
        "require_seen": require_seen,
    }
    _execute("verify", parameters, "not verified", **given)


@click.command()
@options.inventory
@click.option("--live", is_flag=True, help="Also ask every host now what it is.")
@options.tolerance
@options.runs_dir
@options.as_json
def fleet(
    inventory: Path, live: bool, tolerance: float, runs_dir: Path | None, as_json: bool
) -> None:
    """All hosts of an inventory side by side, from kept runs: outliers, drift, what differs.

    Runs notebooks/fleet.ipynb; exits 1 if a host is worse than its class or its own past, or if
    hosts that should be alike run different things. Measures nothing.
    """
    from roost import inventory as inventories
    from roost import notebooks, runs
    from roost.measure import store
    from roost.notebooks import Outcome
    from roost.root import repository_root

    path = inventories.resolve_path(inventory)
    home = (runs_dir or repository_root() / "runs").absolute()
    given = {"inventory": str(path), "live": live, "tolerance": tolerance, "runs_dir": str(home)}
    store.require(home)
    folder = runs.new_folder(home, "fleet", path.stem)
    outcome = Outcome(path.stem, folder, notebooks.execute("fleet", given, folder))
    report([outcome], as_json, "not looked at")


@click.command()
@click.option("--suite", required=True, metavar="NAME", help="What to measure; see above.")
@options.prompts
@_over_hosts(jobs=4)
def bench(suite: str, prompts: Path | None, **given: Any) -> None:
    """Measure hosts with the engine's own load generator.

    Suites: smoke (a quick look), spec-bench, prompt-length, matrix, prompt-style, gate. Runs
    notebooks/benchmark.ipynb for every host and exits 1 where a figure cannot be believed or the
    suite was not measured to its end; what was measured stays in the run's folder.
    """
    from roost.measure.benchmark import planning

    parameters = {"suite": suite, "prompts": str(prompts.absolute()) if prompts else None}
    # Without a look at the inventory, which takes a while.
    planning.plan(**parameters)
    _execute("benchmark", parameters, "not measured", **given)


@click.command()
@click.argument("runs", nargs=-1, metavar="[BASELINE RUN...]")
@click.option(
    "--deploy",
    metavar="CHOICES",
    help="Deploy and measure these on one host instead (dflash,mtp,none), and recommend.",
)
@click.option("-i", "--inventory", type=options.inventory_path, help="Inventory path.")
@click.option("--host", metavar="HOST", help="The host for --deploy.")
@click.option("--suite", metavar="NAME", help="What is measured of each choice; see roost bench.")
@options.prompts
@click.option("--anew", is_flag=True, help="Go on with no interrupted comparison.")
@options.ask_become_pass
@click.option("--published", is_flag=True, help="Also against the published figures.")
@options.tolerance
@options.runs_dir
@options.as_json
def compare(
    runs: tuple[str, ...],
    deploy: str | None,
    published: bool,
    tolerance: float,
    runs_dir: Path | None,
    as_json: bool,
    **on_host: Any,
) -> None:
    """Compare benchmarks of the same suite: ratios with intervals, and what a gap points to.

    Of kept RUNs: exits 1 if one is worse than the first, by more than the tolerance and beyond
    noise. With --deploy: deploys and measures choices of speculation on one host, brings it back to
    the release it had, and recommends one for each concurrency and kind of prompt; interrupted, the
    same command goes on. Runs notebooks/compare.ipynb.
    """
    if deploy is None:
        given = [f"--{name.replace('_', '-')}" for name, value in on_host.items() if value]
        if given or not runs:
            raise click.UsageError(
                f"{given[0]} goes with --deploy"
                if given
                else "nothing to compare: give two RUNs, or --deploy CHOICES"
            )
        _compare_runs(runs, published, tolerance, runs_dir, as_json)
        return
    missing = [f"--{name}" for name in ("inventory", "host", "suite") if not on_host[name]]
    if missing or runs:
        raise click.UsageError(
            f"--deploy needs {' and '.join(missing)}" if missing else "give RUNs or --deploy"
        )
    from roost import experiments_cli

    experiments_cli.compare_choices(
        deploy.split(","),
        published=published,
        tolerance=tolerance,
        runs_dir=runs_dir,
        as_json=as_json,
        **on_host,
    )


def _compare_runs(
    runs: tuple[str, ...], published: bool, tolerance: float, runs_dir: Path | None, as_json: bool
) -> None:
    from roost import notebooks
    from roost.measure import compare as comparing
    from roost.notebooks import Outcome

    parameters = {"tolerance": tolerance, "runs_dir": _kept(runs_dir)}
    # Once here, so that a wrong name is refused before a kernel starts.
    begun = comparing.start(list(runs), **parameters)
    given = {
        **parameters,
        "runs": [str(run.folder) for run in begun.compared],
        "published": published,
    }
    hosts = ", ".join(dict.fromkeys(run.result.host for run in begun.compared))
    outcome = Outcome(hosts, begun.folder, notebooks.execute("compare", given, begun.folder))
    report([outcome], as_json, "not compared")


def _kept(runs_dir: Path | None) -> str:
    """Where runs are kept, for a notebook: it takes what is relative from the repository's root."""
    return str(runs_dir.absolute()) if runs_dir else "runs"


def _execute(
    name: str,
    parameters: Mapping[str, Any],
    undone: str,
    *,
    hosts: tuple[str, ...],
    limit: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a notebook for hosts, show each outcome as it comes, and exit 1 if one is not well."""
    from roost import notebooks, progress
    from roost.interruptions import interruptible

    if hosts and limit:
        raise click.UsageError("give --host or --limit, not both")
    outcomes = []
    with interruptible(), progress.shown() as display:
        for outcome in notebooks.execute_all(
            name,
            hosts=hosts,
            limit=limit,
            parameters=parameters,
            progress=display.say,
            require_one=True,
            **given,
        ):
            outcomes.append(outcome)
            with display.aside(outcome.host):
                if not as_json:
                    _show(outcome, undone)
    report(outcomes, as_json, undone, shown=True)


def report(outcomes: list[Outcome], as_json: bool, undone: str, *, shown: bool = False) -> None:
    """The last lines or the document, and the exit status."""
    if as_json:
        click.echo(json.dumps([_plain(outcome) for outcome in outcomes], indent=2))
    else:
        for outcome in [] if shown else outcomes:
            _show(outcome, undone)
        _close(outcomes, undone)
    if not all(outcome.ok for outcome in outcomes):
        sys.exit(1)


def _plain(outcome: Outcome) -> dict[str, object]:
    result = outcome.result.model_dump(mode="json") if outcome.result else None
    report = _evidence(outcome)
    return {
        "host": outcome.host,
        "ok": outcome.ok,
        # One that was refused has left nothing.
        "run": str(outcome.folder) if outcome.folder.is_dir() else None,
        "report": str(report) if report.exists() else None,
        "summary": outcome.result.summary() if outcome.result else None,
        "error": str(outcome.error) if outcome.error else None,
        "result": result,
    }


def _show(outcome: Outcome, undone: str) -> None:
    """The table of one run."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=terminal.columns())
    if outcome.result is None:
        # Text, because an error's words are no markup.
        text = Text(f"\n{outcome.host}: {undone}\n  {outcome.error}", style="red")
        console.print(text, soft_wrap=True)  # paths stay whole
        return
    result = outcome.result
    console.print()
    # A run over several hosts may have none of these in common.
    of = f": {result.recipe} on {result.hardware}, {result.speculation}" if result.recipe else ""
    console.print(Text(f"{result.host}{of}", "bold"))
    table = Table(box=None, pad_edge=False)
    # A run's name may be longer than a narrow terminal, and what was observed must have room.
    narrow = console.width // 3 if console.width < _NARROW else None
    table.add_column("check", no_wrap=narrow is None, overflow="fold", max_width=narrow)
    table.add_column("", no_wrap=True)
    table.add_column("observed", overflow="fold")
    told: set[str] = set()
    marks = {"pass": Text("ok", "green"), "not seen": Text("not seen", "yellow")}
    for check in result.checks:
        if check.verdict == "not applicable":
            continue
        mark = marks[check.verdict] if check.ok else Text("FAILED", style="bold red")
        # A line each for what is well; what is not is told in full.
        said = " ".join((check.observed or check.why).split())
        shown = Text(said, no_wrap=check.ok, overflow="ellipsis")
        if not check.ok and not check.observed and check.why in told:
            shown = Text("as above", style="red")
        elif not check.ok:
            shown = Text(f"expected: {check.expected}\n", style="dim")
            shown.append(f"observed: {check.observed}\n" if check.observed else "", style="not dim")
            shown.append(check.why, style="not dim red")
            told.add(check.why)
            shown.append(f"\nto mend: {check.fix}" if check.fix else "", style="not dim")
        table.add_row(Text(check.id), mark, shown)
    # Without a terminal a line is as long as the longest, blanks and all.
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _close(outcomes: list[Outcome], undone: str) -> None:
    """The last lines: one a host, with the report."""
    click.echo()
    for outcome in sorted(outcomes, key=lambda item: item.host):
        said = "passed" if outcome.ok else "FAILED" if outcome.result else undone
        path = _evidence(outcome)
        click.echo(f"{outcome.host:<20} {said:<13} {path if path.exists() else ''}".rstrip())


def _evidence(outcome: Outcome) -> Path:
    """What to look at: the report, or the notebook as far as it came."""
    from roost.runs import EXECUTED, REPORT

    return outcome.folder / (REPORT if outcome.result else EXECUTED)

"""``roost tune``, and ``roost compare --deploy``: several deployments of one host in turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from roost import options
from roost.errors import UsageError


def _say(line: str) -> None:
    click.echo(line, err=True)


def compare_choices(
    choices: list[str],
    *,
    inventory: Path,
    host: str,
    suite: str,
    prompts: Path | None,
    tolerance: float,
    published: bool,
    runs_dir: Path | None,
    anew: bool,
    ask_become_pass: bool,
    as_json: bool,
) -> None:
    """Deploy and measure each choice on a host, bring it back, and recommend."""
    from roost import experiment, notebooks
    from roost.experiment import Variant
    from roost.notebooks import Outcome
    from roost.notebooks_cli import report
    from roost.root import repository_root

    if len(set(choices)) < 2 or len(set(choices)) != len(choices):
        raise UsageError("--deploy needs two different choices or more", fix="--deploy dflash,none")
    begun = experiment.begin(
        "compare",
        inventory,
        host,
        lambda *_: [Variant(name, {"roost_speculation": name}) for name in choices],
        suite=suite,
        prompts=prompts,
        runs_dir=(runs_dir or repository_root() / "runs").absolute(),
        anew=anew,
        all_or_none=True,
        become_password=options.password(ask_become_pass),
        say=_say,
    )
    for one in begun.measured:
        begun.tell(f"{one.name}: measured before, {one.run}")
    if begun.unended or any(one.open for one in begun.notes.tried):
        with experiment.or_nothing(begun):
            experiment.preflight(begun)
            with experiment.on_host(begun):
                for one in begun.notes.tried:
                    if one.open:
                        experiment.try_variant(begun, one)
    given = {
        "runs": [one.run for one in begun.notes.tried],
        "choose": True,
        "published": published,
        "tolerance": tolerance,
        "runs_dir": str(begun.runs_dir),
    }
    result = notebooks.execute("compare", given, begun.folder, resumed=True)
    report([Outcome(host, begun.folder, result)], as_json, "not compared")


@click.command()
@options.inventory
@click.option("--host", required=True, metavar="HOST", help="The host to tune.")
@click.option("--suite", required=True, metavar="NAME", help="What is measured of each point.")
@options.prompts
@click.option(
    "--vary",
    multiple=True,
    metavar="SETTING=A,B,…",
    help="Values to try; repeatable (default: half and double of what holds now).",
)
@click.option(
    "--points",
    type=click.IntRange(min=2),
    default=12,
    show_default=True,
    help="Points to try at most.",
)
@click.option("--hours", type=options.Finite(min=0), help="Begin no point after so long.")
@click.option("--users", type=int, help="Choose for so many at a time (default: the suite's most).")
@options.tolerance
@options.runs_dir
@click.option(
    "--resume",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Go on with this search, also where it ended at its limit.",
)
@click.option("--anew", is_flag=True, help="Go on with no interrupted search.")
@options.ask_become_pass
@options.as_json
def tune(
    vary: tuple[str, ...],
    runs_dir: Path | None,
    resume: Path | None,
    anew: bool,
    ask_become_pass: bool,
    as_json: bool,
    prompts: Path | None,
    **given: Any,
) -> None:
    """Search for settings that serve a host's load better, by deploying and measuring them.

    Only what the planner allows is tried; the rest is listed with its reason. The host is brought
    back to the release it had, also where something fails or the search is interrupted; the same
    command then goes on. Runs notebooks/tune.ipynb; tuned.yml in its folder has the settings.
    """
    from roost import notebooks
    from roost.notebooks import Outcome
    from roost.notebooks_cli import report
    from roost.tuning import searching

    axes: dict[str, str] = {}
    for one in vary:
        name, equals, values = one.partition("=")
        if not equals:
            raise UsageError(f"--vary {one}: must be SETTING=A,B,…")
        if name in axes:
            raise UsageError(
                f"--vary {one}: {name} is given twice",
                fix=f"--vary {name}={axes[name]},{values}",
            )
        axes[name] = values
    parameters = {
        **given,
        "inventory": str(given["inventory"]),
        "prompts": str(prompts.absolute()) if prompts else None,
        "vary": axes or None,
        "runs_dir": str(runs_dir.absolute()) if runs_dir else "runs",
    }
    search = searching.start(
        **parameters,
        anew=anew,
        resume=resume,
        become_password=options.password(ask_become_pass),
        say=_say,
    )
    for refused in search.experiment.refused:
        search.experiment.tell(f"{refused.name}: refused: {refused.refusal}")
    search.run()
    folder = search.experiment.folder
    parameters["inventory"] = str(search.experiment.inventory)
    result = notebooks.execute("tune", parameters, folder, resumed=True)
    report([Outcome(search.experiment.host.name, folder, result)], as_json, "not tuned")

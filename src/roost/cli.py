"""The ``roost`` command: thin over the package, one function a verb.

Exit status: 0 good, 1 failed, 2 usage, 3 refused by the plan. Reading verbs take ``--json``.
Imports of anything heavy happen inside the verbs, so that ``roost show`` answers at once.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import click

import roost
from roost import options, printing
from roost.errors import RoostError
from roost.root import CATALOG_VARIABLE


class _Group(click.Group):
    """Loads the verbs that have modules of their own only when they are asked for."""

    lazy = {
        "bench": ("roost.notebooks_cli", "bench"),
        "build": ("roost.building_cli", "build"),
        "bundle": ("roost.bundle_cli", "bundle"),
        "compare": ("roost.notebooks_cli", "compare"),
        "diagnose": ("roost.diagnose_cli", "diagnose"),
        "doctor": ("roost.doctor_cli", "doctor"),
        "fleet": ("roost.notebooks_cli", "fleet"),
        "import": ("roost.importing_cli", "import_"),
        "lab": ("roost.lab.cli", "lab"),
        "logs": ("roost.logs_cli", "logs"),
        "plan": ("roost.plan_cli", "plan"),
        "probe": ("roost.probe_cli", "probe"),
        "report": ("roost.report_cli", "report"),
        "rollback": ("roost.releases_cli", "rollback"),
        "rollout": ("roost.rollout_cli", "rollout"),
        "start": ("roost.releases_cli", "start"),
        "status": ("roost.releases_cli", "status"),
        "stop": ("roost.releases_cli", "stop"),
        "tune": ("roost.experiments_cli", "tune"),
        "verify": ("roost.notebooks_cli", "verify"),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            import importlib

            module, attribute = self.lazy[cmd_name]
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Whole sentences, where click cuts them off at the end of the line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, it.get_short_help_str(200)) for name, it in commands if it])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name near misses, as click does for options."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise click.UsageError(error.message + hint, ctx) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(roost.__version__, prog_name="roost")
@click.option(
    "--catalog",
    "own_catalog",
    envvar=CATALOG_VARIABLE,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Your own recipes, models and hardware, on top of roost's (or {CATALOG_VARIABLE}).",
)
def cli(own_catalog: Path | None) -> None:
    """Deploy, prove and measure speculative-decoding LLM servers."""
    if own_catalog is not None:
        os.environ[CATALOG_VARIABLE] = str(own_catalog.resolve())


def main() -> None:
    """Entry point: prints what a person can act on, never a traceback for a user's mistake."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Not every terminal has every character; that is nothing to stop for.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        cli.main(standalone_mode=False)
    except RoostError as error:
        click.echo(f"roost: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        click.echo("roost: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away (`roost show … | head`); there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        # A full disk, a directory that is not the user's: the place is what can be acted on.
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"roost: {place}{error.strerror or error}", err=True)
        sys.exit(1)


@cli.command()
@click.argument("recipe", required=False)
@options.as_json
def recipes(recipe: str | None, as_json: bool) -> None:
    """What can be deployed, and on which hardware somebody saw it run; of one RECIPE everything."""
    import shutil

    from roost import catalog, listing

    known = catalog.current()
    one = known.recipe(recipe) if recipe else None
    width = shutil.get_terminal_size().columns
    if as_json and one:
        details = one.model_dump(mode="json", exclude_defaults=True)
        printing.as_json({**listing.row(one, known), "details": details})
    elif as_json:
        printing.as_json([listing.row(each, known) for each in known.recipes.values()])
    elif one:
        click.echo(listing.details(one, known, width))
    else:
        click.echo(listing.table(known, width))


@cli.command()
@click.argument("recipe")
@click.option("--on", "hardware", required=True, metavar="HARDWARE", help="Hardware id.")
@click.option("--speculation", metavar="CHOICE", help="One of the recipe's choices.")
@click.option("--variant", metavar="VARIANT", help="One of the recipe's variants.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting; repeatable."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["docker", "argv", "json"]),
    default="docker",
    show_default=True,
    help="How it is written down.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@options.lock_file
def show(
    recipe: str,
    hardware: str,
    speculation: str | None,
    variant: str | None,
    assignments: tuple[str, ...],
    form: str,
    as_json: bool,
    lock_file: Path | None,
) -> None:
    """The container that would run, as a docker command, an argv or JSON."""
    import shlex

    from roost import catalog, lock, settings
    from roost.launch import resolving, shown
    from roost.root import default_lock_file

    resolved = resolving.resolve(
        catalog.current(),
        recipe,
        hardware,
        speculation=speculation,
        variant=variant,
        overrides=settings.parse_assignments(assignments),
        lock=lock.read(lock_file or default_lock_file()),
    )
    if as_json or form == "json":
        printing.as_json(shown.as_json(resolved.spec))
    elif form == "argv":
        click.echo(shlex.join(shown.argv(resolved.spec)))
    else:
        click.echo(shown.docker_command(resolved.spec))
    if resolved.spec.build:
        click.echo(
            f"roost: no registry has the image; it is built with: {resolved.spec.build}", err=True
        )
    if resolved.spec.lockable:
        click.echo(
            f"roost: not pinned yet: {', '.join(resolved.spec.lockable)} (roost lock {recipe})",
            err=True,
        )


@cli.command()
@click.argument("recipe", nargs=-1)
@click.option(
    "-i",
    "--inventory",
    type=options.inventory_path,
    help="Lock what this inventory deploys, with its hub, registry and lock file.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Also lock what this setting names (drafter_revision, image).",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if anything drifted.")
@options.hub("Hub or mirror to ask (default: the public one).")
@options.registry("Registry that serves every image.")
@click.option(
    "--lock-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The lock file (default: roost.lock.yml, or the inventory's).",
)
def lock(
    recipe: tuple[str, ...],
    inventory: Path | None,
    assignments: tuple[str, ...],
    check: bool,
    hub: str | None,
    registry: str | None,
    lock_file: Path | None,
) -> None:
    """Ask hub and registry what every branch, tag and short commit means, and write it down."""
    from roost import lock as locks
    from roost import locking, progress, settings

    job = locking.plan(
        recipe,
        inventory=inventory,
        hub=hub,
        registry=registry,
        lock_file=lock_file,
        overrides=settings.parse_assignments(assignments),
    )
    with progress.shown() as lines:
        outcome = locking.run(
            job,
            write=not check,
            progress=lambda at, of, name: lines.pass_by("lock", f"asking {at} of {of}: {name}"),
        )
    for line in outcome.drift:
        click.echo(line)
    if not outcome.drift and not outcome.failures:
        click.echo(f"{job.lock_file}: nothing drifted")
    for told in locks.told(outcome.failures):
        click.echo(f"roost: {told}", err=True)
    if outcome.failures or (check and outcome.drift):
        sys.exit(1)


@cli.command()
@options.inventory
@options.limit
@click.option("--check", is_flag=True, help="Change nothing, show what would change.")
@click.option("--diff", is_flag=True, help="Show differences.")
@options.despite_lease
@options.ask_become_pass
def deploy(
    inventory: Path,
    limit: str | None,
    check: bool,
    diff: bool,
    despite_lease: bool,
    ask_become_pass: bool,
) -> None:
    """Run the deploy playbook over an inventory."""
    from roost import fleet

    result = fleet.run_playbook(
        "deploy",
        inventory,
        limit=limit,
        check=check,
        diff=diff,
        become_password=options.password(ask_become_pass),
        extra_vars={"despite_lease": True} if despite_lease else None,
    )
    result.require("deploy")
    click.echo(
        ("checked, nothing was changed: " if check else "deployed: ")
        + ", ".join(f"{host} (changed={result.changed.get(host, 0)})" for host in result.hosts)
    )


if __name__ == "__main__":
    main()

"""``roost diagnose``."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import click

from roost import options, printing
from roost.errors import RoostError

if TYPE_CHECKING:
    from io import BufferedReader

    from roost.diagnose import Diagnosis


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--engine",
    type=click.Choice(["vllm", "sglang"]),
    help="Leave out what only the other engine says.",
)
@options.as_json
def diagnose(file: BufferedReader, engine: str | None, as_json: bool) -> None:
    """Say what is wrong in a log, why, and how to mend it.

    FILE is any log: an engine's, docker's, Ansible's, the kernel's, as it is, pasted or gzipped; of
    an archive that `roost logs` wrote, the diagnosis in it; - reads standard input. The root cause
    comes first. Exits 1 if an error was found, 0 if not.
    """
    import roost.diagnose
    from roost.diagnose import fingerprints, opening

    try:
        empty = False
        with opening.log(file) as given:
            if isinstance(given, list):
                found = [item for item in given if fingerprints.says(engine, item.id)]
            else:
                empty = not given.peek(1)
                found = roost.diagnose.diagnose(given, engine=engine)
    except OSError as error:
        raise RoostError(f"{file.name}: cannot be read", why=str(error.strerror)) from None
    if as_json:
        printing.as_json([dataclasses.asdict(item) for item in found])
    elif empty:
        click.echo(
            "nothing was read: the log is empty. Engines log to standard error, so a pipe needs "
            "2>&1:\n  docker logs roost-llm 2>&1 | roost diagnose -"
        )
    else:
        click.echo(describe(found), nl=False)
    if any(item.severity == "error" for item in found):
        sys.exit(1)


def describe(found: list[Diagnosis]) -> str:
    """What a person reads: the root cause first, harmless lines last and short."""
    text = ""
    for item in found:
        if item.severity != "info":
            text += f"{item.severity}: {item.title} ({item.id})\n"
            text += f"  line {item.line}: {item.evidence}\n"
            text += f"  why: {item.why}\n  fix: {item.fix}\n  source: {item.source}\n\n"
    text = text or "nothing wrong found\n\n"
    if harmless := [item for item in found if item.severity == "info"]:
        text += "looks worse than it is:\n"
        text += "".join(f"  line {item.line}: {item.title}: {item.why}\n" for item in harmless)
    return text.rstrip("\n") + "\n"

"""Options that several verbs of the command line have, each said once."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from roost import terminal
from roost.errors import UsageError
from roost.references import MIRROR

_Verb = TypeVar("_Verb", bound=Callable[..., Any])


class _InventoryPath(click.Path):
    """A path, and no empty one: a :class:`Path` could not tell that from the working directory."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if not str(value).strip():
            self.fail("it is empty: is a variable of the shell unset?", parameter, context)
        return super().convert(value, parameter, context)


class Finite(click.FloatRange):
    """A number within a range: NaN is within every one, and infinity within one without an end."""

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        number: float = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", parameter, context)
        return number


inventory_path = _InventoryPath(path_type=Path)
inventory = click.option(
    "-i", "--inventory", required=True, type=inventory_path, help="Inventory path."
)
asked_hosts = click.argument("hosts", nargs=-1, metavar="[HOST]...")
asked_inventory = click.option(
    "-i",
    "--inventory",
    type=inventory_path,
    help="HOSTs are names of this inventory; all of its hosts if none is given.",
)
limit = click.option(
    "--limit", metavar="PATTERN", help="Only hosts that match this pattern, as Ansible's --limit."
)
ask_become_pass = click.option(
    "-K", "--ask-become-pass", is_flag=True, help="Ask for the hosts' sudo password."
)
despite_lease = click.option(
    "--despite-lease",
    is_flag=True,
    help="Also hosts whose lease a rollout or an experiment has.",
)
lock_file = click.option(
    "--lock-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Where resolved revisions and digests stand (default: roost.lock.yml of the checkout).",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
runs_dir = click.option(
    "--runs",
    "runs_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where runs are kept (default: runs/ in the repository).",
)


def hub(meaning: str) -> Callable[[_Verb], _Verb]:
    """``--hub URL``; what it is asked for differs by verb."""

    def check(_: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
        if url and not re.match(r"https?://[^\s/]+", url):
            raise click.BadParameter(
                f"must be http://HOST or https://HOST (it is {url!r})",
                param=parameter,
            )
        return url

    return click.option("--hub", metavar="URL", callback=check, help=meaning)


def registry(meaning: str) -> Callable[[_Verb], _Verb]:
    """``--registry HOST[:PORT]``; what it is asked for differs by verb."""

    def check(_: click.Context, parameter: click.Parameter, address: str | None) -> str | None:
        if address and not re.match(MIRROR, address):
            raise click.BadParameter(
                "must be HOST[:PORT], with http:// before it for one without TLS", param=parameter
            )
        return address

    return click.option("--registry", metavar="HOST[:PORT]", callback=check, help=meaning)


prompts = click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Your own prompts (JSON lines) instead of the suite's.",
)
tolerance = click.option(
    "--tolerance",
    type=Finite(0, 1, max_open=True),
    default=0.05,
    show_default=True,
    help="A gap that is too small to care about, as a fraction.",
)


def password(ask: bool) -> str | None:
    """Sudo's password, if it is to be asked for; without a terminal a line of standard input.

    Raises:
        UsageError: There is no terminal, and nothing on standard input.
    """
    if not ask:
        return None
    if terminal.present("stdin"):
        answer: str = click.prompt("sudo password", hide_input=True)
        return answer
    if sys.stdin is not None and (line := sys.stdin.readline().rstrip("\n")):
        return line
    raise UsageError(
        "--ask-become-pass: there is no password to read",
        why="standard input is no terminal, and it is empty",
        fix="run it in a terminal, or pipe the password in",
    )

"""Options that several verbs of the command line have, each said once."""

from __future__ import annotations

from pathlib import Path

import click

inventory = click.option(
    "-i", "--inventory", required=True, type=click.Path(path_type=Path), help="Inventory path."
)
limit = click.option("--limit", metavar="PATTERN", help="Only these hosts.")
ask_become_pass = click.option(
    "-K", "--ask-become-pass", is_flag=True, help="Ask for the hosts' sudo password."
)
despite_rollout = click.option(
    "--despite-rollout", is_flag=True, help="Also hosts that take part in a rollout."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
runs_dir = click.option(
    "--runs",
    "runs_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where runs are kept (default: runs/ in the repository).",
)
prompts = click.option(
    "--prompts",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Your own prompts (JSON lines) instead of the suite's.",
)
tolerance = click.option(
    "--tolerance",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.05,
    show_default=True,
    help="A gap that is too small to care about, as a fraction.",
)


def password(ask: bool) -> str | None:
    """Sudo's, if it is to be asked for."""
    if not ask:
        return None
    answer: str = click.prompt("sudo password", hide_input=True)
    return answer

"""``roost doctor``."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from roost import options, printing
from roost.errors import RoostError
from roost.printable import printable
from roost.probe_cli import JOBS, targets

if TYPE_CHECKING:
    from roost.deployment import Deployment
    from roost.doctor import Check
    from roost.hosts import HostFacts
    from roost.inventory import Host

#: Columns that every terminal has.
_WIDTH = 80


@dataclass(frozen=True)
class Examined:
    """One host: its checks, or the error that kept it from having any."""

    asked: str
    facts: HostFacts | None = None
    checks: Sequence[Check] = ()
    error: RoostError | None = None


@click.command()
@options.asked_hosts
@options.asked_inventory
@options.limit
@click.option("-v", "--verbose", is_flag=True, help="Also what is good, check by check.")
@options.as_json
def doctor(
    hosts: tuple[str, ...],
    inventory: Path | None,
    limit: str | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Say what is wrong with hosts, why, and how to mend it.

    HOST is an ssh destination, or, with -i, a host of the inventory, which is then also compared
    with what it is to run. Nothing is changed there and root is not needed; what could not be
    seen without it is said. Exits 1 if a check failed or a host could not be asked.
    """
    from roost import doctor as checks

    asked = targets(hosts, inventory, limit)
    done: list[Examined] = []
    with ThreadPoolExecutor(max_workers=JOBS) as pool:
        planned = [inventory is not None] * len(asked)
        for item in pool.map(_examine, asked, asked.values(), planned):
            done.append(item)
            if not as_json:
                click.echo(printable(_describe(item, verbose=verbose)) + "\n")
    across = checks.between({item.asked: item.facts for item in done if item.facts})
    if as_json:
        printing.as_json(_as_json(done, across))
    else:
        for check in across:
            click.echo("between hosts\n" + printable(_paragraph(check)) + "\n")
    lost = [item.asked for item in done if item.error]
    if lost:
        raise RoostError(f"{len(lost)} of {len(done)} not examined: {', '.join(lost)}")
    if any(check.severity == "fail" for item in done for check in item.checks):
        sys.exit(1)


def _examine(asked: str, host: Host, planned: bool) -> Examined:
    from roost import asking, ssh
    from roost import doctor as checks

    try:
        with ssh.connect(host) as remote:
            skew = asking.skew(remote)
            facts = asking.facts(remote, host)
    except RoostError as error:
        return Examined(asked, error=error)
    wanted = deployment_of(host) if planned else None
    return Examined(asked, facts, checks.examine(facts, skew=skew, deployment=wanted))


def deployment_of(host: Host) -> Deployment | RoostError:
    """What a host's inventory wants to run there, or why that cannot be told."""
    from roost import deployment
    from roost.root import repository_root

    try:
        return deployment.from_variables(host.name, host.variables, repository_root())
    except RoostError as error:
        return error


# --- output -------------------------------------------------------------------------------------


def _as_json(done: Sequence[Examined], across: Sequence[Check]) -> dict[str, object]:
    return {
        "hosts": [
            {
                "host": item.asked,
                "checks": [check.model_dump() for check in item.checks],
                "error": str(item.error) if item.error else None,
            }
            for item in done
        ],
        "between_hosts": [check.model_dump() for check in across],
    }


def _describe(item: Examined, *, verbose: bool) -> str:
    """What a person reads of one host, worst first; what is good is one line."""
    if item.error is not None:
        return f"{item.asked}\n  not examined: " + str(item.error).replace("\n", "\n  ")
    lines = [item.asked]
    lines += [_paragraph(check) for check in item.checks if check.severity in {"fail", "warn"}]
    for severity in ("unknown", "ok"):
        group = [check for check in item.checks if check.severity == severity]
        if verbose:
            lines += [_paragraph(check) for check in group]
        elif group and severity == "unknown":
            lines += [_paragraph(check.model_copy(update={"wants": ""})) for check in group]
        elif group:
            lines.append(_wrapped("ok       " + ", ".join(dict.fromkeys(c.id for c in group)), 11))
    return "\n".join(lines)


def _paragraph(check: Check) -> str:
    lines = [_wrapped(f"{check.severity:<8} {check.id}: {check.saw}", 11)]
    for title, text in (("wants", check.wants), ("why", check.why), ("fix", check.fix)):
        if text:
            lines.append(_wrapped(f"         {title}: {text}", 16))
    return "\n".join(lines)


def _wrapped(text: str, hang: int) -> str:
    # Paths and commands stay whole: they are there to be copied.
    return textwrap.fill(
        text,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
    )

"""A suite measured on a host, through whatever breaks on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from roost import ssh
from roost.errors import RoostError
from roost.measure import reconnecting, running
from roost.measure.benchmark import concluding, rendering, repeating
from roost.measure.benchmark.planning import Plan
from roost.measure.benchmark.session import Session, file_of, kept_files
from roost.measure.checks import Evidence, Target
from roost.measure.suites import Cell


def measure(
    target: Target,
    plan: Plan,
    *,
    folder: Path,
    say: Callable[[str], None] = print,
) -> Evidence:
    """Measure a suite on a host.

    Whatever breaks ends the suite and is a failed check; what was measured before stays.

    Args:
        target: The host, reached.
        plan: What to ask.
        folder: The run's; raw files are written there as they come.
        say: Takes one line of progress at a time.
    """
    session = Session(target=target, plan=plan, cells=plan.cells, folder=folder, say=say)
    broke = ""
    try:
        _require_pinned(session)
        _within_context(session)
        _measure_cells(session)
    except RoostError as error:
        broke = str(error)
    return concluding.conclude(session, broke)


def _measure_cells(session: Session) -> None:
    """Measure every cell; one in which the SSH connection broke is measured anew from its start."""
    while left := session.cells[len(session.measured) :]:
        measured = len(session.measured)
        try:
            with rendering.prepared(session, left):
                for cell in left:
                    repeating.measure_cell(session, cell)
                    measured += 1
        except ssh.BrokenConnectionError:
            session.breaks += 1
            if session.breaks > reconnecting.MOST:
                raise
            session.progress("the SSH connection broke, waiting for the host")
            reconnecting.wait_and_clear(session.remote, session.name, session.in_container)
            _require_the_same(session)
            _forget(session, measured)


def _forget(session: Session, measured: int) -> None:
    """Leave nothing of an abandoned attempt among the evidence."""
    del session.measured[measured:]
    whole = {cell.id for cell in session.measured}
    session.watches = {at: one for at, one in session.watches.items() if at[0] in whole}
    for cell in session.cells[measured:]:
        for number in range(1, session.suite.repetitions.most + 1):
            for kept in kept_files(file_of(cell.id, number)):
                (session.folder / kept).unlink(missing_ok=True)


def _require_pinned(session: Session) -> None:
    """Check that what is pinned is what runs: figures of the one are filed under the other.

    Raises:
        RoostError: There is no way to the host, or it runs something else.
    """
    session.target.reached()
    made = running.container_checks(session.target)
    session.evidence.checks += made
    if wrong := [check for check in made if not check.ok]:
        raise RoostError(
            f"{session.name} is not what was to be measured",
            why=", ".join(check.id for check in wrong) + ": nothing was measured",
            fix=running.DEPLOY,
        )


def _require_the_same(session: Session) -> None:
    """Check that the container is the one measured so far, after the connection was down.

    Raises:
        RoostError: What runs now is not what was measured so far.
    """
    before = session.target.container["State"].get("StartedAt")
    wrong = [check for check in running.container_checks(session.target) if not check.ok]
    session.evidence.checks += wrong
    why = ", ".join(check.id for check in wrong)
    started = session.target.container["State"].get("StartedAt")
    if not wrong and started != before:
        why = f"it was started at {started}, what was measured so far at {before}"
    if why:
        raise RoostError(
            f"{session.name} is not the container any more that was measured",
            why=f"{why}: behind the broken connection it was deployed or started anew",
            fix="see that the pinned deployment runs, then measure again",
        )


def _within_context(session: Session) -> None:
    """Leave out the lengths that the server does not take, and say so."""
    limit = session.target.endpoint().context_limit(session.deployment.served_name)
    session.context = limit
    if limit is None or session.suite.lengths is None:
        return

    def fits(cell: Cell) -> bool:
        longest = max(prompt.tokens or 0 for prompt in cell.prompts)
        return longest + session.suite.output_tokens <= limit

    left = [cell for cell in session.cells if not fits(cell)]
    session.cells = [cell for cell in session.cells if fits(cell)]
    if left:
        session.check(
            "context",
            ok=bool(session.cells),
            expected="lengths that the server takes",
            observed=f"left out: {', '.join(cell.category for cell in left)}",
            why=f"the server's context is {limit} tokens",
        )

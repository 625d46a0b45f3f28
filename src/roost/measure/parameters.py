"""A misspelt parameter of a notebook that is run by hand.

papermill and the verbs look at parameters before a kernel starts. In JupyterLab nobody does: the
cell of parameters assigns variables, and one that is misspelt is a variable more, beside the
default that goes on to hold. So a notebook says first what it takes, and the cell is read again.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from typing import Any

from roost import near
from roost.errors import UsageError

#: How alike a variable of a later cell is to a parameter that it is taken for.
_NEAR = 0.8


def only(names: str) -> None:
    """Refuse what the cell of parameters assigns and the notebook does not take.

    Outside of IPython nothing is looked at. The cell is the newest one that assigns half of the
    names or more; of cells that were run after it only a near miss is refused.

    Args:
        names: The notebook's parameters, with spaces between.

    Raises:
        UsageError: Naming every defect, near misses and the notebook's parameters.
    """
    known = names.split()
    wrong = unknown(known, _cells())
    if not wrong:
        return
    raise UsageError(
        "; ".join(f"no parameter {name!r}{near.miss(name, known)}" for name in wrong),
        why="it would be a variable that nothing reads",
        fix=f"parameters are: {', '.join(known)}; anything else goes into a cell of its own",
    )


def unknown(known: Sequence[str], cells: Sequence[str]) -> list[str]:
    """What cells assign in a parameter's place and is none.

    Args:
        known: The parameters.
        cells: Sources of the cells that were run, the newest last.
    """
    found: list[str] = []
    for source in reversed(cells):
        names = _assigned(source)
        if 2 * len(names & {*known}) >= len(known):
            return sorted(names - {*known}) + found
        found = [name for name in sorted(names - {*known}) if _is_near(name, known)] + found
    return []


def _is_near(name: str, known: Sequence[str]) -> bool:
    return bool(difflib.get_close_matches(name, known, n=1, cutoff=_NEAR))


def _assigned(source: str) -> set[str]:
    """Variables that a cell's own statements assign; those with an underscore first are private."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return set()
    targets: list[ast.expr] = []
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets += statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets.append(statement.target)
    names = [node.id for one in targets for node in ast.walk(one) if isinstance(node, ast.Name)]
    return {name for name in names if not name.startswith("_")}


def _cells() -> list[str]:
    """What this session of IPython has run, as Python; the cell that runs now is the last."""
    # Who measures without a notebook needs none of it.
    from IPython.core.getipython import get_ipython

    shell: Any = get_ipython()
    return list(shell.history_manager.input_hist_parsed) if shell else []

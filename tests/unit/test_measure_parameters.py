"""Parameters of notebooks that are run by hand: what is misspelt is refused."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from roost import notebooks, papermill_engine
from roost.measure import parameters

NOTEBOOKS = sorted(notebooks.find("verify").parent.glob("*.ipynb"))
KNOWN = ["inventory", "host", "tolerance", "runs_dir"]
CELL = 'inventory = "i"\nhost = "h"\ntolerance = 0.05  # a fraction\nruns_dir = "runs"\n'


@pytest.mark.parametrize(
    ("cells", "wrong"),
    [
        ([CELL], []),
        # Beside the default, and in its place.
        ([CELL + "tolerence = 0.02\n"], ["tolerence"]),
        ([CELL.replace("tolerance", "tolerence")], ["tolerence"]),
        # Near nothing, and of no use all the same.
        ([CELL + "warmups: int = 5\nhosts, other = 1, 2\n"], ["hosts", "other", "warmups"]),
        # Neither an import nor what says itself that it is nobody's matter.
        ([CELL + "import json\n_base = 1\nfor x in []:\n    y = x\n"], []),
        # The newest run of the cell counts, and what changes it after it.
        ([CELL + "tolerence = 0.02\n", CELL], []),
        ([CELL, "tolerence = 0.02", "run = 3\nplan = 4"], ["tolerence"]),
        ([CELL, "host = 'other'"], []),
        # A magic that IPython could not turn into Python, and no cell of parameters at all.
        ([CELL, "%%nothing\nx ="], []),
        (["", "tolerence = 1"], []),
    ],
)
def test_what_is_no_parameter(cells: list[str], wrong: list[str]) -> None:
    assert parameters.unknown(KNOWN, cells) == wrong


def test_outside_of_ipython_nothing_is_looked_at() -> None:
    parameters.only("inventory host")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_says_what_it_takes(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    (said,) = re.findall(
        r"^parameters\.only\(([^)]*)\)", "\n".join(cell.source for cell in notebook.cells), re.M
    )
    assert ast.literal_eval(f"({said})").split() == list(papermill_engine.declared(notebook))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_that_is_run_again_takes_its_own_variables_for_none(path: Path) -> None:
    sources = [
        one.source for one in nbformat.read(path, as_version=4).cells if one.cell_type == "code"
    ]
    assert parameters.unknown(re.findall(r"^(\w+) = ", sources[0], re.M), sources) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_notebook_refuses_a_misspelt_one_by_hand(path: Path, tmp_path: Path) -> None:
    """As JupyterLab runs it: cell by cell in a kernel, with no word of papermill."""
    notebook = nbformat.read(path, as_version=4)
    (cell,) = (one for one in notebook.cells if "parameters" in one.metadata.get("tags", []))
    cell.source += "\nrun_dirr = 'here'"
    with papermill_engine._kernel() as manager:
        client = NotebookClient(
            notebook,
            resources={"metadata": {"path": str(tmp_path)}},
            kernel_manager_class=manager,
        )
        refused = r"no parameter 'run_dirr', did you mean run_dir"
        with pytest.raises(CellExecutionError, match=refused):
            client.execute()
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_ends_says_nothing_of_its_own_sockets() -> None:
    """Its standard error is ours, and what it logs there at its end is no news to anybody."""
    ask = "import logging; print(logging.getLogger('tornado.general').level)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ask)])
    with papermill_engine._kernel() as manager:
        NotebookClient(notebook, kernel_manager_class=manager).execute()
    assert notebook.cells[0].outputs[0].text == f"{logging.CRITICAL}\n"

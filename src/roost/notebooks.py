"""Running notebooks: strict parameters, one run folder each, several hosts at a time.

Each run is a process of its own (papermill keeps its working directory and file handlers in
globals), and each has a kernel of its own.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill.engines
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from roost import inventory as inventories

# After papermill's own engines: importing it registers roost's (see there).
from roost import papermill_engine, runs
from roost.errors import RoostError, UsageError
from roost.inventory import Host
from roost.root import repository_root
from roost.runs import Result

#: Engines answer one verification each; more at a time would only heat the controller.
DEFAULT_JOBS = 4


@dataclass(frozen=True)
class Outcome:
    """One host's run: its result, or the error that kept it from having one."""

    host: str
    folder: Path
    result: Result | None = None
    error: RoostError | None = None

    @property
    def ok(self) -> bool:
        return self.result is not None and self.result.ok


def find(name: str) -> Path:
    """The notebook ``notebooks/<name>.ipynb``.

    Raises:
        UsageError: There is none; the others are listed.
    """
    folder = repository_root() / "notebooks"
    path = folder / f"{name}.ipynb"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in folder.glob("*.ipynb")))
        raise UsageError(f"no notebook {name!r}", fix=f"notebooks are: {known}")
    return path


def execute(name: str, parameters: Mapping[str, Any], run_dir: Path) -> Result:
    """Run one notebook and return its result, passed or failed.

    Args:
        name: Of the notebook, without folder and suffix.
        parameters: The notebook's parameters, without ``run_dir``.
        run_dir: The run's folder; the executed notebook and everything it writes go there.

    Raises:
        UsageError: A parameter is unknown or missing; no kernel was started.
        RoostError: The notebook broke before it had a result.
    """
    path = find(name)
    given = {**parameters, "run_dir": str(run_dir)}
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    papermill_engine.check_parameters(path.name, notebook, given)
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with _quietly():
            papermill.execute_notebook(
                path,
                run_dir / runs.EXECUTED,
                parameters=given,
                progress_bar=sys.stderr.isatty() and multiprocessing.parent_process() is None,
            )
    except papermill_engine.NotebookFailed as error:
        # A failed check has a result, which says more than the exception does.
        if (run_dir / runs.RESULT).is_file():
            return runs.read(run_dir)
        raise RoostError(
            error.what, fix=f"the notebook as it ran: {run_dir / runs.EXECUTED}"
        ) from None
    except (DeadKernelError, CellTimeoutError, NoSuchKernel, RuntimeError) as error:
        raise RoostError(
            f"{path.name}: its kernel did not survive",
            why=" ".join(str(error).split())[:300],
            fix=f"the notebook as far as it ran: {run_dir / runs.EXECUTED}",
        ) from None
    return runs.read(run_dir)


def verify_all(
    inventory: Path,
    hosts: Sequence[str] = (),
    *,
    limit: str | None = None,
    runs_dir: Path | None = None,
    jobs: int = DEFAULT_JOBS,
) -> Iterator[Outcome]:
    """Verify hosts of an inventory, several at a time; outcomes come as they finish.

    Args:
        inventory: Its path.
        hosts: Names; all of the inventory if empty.
        limit: An Ansible host pattern instead of names.
        runs_dir: Where runs are kept, by default ``runs`` in the repository.
        jobs: How many at a time.

    Raises:
        UsageError: No such inventory or host, before anything runs.
    """
    loaded = inventories.load(inventory, limit)
    chosen = [loaded.host(name) for name in dict.fromkeys(hosts)] or list(loaded.hosts.values())
    parent = (runs_dir or repository_root() / "runs").absolute()
    todo = [(host, runs.new_folder(parent, host.name, _recipe(host))) for host in chosen]
    # Not fork: this process may have threads (a progress display, an SSH connection).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(jobs, len(todo))), mp_context=context) as pool:
        pending = {
            pool.submit(_verify, str(loaded.path), host.name, folder): (host.name, folder)
            for host, folder in todo
        }
        for done in as_completed(pending):
            name, folder = pending[done]
            died = done.exception()
            yield Outcome(name, folder, error=_died(name, died)) if died else done.result()


def _recipe(host: Host) -> str:
    """The recipe, for the folder's name; what is wrong with the host its own run will say."""
    return str(host.variables.get("roost_recipe") or "unknown")


def _died(host: str, error: BaseException) -> RoostError:
    return RoostError(
        f"{host}: the process that verified it ended before it was done",
        why=f"{type(error).__name__}: {error}",
        fix="see whether this machine ran out of memory (dmesg), or take fewer --jobs",
    )


def _verify(inventory: str, host: str, folder: Path) -> Outcome:
    try:
        result = execute("verify", {"inventory": inventory, "host": host}, folder)
    except RoostError as error:
        return Outcome(host, folder, error=RoostError(error.what, why=error.why, fix=error.fix))
    return Outcome(host, folder, result)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of Jupyter's own parts, which a user of roost can do nothing about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

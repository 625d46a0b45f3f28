"""Running notebooks: strict parameters, one run folder each, several hosts at a time.

Each run is a process of its own (papermill keeps its working directory and file handlers in
globals), and each has a kernel of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill.engines
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from roost import inventory as inventories

# After papermill's own engines: importing it registers roost's (see there).
from roost import papermill_engine, runs, terminal
from roost.errors import RefusedError, RoostError, UsageError
from roost.inventory import Host
from roost.root import repository_root
from roost.runs import Result

#: Engines answer one verification each; more at a time would only heat the controller.
DEFAULT_JOBS = 4
#: Seconds between two looks at the progress of runs.
_GLANCE_S = 1.0
#: Seconds that an interrupted run has to end its kernel.
_CLEANING_UP_S = 30.0


@dataclass(frozen=True)
class Outcome:
    """One host's run: its result, or the error that kept it from having one.

    A run that was refused before it began has no folder: the path is where it would have been.
    """

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


def execute(
    name: str, parameters: Mapping[str, Any], run_dir: Path, *, resumed: bool = False
) -> Result:
    """Run one notebook and return its result, passed or failed.

    Args:
        name: Of the notebook, without folder and suffix.
        parameters: The notebook's parameters, without ``run_dir``.
        run_dir: The run's folder; the executed notebook and everything it writes go there.
        resumed: Whether what lies there already is this run's own, to be gone on with.

    Raises:
        UsageError: A parameter is unknown or missing, or the folder is another run's; no kernel
            was started, and nothing was written.
        RoostError: The notebook broke before it had a result.
    """
    path = find(name)
    given = {**parameters, "run_dir": str(run_dir)}
    # A search that is gone on with may have one from the last time.
    before = _written(run_dir / runs.RESULT)
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    papermill_engine.check_parameters(path.name, notebook, given)
    if not resumed:
        # The notebook asks, too, but papermill has written its own file by then.
        runs.refuse_used(run_dir, also=runs.EXECUTED)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with _quietly():
            papermill.execute_notebook(
                path,
                run_dir / runs.EXECUTED,
                parameters=given,
                progress_bar=terminal.present("stderr")
                and multiprocessing.parent_process() is None,
            )
    except papermill_engine.NotebookFailed as error:
        # A failed check has a result, which says more than the exception does.
        if _written(run_dir / runs.RESULT) != before:
            return runs.read(run_dir)
        if isinstance(error, papermill_engine.NotebookRefused) and _discarded(run_dir):
            raise RoostError(error.what) from None
        raise RoostError(
            error.what, fix=f"the notebook as it ran: {run_dir / runs.EXECUTED}"
        ) from None
    except (OSError, papermill_engine.NotWritten) as error:
        with suppress(OSError):
            # What papermill could not write to its end is no notebook.
            (run_dir / runs.EXECUTED).unlink(missing_ok=True)
            run_dir.rmdir()  # nor is a folder with nothing in it a run
        why = error.why if isinstance(error, RoostError) else error.strerror
        raise RoostError(
            f"{run_dir}: the run cannot be kept",
            why=why or type(error).__name__,
            fix="make room, or keep runs elsewhere",
        ) from None
    except (DeadKernelError, CellTimeoutError, NoSuchKernel, RuntimeError) as error:
        raise RoostError(
            f"{path.name}: its kernel did not survive",
            why=" ".join(str(error).split())[:300],
            fix=f"the notebook as far as it ran: {run_dir / runs.EXECUTED}",
        ) from None
    return runs.read(run_dir)


def _written(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that took its place; none: it is not there."""
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def _discarded(run_dir: Path) -> bool:
    """Whether nothing is left of a run that was refused: it is none if it has come to nothing."""
    try:
        if {path.name for path in run_dir.iterdir()} <= {runs.EXECUTED}:
            (run_dir / runs.EXECUTED).unlink(missing_ok=True)
            run_dir.rmdir()
            return True
    except OSError:
        pass
    return False


def execute_all(
    name: str,
    inventory: Path,
    hosts: Sequence[str] = (),
    *,
    parameters: Mapping[str, Any] | None = None,
    each: Mapping[str, Mapping[str, Any]] | None = None,
    limit: str | None = None,
    runs_dir: Path | None = None,
    jobs: int = DEFAULT_JOBS,
    progress: Callable[[str, str], None] | None = None,
    require_one: bool = False,
) -> Iterator[Outcome]:
    """Run a notebook for hosts of an inventory, several at a time; outcomes come as they finish.

    Hosts that the notebook would refuse come first, and nothing is started for them.

    Args:
        name: Of the notebook.
        inventory: Its path.
        hosts: Names; all of the inventory if empty.
        parameters: Of the notebook, beside inventory and host.
        each: Further ones by host.
        limit: An Ansible host pattern instead of names.
        runs_dir: Where runs are kept, by default ``runs`` in the repository.
        jobs: How many at a time.
        progress: Is told a host and the newest line of a run's progress file.
        require_one: Whether it is an error of the whole that every host is refused.

    Raises:
        UsageError: No such inventory or host, before anything runs.
        RoostError: Every host is refused, where that was asked for.
    """
    loaded = inventories.load(inventory, limit)
    chosen = [loaded.host(name) for name in dict.fromkeys(hosts)] or list(loaded.hosts.values())
    parent = (runs_dir or repository_root() / "runs").absolute()
    given = {
        host.name: {**(parameters or {}), **(each or {}).get(host.name, {})} for host in chosen
    }
    refused = dict(_refused(name, chosen, given))
    if require_one and len(refused) == len(chosen):
        raise _all_refused(refused)
    for host in chosen:
        if error := refused.get(host.name):
            folder = parent / runs.folder_name(host.name, _recipe(host))
            told = RoostError(error.what, why=error.why, fix=error.fix)
            yield Outcome(host.name, folder, error=told)
    chosen = [host for host in chosen if host.name not in refused]
    todo = [(host, runs.new_folder(parent, host.name, _recipe(host))) for host in chosen]
    # Not fork: this process may have threads (a progress display, an SSH connection).
    context = multiprocessing.get_context("spawn")
    at_a_time = max(1, min(jobs, len(todo)))
    with ProcessPoolExecutor(at_a_time, mp_context=context, initializer=_end_with_parent) as pool:
        pending = {
            pool.submit(
                _execute_one,
                name,
                {**given[host.name], "inventory": str(loaded.path), "host": host.name},
                folder,
            ): (host.name, folder)
            for host, folder in todo
        }
        lines: dict[Path, str] = {}
        try:
            while pending:
                finished, _ = wait(pending, _GLANCE_S, return_when=FIRST_COMPLETED)
                if progress is not None:
                    _tell(pending.values(), lines, progress)
                for done in finished:
                    host_name, folder = pending.pop(done)
                    died = done.exception()
                    yield (
                        Outcome(host_name, folder, error=_died(host_name, died))
                        if died
                        else done.result()
                    )
        except KeyboardInterrupt:
            workers = multiprocessing.active_children()
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.join(_CLEANING_UP_S)
                worker.kill()
            for _, folder in pending.values():
                with suppress(OSError):  # one that had begun has something in it
                    folder.rmdir()
            raise


def _refused(
    name: str, hosts: Iterable[Host], given: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, RoostError]]:
    # Workers, which import this module too, need none of it.
    from roost.measure import beforehand

    for host in hosts:
        try:
            beforehand.require(name, host, given[host.name])
        except RoostError as error:
            yield host.name, error


def _all_refused(refused: Mapping[str, RoostError]) -> RoostError:
    """One message for all hosts: a mistake in the command is every host's."""
    alike: dict[str, list[str]] = {}
    for host, error in refused.items():
        said = " ".join(str(error).split()).removeprefix(f"{host}: ")
        alike.setdefault(said, []).append(host)
    if len(alike) == 1:
        return next(iter(refused.values()))
    # As a plan of several hosts does: that something would not run counts most.
    worst = max(error.exit_code for error in refused.values())
    kind = next(one for one in (RefusedError, UsageError, RoostError) if one.exit_code == worst)
    return kind(
        f"{', '.join(refused)}: every host is refused; nothing was started",
        why="\n  ".join(f"{', '.join(hosts)}: {said}" for said, hosts in alike.items()),
    )


def _end_with_parent() -> None:
    """In a worker: its kernel ends with it, and so does the load that the kernel waits for."""
    # A terminal's Ctrl-C and its end are for the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None  # noqa: S101 - a worker has one
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()


def _recipe(host: Host) -> str:
    """The recipe, for the folder's name; what is wrong with the host its own run will say."""
    return str(host.variables.get("roost_recipe") or "unknown")


def _died(host: str, error: BaseException) -> RoostError:
    return RoostError(
        f"{host}: the process that ran its notebook ended before it was done",
        why=f"{type(error).__name__}: {error}",
        fix="see whether this machine ran out of memory (dmesg), or take fewer --jobs",
    )


def _tell(
    running: Iterable[tuple[str, Path]],
    lines: dict[Path, str],
    progress: Callable[[str, str], None],
) -> None:
    """Pass on the lines that are new since the last look."""
    for host, folder in running:
        with suppress(OSError):
            line = (folder / runs.PROGRESS).read_text(encoding="utf-8").strip()
            if lines.get(folder) != line:
                lines[folder] = line
                progress(host, line)


def _execute_one(name: str, parameters: Mapping[str, str], folder: Path) -> Outcome:
    host = parameters["host"]
    try:
        result = execute(name, parameters, folder)
    except RoostError as error:
        return Outcome(host, folder, error=RoostError(error.what, why=error.why, fix=error.fix))
    except SystemExit as told:
        # The pool would take it for an outcome, and give this process the next host.
        os._exit(told.code if isinstance(told.code, int) else 1)
    return Outcome(host, folder, result)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of Jupyter's own parts, which a user of roost can do nothing about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

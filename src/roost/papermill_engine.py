"""How papermill runs roost's notebooks: strict parameters, this interpreter, plain failures.

papermill only warns of a parameter the notebook does not have, runs a notebook whose required
parameter was forgotten, starts whichever kernel happens to be called ``python3``, and reports a
failure with the traceback of its own insides. For notebooks that carry ``roost`` in their metadata
this engine does better; all others are papermill's business, unchanged.

Named by the entry point ``papermill.engine``, this module is imported by papermill itself, so a
plain ``papermill notebooks/verify.ipynb …`` is covered. Importing it takes the place of
papermill's default engine; import ``papermill.engines`` first.
"""

from __future__ import annotations

import ast
import errno
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from papermill.engines import NBClientEngine, papermill_engines

from roost import interruptions, near, scratch
from roost.errors import RoostError, UsageError

#: A parameter with this default must be given.
_REQUIRED = "..."
_BUILTIN = {"PAPERMILL_INPUT_PATH", "PAPERMILL_OUTPUT_PATH"}


class ParameterError(UsageError, click.ClickException):
    """Wrong parameters. As a click exception, papermill's command line prints it and exits 2."""

    def format_message(self) -> str:
        return str(self)


class NotebookFailed(RoostError, click.ClickException):  # noqa: N818 - names what happened
    """A cell failed; the message is the cell's own."""

    def format_message(self) -> str:
        return str(self)


class NotebookRefused(NotebookFailed):
    """What a cell said is that what was asked for is wrong, or not to be had."""


class NotWritten(RoostError, click.ClickException):  # noqa: N818 - names what happened
    """The notebook could not be written as it ran; no half of it is left."""

    def format_message(self) -> str:
        return str(self)


def declared(nb: Any) -> dict[str, bool]:
    """The notebook's parameters in order, and whether each must be given.

    Read from the cell tagged ``parameters``: plain assignments, ``...`` where a value is required.
    """
    for cell in nb.cells:
        if "parameters" in cell.metadata.get("tags", []):
            names: dict[str, bool] = {}
            for statement in ast.parse(cell.source).body:
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    names[statement.targets[0].id] = ast.unparse(statement.value) == _REQUIRED
            return names
    return {}


def check_parameters(name: str, nb: Any, given: Mapping[str, Any]) -> None:
    """Refuse parameters that the notebook does not have, and missing ones that it needs.

    Raises:
        ParameterError: Naming every defect, near misses and the notebook's parameters.
    """
    known = declared(nb)
    defects = []
    for parameter in given:
        if parameter in known or parameter in _BUILTIN:
            continue
        defects.append(f"no parameter {parameter!r}{near.miss(parameter, known)}")
    missing = [key for key, required in known.items() if required and given.get(key) is None]
    if missing:
        defects.append(f"{' and '.join(missing)} must be given")
    if defects:
        listed = ", ".join(
            key + (" (required)" if required else "") for key, required in known.items()
        )
        raise ParameterError(f"{name}: " + "; ".join(defects), fix=f"parameters are: {listed}")


class _ThisInterpreter(KernelSpecManager):
    """Every kernel name means the Python that runs now, where roost is installed.

    An installed kernel spec called ``python3`` may belong to any other environment.
    """

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:  # noqa: ARG002
        # The kernel shares our standard error; what it logs there says nothing about the notebook,
        # whose own errors are in the notebook.
        quiet = [
            "--log-level=CRITICAL",
            # Told to end while it says something, it finds its own sockets closed.
            "--InteractiveShellApp.exec_lines=__import__('logging').getLogger('tornado.general')"
            ".setLevel('CRITICAL')",
        ]
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict(extra_arguments=quiet))


#: A path of a Unix socket has 103 bytes at the most on some systems; 36 come to this directory's.
_LONGEST_FOLDER = 60
#: Seconds that a kernel may take to answer. One that has died is seen at once; papermill's minute
#: is too short for a machine that loads many at a time.
_START_SECONDS = 600


class _Manager(AsyncKernelManager):
    """A kernel of this interpreter, reached by sockets in a directory of our user's own.

    Ports would be chosen here and bound seconds later by the kernel: of notebooks that run side by
    side one may take another's meanwhile, and one of the two dies.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        connection = str(folder / "kernel.json")
        super().__init__(transport="ipc", connection_file=connection, **options)

    def kill(self) -> None:
        """End a kernel that is still there; of one that begins, nbclient does not."""
        process = getattr(self.provisioner, "process", None)
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def _kernel_spec_manager_default(self) -> KernelSpecManager:
        return _ThisInterpreter(parent=self, data_dir="")


@contextmanager
def _kernel() -> Iterator[type[_Manager]]:
    """Managers of the kernel of one notebook; however it ends, nothing is left of it."""
    usual = Path(tempfile.gettempdir())
    short = usual if len(str(usual)) < _LONGEST_FOLDER else Path("/tmp")  # noqa: S108  # made unguessable
    made: list[_Manager] = []
    # Of an interrupted notebook Jupyter's own tasks fail, which is no news to anybody.
    log = logging.getLogger("asyncio")
    level = log.level
    with interruptions.cleaning_up(), scratch.folder("roost-kernel-", short) as folder:

        class Manager(_Manager):
            def __init__(self, **options: Any) -> None:
                super().__init__(folder, **options)
                made.append(self)

        log.setLevel(logging.CRITICAL)
        try:
            yield Manager
        except (KeyboardInterrupt, SystemExit):
            level = log.level  # some fail only when the process ends
            raise
        finally:
            log.setLevel(level)
            # Before its folder goes: a kernel that begins would make that anew.
            for manager in made:
                manager.kill()


class RoostEngine(NBClientEngine):  # type: ignore[misc]
    """papermill's engine, stricter for roost's notebooks."""

    @classmethod
    def execute_notebook(cls, nb: Any, kernel_name: str, **options: Any) -> Any:
        if "roost" not in nb.metadata:
            return super().execute_notebook(nb, kernel_name, **options)
        name = Path(str(options.get("input_path") or "notebook")).name
        check_parameters(name, nb, nb.metadata.papermill.get("parameters") or {})
        options["start_timeout"] = max(options.get("start_timeout") or 0, _START_SECONDS)
        out = options.get("output_path")
        try:
            with _kernel() as manager:
                options.setdefault("kernel_manager_class", manager)
                done = super().execute_notebook(nb, kernel_name, **options)
        except OSError as error:
            if error.errno in _NO_ROOM and out:
                # It is written anew after every cell, and what was not written to its end is none.
                Path(out).unlink(missing_ok=True)
            elif not out or (error.errno and error.filename != str(out)):
                # Not about writing it; papermill's own words about its place have no number.
                raise
            raise NotWritten(
                f"{out or name}: cannot be written",
                why=error.strerror or str(error),
                fix="make room, or choose another place",
            ) from None
        # Without an output path papermill still has to write the notebook: it reports by itself.
        if out:
            _raise_first_error(name, done)
        return done


#: What ends a file that is being written. One that may not be opened is as it was.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
#: Errors whose text is meant for people; of any other the name is told as well.
_FOR_PEOPLE = {
    "ChecksFailed",
    "RoostError",
    "UsageError",
    "RefusedError",
    "SshError",
    "BrokenConnectionError",
    "EngineError",
}


_REFUSALS = {"UsageError", "RefusedError"}


def _raise_first_error(name: str, nb: Any) -> None:
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                shown = "" if output.ename in _FOR_PEOPLE else f"{output.ename}: "
                kind = NotebookRefused if output.ename in _REFUSALS else NotebookFailed
                raise kind(f"{name}: {shown}{output.evalue}")


papermill_engines.register(None, RoostEngine)

"""Runs: one executed notebook, its result and its evidence, in a folder of their own.

``runs/<utc>-<host>-<recipe>/`` holds ``result.json``, ``report.html``, ``executed.ipynb``, the
engine's log and the raw /metrics; what is long is Parquet. A folder belongs to one run: two that
start in the same second get two folders. Files appear whole or not at all.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roost import atomic, deployment, failures, kept_files, report, site
from roost import inventory as inventories
from roost.deployment import Deployment
from roost.errors import RoostError, UsageError
from roost.inventory import Host
from roost.measure.checks import Check, Evidence, Figure
from roost.parquet import Table
from roost.root import expanded, first_place, repository_root

RESULT = "result.json"
REPORT = "report.html"
LOG = "engine.log"
EXECUTED = "executed.ipynb"
#: The newest line of what a long notebook is at.
PROGRESS = "progress.txt"
#: Characters of a value in a summary.
_SHOWN = 160


class ChecksFailed(AssertionError):  # noqa: N818 - names what happened
    """A run that is finished and did not pass; the text is :meth:`Result.summary`."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: where this was raised says nothing about what failed."""
        return [str(self)]


class Pins(BaseModel):
    """What the lock had pinned: the identity of everything that was measured."""

    model_config = ConfigDict(frozen=True)

    file: str
    image: str
    model: str
    drafter: str | None = None

    @classmethod
    def together(cls, pins: Iterable[Mapping[str, str | None]]) -> Pins:
        """Those of several runs of any version; where they differ, all that they had."""
        found = list(pins)
        return cls(
            file=together(one.get("file") for one in found),
            image=together(one.get("image") for one in found),
            model=together(one.get("model") for one in found),
            drafter=together(one.get("drafter") for one in found) or None,
        )


def together(values: Iterable[str | None]) -> str:
    """What several runs are of, each value once."""
    return ", ".join(dict.fromkeys(value for value in values if value))


class Origin(BaseModel):
    """One of several runs that a result is made from: what its part of the figures rests on."""

    model_config = ConfigDict(frozen=True)

    run: str = Field(description="its name in the figures' sources")
    started: dt.datetime
    recipe: str
    host: str
    hardware: str
    speculation: str
    lock: Pins
    command: list[str]
    env: dict[str, str]


class Result(BaseModel):
    """``result.json``."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    notebook: str
    recipe: str
    host: str
    hardware: str
    speculation: str
    lock: Pins
    started: dt.datetime
    finished: dt.datetime
    checks: list[Check]
    figures: dict[str, Figure] = Field(default_factory=dict)
    command: list[str] = Field(
        default_factory=list, description="the container's, entrypoint first: all its settings"
    )
    env: dict[str, str] = Field(default_factory=dict, description="the container's")
    trial: bool = Field(
        False, description="of variables that won over the inventory's: not what the host is for"
    )
    compared: list[Origin] = Field(
        default_factory=list, description="the runs that a comparison is of, the baseline first"
    )
    diagnosis: list[dict[str, Any]] = Field(
        default_factory=list, description="of a run that failed: as `roost diagnose --json` has it"
    )

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]

    def summary(self) -> str:
        """The outcome for people: one line, and one more for each reason why checks failed."""
        if self.ok:
            return f"{self.host}: {self._passed()}"
        lines = [f"{self.host}: {len(self.failed)} of {len(self.checks)} checks failed"]
        # What could not even be asked has one reason: an unreachable host, a dead engine.
        unasked: dict[str, list[str]] = {}
        for check in self.failed:
            if check.why and not check.observed:
                unasked.setdefault(check.why, []).append(check.id)
        for check in self.failed:
            alike = [] if check.observed else unasked.get(check.why, [])
            if check.id in alike[1:]:
                continue
            said = f"{check.id}: expected {_short(check.expected)}"
            said += f"; observed {_short(check.observed)}" if check.observed else ""
            said = ", ".join(alike) if len(alike) > 1 else said
            lines.append(f"  {said}; {check.why}" if check.why else f"  {said}")
            lines += [f"    fix: {check.fix}"] if check.fix else []
        for cause in self.diagnosis[:1]:
            lines.append(f"  cause: {cause['title']} ({cause['id']}): {_short(cause['evidence'])}")
            lines += [f"    why: {cause['why']}", f"    fix: {cause['fix']}"]
        return "\n".join(lines)

    def _passed(self) -> str:
        """How many checks hold, and of which nothing was to be seen."""
        applies = [check for check in self.checks if check.verdict != "not applicable"]
        unseen = [check.id for check in applies if check.verdict == "not seen"]
        if not unseen:
            return f"all {len(applies)} checks passed"
        passed = len(applies) - len(unseen)
        return f"{passed} of {len(applies)} checks passed, not seen: {', '.join(unseen)}"

    def require(self) -> None:
        """Nothing, or the failed checks.

        Raises:
            ChecksFailed: At least one check failed.
        """
        if not self.ok:
            raise ChecksFailed(self.summary())


@dataclass(frozen=True)
class Run:
    """A run that has begun."""

    notebook: str
    folder: Path
    host: Host
    deployment: Deployment
    started: dt.datetime
    trial: bool = False

    @contextmanager
    def or_nothing(self) -> Iterator[None]:
        """Parameters that are refused within it leave no folder behind."""
        try:
            yield
        except UsageError:
            with suppress(OSError):  # it has something in it
                self.folder.rmdir()
            raise

    def finish(self, evidence: Evidence) -> Result:
        """Write everything into the folder and return the result; the site's key is in none."""
        evidence.hide(lambda said: site.hide_key(said, self.host.variables))
        checks = [check.model_dump() for check in evidence.checks]
        log = evidence.artefacts.get(LOG, "")
        causes = (
            []
            if evidence.ok
            else failures.of_run(checks, log, self.deployment.model_dump(mode="json"))
        )
        result = Result(
            ok=evidence.ok,
            notebook=self.notebook,
            recipe=self.deployment.recipe,
            host=self.host.name,
            hardware=self.deployment.hardware,
            speculation=self.deployment.speculation,
            lock=_pins(self.deployment),
            started=self.started,
            finished=dt.datetime.now(dt.UTC),
            checks=evidence.checks,
            figures=evidence.figures,
            command=[*self.deployment.spec.entrypoint, *self.deployment.spec.command],
            env=self.deployment.spec.env,
            trial=self.trial,
            diagnosis=[asdict(cause) for cause in causes],
        )
        write(self.folder, result, evidence.artefacts, evidence.tables)
        return result

    def describe(self) -> dict[str, str]:
        """What is about to be looked at, for the first output of a notebook."""
        pins = _pins(self.deployment)
        return {
            "host": self.host.name,
            "recipe": self.deployment.recipe,
            "hardware": self.deployment.hardware,
            "speculation": self.deployment.speculation,
            "image": pins.image,
            "model": pins.model,
            **({"drafter": pins.drafter} if pins.drafter else {}),
            "run": str(self.folder),
        }


def start(
    notebook: str,
    *,
    inventory: Any,
    host: Any,
    runs_dir: Any = "runs",
    run_dir: Any = None,
    release: Any = None,
    variables: Any = None,
    resumed: bool = False,
) -> Run:
    """Check a notebook's parameters, resolve the host's deployment and make the run's folder.

    Args:
        notebook: The notebook's name, for the result.
        inventory: Path, relative to the working directory or the repository root.
        host: A host of it.
        runs_dir: Where runs are kept; relative to the repository root.
        run_dir: The run's own folder, where a caller has made it already.
        release: The ``deployment.json`` of what the host serves, where that is not what the
            inventory says; a path as the inventory's.
        variables: ``roost_*`` variables that win over the inventory's, as Ansible's ``-e``.
        resumed: Whether the run's own folder may have a result already, to be gone on with.

    Raises:
        UsageError: A parameter is missing or no text, or there is no such inventory or host, or
            the release is none, or the folder is another run's.
        RefusedError: The recipe does not run there, or something is not pinned.
    """
    text("inventory", inventory)
    text("host", host)
    started = dt.datetime.now(dt.UTC)
    chosen = inventories.load(inventory).host(host)
    resolved = resolve(chosen, release=release, variables=variables)
    if run_dir is not None:
        folder = given_folder(run_dir, resumed=resumed)
    else:
        folder = new_folder(kept_in(runs_dir), host, resolved.recipe)
    trial = bool(mapping("variables", variables))
    return Run(notebook, folder, chosen, resolved, started, trial=trial)


def resolve(host: Host, *, release: Any = None, variables: Any = None) -> Deployment:
    """What a run on a host is of; makes nothing.

    Args:
        host: Of an inventory.
        release: As :func:`start` takes it.
        variables: As :func:`start` takes them.

    Raises:
        UsageError: One of these is wrong, or a variable of the host.
        RefusedError: The recipe does not run there, or something is not pinned.
    """
    changed = mapping("variables", variables)
    if release is not None:
        return _released(first_place(text("release", release)))
    return deployment.from_variables(host.name, {**host.variables, **changed}, repository_root())


def _released(file: Path) -> Deployment:
    try:
        return Deployment.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise UsageError(
            f"{file}: no deployment that this version of roost can read",
            why=" ".join(str(error).split())[:300],
        ) from None


def write(
    folder: Path,
    result: Result,
    artefacts: Mapping[str, str],
    tables: Mapping[str, Table] | None = None,
) -> None:
    """Write a finished run into its folder.

    Raises:
        RoostError: A file cannot be written; then there is no ``result.json``.
    """
    for name, table in (tables or {}).items():
        atomic.write(folder / name, table.encode())
    for name, content in artefacts.items():
        atomic.write(folder / name, content)
    # The result comes last: where it is, everything else is too.
    atomic.write(folder / REPORT, report.render(result.model_dump(mode="json")))
    atomic.write(folder / RESULT, result.model_dump_json(indent=2) + "\n")


def kept_in(runs_dir: Any) -> Path:
    """Where runs are kept, by a notebook's parameter: from the repository root, there or not yet.

    Raises:
        UsageError: The parameter is no text.
    """
    return repository_root() / expanded(text("runs_dir", runs_dir))


def folder_name(host: str, recipe: str, now: dt.datetime | None = None) -> str:
    """What the folder of a run is called that begins now."""
    stamp = (now or dt.datetime.now(dt.UTC)).strftime("%Y%m%dT%H%M%SZ")
    return re.sub(r"[^\w.+-]", "_", f"{stamp}-{host}-{recipe}")


def new_folder(runs_dir: Path, host: str, recipe: str, now: dt.datetime | None = None) -> Path:
    """Make and return a folder that no other run has.

    Raises:
        RoostError: It cannot be made, or ``runs_dir`` is none and cannot be.
    """
    _make(runs_dir)
    name = folder_name(host, recipe, now)
    for attempt in range(1, 1000):
        folder = runs_dir / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise RoostError(f"{folder}: cannot be made", why=str(error.strerror)) from None
        return folder
    raise RoostError(f"{runs_dir}: a thousand runs in one second")


def given_folder(run_dir: Any, *, resumed: bool = False) -> Path:
    """A run's own folder, which a caller has named; made where it is not there.

    Args:
        run_dir: The parameter of that name.
        resumed: Whether what lies there already is this run's own.

    Raises:
        UsageError: The parameter is no text, or another run's files are there: a second run that
            breaks in its middle would leave the first one's result beside its own raw files.
        RoostError: It is no folder and cannot be made.
    """
    folder = own_path(run_dir)
    _make(folder)
    if not resumed:
        refuse_used(folder)
    return folder


def own_path(run_dir: Any) -> Path:
    """The path of a run's own folder, by the parameter of that name; from the working directory.

    Raises:
        UsageError: The parameter is no text.
    """
    return expanded(text("run_dir", run_dir)).absolute()


def refuse_used(folder: Path, *, also: str = RESULT) -> None:
    """Nothing, or that another run's files are in a folder.

    Args:
        folder: There or not.
        also: A further file that only a run leaves.

    Raises:
        UsageError: It has another run in it.
    """
    for name in (RESULT, PROGRESS, also):
        # Of a folder that is closed to us no file is seen; writing there says so.
        if os.path.lexists(folder / name):
            raise UsageError(
                f"parameter run_dir: {folder} has another run in it",
                why=f"{name} is there, and a folder belongs to one run",
                fix="name a folder that is not there yet, or leave run_dir out",
            )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # It may be further up: the one that leads nowhere is named.
        link = next((one for one in (folder, *folder.parents) if _dangles(one)), None)
        why = f"{link} is a link to {link.readlink()}, which is not there" if link else ""
        raise RoostError(
            f"{folder}: cannot be made",
            why=why or str(error.strerror),
            fix="make what it leads to, or remove the link" if link else "",
        ) from None


def _dangles(path: Path) -> bool:
    # Below a folder that is closed to us, Path's own questions raise.
    return os.path.islink(path) and not os.path.exists(path)  # noqa: PTH110, PTH114


def read(folder: Path) -> Result:
    """The result of a finished run.

    Raises:
        RoostError: There is none, or it is not one.
    """
    try:
        return Result.model_validate_json(kept_files.text(folder / RESULT))
    except OSError as error:
        raise RoostError(f"{folder}: no finished run", why=str(error.strerror)) from None
    except ValidationError as error:
        raise RoostError(f"{folder / RESULT}: {first_defect(error)}") from None
    except UnicodeDecodeError as error:
        raise RoostError(f"{folder / RESULT}: no text", why=str(error)) from None


def first_defect(error: ValidationError) -> str:
    """Where a document is wrong first, and how; of one that is no JSON there is no place."""
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _short(said: str) -> str:
    """For one line among others; the report has all of it."""
    flat = " ".join(said.split())
    return flat if len(flat) <= _SHOWN else f"{flat[: _SHOWN - 1]}…"


def text(name: str, value: Any) -> str:
    """A notebook's parameter that must be text.

    Raises:
        UsageError: It is not set, or is something else.
    """
    if value is ... or value is None or value == "":
        raise UsageError(
            f"parameter {name} is not set",
            fix=f"papermill … -p {name} VALUE; in JupyterLab the first cell of code has it",
        )
    if not isinstance(value, str | os.PathLike):
        raise UsageError(
            f"parameter {name} is {value!r}, which is no text",
            why="papermill's -p turns what looks like a number into one",
            fix=f"pass it raw: -r {name} VALUE",
        )
    return str(value)


def switch(name: str, value: Any) -> bool:
    """A notebook's parameter that is true or false.

    Raises:
        UsageError: It is something else; papermill's ``-p`` makes text of ``true``, ``no`` and 1.
    """
    if not isinstance(value, bool):
        raise UsageError(
            f"parameter {name} is {value!r}, which is neither true nor false",
            fix=f"papermill … -y '{name}: true' or false",
        )
    return value


def fraction(name: str, value: Any) -> float:
    """A notebook's parameter that is a share.

    Raises:
        UsageError: It is no number from 0 to below 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"parameter {name} is {value!r}, which is no number")
    if not 0 <= value < 1:
        raise UsageError(f"parameter {name} is a fraction from 0 to below 1, such as 0.05")
    return float(value)


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A notebook's parameter that may be a map, or YAML text of one; none: empty.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(value, str):
        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError:
            value = ...
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(
            f"parameter {name} is no map", fix=f"papermill … -y '{name}: {{KEY: VALUE}}'"
        )
    return {str(key): item for key, item in value.items()}


def _pins(resolved: Deployment) -> Pins:
    names = [f"{weights.repo}@{weights.revision}" for weights in resolved.weights]
    return Pins(
        file=resolved.lock_file,
        image=resolved.spec.image,
        model=names[0],
        drafter=names[1] if len(names) > 1 else None,
    )

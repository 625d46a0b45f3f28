"""Building the site beside its place and putting it there in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from roost.errors import RoostError, UsageError
from roost.measure import store
from roost.measure.store import SITE_MARK, Kept
from roost.reportsite import pages

TITLE = "Runs"
#: What browsers and servers show as text or offer to save. A copy of anything else is named .txt,
#: so that a page or a drawing in a run's folder is read and not run.
_PLAIN = {".csv", ".ipynb", ".json", ".jsonl", ".log", ".parquet", ".txt", ".yaml", ".yml"}
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True)
class Built:
    """A site.

    Attributes:
        index: Its first page.
        pages: Every run's page, by the run's name.
        problems: A message for each folder that could not be read as a whole.
    """

    index: Path
    pages: dict[str, Path] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def build(
    root: Path, out: Path, *, title: str = TITLE, say: Callable[[str], None] = lambda _: None
) -> Built:
    """Make the site of every run below a folder.

    A folder with executed notebooks is a run, with or without a ``result.json``, and runs may stand
    within others: so the folder of a rollout, which holds its hosts' runs, becomes a site of its
    own. Equal folders give equal sites. A site that was there is replaced in one step, and stays if
    anything fails.

    Args:
        root: Where runs are kept, or one run.
        out: The site's folder: new, empty, or a site.
        title: Of the index.
        say: Is told of each folder that cannot be read as a whole.

    Raises:
        UsageError: There is no such folder, or ``out`` holds something else.
        RoostError: There is no run in it, or the site cannot be written.
    """
    kept = store.read_all(root)
    if not kept:
        raise RoostError(
            f"{root}: no run in it", fix="make one: roost verify -i INVENTORY --runs " + str(root)
        )
    for run in kept:
        if run.problem:
            say(run.problem)
    # Where the runs are on this machine is nothing that a site has to tell.
    kept = [replace(run, problem=run.problem.replace(f"{root}/", "")) for run in kept]
    # A link is followed: what it leads to is the site.
    place = Path(os.path.realpath(out))
    _refuse_others(place, out)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    except OSError as error:
        raise _unwritten(out, error) from None
    try:
        kept = _write(kept, fresh, title, say)
        # mkdtemp makes a folder for the owner alone; this one is for everyone.
        mask = os.umask(0)
        os.umask(mask)
        fresh.chmod(0o777 & ~mask)
        put(fresh, place)
    except OSError as error:
        raise _unwritten(out, error) from None
    finally:
        # The site that was replaced, or what was made of a new one that failed.
        shutil.rmtree(fresh, ignore_errors=True)
    return Built(
        out / "index.html",
        {run.name: out / pages.address(run) for run in kept},
        [run.problem for run in kept if run.problem],
    )


def _refuse_others(place: Path, out: Path) -> None:
    if place.is_dir() and ((place / SITE_MARK).exists() or not any(place.iterdir())):
        return
    if place.exists():
        raise UsageError(
            f"{out}: is there already, and is no site that roost made",
            why="building a site replaces the whole folder",
            fix="choose another --out, or remove it yourself",
        )


def _unwritten(out: Path, error: OSError) -> RoostError:
    return RoostError(
        f"{out}: the site cannot be written",
        why=str(error.strerror),
        fix="what was there before is unchanged; make room or choose another --out",
    )


def _write(kept: list[Kept], folder: Path, title: str, say: Callable[[str], None]) -> list[Kept]:
    """Write the site, and return the runs with what could not be read of them after all."""
    assets = folder / "assets"
    assets.mkdir()
    (assets / "site.js").write_text(pages.asset("site.js"), encoding="utf-8")
    shutil.copyfile(_plotly(), assets / "plotly.min.js")
    within: dict[Path, list[Kept]] = {run.folder: [] for run in kept}
    for run in kept:
        for above in run.folder.parents:
            if above in within:
                within[above].append(run)
    written = []
    for run in kept:
        files, unread = _keep_files(run, within.keys(), folder)
        for problem in unread:
            say(problem)
        told = replace(run, problem="; ".join(filter(None, (run.problem, *unread))))
        page = folder / pages.address(run)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(pages.run(told, files, within[run.folder], kept), encoding="utf-8")
        written.append(told)
    (folder / "index.html").write_text(pages.index(written, title), encoding="utf-8")
    (folder / SITE_MARK).write_text("{}\n")
    return written


def _plotly() -> Path:
    # Found, not imported: of the package only the JavaScript is wanted.
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise RoostError("plotly is not installed", fix="pip install -e . in the checkout")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def _keep_files(run: Kept, folders: Set[Path], site: Path) -> tuple[dict[str, str], list[str]]:
    """Put a run's raw files into the site.

    Returns:
        Their places in it, by their names in the run; and a message for each that is left out
        because it cannot be read.
    """
    found, unread = {}, []
    for place, directories, names in os.walk(run.folder):
        here = Path(place)
        directories[:] = sorted(
            name
            for name in directories
            if here / name not in folders
            and not name.startswith(".")
            and not (here / name / SITE_MARK).exists()
        )
        for name in sorted(names):
            source = here / name
            # A link could lead to anything that whoever builds the site may read.
            # Where a folder is closed to us, Path's own questions raise.
            if name.startswith(".") or os.path.islink(source) or not os.path.isfile(source):  # noqa: PTH113, PTH114
                continue
            relative = source.relative_to(run.folder).as_posix()
            shown = relative if source.suffix.lower() in _PLAIN else f"{relative}.txt"
            target = site / "raw" / run.name / shown
            target.parent.mkdir(parents=True, exist_ok=True)
            if _link(source, target):
                found[relative] = f"raw/{run.name}/{shown}"
            else:
                unread.append(f"{run.name}/{relative}: cannot be read")
    return found, unread


def _link(source: Path, target: Path) -> bool:
    """The same file a second time, or a copy of it where that cannot be: runs are large.

    False where it is somebody else's to read, or is gone meanwhile.
    """
    if not os.access(source, os.R_OK):
        return False
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        return False
    except OSError:
        shutil.copyfile(source, target)
    return True


def put(fresh: Path, place: Path) -> None:
    """Put one folder where another is, in one step; afterwards ``fresh`` is the other one.

    Where the system cannot exchange two names there is a moment without either.
    """
    try:
        fresh.rename(place)
        return
    except OSError as error:
        # There is a site, perhaps since a moment: two may build the first one at a time.
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise
    with suppress(OSError, AttributeError):
        _exchange(fresh, place)
        return
    old = fresh.with_name(fresh.name + ".old")
    place.rename(old)
    fresh.rename(place)
    old.rename(fresh)


def _exchange(one: Path, other: Path) -> None:
    """Linux's ``renameat2(…, RENAME_EXCHANGE)``, for which Python has no function."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

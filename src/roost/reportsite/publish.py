"""Building the site beside its place and putting it there in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path

from roost import kept_files
from roost.errors import RoostError, UsageError
from roost.measure import store
from roost.measure.checks import whole
from roost.measure.store import SITE_MARK
from roost.reportsite import making, pages
from roost.reportsite import rows as run_rows
from roost.reportsite.reuse import Before, Page, key_of, remember
from roost.reportsite.rows import Row, address
from roost.runs import RESULT

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
    root: Path,
    out: Path,
    *,
    title: str = TITLE,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] = lambda *_: None,
    jobs: int = 1,
) -> Built:
    """Make the site of every run below a folder.

    A folder with executed notebooks is a run, with or without a ``result.json``, and runs may stand
    within others: so the folder of a rollout, which holds its hosts' runs, becomes a site of its
    own. Equal folders give equal sites. A site that was there is replaced in one step, and stays if
    anything fails; of it the pages of runs that have not changed are kept, and one run at a time is
    in memory of each process.

    Args:
        root: Where runs are kept, or one run.
        out: The site's folder: new, empty, or a site.
        title: Of the index.
        say: Is told of each folder that cannot be read as a whole.
        progress: Is told how many runs are done, of how many.
        jobs: Processes that make pages, where there are enough of them. With more than one the
            caller's main module must be safe to import, as :mod:`multiprocessing` asks.

    Raises:
        UsageError: There is no such folder, it is none of runs, or ``out`` holds something else.
        RoostError: There is no run in it, or the site cannot be written.
    """
    # A link is followed: what it leads to is the site.
    place = Path(os.path.realpath(out))
    _refuse_others(place, out)
    folders = _runs(root)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
    except OSError as error:
        raise _unwritten(out, error) from None
    try:
        rows = _write(root, folders, Before.read(place), fresh, title, say, progress, jobs)
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
        {row.name: out / address(row.name) for row in rows},
        [row.problem for row in rows if row.problem],
    )


#: What a site has in its folder.
_OURS = {"all.html", "assets", "index.html", "raw", "runs", SITE_MARK}


def _refuse_others(place: Path, out: Path) -> None:
    """Replace nothing but a site, and of a site nothing that is not roost's."""
    try:
        there = {one.name for one in place.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        there = {place.name}
    except OSError as error:
        raise _unwritten(out, error) from None
    if there and SITE_MARK not in there:
        raise UsageError(
            f"{out}: is there already, and is no site that roost made",
            why="building a site replaces the whole folder",
            fix="choose another --out, or remove it yourself",
        )
    if others := sorted(there - _OURS):
        raise UsageError(
            f"{out}: the site has something in it that roost did not make: "
            + ", ".join(others[:3])
            + (f" and {len(others) - 3} more" if len(others) > 3 else ""),
            why="building a site replaces the whole folder",
            fix="move it out of there, or choose another --out",
        )


#: Folders that are no runs, among those that are; more are another kind of place.
_STRANGERS = 1000


def _runs(root: Path) -> list[Path]:
    """The folders of a site; a place of other things is refused before all of it is looked at."""
    folders, strangers = [], 0
    for folder in store.find(root):
        folders.append(folder)
        strangers += not _is_run(folder)
        if strangers > _STRANGERS and 2 * strangers > len(folders):
            raise UsageError(
                f"{root}: is no folder of runs",
                why=f"of the first {len(folders):,} folders in it {strangers:,} hold no run",
                fix="name the folder in which runs are kept (runs/ unless told else)",
            )
    if strangers == len(folders):
        raise RoostError(
            f"{root}: no run in it", fix="make one: roost verify -i INVENTORY --runs " + str(root)
        )
    return folders


def _is_run(folder: Path) -> bool:
    """Whether it is one, or is called like one that left nothing."""
    if run_rows.stamp(folder.name):
        return True
    try:
        names = os.listdir(folder)  # noqa: PTH208 - names alone, of thousands
    except OSError:
        return False
    return any(name in {RESULT, store.ROLLOUT} or name.endswith(".ipynb") for name in names)


def _unwritten(out: Path, error: OSError) -> RoostError:
    return RoostError(
        f"{out}: the site cannot be written",
        why=str(error.strerror),
        fix="what was there before is unchanged; make room or choose another --out",
    )


def _write(
    root: Path,
    folders: list[Path],
    before: Before,
    site: Path,
    title: str,
    say: Callable[[str], None],
    progress: Callable[[int, int], None],
    jobs: int,
) -> list[Row]:
    """Write the site, and return its rows in the order of their folders."""
    assets = site / "assets"
    assets.mkdir()
    (assets / "site.js").write_text(pages.asset("site.js"), encoding="utf-8")
    shutil.copyfile(_plotly(), assets / "plotly.min.js")
    names = {folder: store.name_of(folder, root) for folder in folders}
    inside: dict[Path, list[Path]] = {folder: [] for folder in folders}
    for folder in folders:
        for above in folder.parents:
            if above in inside:
                inside[above].append(folder)
    known = set(names.values())
    made: dict[Path, Page] = {}

    def done(folder: Path, page: Page, problems: Sequence[str] = ()) -> None:
        for problem in problems:
            say(problem)
        made[folder] = page
        progress(len(made), len(folders))

    with making.makers(making.Site(root, site, known), jobs) as maker:
        # A run's page tells of those within its folder, so that they come first.
        for level in _levels(inside):
            for folder in level:
                name = names[folder]
                files, unread, seen = _keep_files(folder, name, inside.keys(), site)
                within = [made[one].row for one in inside[folder]]
                key = key_of(name, seen, within)
                page = None if unread else before.take(name, key, known, site)
                if page is not None:
                    done(folder, page)
                    continue
                maker.begin(making.Task(folder, key, files, unread, within))
                for finished in maker.finished(wait=False):
                    done(*finished)
            for finished in maker.finished(wait=True):
                done(*finished)
    rows = [made[folder].row for folder in folders]
    newest = sorted(rows, key=lambda row: (row.started or "9", row.name), reverse=True)
    (assets / "index.js").write_text(run_rows.script(newest), encoding="utf-8")
    (site / "index.html").write_text(pages.index(newest, title), encoding="utf-8")
    if len(rows) > pages.PAGE:
        (site / "all.html").write_text(pages.everything(newest, title), encoding="utf-8")
    (site / SITE_MARK).write_text(remember(made.values()), encoding="utf-8")
    return rows


def _levels(inside: dict[Path, list[Path]]) -> list[list[Path]]:
    """Folders without another one within, then those around these alone, and so on."""
    height: dict[Path, int] = {}
    for folder in reversed(inside):
        height[folder] = 1 + max((height[one] for one in inside[folder]), default=-1)
    levels: list[list[Path]] = [[] for _ in range(1 + max(height.values()))]
    for folder in inside:
        levels[height[folder]].append(folder)
    return levels


def _plotly() -> Path:
    # Found, not imported: of the package only the JavaScript is wanted.
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise RoostError("plotly is not installed", fix="pip install -e . in the checkout")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def _keep_files(
    folder: Path, name: str, folders: Set[Path], site: Path
) -> tuple[dict[str, str], list[str], list[tuple[str, int, int, int]]]:
    """Put a run's raw files into the site.

    Returns:
        Their places in it, by their names in the run; a message for each that is left out because
        it cannot be read; and what tells each of them from another file, or from itself later.
    """
    found: dict[str, str] = {}
    unread, seen = [], []
    for place, directories, names in os.walk(folder):
        here = Path(place)
        directories[:] = sorted(
            inner
            for inner in directories
            if here / inner not in folders
            and not inner.startswith(".")
            # Where a folder is closed to us, Path's own questions raise.
            and not os.path.exists(here / inner / SITE_MARK)  # noqa: PTH110
        )
        for file in sorted(names):
            source = here / file
            relative = source.relative_to(folder).as_posix()
            with suppress(OSError):
                stat = source.stat()
                seen.append((relative, stat.st_size, stat.st_mtime_ns, stat.st_ino))
            # A link could lead to anything that whoever builds the site may read.
            if file.startswith(".") or os.path.islink(source) or not os.path.isfile(source):  # noqa: PTH113, PTH114
                continue
            shown = file if source.suffix.lower() in _PLAIN else f"{run_rows.fitting(file)}.txt"
            target = site / "raw" / name / relative
            why = "cannot be read"
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                if shown != file:
                    shown = _unused(shown, target.parent, {*names, *directories})
                target = target.with_name(shown)
                if _link(source, target):
                    found[relative] = target.relative_to(site).as_posix()
                    continue
            except OSError as error:
                # The site's folder may be a longer way from the root than the runs'.
                if error.errno != errno.ENAMETOOLONG:
                    raise
                why = "its path would be too long in the site"
            unread.append(whole(f"{name}/{relative}: {why}"))
    return found, unread, seen


def _unused(wanted: str, folder: Path, others: Set[str]) -> str:
    """A name that no file has by itself, neither of this run nor of one within it."""
    stem, suffix = os.path.splitext(wanted)  # noqa: PTH122 - a name, not a path
    names = chain([wanted], (f"{stem}.{number}{suffix}" for number in count(2)))
    return next(name for name in names if name not in others and not (folder / name).exists())


#: Why a file cannot be had a second time, on a disk that would hold a copy.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}


def _link(source: Path, target: Path) -> bool:
    """The same file a second time, or a copy of it where that cannot be: runs are large.

    Nothing is written where there is something: that may be the run's own file, linked.

    Returns:
        False where it is somebody else's to read, or is gone meanwhile.
    """
    if not os.access(source, os.R_OK):
        return False
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with kept_files.opened(source, most=None) as original, target.open("xb") as copy:
            shutil.copyfileobj(original, copy)
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

"""Making the pages of runs, in this process or in several.

Nearly all of a site's time goes into notebooks that become HTML, each on its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from pathlib import Path

from roost.errors import RoostError
from roost.measure import store
from roost.reportsite import pages
from roost.reportsite import rows as run_rows
from roost.reportsite.reuse import Page, named
from roost.reportsite.rows import Row, address

#: Processes at most: each holds what renders notebooks.
MOST = 8
#: Pages from which on further processes are worth their start, which takes as long as a few dozen.
ENOUGH = 100


@dataclass(frozen=True)
class Site:
    """What all pages have in common.

    Attributes:
        root: Where runs are kept.
        folder: The site's.
        names: Of all runs that there are.
    """

    root: Path
    folder: Path
    names: Set[str]


@dataclass(frozen=True)
class Task:
    """A run whose page is to be made.

    Attributes:
        key: Of what the page is made.
        files: Places of its files in the site, by their names in the run.
        unread: A message for each file that cannot be read.
        within: The runs in its folder.
    """

    folder: Path
    key: str
    files: Mapping[str, str]
    unread: Sequence[str]
    within: Sequence[Row]


#: A page, and what is to be said of it.
_Result = tuple[Page, list[str]]


def page_of(task: Task, site: Site) -> _Result:
    """Write a run's page."""
    kept = store.read(task.folder, site.root)
    said = [*filter(None, (kept.problem, *task.unread))]
    # Where the runs are on this machine is nothing that a site has to tell.
    problems = [kept.problem.replace(f"{site.root}/", ""), *task.unread]
    kept = replace(kept, problem="; ".join(filter(None, problems)))
    row = run_rows.of(kept)
    others = named(row, site.names)
    page, missed = pages.run(kept, task.files, task.within, others)
    row = replace(row, problem="; ".join(filter(None, (row.problem, *missed))))
    text = page.encode()
    path = site.folder / address(row.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return Page(task.key, len(text), others, row), [*said, *missed]


class Makers:
    """Pages under way.

    Args:
        site: What they have in common.
        jobs: Processes to take once there are :data:`ENOUGH` pages; with one, this one makes all.
    """

    def __init__(self, site: Site, jobs: int) -> None:
        self._site, self._jobs = site, jobs
        self._waiting: deque[Task] = deque()
        self._begun: deque[tuple[Path, Future[_Result]]] = deque()
        self._pool: ProcessPoolExecutor | None = None

    def begin(self, task: Task) -> None:
        """Have a page made, now or later."""
        self._waiting.append(task)
        if self._jobs > 1 and (self._pool or len(self._waiting) >= ENOUGH):
            self._pool = self._pool or _pool(self._site, self._jobs)
            while self._waiting:
                task = self._waiting.popleft()
                self._begun.append((task.folder, self._pool.submit(_page_of, task)))

    def finished(self, *, wait: bool) -> Iterator[tuple[Path, Page, list[str]]]:
        """Each run whose page is made, with it and what is to be said, in the order they began.

        Args:
            wait: For all of them.
        """
        # What is ahead of the processes takes memory for the names of its files.
        most = 0 if wait else 8 * self._jobs
        while self._begun and (len(self._begun) > most or self._begun[0][1].done()):
            folder, future = self._begun.popleft()
            try:
                yield folder, *future.result()
            except BrokenProcessPool:
                raise RoostError(
                    "a process that makes pages came to an end",
                    why="somebody ended it, or the machine ran out of memory",
                    fix="build it again with more memory free; --jobs 1 takes the least",
                ) from None
        while self._waiting and (wait or self._jobs == 1):
            task = self._waiting.popleft()
            yield task.folder, *page_of(task, self._site)

    def close(self) -> None:
        """Begin nothing more, and end what there is."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def makers(site: Site, jobs: int) -> Iterator[Makers]:
    """Pages under way, and nothing of them afterwards."""
    made = Makers(site, jobs)
    try:
        yield made
    finally:
        made.close()


# --- within a process of several ------------------------------------------------------------------

_site: Site


def _pool(site: Site, jobs: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")
    # Imported once, and had by all.
    context.set_forkserver_preload([__name__, "nbconvert"])
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(site,))

    def start() -> None:
        resource_tracker.ensure_running()
        # Ctrl-C reaches all processes of a terminal; the first one ends the others, which have
        # their mask from here.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        for _ in range(jobs):
            pool.submit(os.getpid)

    try:
        # In a thread, since no signal interrupts that halfway through the start of a process.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(start).result()
    except BaseException:
        pool.shutdown(cancel_futures=True)
        raise
    return pool


def _begin(site: Site) -> None:
    global _site
    _site = site
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Nobody else ends a process whose first one was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _page_of(task: Task) -> _Result:
    return page_of(task, _site)

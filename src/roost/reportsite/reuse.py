"""Pages of the site that is replaced: one whose run has not changed is kept as it is.

A page is a function of the run's files, of the runs that it links to, and of the code that makes
it. The site's mark says for each page what it was made of. Files are told apart as git does, by
size, time and inode: to read a year of engine logs takes longer than to make the pages. What could
not be read as a whole is read again each time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import roost
from roost.measure.store import SITE_MARK
from roost.reportsite.rows import Row, address

#: What renders notebooks and pages, beside roost itself.
_PACKAGES = ("bleach", "jinja2", "mistune", "nbconvert", "nbformat", "pygments", "tinycss2")


@dataclass(frozen=True)
class Page:
    """A page that has been written.

    Attributes:
        key: Of what it was made, as :func:`key_of` has it.
        size: Its bytes; one that a crash of the machine cut short is made again.
        others: The names of runs that it links to.
    """

    key: str
    size: int
    others: Sequence[str]
    row: Row


@dataclass(frozen=True)
class Before:
    """The pages of a site, by their runs' names; none where it is no site, or an older roost's."""

    site: Path
    pages: Mapping[str, Page]

    @classmethod
    def read(cls, site: Path) -> Before:
        pages = {}
        # Whatever is wrong with it: without it everything is made again.
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            for one in json.loads((site / SITE_MARK).read_text(encoding="utf-8"))["pages"]:
                page = Page(**{**one, "row": Row(**one["row"])})
                pages[page.row.name] = page
        return cls(site, pages)

    def take(self, name: str, key: str, names: Set[str], into: Path) -> Page | None:
        """Put a run's page into another site, if it still is what would be made.

        Args:
            name: The run's.
            key: Of what the page would be made now.
            names: Of all runs that there are now.
            into: The other site.
        """
        page = self.pages.get(name)
        if page is None or page.key != key or list(page.others) != named(page.row, names):
            return None
        source, target = self.site / address(name), into / address(name)
        try:
            if source.stat().st_size != page.size:
                return None
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(source)
        except OSError:
            return None
        return page


def named(row: Row, names: Set[str]) -> list[str]:
    """The other runs that a run's figures name."""
    return sorted(word for word in row.words if word in names and word != row.name)


def remember(pages: Iterable[Page]) -> str:
    """The site's mark: every page that may be kept next time."""
    kept = [asdict(page) for page in pages if not page.row.problem]
    return json.dumps({"pages": kept}, separators=(",", ":")) + "\n"


def key_of(name: str, seen: Sequence[Any], within: Iterable[Row]) -> str:
    """Of what a page is made, as a hash.

    Args:
        name: The run's.
        seen: What tells each of its files from another one.
        within: The runs in its folder.
    """
    lines = [[row.name, row.kind, row.host, row.state] for row in within]
    made_of = json.dumps([_maker(), name, seen, lines])
    return hashlib.sha256(made_of.encode()).hexdigest()[:32]


@cache
def _maker() -> str:
    """All of roost, since a page shows what most of it has to say, and what renders for it."""
    digest = hashlib.sha256()
    home = Path(roost.__file__).parent
    for path in sorted(home.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(home)}\0".encode() + path.read_bytes())
    versions = [f"{name} {metadata.version(name)}" for name in _PACKAGES]
    return hashlib.sha256(f"{digest.hexdigest()} {versions}".encode()).hexdigest()

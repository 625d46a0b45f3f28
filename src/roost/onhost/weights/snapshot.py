"""One revision on one host: found there, fetched, or removed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .place import Place
from .revision import File, Revision

if TYPE_CHECKING:
    from .download import Download


class Snapshot:
    """What is to be kept, and where.

    Args:
        params: The module's, by name, as its documentation has them.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = params
        self.revision = Revision(
            params["repo_id"],
            params["revision"],
            params["endpoint"],
            params["allow_patterns"],
            params["ignore_patterns"],
        )
        self.place = Place(self.revision, Path(params["dest"]))

    def download(self) -> Download:
        """The download, imported only now: most runs find everything there and need none of it."""
        from .download import Download

        return Download(self.place, self.params)

    def present(self, check_mode: bool) -> dict[str, Any]:
        """The directory is there and whole, or would be fetched."""
        if found := self._there():
            return found
        download = self.download()
        if check_mode:
            return _outcome(self.place, download.ask())
        with self.place.taking_turns():
            self.place.recover()
            # Another run may have finished it while this one waited for its turn.
            if found := self._there():
                return found
            files = download.ask()
            outcome = _outcome(self.place, files)
            return {**outcome, "bytes": download.run(files)}

    def _there(self) -> dict[str, Any] | None:
        record = self.place.whole()
        if record is None:
            return None
        return {"changed": False, "present": True, "bytes": 0, "files": len(record["files"])}

    def absent(self, check_mode: bool) -> dict[str, Any]:
        """The directory is gone, unless a release needs it."""
        place, releases = self.place, Path(self.params["releases"])
        place.refuse_released(releases)
        files = place.holds()
        outcome = {
            "changed": place.dest.exists() or place.partial.exists(),
            "present": place.dest.exists(),
            "bytes": 0,
            "files": len(files),
            "diff": {
                "before_header": str(place.dest),
                "before": "".join(f"{path.stat().st_size:>16,} {path}\n" for path in sorted(files)),
                "after": "",
            },
        }
        if outcome["changed"] and not check_mode:
            with place.taking_turns():
                place.refuse_released(releases)  # a deploy may have had its turn meanwhile
                place.remove()
        return outcome


def _outcome(place: Place, files: list[File]) -> dict[str, Any]:
    """What a changed run returns; the difference lists what has to come."""
    missing = place.missing(files)
    listing = "".join(f"{size:>16,} {file.path}\n" for file, size in missing)
    total = sum(size for _, size in missing)
    return {
        "changed": True,
        "present": False,
        "bytes": total,
        "files": len(files),
        "diff": {
            "before_header": str(place.dest),
            "after_header": f"{place.revision.where}, {total:,} bytes to fetch",
            "before": "",
            "after": listing,
        },
    }

"""What a hub says of a revision: which files there are, with their sizes and hashes."""

from __future__ import annotations

import http.client
import json
import re
from pathlib import Path
from typing import Any

from . import PARTS, RECORD, XET
from .answers import no_answer
from .failures import SnapshotError
from .hub import Hub
from .revision import File, Revision


def ask(hub: Hub, revision: Revision) -> list[File]:
    """The files that are wanted of a revision, as the hub records them.

    Raises:
        SnapshotError: No answer, or one that cannot be right.
    """
    path = f"/api/models/{revision.repo}/revision/{revision.commit}"
    try:
        with hub.open(revision.where, path, query="?blobs=true") as response:
            document = json.load(response)
        commit, files = document["sha"], [_file(revision, one) for one in document["siblings"]]
    except (OSError, http.client.HTTPException) as error:
        raise no_answer(revision.where, error, hub.timeout) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(
            "hub_error",
            f"{revision.where}: what answers is not a model hub ({type(error).__name__})",
            "Check roost_hub_endpoint; a proxy's login page answers like this too",
        ) from None
    if commit != revision.commit:
        raise SnapshotError(
            "hub_error",
            f"{revision.where}: the hub answers with another commit ({commit})",
            "Check what answers at roost_hub_endpoint",
        )
    paths = {file.path for file in files}
    folders = {str(folder) for path in paths for folder in Path(path).parents}
    if len(paths) < len(files) or paths & folders:
        raise SnapshotError(
            "hub_error",
            f"{revision.where}: the hub lists a file twice, or as a directory too",
            "Check what answers at roost_hub_endpoint",
        )
    wanted = [file for file in files if revision.wants(file.path)]
    if not wanted:
        raise SnapshotError(
            "incomplete",
            f"{revision.where}: no file to fetch, of {len(files)} that the hub lists",
            "Check the patterns and the revision",
        )
    return wanted


def _file(revision: Revision, entry: dict[str, Any]) -> File:
    path, lfs = entry["rfilename"], entry.get("lfs")
    parts = path.split("/")
    if (
        {"", ".", ".."}.intersection(parts)
        or parts[0] in {RECORD, PARTS, XET}
        or re.search(r"[\0-\x1f\x7f\ud800-\udfff]", path)
    ):
        raise SnapshotError(
            "hub_error",
            f"{revision.where}: the hub lists a file that cannot be one of a repository: {path!r}",
            "Check what answers at roost_hub_endpoint",
        )
    sha256 = (lfs.get("sha256") or lfs.get("oid")) if lfs else None
    if lfs and not re.fullmatch(r"[0-9a-f]{64}", sha256 or ""):
        raise SnapshotError(
            "hub_error",
            f"{revision.where}: the hub gives no SHA-256 for {path}",
            "Name a hub or mirror that does (roost_hub_endpoint)",
        )
    return File(path, int(entry["size"]), sha256, entry.get("blobId"))

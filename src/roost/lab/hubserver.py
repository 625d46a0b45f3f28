"""The lab's hub: what ``huggingface_hub`` asks of a hub, answered from :mod:`roost.lab.hubstore`.

Metadata of models, their revisions and trees; files with ``HEAD``, ``GET`` and ranges; the error
codes from which the client makes its exceptions. Beside it, read-only folders: ``/wheels/`` for
pip and ``/apt/`` for apt. Nothing can be written through it.

``python -m roost.lab.hubserver --help`` says how a lab starts it.
"""

from __future__ import annotations

import argparse
import html
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from roost.lab.hubstore import Repository, Revision, StoredFile, repository, revision

#: Files of this size (bytes) and more, and all weights, are served as LFS files are.
LFS_BYTES = 1_000_000
_LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".onnx")

#: The token that opens gated repositories of a hub started with ``--token``.
_TOKEN_VARIABLE = "ROOST_LAB_HUB_TOKEN"  # noqa: S105  # a variable's name


class _HubError(HTTPException):
    """An answer that the client turns into one of its exception classes."""

    def __init__(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        super().__init__(status, message, headers)


def is_lfs(path: str, file: StoredFile) -> bool:
    """Whether a hub would keep this file in LFS: then its ETag is the SHA-256."""
    return path.endswith(_LFS_SUFFIXES) or file.size >= LFS_BYTES


def _etag(path: str, file: StoredFile) -> str:
    return f'"{file.sha256 if is_lfs(path, file) else file.blob_id}"'


def _lfs(file: StoredFile) -> dict[str, Any]:
    return {"oid": file.sha256, "sha256": file.sha256, "size": file.size, "pointerSize": 134}


@dataclass(frozen=True)
class _Hub:
    store: Path
    token: str | None

    def repository(self, request: Request) -> Repository:
        repo_id = f"{request.path_params['org']}/{request.path_params['name']}"
        found = repository(self.store, repo_id)
        if found is None:
            raise _HubError(404, "RepoNotFound", "Repository not found")
        if found.gated:
            self._check_token(request, repo_id)
        return found

    def _check_token(self, request: Request, repo_id: str) -> None:
        given = request.headers.get("authorization", "")
        if not given:
            message = f"Access to model {repo_id} is restricted. You must be authenticated."
            raise _HubError(401, "GatedRepo", message)
        if self.token is None or given != f"Bearer {self.token}":
            message = f"Access to model {repo_id} is restricted and you are not authorized."
            raise _HubError(403, "GatedRepo", message)

    def revision(self, request: Request, repo: Repository) -> Revision:
        name = request.path_params.get("revision", "main")
        found = revision(repo, name)
        if found is None:
            raise _HubError(404, "RevisionNotFound", f"Invalid rev id: {name}")
        return found

    async def model(self, request: Request) -> Response:
        """``/api/models/{repo}[/revision/{revision}]``, with ``?blobs=true`` for sizes."""
        repo = self.repository(request)
        found = self.revision(request, repo)
        blobs = request.query_params.get("blobs", "").lower() in ("1", "true")
        siblings = []
        for path, file in found.files.items():
            entry: dict[str, Any] = {"rfilename": path}
            if blobs:
                entry |= {"size": file.size, "blobId": file.blob_id}
                if is_lfs(path, file):
                    entry["lfs"] = _lfs(file)
            siblings.append(entry)
        return JSONResponse(
            {
                "_id": found.commit[:24],
                "id": repo.repo_id,
                "modelId": repo.repo_id,
                "author": repo.repo_id.split("/")[0],
                "sha": found.commit,
                "private": False,
                "gated": "manual" if repo.gated else False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": siblings,
            }
        )

    async def refs(self, request: Request) -> Response:
        """``/api/models/{repo}/refs``: all branches."""
        repo = self.repository(request)
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit}
            for name, commit in sorted(repo.branches.items())
        ]
        return JSONResponse({"branches": branches, "converts": [], "tags": []})

    async def tree(self, request: Request) -> Response:
        """``/api/models/{repo}/tree/{revision}[/{folder}]``, with ``?recursive=true``."""
        found = self.revision(request, self.repository(request))
        folder = request.path_params.get("path", "").strip("/")
        prefix = f"{folder}/" if folder else ""
        recursive = request.query_params.get("recursive", "").lower() in ("1", "true")
        entries: dict[str, dict[str, Any]] = {}
        for path, file in found.files.items():
            if not path.startswith(prefix):
                continue
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                inner = prefix + "/".join(parts[:depth])
                entries.setdefault(inner, _folder_entry(found, inner))
            if recursive or len(parts) == 1:
                entries[path] = _file_entry(path, file)
        if folder and not entries:
            raise _HubError(404, "EntryNotFound", f"{folder} does not exist")
        return JSONResponse(list(entries.values()))

    async def paths_info(self, request: Request) -> Response:
        """``POST /api/models/{repo}/paths-info/{revision}`` with ``paths`` (form or JSON)."""
        found = self.revision(request, self.repository(request))
        if request.headers.get("content-type", "").startswith("application/json"):
            paths = (await request.json()).get("paths", [])
        else:
            paths = parse_qs((await request.body()).decode()).get("paths", [])
        asked = [paths] if isinstance(paths, str) else [str(path) for path in paths]
        answer = []
        for path in asked:
            if path in found.files:
                answer.append(_file_entry(path, found.files[path]))
            elif any(name.startswith(f"{path}/") for name in found.files):
                answer.append(_folder_entry(found, path))
        return JSONResponse(answer)

    async def resolve(self, request: Request) -> Response:
        """``/{repo}/resolve/{revision}/{path}``: the file itself, whole or in part."""
        found = self.revision(request, self.repository(request))
        path = request.path_params["path"]
        # The path is looked up among the recorded ones, so it can never lead out of the store.
        file = found.files.get(path)
        if file is None:
            error = _HubError(404, "EntryNotFound", f"{path} does not exist in this revision")
            error.headers = {**(error.headers or {}), "X-Repo-Commit": found.commit}
            raise error
        etag = _etag(path, file)
        headers = {"X-Repo-Commit": found.commit, "ETag": etag}
        if is_lfs(path, file):
            headers |= {"X-Linked-Etag": etag, "X-Linked-Size": str(file.size)}
        return FileResponse(
            found.folder / path, headers=headers, media_type="application/octet-stream"
        )


def _file_entry(path: str, file: StoredFile) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": file.size, "oid": file.blob_id}
    if is_lfs(path, file):
        entry["lfs"] = _lfs(file)
    return entry


def _folder_entry(found: Revision, path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "size": 0, "oid": found.commit}


async def _error(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok\n")


def _listing(folder: Path) -> Any:
    async def page(_: Request) -> Response:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        links = "".join(
            f'<a href="{html.escape(name, quote=True)}">{html.escape(name)}</a><br>\n'
            for name in names
        )
        return HTMLResponse(f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n")

    return page


def application(
    store: Path, folders: Mapping[str, Path] | None = None, *, token: str | None = None
) -> Starlette:
    """The hub as an ASGI application.

    Args:
        store: The folder that :mod:`roost.lab.hubstore` publishes into.
        folders: Read-only folders by their name in the URL; each is also listed, flat.
        token: Opens gated repositories; without one, nothing does.
    """
    hub = _Hub(store, token)
    repo = "/api/models/{org}/{name}"
    routes: list[Route | Mount] = [
        Route("/health", _health),
        Route(repo, hub.model),
        Route(f"{repo}/refs", hub.refs),
        Route(f"{repo}/revision/{{revision}}", hub.model),
        Route(f"{repo}/tree/{{revision}}", hub.tree),
        Route(f"{repo}/tree/{{revision}}/{{path:path}}", hub.tree),
        Route(f"{repo}/paths-info/{{revision}}", hub.paths_info, methods=["POST"]),
    ]
    # Before the repositories, whose pattern begins with any two names.
    for name, folder in (folders or {}).items():
        routes.append(Route(f"/{name}/", _listing(folder)))
        routes.append(Mount(f"/{name}", StaticFiles(directory=folder, check_dir=False)))
    routes.append(Route("/{org}/{name}/resolve/{revision}/{path:path}", hub.resolve))
    return Starlette(routes=routes, exception_handlers={HTTPException: _error})


def command(
    python: str, store: Path, address: str, port: int, folders: Mapping[str, Path]
) -> list[str]:
    """The hub as a command."""
    argv = [python, "-m", "roost.lab.hubserver", f"--store={store}"]
    argv += [f"--listen={address}", f"--port={port}"]
    return argv + [f"--folder={name}={folder}" for name, folder in folders.items()]


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="Serve a lab's model repositories.")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--listen", required=True, metavar="ADDRESS")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", action="append", default=[], metavar="NAME=FOLDER")
    chosen = parser.parse_args()
    folders = {}
    for entry in chosen.folder:
        name, _, folder = entry.partition("=")
        folders[name] = Path(folder)
    app = application(chosen.store, folders, token=os.environ.get(_TOKEN_VARIABLE))
    with socket.create_server((chosen.listen, chosen.port)) as listening:
        # asyncio does this only for sockets that say they are TCP, and these do not: an answer in
        # two pieces would wait 40 ms for the client's acknowledgement of the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()

"""Large files from Xet storage, by the hub's own client, which alone can read that."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import disk
from .failures import SnapshotError
from .hub import Hub
from .place import Place
from .revision import File, Revision


def is_offered(place: Place, hub: Hub, files: list[File]) -> bool:
    """Whether the large files come from Xet storage and the client for that is here."""
    large = _large(place, files)
    if not large or not all(map(importlib.util.find_spec, ("huggingface_hub", "hf_xet"))):
        return False
    revision = place.revision
    path = revision.address(large[0].path)
    try:
        with hub.open(revision.where, path, head_only=True) as response:
            return "X-Xet-Hash" in response.headers
    except SnapshotError:
        return False  # the download finds out, and is patient


def fetch(place: Place, hub: Hub, files: list[File]) -> int:
    """Large files with the hub's own client, in a process that can be ended.

    One after the other: this client cannot continue a file, so an interruption loses one file at
    most. What fails here is fetched by HTTP afterwards.

    Returns:
        Bytes that came over the network.
    """
    moved = 0
    by_path = {file.path: file for file in _large(place, files)}
    with Client(place.revision, hub, place.xet, list(by_path)) as client:
        for path in client.arrived():
            file, there = by_path[path], place.xet / path
            moved += file.size
            if not file.is_in(there):
                break
            place.take(there, file)
    shutil.rmtree(place.xet, ignore_errors=True)
    return moved


def _large(place: Place, files: list[File]) -> list[File]:
    """Files in LFS of which nothing has arrived yet."""
    return [file for file, size in place.missing(files) if file.sha256 and size == file.size]


#: What the client's process runs. It ends when its standard input does, so with its parent; the
#: job comes that way too, for the token must be seen in no process list.
PROGRAM = """
import json, os, sys, threading
job = json.loads(sys.stdin.readline())
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
from huggingface_hub import hf_hub_download
from huggingface_hub.utils import tqdm

class Reports(tqdm):
    def update(self, count=1):
        if count:
            print(flush=True)
        return super().update(count)

for path in job.pop("paths"):
    hf_hub_download(filename=path, tqdm_class=Reports, **job)
    print(path, flush=True)
"""


class Client:
    """The hub's own client at work in a process of its own.

    Args:
        revision: Of which.
        hub: What it fetches from.
        folder: Where it puts its files, under their paths, and all that it needs besides.
        paths: Which files, in this order.
    """

    def __init__(self, revision: Revision, hub: Hub, folder: Path, paths: list[str]) -> None:
        self.stall_timeout = hub.stall_timeout
        job = {
            "repo_id": revision.repo,
            "revision": revision.commit,
            "endpoint": hub.endpoint,
            "token": hub.token or False,
            "local_dir": str(folder),
            "paths": paths,
        }
        # Nothing of it may land outside the directory, no token that lies about is used, and it
        # says how it gets on, whatever this host's environment would have it do.
        home = {"HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_TELEMETRY": "1"}
        here = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TQDM_"))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**here, **home},
            bufsize=0,
        )
        assert self.process.stdin is not None  # noqa: S101  # for the type checker
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job).encode() + b"\n")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def arrived(self) -> Iterator[str]:
        """Paths of files as each is whole, until the client ends or no byte comes for too long."""
        assert self.process.stdout is not None  # noqa: S101  # for the type checker
        text = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while selector.select(self.stall_timeout):
                if not (data := os.read(self.process.stdout.fileno(), disk.CHUNK)):
                    return
                *lines, text = (text + data).split(b"\n")
                yield from (line.decode() for line in lines if line)

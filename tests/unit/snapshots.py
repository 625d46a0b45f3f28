"""A repository on a hub that can misbehave, and the module ``hf_snapshot`` to fetch it."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.unit.faulty import Faulty
from tests.unit.plugins import load
from tests.unit.servers import serving

from roost.lab import hubstore
from roost.lab.hubserver import application
from roost.onhost import weights
from roost.onhost.weights import disk, failures, snapshot

# What the module imports is what a test reaches, and can put something else into.
for part in (weights, disk, failures, snapshot):
    sys.modules[f"ansible.module_utils.{part.__name__}"] = part
hf_snapshot = load("modules", "hf_snapshot")

REPO = "roost-lab/tiny"
TOKEN = "open-sesame"
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
#: Bytes of a shard's one tensor; some chunks of the server, less than one of the module.
TENSOR = 500_000


@functools.cache
def shard(tensor: str, size: int = TENSOR) -> bytes:
    """A safetensors file with one tensor, its bytes unlike everywhere."""
    header = {tensor: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    data = b"".join(number.to_bytes(4, "little") for number in range(size // 4 + 1))[:size]
    return len(text).to_bytes(8, "little") + text + data


class Site:
    """One repository, its hub, and the place for it on a host."""

    def __init__(self, root: Path, endpoint: str, hub: Faulty) -> None:
        self.endpoint = endpoint
        self.hub = hub
        self.store = root / "store"
        self.models = root / "models"
        self.source = root / "source"
        self.source.mkdir()
        (self.source / FIRST).write_bytes(shard("first"))
        (self.source / SECOND).write_bytes(shard("second"))
        index = {"weight_map": {"first": FIRST, "second": SECOND}}
        (self.source / "model.safetensors.index.json").write_text(json.dumps(index))
        (self.source / "config.json").write_text("{}\n")
        self.commit = self.publish()

    def publish(self, repo: str = REPO, *, gated: bool = False) -> str:
        """The source as it is now, as a revision."""
        return hubstore.publish(self.store, repo, "main", self.source, gated=gated)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(path.stat().st_size for path in self.source.iterdir())

    @property
    def dest(self) -> Path:
        return self.models / REPO.replace("/", "--") / self.commit

    @property
    def parts(self) -> Path:
        return self.dest.with_name(f".{self.commit}.partial") / ".roost-parts"

    def params(self, **options: Any) -> dict[str, Any]:
        """The module's parameters, those of a test where they are not given."""
        return {
            "repo_id": REPO,
            "revision": self.commit,
            "dest": str(self.dest),
            "state": "present",
            "allow_patterns": [],
            "ignore_patterns": [],
            "endpoint": self.endpoint,
            "token": None,
            "headroom": 0,
            # Nothing waits as long: what is to be waited for in vain is given a shorter time.
            "timeout": 60,
            "stall_timeout": 60,
            "retries": 2,
            "max_wait": 300,
            "releases": str(self.models.with_name("releases")),
            **options,
        }

    def ensure(self, *, check_mode: bool = False, **options: Any) -> dict[str, Any]:
        """Run the module, in this process."""
        module = SimpleNamespace(params=self.params(**options), check_mode=check_mode)
        outcome: dict[str, Any] = hf_snapshot.ensure(module)
        return outcome

    def failure(self, **options: Any) -> Any:
        """Run the module, which must fail: its error. Nothing may be visible after it."""
        with pytest.raises(hf_snapshot.SnapshotError) as caught:
            self.ensure(**options)
        assert not self.dest.exists()
        # Two sentences: what was seen, and what to do about it.
        assert str(caught.value).count(". ") >= 1
        return caught.value

    def is_whole(self) -> bool:
        """The directory has what the source has, and a record of it."""
        there = content(self.dest)
        record = json.loads(there.pop(".roost.json"))
        return there == content(self.source) and set(record["files"]) == set(there)


def content(folder: Path) -> dict[str, bytes]:
    """Every file by its relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@contextmanager
def hub() -> Iterator[tuple[str, Faulty]]:
    """A server for the hubs of many tests, one after the other."""
    faulty = Faulty(Starlette())
    with serving(faulty) as endpoint:
        yield endpoint, faulty


def site(root: Path, served: tuple[str, Faulty]) -> Site:
    """A new site, its hub behind that server."""
    endpoint, faulty = served
    faulty.behave()
    faulty.app = application(root / "store", token=TOKEN)
    return Site(root, endpoint, faulty)

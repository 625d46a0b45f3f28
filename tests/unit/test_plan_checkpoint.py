"""Reading checkpoints from directories and hubs: whole ones, damaged ones, hubs that misbehave.

The hub is the lab's own, asked by the real client; what it is made to do wrong happens between
the two.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.unit.plan_checkpoints import (
    Tensors,
    header,
    qwen35_35b_tensors,
    tensor_bytes,
    write_checkpoint,
    write_shard,
)
from tests.unit.plan_configs import dflash, qwen35_35b
from tests.unit.processes import until
from tests.unit.servers import serving

from roost import hub
from roost.errors import RoostError, UsageError
from roost.lab import hubstore
from roost.lab.hubserver import application
from roost.onhost.weights import answers
from roost.onhost.weights import safetensors as file_format
from roost.pins import Repository, Revision
from roost.plan import cache as kept_reads
from roost.plan import checkpoint, safetensors
from roost.plan.architecture import Architecture, Drafter
from roost.plan.checkpoint import (
    Checkpoint,
    read_directory,
    read_hub,
    verify_directory,
)
from roost.plan.contents import Contents, Part, Quantization
from roost.plan.disagreements import Disagreement, disagreements

CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
TENSORS: Tensors = {
    "model.embed_tokens.weight": ("BF16", [10, 8]),
    "model.layers.0.q.weight": ("U8", [8, 4]),
    "model.layers.0.q.weight_scale": ("F8_E4M3", [8]),
    "model.layers.1.q.weight": ("BF16", [8, 8]),
    "model.layers.2.eh_proj.weight": ("BF16", [8, 16]),
    "model.visual.blocks.0.attn.qkv.weight": ("F32", [4]),
}
HELD = Contents(
    language=Part(tensors=3, bytes=32 + 8 + 128),
    embedding=Part(tensors=1, bytes=160),
    vision=Part(tensors=1, bytes=16),
    mtp=Part(tensors=1, bytes=256),
)
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
INDEX = "model.safetensors.index.json"
REPO = "org/name"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "source", CONFIG, TENSORS)


class TestDirectory:
    def test_what_is_there(self, folder: Path) -> None:
        found = read_directory(folder)
        assert found.where == str(folder)
        assert found.contents == HELD
        assert [shard.name for shard in found.shards] == [FIRST, SECOND]
        assert found.bytes == sum((folder / name).stat().st_size for name in (FIRST, SECOND))
        assert found.absent == found.unlisted == found.missing_tensors == []
        assert found.quantization is None
        assert found.fingerprints == {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in ("config.json", INDEX)
        }
        assert found.architecture() == Architecture.from_config(CONFIG)
        assert verify_directory(folder) == []

    def test_the_fp8_checkpoint_of_source_001(self, tmp_path: Path) -> None:
        """37.7 GB in 8 shards, of which only headers are there to be read."""
        tensors = qwen35_35b_tensors("F8_E4M3")
        found = read_directory(write_checkpoint(tmp_path / "fp8", qwen35_35b(), tensors, shards=8))
        assert found.contents.tensors == 62_546
        assert found.contents.bytes == sum(tensor_bytes(*tensor) for tensor in tensors.values())
        assert found.architecture().mtp_layers == 1
        assert found.contents.mtp.tensors == 0

    def test_one_file_without_an_index(self, tmp_path: Path) -> None:
        found = read_directory(
            write_checkpoint(tmp_path / "one", CONFIG, TENSORS, shards=1, index=False)
        )
        assert found.contents == HELD
        assert list(found.fingerprints) == ["config.json"]

    def test_a_drafter(self, tmp_path: Path) -> None:
        tensors: Tensors = {"layers.0.q.weight": ("BF16", [4]), "fc.weight": ("BF16", [4])}
        found = read_directory(write_checkpoint(tmp_path / "d", dflash(4, None), tensors))
        assert found.drafter() == Drafter.from_config(dflash(4, None))
        assert found.contents == Contents(
            language=Part(tensors=2, bytes=16),
            embedding=Part(tensors=0, bytes=0),
            vision=Part(tensors=0, bytes=0),
            mtp=Part(tensors=0, bytes=0),
        )

    def test_layers_are_those_of_the_text_model(self, tmp_path: Path) -> None:
        config = {"num_hidden_layers": 9, "text_config": CONFIG}
        assert read_directory(write_checkpoint(tmp_path / "n", config, TENSORS)).contents == HELD

    @pytest.mark.parametrize("layers", [-1, 0, True, "2", None, 2.0])
    def test_a_number_of_layers_that_is_none(self, folder: Path, layers: object) -> None:
        (folder / "config.json").write_text(json.dumps({"num_hidden_layers": layers}))
        held = read_directory(folder).contents
        assert (held.language.tensors, held.mtp.tensors) == (4, 0)

    def test_modelopts_own_file_counts_where_the_config_says_nothing(self, folder: Path) -> None:
        said = {"quantization": {"quant_algo": "NVFP4"}}
        (folder / "hf_quant_config.json").write_text(json.dumps(said))
        assert read_directory(folder).quantization == Quantization(
            method="modelopt", format="nvfp4"
        )
        config = {**CONFIG, "quantization_config": {"quant_method": "fp8"}}
        (folder / "config.json").write_text(json.dumps(config))
        assert read_directory(folder).quantization == Quantization(method="fp8", format="fp8")

    def test_a_listed_shard_that_is_not_there_is_a_finding(self, folder: Path) -> None:
        (folder / SECOND).unlink()
        found = read_directory(folder)
        assert found.absent == [SECOND]
        assert found.contents.tensors == HELD.tensors
        # Of what is in the absent shard, only the number is known.
        assert found.contents.language == Part(tensors=3)
        assert found.contents.embedding == HELD.embedding
        assert found.contents.bytes is None
        assert found.bytes == (folder / FIRST).stat().st_size
        [problem] = verify_directory(folder)
        assert problem.what == f"{folder / SECOND}: is not there, but {INDEX} names it"

    def test_a_link_into_an_emptied_cache_is_not_there(self, folder: Path) -> None:
        (folder / SECOND).unlink()
        (folder / SECOND).symlink_to(folder / "blobs" / "gone")
        assert read_directory(folder).absent == [SECOND]

    def test_weights_that_the_index_leaves_out(self, folder: Path) -> None:
        write_shard(folder / "mtp.safetensors", {"mtp.fc.weight": ("BF16", [2])})
        found = read_directory(folder)
        assert found.unlisted == ["mtp.safetensors"]
        assert found.contents == HELD

    def test_tensors_that_are_not_where_the_index_says(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"]["mtp.fc.weight"] = SECOND
        (folder / INDEX).write_text(json.dumps(index))
        found = read_directory(folder)
        assert found.missing_tensors == ["mtp.fc.weight"]
        assert found.contents == HELD
        [problem] = verify_directory(folder)
        assert "names 1 tensors that are not in their shards, 'mtp.fc.weight'" in problem.what

    def test_a_tensor_in_two_shards_in_two_sizes(self, folder: Path) -> None:
        write_shard(folder / SECOND, {"model.embed_tokens.weight": ("BF16", [1])})
        with pytest.raises(RoostError, match="which another shard has in another size"):
            read_directory(folder)

    def test_verifying_names_every_problem(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"]["t"] = "third.safetensors"
        (folder / INDEX).write_text(json.dumps(index))
        (folder / "config.json").write_text("<html>")
        (folder / FIRST).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
        (folder / SECOND).write_bytes(b"")
        assert [problem.what for problem in verify_directory(folder)] == [
            f"{folder}/config.json: is HTML or XML, not JSON",
            f"{folder / FIRST}: is a Git LFS pointer, not the weights",
            f"{folder / SECOND}: is empty (0 bytes)",
            f"{folder}/third.safetensors: is not there, but {INDEX} names it",
        ]

    def test_a_damaged_shard_is_not_called_absent(self, folder: Path) -> None:
        (folder / FIRST).write_bytes(b"<html>")
        (folder / SECOND).unlink()
        assert [problem.what for problem in verify_directory(folder)] == [
            f"{folder / FIRST}: is cut off: 6 bytes are less than a header",
            f"{folder / SECOND}: is not there, but {INDEX} names it",
        ]

    def test_no_such_directory(self, tmp_path: Path) -> None:
        [problem] = verify_directory(tmp_path / "none")
        assert problem.what == f"{tmp_path / 'none'}: cannot be read"
        assert problem.why == "No such file or directory"

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("config.json", b"", "config.json: is empty"),
            ("config.json", b"[]", "config.json: must be a mapping, not a list"),
            ("config.json", b"\xff\xfe{\0}\0", r"config.json: is not text \(UTF-8\)"),
            ("config.json", b"{", "config.json: is not JSON"),
            ("config.json", b" " * 4_000_001, "config.json: is larger than 4,000,000 bytes"),
            ("config.json", b'{"quantization_config": 4}', "quantization_config: 'all of it'"),
            ("hf_quant_config.json", b"{}", "hf_quant_config.json: quantization: must be"),
            (INDEX, b'{"weight_map": {"t": "../../x.safetensors"}}', "is not the name of a shard"),
            (INDEX, b"version https://git-lfs.github.com/spec/v1", "is a Git LFS pointer"),
            (FIRST, b"<html>Log in</html>", "is HTML or XML"),
            (FIRST, b"Entry not found", "is text, not weights"),
        ],
    )
    def test_each_file_that_is_not_what_it_should_be(
        self, folder: Path, name: str, content: bytes, message: str
    ) -> None:
        (folder / name).write_bytes(content)
        with pytest.raises(RoostError, match=message) as caught:
            read_directory(folder)
        assert caught.value.what.startswith(f"{folder}/{name}: ")
        assert "\n" not in caught.value.what
        assert message in caught.value.what or re.search(message, caught.value.what)
        assert any(problem.what == caught.value.what for problem in verify_directory(folder))

    def test_a_config_that_gives_no_architecture_still_counts_its_tensors(
        self, folder: Path
    ) -> None:
        (folder / "config.json").write_text('{"num_hidden_layers": 2, "text_config": []}')
        found = read_directory(folder)
        assert found.contents == HELD
        with pytest.raises(RoostError, match=r"config\.json: text_config: must be a mapping"):
            found.architecture()

    @pytest.mark.parametrize("name", ["config.json", "*.safetensors"])
    def test_what_is_no_checkpoint(self, folder: Path, name: str) -> None:
        for path in [*folder.glob(name), *folder.glob("*.index.json")]:
            path.unlink()
        (folder / "model.gguf").write_bytes(b"GGUF")
        with pytest.raises(RoostError, match=r"there (is|are) no") as caught:
            read_directory(folder)
        assert caught.value.what.startswith(f"{folder}: there ")
        assert ".gguf" in caught.value.why


@dataclass
class Wire:
    """The lab's hub, what it was asked for, and what is made of its answers on the way."""

    url: str
    hub: ASGIApp
    asked: list[tuple[str, Headers]] = field(default_factory=list)
    instead: dict[str, ASGIApp] = field(default_factory=dict)
    ignore_range: bool = False

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].rsplit("/", 1)[-1]
        self.asked.append((name, Headers(scope=scope)))
        if self.ignore_range:
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"range"]
        await self.instead.get(name, self.hub)(scope, receive, send)

    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


NETWORK, UPSTREAM = (
    answers.MIRROR_REFUSALS[f"Mirror{name}"][1] for name in ("Network", "Upstream")
)
REFUSALS: list[tuple[int, dict[str, str], str, str]] = [
    (401, {}, "no such repository", "HF_TOKEN"),
    (401, {"X-Error-Code": "GatedRepo"}, "the repository is gated", "HF_TOKEN"),
    (403, {"X-Error-Code": "GatedRepo"}, "the repository is gated", "HF_TOKEN"),
    (403, {}, "the hub answered 403", "HF_TOKEN"),
    (404, {"X-Error-Code": "RepoNotFound"}, "no such repository", "check the name"),
    (404, {"X-Error-Code": "RevisionNotFound"}, "no such revision", "history"),
    (404, {"X-Error-Code": "EntryNotFound"}, "no such file", "broken at this revision"),
    (404, {}, "the hub answered 404", "check the address"),
    (429, {"Retry-After": "30"}, "the hub answered 429", "wait 30 seconds and try again"),
    (429, {"Retry-After": "Fri, 31 Dec 1999"}, "the hub answered 429", "wait and try again"),
    (429, {"RateLimit": '"api";r=0;t=71'}, "the hub answered 429", "wait 71 seconds and try again"),
    (408, {}, "the hub answered 408", "wait and try again"),
    (403, {"X-Error-Code": "MirrorNetwork"}, NETWORK, "add this host's network to mirror_allow"),
    (502, {"X-Error-Code": "MirrorUpstream"}, UPSTREAM, "check the network and the name server"),
    (500, {}, "the hub answered 500", "wait and try again"),
    (503, {}, "the hub answered 503", "wait and try again"),
]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[Wire]]]:
    """One server for all tests, since starting and ending one takes longer than a test."""
    wires: list[Wire] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Before the first test the server says that it starts: nothing to do.
        answer = wires[-1].answer if scope["type"] == "http" else Starlette()
        await answer(scope, receive, send)

    with serving(app) as url:
        yield url, wires


@pytest.fixture
def wire(server: tuple[str, list[Wire]], store: Path) -> Wire:
    url, wires = server
    wires.append(Wire(url, application(store, token="open-sesame")))
    return wires[-1]


@pytest.fixture
def commit(store: Path, folder: Path) -> str:
    return hubstore.publish(store, REPO, "main", folder)


def read(url: str, commit: str, token: str | None = None) -> Checkpoint:
    repository = Repository(repo=REPO, revision=Revision(commit=commit))
    return read_hub(repository, commit, url, token)


class TestHub:
    def test_the_same_as_from_a_directory(self, wire: Wire, commit: str, folder: Path) -> None:
        found = read(wire.url, commit)
        assert found.where == f"{REPO}@{commit}"
        assert found == read_directory(folder).model_copy(update={"where": found.where})

    def test_only_beginnings_are_asked_for(self, wire: Wire, commit: str) -> None:
        read(wire.url, commit)
        assert sorted(wire.names()) == sorted([commit, "config.json", INDEX, FIRST, SECOND])
        for name in (FIRST, SECOND):
            headers = dict(wire.asked)[name]
            assert headers["range"] == "bytes=0-65535"
            # A range counts the bytes that travel.
            assert headers["accept-encoding"] == "identity"

    def test_twenty_shards_with_long_headers(self, wire: Wire, store: Path, tmp_path: Path) -> None:
        """A header that the first request did not hold takes one more, and no third."""
        tensors: Tensors = {f"model.layers.0.{'x' * 60}.{n}": ("U8", [1]) for n in range(20_000)}
        folder = write_checkpoint(tmp_path / "many", CONFIG, tensors, shards=20)
        found = read(wire.url, hubstore.publish(store, REPO, "many", folder))
        assert found.contents.tensors == found.contents.bytes == 20_000
        assert len(wire.asked) == 1 + 2 + 20 * 2

    def test_the_second_time_nobody_is_asked(self, wire: Wire, commit: str, cache: Path) -> None:
        first = read(wire.url, commit)
        wire.asked.clear()
        assert read("http://127.0.0.1:9", commit) == first
        assert wire.asked == []
        [kept] = cache.rglob("*.json")
        assert kept == cache / "roost" / "checkpoints" / "org" / f"name@{commit}.json"
        assert [*cache.rglob("*")].count(kept) == 1

    @pytest.mark.parametrize("damage", ["cut", "digit", "empty", "binary", "folder", "other"])
    def test_a_damaged_cache_is_read_anew(
        self, wire: Wire, commit: str, cache: Path, damage: str
    ) -> None:
        first = read(wire.url, commit)
        [kept] = cache.rglob("*.json")
        text = kept.read_text()
        if damage == "cut":
            kept.write_text(text[:-20])
        elif damage == "digit":
            kept.write_text(text.replace('"bytes": 256', '"bytes": 257'))
        elif damage == "empty":
            kept.write_text("")
        elif damage == "binary":
            kept.write_bytes(b"\xff\0")
        elif damage == "folder":
            kept.unlink()
            kept.mkdir()
        else:
            shutil.copy(kept, kept.with_name(f"name@{'b' * 40}.json"))
            with pytest.raises(RoostError, match="no such revision"):
                read(wire.url, "b" * 40)
            return
        wire.asked.clear()
        assert read(wire.url, commit) == first
        assert wire.asked
        if damage != "folder":
            assert kept.read_text() == text

    def test_the_cache_is_where_the_specification_has_it(
        self, wire: Wire, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        for base in ("", "relative"):
            monkeypatch.setenv("XDG_CACHE_HOME", base)
            read(wire.url, commit)
            [kept] = (tmp_path / "home" / ".cache" / "roost").rglob("*.json")
            kept.unlink()

    def test_other_code_reads_anew(
        self, wire: Wire, commit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read(wire.url, commit)
        wire.asked.clear()
        monkeypatch.setattr(kept_reads, "code", lambda: b"another")
        read(wire.url, commit)
        assert wire.asked

    @pytest.mark.parametrize("module", [checkpoint, safetensors, file_format, kept_reads])
    def test_all_that_reads_is_such_code(self, module: ModuleType) -> None:
        assert Path(module.__file__ or "").read_bytes() in kept_reads.code()

    def test_a_cache_that_cannot_be_written_is_no_obstacle(
        self, wire: Wire, commit: str, cache: Path
    ) -> None:
        cache.write_text("a file where a folder should be")
        assert read(wire.url, commit).contents == HELD

    def test_an_odd_config_is_kept_as_it_is(self, wire: Wire, store: Path, folder: Path) -> None:
        (folder / "config.json").write_text(f'{{"a": Infinity, "b": "\\ud800", "c": {10**99}}}')
        commit = hubstore.publish(store, REPO, "odd", folder)
        first = read(wire.url, commit)
        assert read("http://127.0.0.1:9", commit).config == first.config
        assert first.config == {"a": float("inf"), "b": "\ud800", "c": 10**99}

    def test_a_server_that_ignores_ranges_is_read_no_further(self, wire: Wire, commit: str) -> None:
        start, data = header(TENSORS)
        size = 20_000_000_000
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            yield start + bytes(data)
            while sent < size:
                sent += 65_536
                yield bytes(65_536)
                await asyncio.sleep(0)  # or the server never sees that nobody listens

        wire.instead[FIRST] = StreamingResponse(endless(), headers={"Content-Length": str(size)})
        with pytest.raises(RoostError, match=r"has 20,000,000,000 bytes, and the hub lists \d+"):
            read(wire.url, commit)
        assert sent < 20_000_000

    def test_a_server_that_ignores_ranges_serves_as_well(self, wire: Wire, commit: str) -> None:
        wire.ignore_range = True
        assert read(wire.url, commit).contents == HELD

    def test_a_server_that_says_no_lengths(self, wire: Wire, commit: str, folder: Path) -> None:
        for name in ("config.json", INDEX, FIRST, SECOND):
            pieces = iter([(folder / name).read_bytes()])
            wire.instead[name] = StreamingResponse(pieces)
        assert read(wire.url, commit).contents == HELD

    def test_a_size_that_nobody_says(self, wire: Wire, commit: str, folder: Path) -> None:
        names = ("config.json", INDEX, FIRST, SECOND)
        listing = {"id": REPO, "sha": commit, "siblings": [{"rfilename": name} for name in names]}
        wire.instead[commit] = JSONResponse(listing)
        assert read(wire.url, commit).contents == HELD
        start = (folder / SECOND).read_bytes()
        headers = {"Content-Range": f"bytes 0-{len(start) - 1}/*"}
        wire.instead[SECOND] = Response(start + bytes(70_000), 206, headers)
        shutil.rmtree(os.environ["XDG_CACHE_HOME"])
        with pytest.raises(RoostError, match=f"{SECOND}: the hub does not say how large it is"):
            read(wire.url, commit)

    def test_an_index_too_large_to_be_asked_for(self, wire: Wire, commit: str) -> None:
        siblings = [{"rfilename": "config.json"}, {"rfilename": INDEX, "size": 64_000_001}]
        wire.instead[commit] = JSONResponse({"id": REPO, "sha": commit, "siblings": siblings})
        with pytest.raises(RoostError, match=r"index\.json: is larger than 64,000,000 bytes"):
            read(wire.url, commit)
        assert INDEX not in wire.names()

    def test_weights_in_a_folder_are_of_another_kind(
        self, wire: Wire, store: Path, tmp_path: Path
    ) -> None:
        folder = write_checkpoint(tmp_path / "one", CONFIG, TENSORS, shards=1, index=False)
        (folder / "onnx").mkdir()
        write_shard(folder / "onnx" / "more.safetensors", {"t": ("U8", [1])})
        found = read(wire.url, hubstore.publish(store, REPO, "main", folder))
        assert found.contents == HELD

    def test_a_redirect_to_a_storage_host(self, wire: Wire, commit: str, store: Path) -> None:
        """The range goes along, the token does not."""
        seen: list[Headers] = []
        real = application(store)

        async def storage(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                seen.append(Headers(scope=scope))
            await real(scope, receive, send)

        with serving(storage) as storage_url:
            there = f"{storage_url}/{REPO}/resolve/{commit}/{SECOND}?signature=secret"
            wire.instead[SECOND] = RedirectResponse(there, 302)
            assert read(wire.url, commit, token="hf_secret").contents == HELD
            assert {asked["authorization"] for _, asked in wire.asked} == {"Bearer hf_secret"}
            assert [one.get("range") for one in seen] == ["bytes=0-65535"]
            assert [one.get("authorization") for one in seen] == [None]

    def test_a_refusal_of_a_storage_host_keeps_its_address_secret(
        self, wire: Wire, commit: str
    ) -> None:
        with serving(PlainTextResponse("expired", 403)) as storage_url:
            wire.instead[SECOND] = RedirectResponse(f"{storage_url}/x?signature=secret", 302)
            with pytest.raises(RoostError, match=f"{SECOND}: the hub answered 403") as caught:
                read(wire.url, commit)
        assert caught.value.why == "the answer is from 127.0.0.1"

    @pytest.mark.parametrize("name", ["config.json", SECOND, "the listing"])
    def test_each_refusal_has_its_own_words(self, wire: Wire, commit: str, name: str) -> None:
        where = f"{REPO}@{commit[:12]} on {wire.url}: "
        where += "" if name == "the listing" else f"{name}: "
        for status, headers, message, fix in REFUSALS:
            place = commit if name == "the listing" else name
            wire.instead[place] = PlainTextResponse("no", status, headers)
            with pytest.raises(RoostError) as caught:
                read(wire.url, commit)
            assert caught.value.what == where + message
            assert fix in caught.value.fix
            unavailable = status in {408, 429} or status >= 500
            assert isinstance(caught.value, hub.HubUnavailableError) == unavailable

    def test_a_gated_repository(self, wire: Wire, store: Path, folder: Path) -> None:
        commit = hubstore.publish(store, REPO, "main", folder, gated=True)
        for token in (None, "wrong"):
            with pytest.raises(RoostError, match="the repository is gated"):
                read(wire.url, commit, token)
        assert read(wire.url, commit, "open-sesame").contents == HELD

    def test_a_shard_that_the_hub_does_not_have(
        self, wire: Wire, store: Path, folder: Path
    ) -> None:
        (folder / SECOND).unlink()
        found = read(wire.url, hubstore.publish(store, REPO, "main", folder))
        assert found.absent == [SECOND]
        assert found.contents.language == Part(tensors=3)

    @pytest.mark.parametrize("declared", [None, 300])
    def test_a_body_that_is_cut_off(self, wire: Wire, commit: str, declared: int | None) -> None:
        """By a break, and by a server that thinks the part is all that was asked for."""
        length = declared or 100

        async def part() -> Any:
            yield bytes(100)

        headers = {"Content-Range": "bytes 0-299/300", "Content-Length": str(length)}
        wire.instead[SECOND] = StreamingResponse(part(), 206, headers)
        with pytest.raises(RoostError, match=SECOND) as caught:
            read(wire.url, commit)
        if declared:
            assert "the hub cannot be reached" in caught.value.what
            assert "closed connection" in caught.value.why
        else:
            assert "the answer is cut off: 100 of 300 bytes" in caught.value.what

    @pytest.mark.parametrize("answer", ["bytes 8-99/300", "", "bytes 0-99/300, bytes 200-299/300"])
    def test_an_answer_about_other_bytes(self, wire: Wire, commit: str, answer: str) -> None:
        headers = {"Content-Range": answer}
        wire.instead[SECOND] = Response(bytes(92), 206, headers)
        with pytest.raises(RoostError, match="asked for the first bytes, was given others"):
            read(wire.url, commit)

    def test_a_size_that_the_hub_lists_wrongly(self, wire: Wire, commit: str) -> None:
        start, data = header({"t": ("U8", [1])})
        wire.instead[SECOND] = Response(start + bytes(data))
        with pytest.raises(RoostError, match=f"{SECOND}: has .* bytes, and the hub lists"):
            read(wire.url, commit)

    def test_a_pointer_where_the_hub_lists_weights(self, wire: Wire, commit: str) -> None:
        wire.instead[SECOND] = PlainTextResponse("version https://git-lfs.github.com/spec/v1\n")
        with pytest.raises(RoostError, match=f"{SECOND}: is a Git LFS pointer"):
            read(wire.url, commit)

    def test_an_empty_shard(self, wire: Wire, store: Path, folder: Path) -> None:
        (folder / SECOND).write_bytes(b"")
        with pytest.raises(RoostError, match=rf"{SECOND}: is empty \(0 bytes\)"):
            read(wire.url, hubstore.publish(store, REPO, "main", folder))

    def test_an_index_too_large_to_be_one(self, wire: Wire, commit: str) -> None:
        sent = 0

        async def endless() -> Any:
            nonlocal sent
            while True:
                sent += 4_000_000
                yield b" " * 4_000_000
                await asyncio.sleep(0)

        wire.instead[INDEX] = StreamingResponse(endless())
        with pytest.raises(RoostError, match=r"index\.json: is larger than 64,000,000 bytes"):
            read(wire.url, commit)
        assert sent < 100_000_000

    def test_a_hub_that_answers_with_another_commit(
        self, wire: Wire, store: Path, folder: Path, commit: str
    ) -> None:
        (folder / "README.md").write_text("another")
        other = hubstore.publish(store, REPO, "other", folder)
        real = application(store)

        async def mistaken(scope: Scope, receive: Receive, send: Send) -> None:
            await real({**scope, "path": scope["path"].replace(commit, other)}, receive, send)

        wire.instead[commit] = mistaken
        with pytest.raises(RoostError, match="answers with another commit") as caught:
            read(wire.url, commit)
        assert other in caught.value.why

    @pytest.mark.parametrize("name", ["config.json", FIRST])
    def test_a_hub_that_says_nothing(
        self, wire: Wire, commit: str, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = huggingface_hub.get_session()

        def stream(method: str, url: str, **options: Any) -> Any:
            if url.endswith(f"/{name}"):
                options["timeout"] = 0.2
                # The shards are asked for together, and what one comes to ends the reading.
                until(lambda: name != FIRST or SECOND in wire.names())
            return session.stream(method, url, **options)

        monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(stream=stream))

        async def silent(_: Scope, receive: Receive, __: Send) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        wire.instead[name] = silent
        with pytest.raises(hub.HubUnavailableError, match=f"{name}: the hub did not answer"):
            read(wire.url, commit)
        # Without a config the shards need not be waited for as well.
        assert (SECOND in wire.names()) == (name == FIRST)

    def test_a_hub_that_trickles(
        self, wire: Wire, commit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hub, "DEADLINE", 0.2)

        async def trickle() -> Any:
            for _ in range(50):
                await asyncio.sleep(0.05)
                yield b"x"

        wire.instead["config.json"] = StreamingResponse(trickle())
        with pytest.raises(hub.HubUnavailableError, match=r"too slow: \d+ bytes in 0 s"):
            read(wire.url, commit)

    def test_no_hub(self, commit: str) -> None:
        for url in ("http://127.0.0.1:9", "http://::::", "nowhere"):
            with pytest.raises(hub.HubUnavailableError, match="the hub cannot be reached"):
                read(url, commit)

    def test_only_a_full_commit_is_read(self, wire: Wire, commit: str) -> None:
        repository = Repository(repo=REPO, revision=Revision(branch="main"))
        for name in ("main", commit[:12], commit.upper(), commit + "\n"):
            with pytest.raises(UsageError, match="is not a full commit"):
                read_hub(repository, name, wire.url)
        assert wire.asked == []


class TestDisagreements:
    def test_none(self, tmp_path: Path) -> None:
        found = read_directory(write_checkpoint(tmp_path / "t", qwen35_35b(), TENSORS))
        known = Architecture.from_config(qwen35_35b())
        assert disagreements(found, architecture=known, weights="bf16") == []
        assert disagreements(found) == []

    def test_each_key_that_differs(self, tmp_path: Path) -> None:
        config = qwen35_35b()
        config["quantization_config"] = {"quant_method": "fp8"}
        found = read_directory(write_checkpoint(tmp_path / "t", config, TENSORS))
        known = Architecture.from_config(qwen35_35b(8))
        assert disagreements(
            found,
            architecture=known.model_copy(update={"gdn": None}),
            contents=Contents(
                language=Part(tensors=3), vision=Part(tensors=333), mtp=Part(tensors=1, bytes=3)
            ),
            method="modelopt",
            weights="nvfp4",
        ) == [
            Disagreement(key="architecture.attention.layers", catalogue="2", observed="10"),
            Disagreement(
                key="architecture.gdn",
                catalogue="none",
                observed="layers 30, key_heads 16, value_heads 32, key_dim 128, value_dim 128, "
                "conv_kernel 4, state_dtype float32",
            ),
            # With 40 layers, the tensors of layer 2 are not one layer too many.
            Disagreement(key="contents.language.tensors", catalogue="3", observed="4"),
            Disagreement(key="contents.vision.tensors", catalogue="333", observed="1"),
            Disagreement(key="contents.mtp.tensors", catalogue="1", observed="0"),
            Disagreement(key="contents.mtp.bytes", catalogue="3", observed="0"),
            Disagreement(key="method", catalogue="modelopt", observed="fp8"),
            Disagreement(key="weights", catalogue="nvfp4", observed="fp8"),
        ]

    def test_bytes_that_nobody_counted_are_not_compared(self, folder: Path) -> None:
        (folder / SECOND).unlink()
        known = Contents(language=Part(tensors=3, bytes=168), embedding=Part(tensors=1, bytes=1))
        assert [item.key for item in disagreements(read_directory(folder), contents=known)] == [
            "contents.embedding.bytes"
        ]

    def test_a_drafter_that_was_trained_anew(self, tmp_path: Path) -> None:
        found = read_directory(write_checkpoint(tmp_path / "d", dflash(8, 4096), TENSORS))
        # The block size is not among what the catalogue knows of it: not compared.
        known = Drafter(full_layers=6, kv_heads=4, head_dim=128)
        assert [vars(item) for item in disagreements(found, drafter=known)] == [
            {"key": "drafter.full_layers", "catalogue": "6", "observed": "0"},
            {"key": "drafter.sliding_layers", "catalogue": "0", "observed": "6"},
            {"key": "drafter.kv_heads", "catalogue": "4", "observed": "8"},
        ]


def test_reading_a_directory_needs_no_network_library(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from roost.plan.checkpoint import read_directory; "
        f"read_directory(Path({str(folder)!r})); "
        "print({'huggingface_hub', 'httpx2', 'asyncio'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert ran.stdout == "set()\n"

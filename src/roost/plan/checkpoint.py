"""Reading what a checkpoint really holds, from a hub or a directory, without its weights.

Read are ``config.json``, the index, ModelOpt's ``hf_quant_config.json`` and the header of each
shard: some megabytes of a model of 30 GB. What was read of a commit is kept
(:mod:`roost.plan.cache`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic import Field

from roost import hub
from roost.errors import RoostError, UsageError
from roost.onhost.weights import safetensors as file_format
from roost.pins import Repository
from roost.plan import cache, safetensors
from roost.plan.architecture import Architecture, Drafter, parse_config
from roost.plan.contents import Amount, Contents, Quantization
from roost.settings import Strict

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
QUANTIZATION = "hf_quant_config.json"

# What is read whole, how, and up to how many bytes. An index of 60,000 tensors has 6 MB.
_DOCUMENTS: dict[str, tuple[Callable[[str, str], dict[str, Any]], int]] = {
    CONFIG: (parse_config, 4_000_000),
    INDEX: (safetensors.parse_index, 64_000_000),
    QUANTIZATION: (parse_config, 4_000_000),
}

# Bytes that are asked of a shard first: most headers are shorter, and need one round trip.
_FIRST_BYTES = 65_536

# Requests at a time: few enough for a hub's rate limit.
_PARALLEL = 8

_AGAIN = "fetch it again; if it stays so, pin another revision"

Value = TypeVar("Value")


class Shard(Strict):
    """A file of weights."""

    name: str
    bytes: Amount | None = Field(description="none: the index names it, and it is not there")


class Checkpoint(Strict):
    """What was found, and where."""

    where: str = Field(description="owner/name@commit, or the directory")
    config: dict[str, Any]
    contents: Contents
    quantization: Quantization | None
    shards: list[Shard] = Field(description="as the index names them; without one, all there are")
    unlisted: list[str] = Field(
        description="weights beside them that the index does not name: engines leave them out"
    )
    missing_tensors: list[str] = Field(
        description="in the index, and not in the shard that it names for them"
    )
    fingerprints: dict[str, str] = Field(description="SHA-256 of the JSON files, by name")

    @property
    def absent(self) -> list[str]:
        """Shards that the index names and that are not there."""
        return [shard.name for shard in self.shards if shard.bytes is None]

    @property
    def bytes(self) -> int:
        """Of the shards that are there."""
        return sum(shard.bytes or 0 for shard in self.shards)

    def architecture(self) -> Architecture:
        """The target's shape; raises :class:`RoostError` where the config does not give it."""
        return Architecture.from_config(self.config, f"{self.where}: {CONFIG}")

    def drafter(self) -> Drafter:
        """A drafter's shape; raises :class:`RoostError` where the config does not give it."""
        return Drafter.from_config(self.config, f"{self.where}: {CONFIG}")


def read_directory(path: Path) -> Checkpoint:
    """Read a snapshot on disk.

    Raises:
        RoostError: Naming the first file that is not what it should be, and why. Shards that are
            absent are no error but :attr:`Checkpoint.absent`.
    """
    return _sound(_read(_Directory(path), str(path)))


def read_hub(
    repository: Repository, commit: str, endpoint: str | None = None, token: str | None = None
) -> Checkpoint:
    """Read a repository on a hub, or what is kept of it from an earlier time.

    Args:
        repository: What a recipe names; of its revision, ``commit`` is what counts.
        commit: In full: only a commit stays what it was.
        endpoint: Hub or mirror; none: the client's own default (``HF_ENDPOINT``).
        token: For gated repositories; none: what the client finds in its environment, except
            where the endpoint has no TLS.

    Raises:
        RoostError: As :func:`read_directory`, or what the hub refuses.
        HubUnavailableError: Nothing is kept and no hub answers.
    """
    where = f"{repository.repo}@{commit}"
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UsageError(
            f"{where}: is not a full commit (40 hex digits)",
            fix="`roost lock` resolves branches, tags and shortened commits",
        )
    found = _kept(where)
    if found is None:
        found = _sound(_read(hub.Snapshot(repository.repo, commit, endpoint, token), where))
        _keep(found)
    return found


def verify_directory(path: Path) -> list[RoostError]:
    """Everything that keeps a snapshot on disk from being whole: index, shards, headers.

    Engines differ in what they notice: an absent shard is left out by vLLM up to 0.25 and SGLang
    up to 0.5.14, and the model answers nonsense.
    """
    try:
        found, problems, absent = _read(_Directory(path), str(path))
    except RoostError as error:
        return [error]
    problems += [
        RoostError(f"{path / name}: is not there, but {INDEX} names it", fix=_AGAIN)
        for name in absent
    ]
    if found and found.missing_tensors:
        first = safetensors.short(found.missing_tensors[0])
        problems.append(
            RoostError(
                f"{path / INDEX}: names {len(found.missing_tensors):,} tensors that are not in "
                f"their shards, {first} the first",
                fix=_AGAIN,
            )
        )
    return problems


class _Source(Protocol):
    """Where a checkpoint's files can be looked at: :class:`roost.hub.Snapshot` is one."""

    def label(self, path: str) -> str:
        """A file's name in messages."""

    def sizes(self) -> dict[str, int | None]:
        """Every file with its bytes; none where they are not known."""

    def head(self, path: str, count: int) -> tuple[bytes, int | None]:
        """The first ``count`` bytes of a file, and the bytes of all of it, where known."""


class _Directory:
    """A snapshot on disk, looked at like one on a hub."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def label(self, path: str) -> str:
        return str(self._path / path)

    def sizes(self) -> dict[str, int | None]:
        try:
            # A link that leads nowhere, as an emptied cache leaves them, is no file.
            return {
                entry.name: entry.stat().st_size
                for entry in self._path.iterdir()
                if entry.is_file()
            }
        except OSError as error:
            raise RoostError(f"{self._path}: cannot be read", why=_reason(error)) from None

    def head(self, path: str, count: int) -> tuple[bytes, int | None]:
        try:
            with (self._path / path).open("rb") as file:
                return file.read(count), os.fstat(file.fileno()).st_size
        except OSError as error:
            raise RoostError(f"{self.label(path)}: cannot be read", why=_reason(error)) from None


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


class _Reading(NamedTuple):
    """A checkpoint (none where it cannot be made out), its defects, and the absent shards."""

    found: Checkpoint | None
    problems: list[RoostError]
    absent: list[str]


def _sound(reading: _Reading) -> Checkpoint:
    if reading.found is None or reading.problems:
        raise reading.problems[0]
    return reading.found


def _read(source: _Source, where: str) -> _Reading:
    """Everything that can be read, whatever is wrong with one file of it."""
    sizes = source.sizes()
    with ThreadPoolExecutor(_PARALLEL) as pool:
        documents, problems = _attempt(
            pool,
            functools.partial(_document, source, sizes),
            [name for name in _DOCUMENTS if name in sizes],
        )
        index: dict[str, str] = documents[INDEX][0] if INDEX in documents else {}
        weights = {name for name in sizes if name.endswith(".safetensors") and "/" not in name}
        named = set(index.values()) or weights
        headers, wrong = _attempt(
            pool, functools.partial(_header, source, sizes), sorted(named & sizes.keys())
        )
    problems += wrong
    absent = sorted(named - sizes.keys())
    if CONFIG not in sizes:
        problems.append(_no_checkpoint(source, f"there is no {CONFIG}", sizes))
    if not named:
        problems.append(_no_checkpoint(source, "there are no .safetensors weights", sizes))
    if CONFIG not in documents or not named:
        return _Reading(None, problems, absent)
    held = {shard: tensors for shard, (_, tensors) in headers.items()}
    try:
        tensors, missing = _tensors(source, index, held)
        quantization = _quantization(source, documents)
    except RoostError as error:
        return _Reading(None, [*problems, error], absent)
    if not tensors:
        problems.append(RoostError(f"{source.label(min(named))}: holds no tensor", fix=_AGAIN))
    config = documents[CONFIG][0]
    found = Checkpoint(
        where=where,
        config=config,
        contents=Contents.of(tensors, _layers(config)),
        quantization=quantization,
        shards=[
            Shard(name=name, bytes=headers[name][0] if name in headers else sizes.get(name))
            for name in sorted(named)
        ],
        unlisted=sorted(weights - named),
        missing_tensors=missing,
        fingerprints={name: digest for name, (_, digest) in documents.items()},
    )
    return _Reading(found, problems, absent)


def _tensors(
    source: _Source, index: Mapping[str, str], headers: Mapping[str, Mapping[str, int]]
) -> tuple[dict[str, int | None], list[str]]:
    """Bytes by tensor (none in shards without a header), and what is not where the index says."""
    tensors: dict[str, int | None] = {}
    for shard, held in headers.items():
        for name, size in held.items():
            if tensors.setdefault(name, size) != size:
                raise RoostError(
                    f"{source.label(shard)}: has {safetensors.short(name)}, which another shard "
                    "has in another size",
                    fix=_AGAIN,
                )
    missing = []
    for name, shard in index.items():
        if shard not in headers:
            tensors.setdefault(name, None)
        elif name not in headers[shard]:
            missing.append(name)
    return tensors, missing


def _quantization(
    source: _Source, documents: Mapping[str, tuple[dict[str, Any], str]]
) -> Quantization | None:
    """As engines look for it: in the config, else in ModelOpt's own file."""
    said = Quantization.from_config(documents[CONFIG][0], source.label(CONFIG))
    if said is None and QUANTIZATION in documents:
        return Quantization.from_modelopt(documents[QUANTIZATION][0], source.label(QUANTIZATION))
    return said


def _attempt(
    pool: ThreadPoolExecutor, function: Callable[[str], Value], names: Iterable[str]
) -> tuple[dict[str, Value], list[RoostError]]:
    """The function's value for each name, or what is wrong with the file of that name."""
    values: dict[str, Value] = {}
    errors: list[RoostError] = []
    futures = {name: pool.submit(function, name) for name in names}
    try:
        for name, future in futures.items():
            try:
                values[name] = future.result()
            except hub.HubUnavailableError:
                raise  # nothing is wrong with the file
            except RoostError as error:
                errors.append(error)
    finally:
        # After an outage or an interrupt, those that have not begun would only wait as long.
        for future in futures.values():
            future.cancel()
    return values, errors


def _document(
    source: _Source, sizes: Mapping[str, int | None], name: str
) -> tuple[dict[str, Any], str]:
    """What a JSON file says, and its SHA-256."""
    label = source.label(name)
    parse, most = _DOCUMENTS[name]
    large = RoostError(f"{label}: is larger than {most:,} bytes", why="no such file is", fix=_AGAIN)
    if (sizes[name] or 0) > most:
        raise large
    data, _ = source.head(name, most + 1)
    if len(data) > most:
        raise large
    if not data.strip():
        raise RoostError(f"{label}: is empty", fix=_AGAIN)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RoostError(f"{label}: is not text (UTF-8)", fix=_AGAIN) from None
    return parse(text, label), hashlib.sha256(data).hexdigest()


def _header(
    source: _Source, sizes: Mapping[str, int | None], name: str
) -> tuple[int, dict[str, int]]:
    """A shard's size and the bytes of its tensors."""
    label = source.label(name)
    data, size = source.head(name, _FIRST_BYTES)
    listed = sizes[name]
    size = listed if size is None else size
    if size is None:
        raise RoostError(
            f"{label}: the hub does not say how large it is",
            fix="name another mirror (roost_hub_endpoint)",
        )
    length = safetensors.header_bytes(data, size, label)
    if listed is not None and listed != size:
        raise RoostError(
            f"{label}: has {size:,} bytes, and the hub lists {listed:,}",
            fix="try again, or name another mirror (roost_hub_endpoint)",
        )
    end = file_format.PREFIX + length
    if end > len(data):
        data, _ = source.head(name, end)
    return size, safetensors.parse_header(data[file_format.PREFIX : end], size - end, label)


def _no_checkpoint(source: _Source, what: str, sizes: Iterable[str]) -> RoostError:
    kinds = sorted({Path(name).suffix or name for name in sizes})[:8]
    return RoostError(
        f"{source.label('').rstrip(': /')}: {what}",
        why=f"what is there: {', '.join(kinds)}" if kinds else "nothing is there",
        fix="name a repository of safetensors weights as transformers writes them",
    )


def _layers(config: Mapping[str, Any]) -> int | None:
    """``num_hidden_layers`` of the text model; none where it is no such number."""
    text = config.get("text_config")
    layers = (text if isinstance(text, dict) else config).get("num_hidden_layers")
    return layers if type(layers) is int and layers > 0 else None


def _kept(where: str) -> Checkpoint | None:
    with suppress(ValueError):
        found = Checkpoint.model_validate(cache.read(where))
        if found.where == where:
            return found
    return None


def _keep(found: Checkpoint) -> None:
    # The config as it was read: pydantic would write neither NaN nor lone surrogates.
    cache.write(found.where, {**found.model_dump(exclude={"config"}), "config": found.config})

"""How vLLM versions differ in the arithmetic of the KV pool.

The table itself is data, ``kv_pool`` in ``catalog/engines/vllm.yml``: each row says since when,
what changed, and where that was read or seen. Here are its schema and the look-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, ValidationError

from roost.errors import RoostError
from roost.settings import Count, Strict

Device = Literal["gpu", "cpu"]


def _version(text: str) -> str:
    """A version as it was written, or the ValueError that pydantic reports."""
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is no version") from None
    return text


VersionText = Annotated[str, AfterValidator(_version)]


class EngineRules(Strict):
    """What one engine version does on one kind of device."""

    block_multiple: Count = Field(
        description="tokens of the engine's default block; the attention block is a multiple of it"
    )
    smallest_block: Count = Field(description="that the attention kernels take, tokens")
    pads_gdn_page: bool = Field(description="to a larger page of the drafter")
    pads_attention_page: bool = Field(
        description="to a larger page that is no whole multiple of it"
    )
    drafter_window: Literal["ignored", "smallest block", "attention block"] = Field(
        description="the block that sliding layers of a drafter begin with; ignored: they count "
        "as full attention"
    )
    mixed_drafter: bool = Field(description="a drafter may have both sliding and full layers")
    drafter_groups: Literal["one", "one if hybrid", "any"] = Field(
        description="that the layers of a drafter may lie in; hybrid: the target is"
    )
    batches_in_flight: Count = Field(
        description="batches of max_num_batched_tokens that a sliding window keeps blocks for"
    )
    reserved_blocks: Annotated[int, Field(ge=0)] = Field(
        description="blocks held back when it is checked that one request fits"
    )
    checkpoint_alignment: Annotated[int, Field(ge=0)] = Field(
        description="with prefix caching each sequence keeps one state more, and the attention "
        "block is a multiple of so many tokens; 0: neither"
    )
    compared: bool = Field(
        description="this very version was: by a pool it printed or by its own functions"
    )
    source: str


class KvPoolRow(Strict):
    """What changed with one version; everything else holds on from the rows before."""

    since: VersionText
    before: VersionText | None = Field(
        None, description="for builds of main only, and only for those before this release"
    )
    rules: dict[str, Any] = Field({}, description="fields of EngineRules")
    cpu: dict[str, Any] = Field({}, description="what is different on the CPU engine")
    compared: list[VersionText] = Field(
        [], description="versions that were compared with these rules"
    )
    source: str


def _whole(rows: list[KvPoolRow]) -> list[KvPoolRow]:
    """Whether rows are in order and each leaves a full set of rules behind."""
    for number, row in enumerate(rows, 1):
        if number > 1 and Version(row.since) <= Version(rows[number - 2].since):
            raise ValueError(f"row since {row.since}: does not come after the row before it")
        for device in ("gpu", "cpu"):
            earlier = [one for one in rows[:number] if one is row or one.before is None]
            try:
                _fold(earlier, device, compared=False)
            except ValidationError as error:
                item = error.errors()[0]
                key = ".".join(str(part) for part in item["loc"])
                raise ValueError(f"row since {row.since}: {key}: {item['msg']}") from None
    return rows


KvPoolRows = Annotated[list[KvPoolRow], AfterValidator(_whole)]


def rules_for(
    version: str, device: Device = "gpu", rows: Sequence[KvPoolRow] | None = None
) -> EngineRules:
    """The rules of a vLLM version.

    Args:
        version: As the engine prints it, e.g. ``0.24.0`` or ``0.23.1rc1.dev968+g2c17d33f4``.
        device: What the engine runs on.
        rows: The table; none: the built-in catalogue's.

    Raises:
        RoostError: It is no version, or older than anything that was read.
    """
    if rows is None:
        # Not above: the catalogue has this module's rows in its schema.
        from roost import catalog

        rows = catalog.builtin().engines["vllm"].kv_pool
    asked = _parse(version)
    known = list(_applying(rows, asked))
    if not known:
        raise RoostError(
            f"vLLM {version}: nobody has read how it sizes its KV pool",
            why="known are " + " and ".join(_beginnings(rows)),
        )
    compared = asked.public in (Version(one).public for one in known[-1].compared)
    return _fold(known, device, compared=compared)


def _beginnings(rows: Sequence[KvPoolRow]) -> Iterator[str]:
    for row in [row for row in rows if row.before is None][:1]:
        yield f"releases from {row.since}"
    for row in rows:
        if row.before is not None:
            yield f"builds of main from {row.since}"


def _applying(rows: Sequence[KvPoolRow], asked: Version) -> Iterator[KvPoolRow]:
    """The rows that hold for a version, oldest first; none: it is not known.

    A release has all rows of releases up to it. A build of main has what main had by then; releases
    of the same time do not tell, for they were branched off earlier.
    """
    release = Version(asked.base_version)
    if asked.dev is not None:
        main = [row for row in rows if row.before is not None]
        if any(asked < Version(row.since) for row in main):
            return
        for row in main:
            if release < Version(row.before or ""):
                base = Version(Version(row.since).base_version)
                yield from (r for r in rows if r.before is None and Version(r.since) < base)
                yield row
                return
    yield from (row for row in rows if row.before is None and Version(row.since) <= release)


def _fold(rows: Sequence[KvPoolRow], device: Device, *, compared: bool) -> EngineRules:
    rules: dict[str, Any] = {}
    for row in rows:
        rules |= row.rules
        if device == "cpu":
            rules |= row.cpu
    return EngineRules(**rules, compared=compared, source=rows[-1].source)


def _parse(version: str) -> Version:
    try:
        return Version(version)
    except ValueError:
        # InvalidVersion, or numbers of thousands of digits.
        raise RoostError(
            f"engine version {version[:60]!a} is none of vLLM's",
            fix="set engine_version to what the image's `vllm --version` prints",
        ) from None

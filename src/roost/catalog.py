"""The catalogue: hardware, engines and recipes as strict data.

The files live beside this module in ``catalog/{hardware,engines,recipes}/*.yml``; their schema is
the classes below. Nothing here does network or host I/O.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from roost import yamlfile
from roost.errors import UsageError
from roost.settings import Settings, Strict

ROOT = Path(__file__).with_name("catalog")

Id = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]
RepoId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*$", max_length=96)]

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


def _one_line(error: ValidationError) -> UsageError:
    """What is wrong with a value that a setting gave in one piece."""
    reasons = (str(item["msg"]).removeprefix("Value error, ") for item in error.errors())
    return UsageError("; ".join(dict.fromkeys(reasons)))


class Revision(Strict):
    """Which state of a repository: a full commit, or something a lock still has to resolve."""

    commit: str | None = None
    branch: str | None = None
    prefix: str | None = None

    @field_validator("commit")
    @classmethod
    def _full(cls, value: str | None) -> str | None:
        if value is not None and not _COMMIT.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a full commit (40 hex digits); a shortened one goes under "
                "`prefix:`, a branch or tag under `branch:`, and `roost lock` resolves them"
            )
        return value

    @field_validator("prefix")
    @classmethod
    def _short(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[0-9a-f]{7,39}", value):
            raise ValueError(f"{value!r} is not the beginning of a commit (7 to 39 hex digits)")
        return value

    @field_validator("branch")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][\w./\-]*", value):
            raise ValueError(f"{value!r} is not the name of a branch or tag")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Revision:
        if sum(part is not None for part in (self.commit, self.branch, self.prefix)) != 1:
            raise ValueError("must be exactly one of `commit`, `branch` and `prefix`")
        return self

    @property
    def name(self) -> str:
        """The revision as written, which is also its key in the lock."""
        return self.commit or self.branch or self.prefix or ""

    @classmethod
    def parse(cls, text: str) -> Revision:
        """A revision given as one word (``drafter_revision``): a full commit, else a branch.

        Raises:
            UsageError: It is neither.
        """
        try:
            return cls(commit=text) if _COMMIT.fullmatch(text) else cls(branch=text)
        except ValidationError as error:
            raise _one_line(error) from None


class Repository(Strict):
    """A model or drafter on the hub."""

    repo: RepoId
    revision: Revision
    licence: str | None = None
    note: str | None = None


class Image(Strict):
    """A container image: by digest, or by a tag that a lock still has to resolve."""

    repository: str
    digest: str | None = None
    tag: str | None = None
    engine_version: str = Field(description="the engine's version inside the image")
    note: str | None = None

    @field_validator("repository")
    @classmethod
    def _bare(cls, value: str) -> str:
        last = value.rsplit("/", 1)[-1]
        if "@" in value or ":" in last:
            raise ValueError(
                f"{value!r} carries a tag or digest; write it under `tag:` or `digest:`"
            )
        if not re.fullmatch(r"[a-z0-9][a-z0-9._:\-]*(/[a-z0-9][a-z0-9._\-]*)*", value):
            raise ValueError(f"{value!r} is not the name of an image repository")
        return value

    @field_validator("digest")
    @classmethod
    def _sha256(cls, value: str | None) -> str | None:
        if value is not None and not _DIGEST.fullmatch(value):
            raise ValueError(
                f"{value!r} is not a digest (sha256: and 64 hex digits); a tag goes under `tag:` "
                "and `roost lock` resolves it"
            )
        return value

    @field_validator("tag")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        if value is not None and not _TAG.fullmatch(value):
            raise ValueError(f"{value!r} is not an image tag")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Image:
        if (self.digest is None) == (self.tag is None):
            raise ValueError("must have exactly one of `digest` and `tag`")
        return self

    @property
    def name(self) -> str:
        """The tag or digest as written, which is also its key in the lock."""
        return self.digest or self.tag or ""

    @classmethod
    def parse(cls, reference: str, engine_version: str) -> Image:
        """An image given in one piece by a setting: ``repository@sha256:…``.

        Raises:
            UsageError: It is not of that form.
        """
        repository, _, digest = reference.partition("@")
        try:
            return cls(repository=repository, digest=digest, engine_version=engine_version)
        except ValidationError as error:
            raise _one_line(error) from None


class Gpu(Strict):
    """What a probe must find on such a machine."""

    name: str = Field(description="as nvidia-smi names it")
    count: Annotated[int, Field(ge=1)]
    compute_capability: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    memory: Literal["unified", "discrete"]
    memory_mib: Annotated[int, Field(ge=1)] = Field(
        description="discrete: of one card, as nvidia-smi prints it; unified: MemTotal"
    )
    native_fp4: bool


class Hardware(Strict):
    """One kind of machine."""

    id: Id
    title: str
    architecture: Literal["amd64", "arm64"] | None = Field(
        None, description="as image manifests spell it; none: any"
    )
    gpu: Gpu | None = Field(None, description="none: the engine runs on the CPU")
    settings: Settings = Settings()
    env: dict[str, str] = {}
    ipc_host: bool = Field(False, description="share the host's IPC namespace")
    notes: list[str] = []
    source: str


class Flag(Strict):
    """How an engine spells one setting."""

    flag: Annotated[str, Field(pattern=r"^--[a-z][a-z0-9\-]+$")]
    kind: Literal["value", "switch", "toggle"] = Field(
        "value", description="switch: present or absent; toggle: --x / --no-x"
    )
    note: str | None = None


class Engine(Strict):
    """A serving engine's own facts: spelling, paths, needs."""

    id: Id
    title: str
    entrypoint: list[str]
    subcommand: list[str]
    port: int = Field(description="inside the container")
    health_path: str
    metrics_path: str
    shm_size: Annotated[str, Field(pattern=r"^\d+[kmg]$")] = Field(
        description="shared memory of a container with an IPC namespace of its own"
    )
    min_driver: Annotated[int, Field(ge=1)] = Field(description="NVIDIA driver, major version")
    min_driver_source: str
    flags: dict[str, Flag]
    env: dict[str, str] = {}
    source: str

    @field_validator("flags")
    @classmethod
    def _neutral_names(cls, value: dict[str, Flag]) -> dict[str, Flag]:
        if strangers := sorted(set(value) - set(Settings.model_fields)):
            raise ValueError(f"flags for what is no setting: {', '.join(strangers)}")
        return value


class Speculation(Strict):
    """One way to speculate with a recipe."""

    method: Literal["dflash", "mtp", "ngram"] | None = Field(
        None, description="as the engine knows it; none: no speculation"
    )
    drafter: Repository | None = None
    options: dict[str, int | float | str | bool] = Field(
        {}, description="further keys of the engine's speculative configuration"
    )
    settings: Settings = Settings()
    note: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Speculation:
        if self.method == "dflash" and self.drafter is None:
            raise ValueError("method dflash needs a `drafter`")
        if self.method is None and (self.drafter or self.options):
            raise ValueError("has a drafter or options but no `method`")
        return self


class Support(Strict):
    """What is known about a recipe on one kind of hardware. Absent altogether: untested."""

    support: Literal["verified", "unsupported"]
    date: dt.date | None = Field(None, description="when it was verified, where the source says")
    reason: str | None = None
    source: str
    image: Image | None = None
    settings: Settings = Settings()
    env: dict[str, str] = {}
    ipc_host: bool | None = None
    memory_bytes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="host memory the engine needs beyond its weights, where no GPU holds it"
    )
    notes: list[str] = []

    @model_validator(mode="after")
    def _explained(self) -> Support:
        if self.support == "unsupported" and not self.reason:
            raise ValueError("unsupported needs a `reason`")
        if self.support == "verified" and self.image is None:
            raise ValueError("verified needs the `image` it was verified with")
        return self


class Recipe(Strict):
    """Model, drafter, engine, image and speculation choices that belong together."""

    id: Id
    title: str
    model: Repository
    engine: Id
    served_name: Annotated[str, Field(pattern=r"^[\w.\-/:]+$")]
    default_speculation: Id
    speculation: dict[Id, Speculation]
    settings: Settings = Settings()
    env: dict[str, str] = {}
    chat_template_kwargs: dict[str, bool | str | int] = Field(
        {}, description="sent with every request of roost, e.g. to switch thinking off"
    )
    hardware: dict[Id, Support]
    notes: list[str] = []
    source: str

    @model_validator(mode="after")
    def _default_exists(self) -> Recipe:
        if self.default_speculation not in self.speculation:
            raise ValueError(
                f"default_speculation {self.default_speculation!r} is not among the choices: "
                + ", ".join(self.speculation)
            )
        return self

    def support_on(self, hardware: str) -> Literal["verified", "unsupported", "untested"]:
        """The tri-state of one hardware id."""
        known = self.hardware.get(hardware)
        return known.support if known else "untested"


class Catalog(Strict):
    """Everything that is known, by id."""

    hardware: dict[str, Hardware]
    engines: dict[str, Engine]
    recipes: dict[str, Recipe]

    def recipe(self, recipe_id: str) -> Recipe:
        """The recipe of that id.

        Raises:
            UsageError: There is none; the message lists near misses or all of them.
        """
        return _pick(self.recipes, recipe_id, "recipe", "roost recipes")

    def machine(self, hardware_id: str) -> Hardware:
        """The hardware profile of that id; raises :class:`UsageError` like :meth:`recipe`."""
        return _pick(self.hardware, hardware_id, "hardware", "roost recipes")


Item = TypeVar("Item")
Described = TypeVar("Described", Hardware, Engine, Recipe)


def _pick(known: Mapping[str, Item], wanted: str, kind: str, command: str) -> Item:
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    raise UsageError(
        f"{kind} {wanted!r} is not in the catalogue",
        why="known: " + ", ".join(sorted(known)),
        fix=f"did you mean {near[0]}?" if near else f"see `{command}`",
    )


def _load_kind(folder: Path, model: type[Described]) -> dict[str, Described]:
    items: dict[str, Described] = {}
    for path in sorted(folder.glob("*.yml")):
        document = yamlfile.read(path)
        item = yamlfile.validate(document, model)
        if item.id != path.stem:
            raise UsageError(
                f"{path}:{document.line(('id',))}: id: is {item.id!r}, "
                f"but the file is named {path.stem!r}",
                fix="file name and id must be the same",
            )
        items[item.id] = item
    return items


def load(root: Path = ROOT) -> Catalog:
    """Read a catalogue directory.

    Raises:
        RoostError: Naming file, line, key and reason of every defect in the first bad file, or
            the name of an engine or hardware that a recipe refers to and nobody describes.
    """
    hardware = _load_kind(root / "hardware", Hardware)
    engines = _load_kind(root / "engines", Engine)
    recipes = _load_kind(root / "recipes", Recipe)
    for recipe in recipes.values():
        path = root / "recipes" / f"{recipe.id}.yml"
        if recipe.engine not in engines:
            raise UsageError(
                f"{path}: engine: {recipe.engine!r} is not described",
                why="engines: " + ", ".join(engines),
            )
        for hardware_id in recipe.hardware:
            if hardware_id not in hardware:
                raise UsageError(
                    f"{path}: hardware.{hardware_id}: is not described",
                    why="hardware: " + ", ".join(hardware),
                )
    return Catalog(hardware=hardware, engines=engines, recipes=recipes)


@cache
def builtin() -> Catalog:
    """The catalogue that ships with roost, read once per process."""
    return load()

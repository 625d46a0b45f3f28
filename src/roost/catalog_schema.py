"""The schema of the catalogue's files: hardware, engines, architectures, models and recipes.

:mod:`roost.catalog` reads them. What they share with other files has modules of its own: images and
revisions :mod:`roost.pins`, published tables :mod:`roost.figures`, settings :mod:`roost.settings`.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from roost import versions
from roost.errors import UsageError
from roost.figures import Figure, Table
from roost.pins import Id, Image, RepoId, Repository
from roost.plan.architecture import Architecture, Drafter
from roost.plan.contents import Contents
from roost.plan.rules import KvPoolRows
from roost.plan.widths import Widths
from roost.settings import Settings, Strict, merge

Item = TypeVar("Item")

#: A commit, or the beginning of one.
_HEX = re.compile(r"[0-9a-f]{7,40}")

Versions = Annotated[str, AfterValidator(versions.checked)]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]


class Said(Strict):
    """One side of a contradiction."""

    says: str
    source: str


class Contradiction(Strict):
    """Two things that sources say and that cannot both hold, kept side by side."""

    about: str
    sides: list[Said] = Field(min_length=2)
    chosen: str = Field(description="what roost does")
    why: str


class Known(Strict):
    """What somebody found out of something on one kind of hardware. Absent: untested."""

    support: Literal["verified", "unsupported"]
    date: dt.date | None = Field(None, description="of the trial, where the source says")
    reason: str | None = None
    source: str

    @model_validator(mode="after")
    def _explained(self) -> Self:
        if self.support == "unsupported" and not self.reason:
            raise ValueError("unsupported needs a `reason`")
        return self


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
    bandwidth_gb_s: Annotated[int, Field(ge=1)] | None = Field(None, description="of one GPU")
    working_watts: Annotated[int, Field(ge=1)] | None = Field(
        None, description="one GPU at work draws more, a deadlocked one less; none: not known"
    )
    memory_floor_mib: Annotated[int, Field(ge=1)] | None = Field(
        None, description="MemAvailable below which an engine is stopped before the machine hangs"
    )


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
    contradictions: list[Contradiction] = []
    source: str


class Flag(Strict):
    """How an engine spells one setting."""

    flag: Annotated[str, Field(pattern=r"^--[a-z][a-z0-9\-]+$")]
    kind: Literal["value", "switch", "toggle", "inverse"] = Field(
        "value",
        description="switch: present if true; inverse: present if false; toggle: --x / --no-x",
    )
    choices: list[str] = Field([], description="all it takes, in any case; empty: anything")
    note: str | None = None


class Default(Strict):
    """The value that an engine takes for a setting that is not given."""

    value: int | float | str | bool
    versions: Versions = Field("", description="of the engine, as a version specifier; all")
    hardware: list[Id] = Field([], description="only on these; none: on any")
    min_memory_gib: int | None = Field(None, description="only on GPUs of so much memory")
    note: str | None = None
    source: str


class Limit(Strict):
    """Something that some versions of an engine cannot do, or refuse.

    A model that names the id under ``needs`` does not run on them.
    """

    id: Id
    says: str
    versions: Versions = Field("", description="of the engine, as a version specifier; all")
    source: str


class RefusedValue(Strict):
    """A value of a setting that some versions refuse at start-up."""

    setting: str
    value: str
    quantization: Literal["nvfp4", "fp8", "bf16"] | None = Field(
        None, description="of the weights; none: any"
    )
    versions: Versions
    reason: str
    fix: str
    source: str


class KnownImage(Strict):
    """What somebody found out about an image that engines of this kind come in."""

    repository: str
    tag: str | None = Field(None, description="none: every tag")
    lacks_compute_capability: list[str] = Field(
        [], description="GPUs it has no kernels for, e.g. 12.1"
    )
    forces_drafter_backend: str | None = Field(
        None, description="attention backend that a drafter gets, whatever is asked for"
    )
    reason: str
    date: dt.date | None = None
    source: str


class FlagHistory(Strict):
    """A flag that not every version has."""

    flag: Annotated[str, Field(pattern=r"^--[a-z][a-z0-9\-]+$")]
    versions: Versions = Field(description="that have it, as a version specifier")
    instead: str | None = Field(None, description="what the others call it")
    source: str


class ApiKey(Strict):
    """How an engine takes its API key out of a file, past argv, Docker's records and its log."""

    variable: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")] = Field(
        description="environment variable that the engine reads it from"
    )
    start_script: str | None = Field(
        None,
        description="entrypoint of an image that would hand the variable on in argv or print it: "
        "only the program that it starts gets to see the variable",
    )
    program: str | None = Field(None, description="what that script starts, found on PATH")
    note: str | None = None
    source: str

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if (self.start_script is None) != (self.program is None):
            raise ValueError("`start_script` and `program` go together")
        return self


class Watch(Strict):
    """Names of an engine's series that tell whether it works, as /metrics spells them."""

    generated: str = Field(description="counter of tokens; zero until the first one")
    progress: list[str] = Field(description="one of them changes with every step it takes")
    source: str


class Counters(Strict):
    """Versions of an engine whose /metrics have what an accept length is computed from.

    The counters' names are in ``roost.onhost.counters``.
    """

    versions: Versions = Field("", description="as a version specifier; all")
    source: str


class Engine(Strict):
    """A serving engine's own facts: spelling, paths, needs."""

    id: Id
    title: str
    style: Literal["vllm", "sglang", "environment"] = Field(
        description="which module of roost.engines writes its launch"
    )
    entrypoint: list[str] = Field(description="empty: the image's own")
    subcommand: list[str] = []
    always: list[str] = Field([], description="words of every command line")
    port: int = Field(description="inside the container")
    health_path: str
    metrics_path: str
    busy_gauges: list[str] = Field(
        [], description="on /metrics; their sum is the number of requests that run or wait"
    )
    shm_size: Annotated[str, Field(pattern=r"^\d+[kmg]$")] = Field(
        description="shared memory of a container with an IPC namespace of its own"
    )
    min_driver: Annotated[int, Field(ge=1)] = Field(description="NVIDIA driver, major version")
    min_driver_source: str
    min_docker: Annotated[int, Field(ge=1)] | None = Field(None, description="major version")
    api_key: ApiKey | None = Field(
        None, description="none: it has no way to be told one, or nobody looked into it"
    )
    flags: dict[str, Flag] = {}
    flags_of: Id | None = Field(
        None, description="engine whose flags it hands on, for what has no variable"
    )
    variables: dict[str, str] = Field({}, description="setting → variable, style environment")
    defaults: dict[str, list[Default]] = Field(
        {}, description="by setting; the first one that holds for version and GPU is taken"
    )
    limits: list[Limit] = []
    refuses: list[RefusedValue] = []
    images: list[KnownImage] = []
    flag_history: list[FlagHistory] = []
    fatal_lines: list[Pattern] = Field(
        [], description="in a log, after which the engine will not become healthy any more"
    )
    counters: Counters | None = Field(
        None,
        description="versions whose /metrics counts what an accept length follows from, with their "
        "source; none: nobody knows of any; with flags_of, the other's",
    )
    watch: Watch | None = Field(
        None, description="none: only whether it answers can be watched; with flags_of, the other's"
    )
    env: dict[str, str] = {}
    kv_pool: KvPoolRows = []
    notes: list[str] = []
    source: str

    @model_validator(mode="after")
    def _neutral_names(self) -> Self:
        for place in ("flags", "variables", "defaults"):
            if strangers := sorted(set(getattr(self, place)) - set(Settings.model_fields)):
                raise ValueError(f"{place} of what is no setting: {', '.join(strangers)}")
        return self


class Loaded(Strict):
    """Size of loaded weights on one GPU, as an engine printed it for a checkpoint of this shape."""

    bytes: Annotated[int, Field(ge=1)]
    source: str


class Architectural(Strict):
    """The shape that models of one family share."""

    id: Id
    title: str
    shape: Architecture
    widths: Widths | None = Field(None, description="for memory outside the KV pool")
    loaded: dict[Literal["bf16", "fp8", "nvfp4"], Loaded] = Field(
        {}, description="by format of the weights, for checkpoints whose own size nobody states"
    )
    note: str | None = None
    source: str


class KnownRevision(Strict):
    """What is known of one revision of a repository."""

    date: dt.date | None = None
    drafter: Drafter | None = Field(None, description="of a drafter: the layers it adds")
    contents: Contents | None = None
    loaded_bytes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="device memory after loading on one GPU, as an engine printed it"
    )
    disk_bytes: Annotated[int, Field(ge=1)] | None = None
    note: str | None = None
    source: str


class Model(Strict):
    """A repository on the hub, target or drafter, and what is known of it before it is read."""

    id: Id
    repo: RepoId
    role: Literal["target", "drafter"]
    licence: str | None = None
    author: str | None = None
    needs: list[Id] = Field([], description="abilities of the engine, by the id of its limit")
    lineage: list[str] = Field([], description="what it was made from, nearest first")
    architecture: Id | None = Field(None, description="of a target: id in catalog/architectures")
    weights: Literal["bf16", "fp8", "nvfp4"] | None = None
    method: Literal["modelopt", "compressed-tensors"] | None = Field(
        None, description="of quantization"
    )
    revisions: dict[str, KnownRevision] = Field(
        {}, description="by branch, or by (the beginning of) a commit"
    )
    notes: list[str] = []
    source: str

    def revision(self, name: str) -> KnownRevision | None:
        """What is known of a revision, by branch, commit or the beginning of one."""
        for known, facts in self.revisions.items():
            if name == known or (_HEX.fullmatch(known) and name.startswith(known)):
                return facts
        return None


class Speculation(Strict):
    """One way to speculate with a recipe."""

    method: Literal["dflash", "mtp", "ngram"] | None = Field(
        None, description="what is done, whatever the engine calls it; none: no speculation"
    )
    model: Repository | None = Field(
        None, description="another build of the target that this choice needs"
    )
    drafter: Repository | None = None
    options: dict[str, int | float | str | bool] = Field(
        {}, description="further keys of the engine's speculative configuration"
    )
    settings: Settings = Settings()
    min_accept_length: Annotated[float, Field(ge=1)] | None = Field(
        None, description="tokens per step that a deploy must reach on the gate's prompts"
    )
    hardware: dict[Id, Known] = Field(
        {}, description="what is known of this choice; absent: untested"
    )
    doubt: Said | None = Field(None, description="a report that it cannot work")
    note: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.method == "dflash" and self.drafter is None:
            raise ValueError("method dflash needs a `drafter`")
        if self.method is None and (self.drafter or self.options):
            raise ValueError("has a drafter or options but no `method`")
        return self


class Variant(Strict):
    """Another image for the same recipe, e.g. with a plugin, and what it is told."""

    title: str
    like: Id | None = Field(None, description="a variant that this one adds to")
    image: Image | None = None
    env: dict[str, str] = {}
    settings: Settings = Settings()
    licence: str | None = None
    note: str | None = None
    source: str


class Bound(Strict):
    """How far a setting may go on some hardware, as somebody found out."""

    setting: str
    most: int | float
    severity: Literal["error", "warning"]
    reason: str
    source: str


class Support(Known):
    """What is known about a recipe on one kind of hardware. Absent altogether: untested."""

    image: Image | None = None
    settings: Settings = Settings()
    env: dict[str, str] = {}
    ipc_host: bool | None = Field(
        None,
        description="share the host's IPC namespace; an untrusted image gets one of its own anyway",
    )
    memory_bytes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="host memory the engine needs beyond its weights, where no GPU holds it"
    )
    bounds: list[Bound] = []
    notes: list[str] = []

    @model_validator(mode="after")
    def _pictured(self) -> Self:
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
    ulimits: dict[str, int] = Field({}, description="of the container, e.g. memlock: -1")
    image: Image | None = Field(
        None, description="to try where nobody verified the recipe; none: the user must name one"
    )
    variants: dict[Id, Variant] = {}
    api_key: Literal["required", "optional"] = Field(
        "optional", description="whether it is deployed only with one"
    )
    chat_template_kwargs: dict[str, bool | str | int] = Field(
        {}, description="sent with every request of roost, e.g. to switch thinking off"
    )
    hardware: dict[Id, Support]
    figures: list[Table] = []
    contradictions: list[Contradiction] = []
    provenance: list[str] = Field([], description="who made what from what, and where it is said")
    notes: list[str] = []
    source: str

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        for name, variant in self.variants.items():
            if variant.like is not None and variant.like not in self.variants:
                raise ValueError(f"variants.{name}.like: there is no variant {variant.like!r}")
            if variant.like is not None and self.variants[variant.like].like is not None:
                raise ValueError(f"variants.{name}.like: {variant.like!r} is itself like another")
        tables = [table.id for table in self.figures]
        if twice := {table for table in tables if tables.count(table) > 1}:
            raise ValueError(f"figures: id {min(twice)!r} stands twice")
        for table in self.figures:
            for figure in table.figures():
                if figure.speculation is not None and figure.speculation not in self.speculation:
                    raise ValueError(
                        f"figures.{table.id}: speculation {figure.speculation!r} is no choice here"
                    )
        return self

    @model_validator(mode="after")
    def _default_exists(self) -> Self:
        if self.default_speculation not in self.speculation:
            raise ValueError(
                f"default_speculation {self.default_speculation!r} is not among the choices: "
                + ", ".join(self.speculation)
            )
        return self

    def support_on(
        self, hardware: str, speculation: str | None = None
    ) -> Literal["verified", "unsupported", "untested"]:
        """The tri-state of one hardware id, or of one speculation choice on it.

        A choice is at most as well known as its recipe: what is said of the recipe alone says
        nothing of a choice, except where the recipe does not run at all.
        """
        known: Known | None = self.hardware.get(hardware)
        if speculation is not None and (known is None or known.support == "verified"):
            known = self.speculation[speculation].hardware.get(hardware)
        return known.support if known else "untested"

    def variant(self, name: str) -> Variant:
        """A variant with what it takes from the one it is like.

        Raises:
            UsageError: There is none of that name.
        """
        if not self.variants:
            raise UsageError(f"{self.id} has no variants", fix="name none")
        variant = pick(self.variants, name, f"variant of {self.id}", f"roost recipes {self.id}")
        if variant.like is None:
            return variant
        base = self.variants[variant.like]
        return variant.model_copy(
            update={
                "image": variant.image or base.image,
                "env": {**base.env, **variant.env},
                "settings": merge([base.settings, variant.settings]),
                "licence": variant.licence or base.licence,
            }
        )

    def published(self) -> list[Figure]:
        """Every published figure, one by one."""
        return [figure for table in self.figures for figure in table.figures()]


def pick(known: Mapping[str, Item], wanted: str, kind: str, command: str) -> Item:
    """The item of that name.

    Args:
        known: All there are, by name.
        wanted: The name.
        kind: What it is the name of, for the message.
        command: That lists them, for the message.

    Raises:
        UsageError: There is none; the message names all of them, and the nearest if one is near.
    """
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    raise UsageError(
        f"{kind} {wanted!r} is not in the catalogue",
        why="known: " + ", ".join(sorted(known)),
        fix=f"did you mean {near[0]}?" if near else f"see `{command}`",
    )

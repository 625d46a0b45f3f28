"""Everything a finding may look at, gathered once."""

from __future__ import annotations

from dataclasses import dataclass

from roost.catalog import Catalog
from roost.catalog_schema import KnownImage, Model
from roost.errors import RefusedError, RoostError
from roost.figures import Figure
from roost.hosts import HostFacts
from roost.launch.pinning import Weights
from roost.launch.resolving import Resolved
from roost.plan import budget as budgets
from roost.plan import memory, sglang
from roost.plan.architecture import Architecture, Drafter
from roost.plan.budget import Budget, Need
from roost.plan.case import Case, Load
from roost.plan.contents import Contents
from roost.plan.finding import Finding
from roost.plan.machine import Machine
from roost.plan.memory import KvPool
from roost.plan.pool import layers_added
from roost.plan.remedies import Change, changed
from roost.plan.rules import EngineRules
from roost.plan.sglang import Split
from roost.plan.widths import Widths
from roost.settings import Settings, backend_name


@dataclass(frozen=True)
class Side:
    """Target or drafter: what is known of it, and where from.

    Attributes:
        model: The catalogue's entry.
        read_from: ``catalogue``, or the checkpoint that was read.
        loaded_from: Source of ``loaded_bytes``, where that is not ``read_from``.
        unread: Why no checkpoint was read.
        defect: What is wrong with the checkpoint that was read.
        method: How its weights were quantized, as its config says it (``quant_method``); none: they
            were not, or nobody says how.
    """

    weights: Weights
    model: Model | None
    read_from: str
    architecture: Architecture | None = None
    widths: Widths | None = None
    drafter: Drafter | None = None
    contents: Contents | None = None
    method: str | None = None
    loaded_bytes: int | None = None
    loaded_from: str | None = None
    disk_bytes: int | None = None
    declares_vision: bool | None = None
    disagreements: tuple[str, ...] = ()
    missing_shards: tuple[str, ...] = ()
    missing_tensors: tuple[str, ...] = ()
    unread: RoostError | None = None
    defect: RoostError | None = None

    def load(self) -> Load | None:
        """What it puts on the GPUs; none where nothing says how large it is."""
        sized = self.contents is not None and self.contents.bytes is not None
        if not sized and self.loaded_bytes is None and self.disk_bytes is None:
            return None
        return Load(
            contents=self.contents if sized else None,
            loaded_bytes=self.loaded_bytes,
            disk_bytes=self.disk_bytes,
            source=(None if sized else self.loaded_from) or self.read_from,
        )


@dataclass(frozen=True)
class Subject:
    """One deployment as the planner sees it.

    Attributes:
        settings: As said; for those that are not, the engine's defaults.
        case: What the memory is divided for; none: it is not known.
        need: The smallest pool that serves; none: not known.
        obstacles: Why there is no pool or budget: the engine would not start, or nobody can compute
            it.
    """

    catalog: Catalog
    resolved: Resolved
    target: Side
    drafter: Side | None
    settings: Settings
    machine: Machine | None
    host: HostFacts | None
    rules: EngineRules | None
    pool: KvPool | None
    pool_in_model_type: KvPool | None = None
    case: Case | None = None
    need: Need | None = None
    budget: Budget | None = None
    split: Split | None = None
    obstacles: tuple[Finding, ...] = ()

    @property
    def version(self) -> str:
        """Of the engine."""
        return self.resolved.image.engine_version

    @property
    def context(self) -> int | None:
        """Longest request, tokens: as said, else the model's own."""
        own = self.target.architecture.context if self.target.architecture else None
        return self.settings.max_model_len or own

    @property
    def may_exceed_context(self) -> bool:
        """Whether the engine was told to take requests beyond the model's own context."""
        return self.resolved.spec.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """Of the GPUs; none without."""
        gpu = self.resolved.hardware.gpu
        if gpu is None:
            return None
        major, minor = gpu.compute_capability.split(".")
        return int(major), int(minor)

    @property
    def layers_added(self) -> Drafter | None:
        """The attention layers that speculation adds, be it a drafter or the model's own head."""
        drafter = self.drafter.drafter if self.drafter else None
        if self.target.architecture is None:
            return drafter
        return layers_added(self.target.architecture, self.resolved.speculation.method, drafter)

    @property
    def other_choices(self) -> list[str]:
        """Speculation choices that nobody calls broken here, the recipe's default first."""
        recipe, hardware = self.resolved.recipe, self.resolved.hardware.id
        usable = (
            name
            for name in recipe.speculation
            if name != self.resolved.speculation_name
            and recipe.support_on(hardware, name) != "unsupported"
        )
        return sorted(usable, key=lambda name: name != recipe.default_speculation)

    @property
    def image_facts(self) -> list[KnownImage]:
        """What is known of the image that runs."""
        image = self.resolved.image
        return [
            known
            for known in self.resolved.engine.images
            if known.repository == image.repository and known.tag in {None, image.tag}
        ]

    @property
    def target_backend(self) -> str | None:
        """The target's attention backend as asked for, in capitals; none: automatic."""
        return backend_name(self.resolved.settings.attention_backend)

    @property
    def drafter_backend(self) -> str | None:
        """The drafter's or the MTP head's, as asked for or as the image has it."""
        forcing, settings = self.forcing_image, self.resolved.settings
        forced = forcing.forces_drafter_backend if forcing else None
        return backend_name(
            forced or settings.drafter_attention_backend or settings.attention_backend
        )

    def fits_with(self, change: Change) -> bool:
        """Whether it would fit with other settings; what cannot be computed counts as a yes."""
        ranks = change.get("tensor_parallel")
        if ranks is not None and self.target.architecture is not None:
            try:
                memory.require_shares(self.target.architecture, self.layers_added, ranks)
            except RefusedError:
                return False
        if self.case is None:
            return True
        case = changed(self.case, change)
        try:
            if self.resolved.engine.style == "sglang":
                strategy = sglang.strategy_of(self.resolved.spec.command)
                return sglang.make(case, version=self.version, strategy=strategy).fits
            made = budgets.make(case)
            enough = self.need(case.settings) if self.need else 1
        except RoostError:
            # As for what is planned now, of which a finding tells.
            return True
        return made.fits and made.kv_cache_bytes >= enough

    @property
    def forcing_image(self) -> KnownImage | None:
        """What is known of the image, where it gives a drafter a backend of its own choice."""
        if self.resolved.speculation.drafter is None:
            return None
        return next((one for one in self.image_facts if one.forces_drafter_backend), None)

    def figures(self) -> list[Figure]:
        """What was published for this recipe on this hardware."""
        return [
            figure
            for figure in self.resolved.recipe.published()
            if figure.hardware == self.resolved.hardware.id
        ]

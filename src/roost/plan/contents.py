"""What a checkpoint holds, by its tensors: the config declares, the index is the fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roost.errors import RoostError
from roost.plan.safetensors import short
from roost.settings import Count, Strict

Amount = Annotated[int, Field(ge=0)]


class Part(Strict):
    """Tensors that belong together."""

    tensors: Amount
    bytes: Amount | None = Field(None, description="in the shards; none: not all of them were read")


class Contents(Strict):
    """The tensors of one checkpoint, as its index and shard headers list them.

    Every tensor counts in exactly one part.
    """

    language: Part = Field(description="layers of the text model, with their norms and routers")
    embedding: Part = Field(
        Part(tensors=0), description="token embedding and output head, which a drafter may share"
    )
    vision: Part = Field(Part(tensors=0), description="vision tower and its projector")
    mtp: Part = Field(Part(tensors=0), description="the model's own drafter head")

    @property
    def tensors(self) -> int:
        """Of all parts."""
        return sum(part.tensors for part in self._parts)

    @property
    def bytes(self) -> Count | None:
        """Of all parts; none where one of them is not known."""
        sizes = [part.bytes for part in self._parts if part.tensors]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return (self.language, self.embedding, self.vision, self.mtp)

    @classmethod
    def of(cls, tensors: Mapping[str, int | None], layers: int | None = None) -> Contents:
        """Sort tensors into parts.

        Args:
            tensors: Bytes by name; none where the shard was not read.
            layers: ``num_hidden_layers``; a layer from that index on is the model's own drafter.
        """
        sizes: dict[PartName, list[int | None]] = {
            "language": [],
            "embedding": [],
            "vision": [],
            "mtp": [],
        }
        for name, size in tensors.items():
            sizes[part_of(name, layers)].append(size)
        parts = {
            part: Part(
                tensors=len(of_part),
                bytes=None if None in of_part else sum(size for size in of_part if size),
            )
            for part, of_part in sizes.items()
        }
        return cls(**parts)


PartName = Literal["language", "embedding", "vision", "mtp"]

# Names of modules, as transformers' models and the checkpoints of recipes spell them.
_VISION = {
    "visual",  # Qwen
    "vision_tower",  # LLaVA, Gemma
    "vision_model",  # Llama 4, InternVL
    "vision_encoder",  # Pixtral
    "vision_embed_tokens",  # Phi
    "vision_language_adapter",
    "multi_modal_projector",
    "mm_projector",
    "embed_vision",
    "patch_merger",
}
_EMBEDDING = {"embed_tokens", "lm_head", "tok_embeddings", "word_embeddings", "wte"}
# What may stand before `layers.N` of the text model; other towers number their own layers.
_TEXT = {"model", "language_model", "text_model", "transformer"}


def part_of(name: str, layers: int | None = None) -> PartName:
    """The part that a tensor of that name belongs to.

    DeepSeek and GLM keep the model's own drafter as one layer more than ``num_hidden_layers``
    says, Qwen and MiMo under names that begin with ``mtp``. Both may have an embedding of their
    own, which is the drafter's.
    """
    modules = name.split(".")
    if not _VISION.isdisjoint(modules):
        return "vision"
    if any(module.startswith("mtp") for module in modules):
        return "mtp"
    layer = _text_layer(modules)
    if layer is not None and layers is not None and layer >= layers:
        return "mtp"
    return "language" if _EMBEDDING.isdisjoint(modules) else "embedding"


def _text_layer(modules: list[str]) -> int | None:
    """The layer of the text model that a tensor is in."""
    for place, module in enumerate(modules[:-1]):
        if module == "layers":
            number = modules[place + 1]
            return int(number) if number.isdecimal() and len(number) < 9 else None
        if module not in _TEXT:
            break
    return None


class Quantization(Strict):
    """How a checkpoint says that its weights are quantized."""

    method: str = Field(description="quant_method: modelopt, compressed-tensors, fp8, awq, …")
    format: str | None = Field(
        None, description="of the weights: nvfp4, fp8, int4, …; mixed; none: it does not say"
    )
    groups: dict[str, str] = Field({}, description="format by group, where it names groups")
    ignored: Amount = Field(0, description="patterns of modules that are left as they were")
    kv_cache: str | None = Field(None, description="format that it wants the KV cache in")

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], where: str = "config.json"
    ) -> Quantization | None:
        """What a ``config.json`` declares, at its top or for the text model; none: nothing.

        Raises:
            RoostError: A key of the wrong type, or a declaration without a method.
        """
        text = config.get("text_config")
        for section in (config, text if isinstance(text, dict) else {}):
            for key in ("quantization_config", "compression_config"):
                if section.get(key) is not None:
                    return _quantization(section[key], f"{where}: {key}")
        return None

    @classmethod
    def from_modelopt(
        cls, document: Mapping[str, Any], where: str = "hf_quant_config.json"
    ) -> Quantization:
        """What ModelOpt's own file declares, which engines read where the config says nothing.

        Raises:
            RoostError: A key of the wrong type, or no ``quantization``.
        """
        said = document.get("quantization")
        if not isinstance(said, dict):
            raise RoostError(f"{where}: quantization: must be a mapping")
        return _quantization({"quant_method": "modelopt", **said}, f"{where}: quantization")


class _Said(BaseModel):
    """What others write: strict in what is read, open to keys that are not."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Scheme(_Said):
    num_bits: int | None = None
    type: str | None = None
    group_size: int | None = None


class _Group(_Said):
    weights: _Scheme | None = None


class _Layer(_Said):
    quant_algo: str


class _Declaration(_Said):
    quant_method: str
    # ModelOpt; one algorithm, or MIXED_PRECISION and one for each layer.
    quant_algo: str | None = None
    quantized_layers: dict[str, _Layer] | None = None
    kv_cache_quant_algo: str | None = None
    exclude_modules: list[str] | None = None
    # compressed-tensors, and ModelOpt where it writes into config.json.
    config_groups: dict[str, _Group] | None = None
    kv_cache_scheme: _Scheme | str | None = None
    ignore: list[str] | None = None
    # fp8, awq, gptq.
    bits: int | None = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None


def _quantization(said: object, where: str) -> Quantization:
    try:
        declared = _Declaration.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "all of it"
        raise RoostError(f"{where}: {short(key)}: {first['msg']}") from None
    groups = {
        name: _format(group.weights)
        for name, group in (declared.config_groups or {}).items()
        if group.weights is not None
    }
    if not groups and declared.quantized_layers:
        algorithms = {layer.quant_algo for layer in declared.quantized_layers.values()}
        groups = {algorithm: _named(algorithm) for algorithm in sorted(algorithms)}
    kv = declared.kv_cache_scheme or declared.kv_cache_quant_algo
    ignored = (
        declared.ignore
        or declared.exclude_modules
        or declared.modules_to_not_convert
        or declared.ignored_layers
        or []
    )
    # ModelOpt's method is also spelt with the format after it (modelopt_fp4).
    method = "modelopt" if declared.quant_method.startswith("modelopt") else declared.quant_method
    return Quantization(
        method=method,
        format=_only(groups.values()) if groups else _format_of_all(declared),
        groups=groups,
        ignored=len(ignored),
        kv_cache=_format(kv) if isinstance(kv, _Scheme) else _named(kv) if kv else None,
    )


def _only(formats: Iterable[str]) -> str:
    distinct = set(formats)
    return distinct.pop() if len(distinct) == 1 else "mixed"


def _format_of_all(declared: _Declaration) -> str | None:
    """The format where no groups are named."""
    if declared.quant_algo is not None:
        return _named(declared.quant_algo)
    if declared.bits is not None:
        return f"int{declared.bits}"
    return declared.quant_method if declared.quant_method in _FORMATS else None


# The longer names first: W4A8_NVFP4_FP8 quantizes weights to NVFP4 and activations to FP8.
_FORMATS = ("nvfp4", "mxfp4", "mxfp8", "fp8", "int4", "int8")


def _named(algorithm: str) -> str:
    """The format in an algorithm's name (NVFP4_AWQ, FP8_PB_WO); an unknown one is its own."""
    name = algorithm.lower()
    return next((known for known in _FORMATS if known in name), name)


def _format(scheme: _Scheme) -> str:
    """The format of a scheme. NVFP4 scales every 16 values, the MX formats every 32."""
    if scheme.type == "float" and scheme.num_bits == 4:
        return "mxfp4" if scheme.group_size == 32 else "nvfp4"
    if scheme.type == "float" and scheme.num_bits == 8:
        return "mxfp8" if scheme.group_size == 32 else "fp8"
    return f"{scheme.type or 'int'}{scheme.num_bits or ''}"

"""What a ``config.json`` says about memory: layers, heads, state dimensions, data types.

The models hold only what the KV arithmetic needs, and reading is strict: a key that is missing,
of the wrong type or beyond all reason is a :class:`~roost.errors.RoostError` that names it. No
value is guessed, save where a default is stated here with its source.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from roost.errors import RoostError
from roost.settings import Count, Strict

Dtype = Literal["float32", "bfloat16", "float16"]

#: Bytes of one item.
ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}

_DTYPES: dict[str, Dtype] = {name: name for name in ITEM_BYTES}

# Beyond these a configuration is damaged or made up.
_MOST_LAYERS = 4096
_MOST_HEADS = 65_536
_MOST_DIM = 65_536
_MOST_TOKENS = 2**31 - 1

# ``max_window_layers`` of transformers' Qwen3Config, the class of DFlash drafters: the first so
# many layers of a windowed model attend to everything.
_QWEN3_MAX_WINDOW_LAYERS = 28

_FULL = "full_attention"
_LINEAR = "linear_attention"
_SLIDING = "sliding_attention"


class Attention(Strict):
    """The full-attention layers of a target."""

    layers: Count
    query_heads: Count
    kv_heads: Count
    head_dim: Count


class Gdn(Strict):
    """The gated-delta (linear attention) layers: a state of fixed size instead of a KV cache."""

    layers: Count
    key_heads: Count
    value_heads: Count
    key_dim: Count = Field(description="of one head")
    value_dim: Count = Field(description="of one head")
    conv_kernel: Count
    state_dtype: Dtype | None = Field(
        None, description="of the recurrent state (mamba_ssm_dtype); none: as the convolution's"
    )


class Drafter(Strict):
    """The attention layers that a drafter adds.

    It has no data type of its own: vLLM loads a drafter in the target's.
    """

    full_layers: Annotated[int, Field(ge=0)]
    sliding_layers: Annotated[int, Field(ge=0)] = 0
    window: Count | None = Field(None, description="of the sliding layers, tokens")
    kv_heads: Count
    head_dim: Count
    block_size: Count | None = Field(None, description="tokens drafted at once, where it says so")

    @classmethod
    def from_config(cls, config: object, where: str = "drafter config.json") -> Drafter:
        """Read the configuration of a DFlash drafter.

        Which layers slide follows ``_resolve_layer_attention`` of vLLM's ``qwen3_dflash.py`` and,
        for ``model_type: qwen3`` without ``layer_types``, the defaults of transformers'
        ``Qwen3Config``.

        Args:
            config: The parsed JSON.
            where: Its name in messages.

        Raises:
            RoostError: Naming the key and the reason.
        """
        top = _mapping(config, where)
        dflash = _Section({}, f"{where}: dflash_config")
        if top.has("dflash_config"):
            dflash = _mapping(top.values["dflash_config"], f"{where}: dflash_config")
        layers = top.count("num_hidden_layers", _MOST_LAYERS)
        kinds = top.layer_types(layers, {_FULL, _SLIDING})
        window = top.optional_count("sliding_window", _MOST_TOKENS)
        qwen3 = top.values.get("model_type") == "qwen3"
        if qwen3 and not top.flag("use_sliding_window"):
            window = None
        if kinds is None:
            kinds = [_FULL] * layers
            if qwen3 and window is not None:
                first = top.optional_count("max_window_layers", _MOST_LAYERS, least=0)
                first = _QWEN3_MAX_WINDOW_LAYERS if first is None else first
                kinds = [_FULL if n < first else _SLIDING for n in range(layers)]
        if dflash.flag("use_swa") and _SLIDING not in kinds:
            kinds = [_SLIDING] * layers
        sliding = kinds.count(_SLIDING)
        window = dflash.optional_count("swa_window_size", _MOST_TOKENS) or window
        if sliding and window is None:
            raise RoostError(
                f"{where}: {sliding} layers slide, but no window says how far",
                why="neither dflash_config.swa_window_size nor sliding_window (which counts for "
                "model_type qwen3 only with use_sliding_window) is set",
            )
        block = top.optional_count("block_size", _MOST_TOKENS)
        return cls(
            full_layers=layers - sliding,
            sliding_layers=sliding,
            window=window if sliding else None,
            kv_heads=top.count("num_key_value_heads", _MOST_HEADS),
            head_dim=top.count("head_dim", _MOST_DIM),
            block_size=block or dflash.optional_count("block_size", _MOST_TOKENS),
        )


class Architecture(Strict):
    """A target, as far as its memory goes."""

    attention: Attention
    gdn: Gdn | None
    dtype: Dtype
    context: Count = Field(description="max_position_embeddings, tokens")
    mtp_layers: Annotated[int, Field(ge=0)] = Field(
        0, description="full-attention layers of the model's own drafter (mtp_num_hidden_layers)"
    )
    kv_cache_declared: str | None = Field(
        None, description="KV quantization that the checkpoint asks for; engines differ in heeding"
    )

    def mtp_drafter(self) -> Drafter | None:
        """The model's own drafter: layers of the target's shape; none where it has none."""
        if not self.mtp_layers:
            return None
        return Drafter(
            full_layers=self.mtp_layers,
            kv_heads=self.attention.kv_heads,
            head_dim=self.attention.head_dim,
        )

    @classmethod
    def from_config(
        cls, config: object, where: str = "config.json", *, dtype: Dtype | None = None
    ) -> Architecture:
        """Read the configuration of a target, with or without a nested ``text_config``.

        Args:
            config: The parsed JSON.
            where: Its name in messages.
            dtype: As the engine is told to load it (``--dtype``); none: as the configuration says.

        Raises:
            RoostError: Naming the key and the reason.
        """
        top = _mapping(config, where)
        text = top
        if top.has("text_config"):
            text = _mapping(top.values["text_config"], f"{where}: text_config")
        if text.has("kv_lora_rank"):
            raise RoostError(
                f"{where}: has kv_lora_rank, so its attention is latent (MLA)",
                why="the arithmetic covers full attention and gated-delta layers",
            )
        layers = text.count("num_hidden_layers", _MOST_LAYERS)
        kinds = text.layer_types(layers, {_FULL, _LINEAR})
        if kinds is None:
            _refuse_windows(text)
            kinds = _by_interval(text, layers)
        linear = kinds.count(_LINEAR)
        if linear == layers:
            raise RoostError(f"{text.where}: layer_types: has no full_attention layer")
        gdn = None
        if linear:
            gdn = Gdn(
                layers=linear,
                key_heads=text.count("linear_num_key_heads", _MOST_HEADS),
                value_heads=text.count("linear_num_value_heads", _MOST_HEADS),
                key_dim=text.count("linear_key_head_dim", _MOST_DIM),
                value_dim=text.count("linear_value_head_dim", _MOST_DIM),
                conv_kernel=text.count("linear_conv_kernel_dim", _MOST_DIM),
                state_dtype=text.dtype("mamba_ssm_dtype"),
            )
        return cls(
            attention=Attention(
                layers=layers - linear,
                query_heads=text.count("num_attention_heads", _MOST_HEADS),
                kv_heads=text.count("num_key_value_heads", _MOST_HEADS),
                head_dim=_head_dim(text),
            ),
            gdn=gdn,
            dtype=dtype or _model_dtype(top, text),
            context=text.count("max_position_embeddings", _MOST_TOKENS),
            mtp_layers=text.optional_count("mtp_num_hidden_layers", _MOST_LAYERS, least=0) or 0,
            kv_cache_declared=_declared_kv(top) or _declared_kv(text),
        )


def parse_config(text: str, where: str = "config.json") -> dict[str, Any]:
    """The mapping in the text of a ``config.json``.

    Raises:
        RoostError: It is HTML, a Git LFS pointer, not JSON, or not a mapping.
    """
    text = text.removeprefix("\ufeff").strip()
    if text.startswith("version https://git-lfs"):
        raise RoostError(
            f"{where}: is a Git LFS pointer, not the file itself",
            fix="fetch it from the hub, or run `git lfs pull` in the clone",
        )
    if text.startswith("<"):
        raise RoostError(
            f"{where}: is HTML or XML, not JSON",
            why="a login or error page was saved in its place",
            fix="fetch it again from the hub, with a token where the repository is gated",
        )
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise RoostError(
            f"{where}: is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError):
        # A number of thousands of digits, or brackets nested without end.
        raise RoostError(f"{where}: is not JSON that can be a configuration") from None
    return dict(_mapping(config, where).values)


class _Section:
    """One mapping of a configuration, and its name in messages."""

    def __init__(self, values: dict[Any, Any], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there; ``null`` says nothing, as in transformers."""
        return self.values.get(key) is not None

    def count(self, key: str, most: int, *, least: int = 1) -> int:
        number = self.optional_count(key, most, least=least)
        if number is None:
            raise RoostError(f"{self.where}: {key}: is missing")
        return number

    def optional_count(self, key: str, most: int, *, least: int = 1) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, value, "a whole number")
        if not least <= value <= most:
            raise self._wrong(key, value, f"from {least} to {most:,}")
        return value

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def dtype(self, key: str) -> Dtype | None:
        value = self.values.get(key)
        if value is None:
            return None
        known = _DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
        if known is None:
            raise self._wrong(key, value, "one of " + ", ".join(_DTYPES))
        return known

    def layer_types(self, layers: int, allowed: set[str]) -> list[str] | None:
        value = self.values.get("layer_types")
        if value is None:
            return None
        if not isinstance(value, list):
            raise self._wrong("layer_types", value, "a list")
        for kind in value:
            if not isinstance(kind, str) or kind not in allowed:
                raise self._wrong("layer_types", kind, "of " + ", ".join(sorted(allowed)))
        if len(value) != layers:
            raise RoostError(
                f"{self.where}: layer_types: lists {len(value)} layers, "
                f"but num_hidden_layers is {layers}"
            )
        return value

    def _wrong(self, key: str, value: object, wanted: str) -> RoostError:
        return RoostError(f"{self.where}: {key}: must be {wanted}, not {_show(value)}")


def _mapping(config: object, where: str) -> _Section:
    if not isinstance(config, dict):
        raise RoostError(f"{where}: must be a mapping, not {_show(config)}")
    return _Section(config, where)


def _show(value: object) -> str:
    """A value for a message: one line, and short however large it is."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:
        # Python refuses to print an integer of thousands of digits.
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        # ASCII: a lone surrogate from a \u escape cannot be printed.
        return ascii(value if len(value) <= 40 else value[:40] + "…")
    return {dict: "a mapping", list: "a list", type(None): "null"}.get(
        type(value), type(value).__name__
    )


def _refuse_windows(text: _Section) -> None:
    """Raise where a target that lists no kinds of layers has a window or chunks."""
    for key in ("sliding_window", "attention_chunk_size"):
        # As in vLLM, use_sliding_window takes a window back that is set.
        if text.has(key) and text.values.get("use_sliding_window") is not False:
            raise RoostError(
                f"{text.where}: {key}: the layers of this target do not attend to everything",
                why="the arithmetic covers full attention and gated-delta layers",
            )


def _head_dim(text: _Section) -> int:
    # transformers' LlamaConfig; other classes have defaults of their own.
    if text.has("head_dim") or text.values.get("model_type") != "llama":
        return text.count("head_dim", _MOST_DIM)
    heads = text.count("num_attention_heads", _MOST_HEADS)
    return text.count("hidden_size", _MOST_HEADS * _MOST_DIM, least=heads) // heads


def _by_interval(text: _Section, layers: int) -> list[str]:
    """Layer kinds where they are not listed: every n-th is full attention."""
    interval = text.optional_count("full_attention_interval", _MOST_LAYERS)
    if interval is None:
        if any(text.has(key) for key in ("linear_num_value_heads", "linear_num_key_heads")):
            raise RoostError(
                f"{text.where}: has linear-attention heads, but neither layer_types nor "
                "full_attention_interval says which layers they belong to"
            )
        return [_FULL] * layers
    return [_LINEAR if (n + 1) % interval else _FULL for n in range(layers)]


def _model_dtype(top: _Section, text: _Section) -> Dtype:
    for section in (text, top):
        for key in ("dtype", "torch_dtype"):
            found = section.dtype(key)
            if found == "float32":
                # "auto" halves such a checkpoint, to what the device prefers.
                raise RoostError(
                    f"{section.where}: {key}: is float32, which engines serve at a lower "
                    "precision of their own choice"
                )
            if found is not None:
                return found
    raise RoostError(f"{text.where}: dtype: is missing")


def _declared_kv(section: _Section) -> str | None:
    """What a quantized checkpoint says about its KV cache, as text; none: nothing.

    ModelOpt writes ``kv_cache_quant_algo`` or ``kv_cache_scheme``, at the top of its section or
    under ``quantization``; compressed-tensors writes ``kv_cache_scheme``.
    """
    if not section.has("quantization_config"):
        return None
    outer = _mapping(section.values["quantization_config"], f"{section.where}: quantization_config")
    inner = outer
    if outer.has("quantization"):
        inner = _mapping(outer.values["quantization"], f"{outer.where}: quantization")
    for part in (inner, outer):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            if part.has(key):
                return f"{key} {_show(part.values[key])}"
    return None

"""Engine-neutral settings: the names that recipes, hardware, inventories and ``--set`` share.

An engine owns how each is spelled on its command line (``catalog/engines/*.yml``); nobody else
writes a flag. ``None`` everywhere means "not said": the engine's own default holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from roost import near
from roost.errors import UsageError

#: Characters of a wrong value that its message repeats.
_LONGEST = 200

#: Engines' flags that take a secret: their shortest beginning that may stand for them, for the
#: engines' parsers take any that only one flag has, and what to do instead.
_SECRET_FLAGS = {
    "--api-key": ("--ap", "give the key as roost_api_key"),
    "--admin-api-key": ("--adm", "leave it out: no way is known to give it unseen"),
    "--hf-token": (
        "--hf-t",
        "leave it out: weights are there before the engine starts, fetched with roost_hub_token",
    ),
    "--ssl-keyfile-password": (
        "--ssl-keyfile-",
        "leave it out, and end TLS in a gateway before the endpoint",
    ),
}

Count = Annotated[int, Field(ge=1)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]+$")]


class Strict(BaseModel):
    """Base of everything read from a file: no unknown keys, no silent conversions, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Settings(Strict):
    """What can be said about a server without naming an engine."""

    max_model_len: Count | None = Field(None, description="context limit of one request, tokens")
    max_num_seqs: Count | None = Field(None, description="requests decoded at the same time")
    max_num_batched_tokens: Count | None = Field(None, description="prefill slice, tokens")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1, strict=False)] | None = Field(
        None, description="share of device memory for the engine, 0 to 1"
    )
    kv_cache_bytes: Count | None = Field(None, description="KV pool per GPU, bytes")
    kv_cache_dtype: Word | None = None
    attention_backend: Word | None = Field(None, description="for target and drafter")
    drafter_attention_backend: Word | None = Field(
        None, description="only where the drafter's must differ from attention_backend"
    )
    moe_backend: Word | None = None
    quantization: Word | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = Field(
        None, description="of activations and what is not quantized; auto: the checkpoint's"
    )
    tensor_parallel: Count | None = Field(None, description="default: the hardware's GPU count")
    num_speculative_tokens: Count | None = Field(None, description="drafts per step (K)")
    drafter_revision: Annotated[str, Field(min_length=1)] | None = None
    enforce_eager: bool | None = None
    prefix_caching: bool | None = None
    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    language_model_only: bool | None = None
    image: str | None = Field(None, description="another image: repository@sha256:…")
    engine_version: str | None = Field(None, description="the version inside that image")
    extra_args: list[str] | None = Field(
        None, description="engine flags that have no neutral name; lists of all layers add up"
    )

    @field_validator("extra_args", mode="before")
    @classmethod
    def _no_secret(cls, given: Any) -> Any:
        """Before anything else looks at them: other messages repeat what they refuse."""
        for word in given if isinstance(given, list) else str(given).split():
            # `- --x: value` is what YAML makes a mapping of.
            said = str(next(iter(word), "") if isinstance(word, dict) else word)
            if (flag := secret_flag(said)) is not None:
                raise ValueError(
                    f"{flag} would put a secret into the engine's argument list, `docker inspect` "
                    f"and its log; {_SECRET_FLAGS[flag][1]}"
                )
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if self.image is not None and "@sha256:" not in self.image:
            raise ValueError(
                f"image {self.image!r} names no digest; write repository@sha256:<64 hex digits>"
            )
        for said in self.extra_args or []:
            _require_json(said)
        return self


def secret_flag(word: str) -> str | None:
    """The flag of an engine that takes a secret, where a word is that flag; else none.

    Args:
        word: Alone, with ``=value``, shortened, or with underscores, as the engines take them.
    """
    said = re.split(r"[=\s]", word.strip(), maxsplit=1)[0].replace("_", "-")
    return next(
        (
            flag
            for flag, (shortest, _) in _SECRET_FLAGS.items()
            if flag.startswith(said) and said.startswith(shortest)
        ),
        None,
    )


def _require_json(said: str) -> None:
    """Refuse what an engine takes for JSON and cannot read: it would only say so once it starts."""
    value = said.partition("=")[2] if said.startswith("-") else said
    if value.lstrip("'\"\\ ").startswith("{"):
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{_shown(said)} is no JSON ({error}); keys and texts stand in double quotes, "
                "nothing is quoted a second time, and a template that is still in it was never "
                "filled in"
            ) from None


def backend_name(said: str | None) -> str | None:
    """An attention backend in capitals (vLLM takes either case); none: the engine chooses."""
    return None if said is None or said.lower() == "auto" else said.upper()


def merge(layers: Iterable[Settings]) -> Settings:
    """Later layers win key by key; ``extra_args`` add up in layer order.

    Nothing is removed from ``extra_args``: of a flag said twice, the engine takes the last.
    """
    merged: dict[str, Any] = {}
    extra: list[str] = []
    for layer in layers:
        said = layer.model_dump(exclude_none=True)
        extra.extend(said.pop("extra_args", []))
        merged.update(said)
    if extra:
        merged["extra_args"] = extra
    return Settings(**merged)


def from_mapping(given: Any, where: str) -> Settings:
    """Validate settings that came from an inventory or a command line.

    Args:
        given: What the user wrote; anything but a mapping is an error.
        where: For the message, e.g. ``roost_settings of host spark-01``.

    Raises:
        UsageError: Naming the key, the value and the reason.
    """
    if not isinstance(given, dict):
        raise UsageError(f"{where}: must be a mapping of settings, not {type(given).__name__}")
    try:
        return Settings(**{str(key): value for key, value in given.items()})
    except ValidationError as error:
        reasons, fix = [], ""
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"]) or "settings"
            if item["type"] == "extra_forbidden":
                hint = near.miss(key, Settings.model_fields)
                reasons.append(f"{key}: no such setting{hint}")
                fix = fix if hint else "settings are: " + ", ".join(Settings.model_fields)
            elif item["type"] == "string_type" and isinstance(item["input"], int | float):
                reasons.append(
                    f"{key}: {item['input']} is a number; write it in quotes (without them YAML "
                    "makes numbers of digits, and 42798 of 0123456)"
                )
            else:
                # Reasons of our own hold the value already.
                shown = "" if item["type"] == "value_error" else f" (it is {_shown(item['input'])})"
                reasons.append(f"{key}: {item['msg'].removeprefix('Value error, ')}{shown}")
        raise UsageError(f"{where}: " + "; ".join(dict.fromkeys(reasons)), fix=fix) from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def parse_assignments(pairs: Iterable[str]) -> Settings:
    """``--set key=value`` options; values are YAML scalars or flow lists (``extra_args=[--x]``).

    Raises:
        UsageError: A pair is none, or as :func:`from_mapping`.
    """
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {pair}: must be key=value")
        try:
            given[key] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            given[key] = text
        if Settings.model_fields.get(key) and _wants_text(key) and not isinstance(given[key], str):
            # On a command line nobody quotes twice: 31977 for a revision is text.
            given[key] = text
    return from_mapping(given, "--set")


def _wants_text(key: str) -> bool:
    return key in {"drafter_revision", "engine_version", "image"}

"""vLLM's spelling of a launch: command line and speculative configuration."""

from __future__ import annotations

import json
from typing import Any

from roost.catalog_schema import Engine, Speculation
from roost.engines import Place, Spelled, flag_words, require_spelled
from roost.settings import Settings


def speculative_config(
    speculation: Speculation, settings: Settings, drafter_path: str | None
) -> dict[str, Any] | None:
    """The JSON of ``--speculative-config``, or ``None`` without speculation.

    vLLM inherits ``moe_backend`` from the target but picks ``attention_backend`` anew for what
    drafts, the model's own head included (read in 0.23 to 0.33), so the neutral setting is written
    here too. A drafter of its own gets both, as its authors write them.
    """
    if speculation.method is None:
        return None
    config: dict[str, Any] = {"method": speculation.method}
    if drafter_path is not None:
        config["model"] = drafter_path
    if settings.num_speculative_tokens is not None:
        config["num_speculative_tokens"] = settings.num_speculative_tokens
    if speculation.drafter is not None and settings.moe_backend is not None:
        config["moe_backend"] = settings.moe_backend
    backend = settings.drafter_attention_backend or settings.attention_backend
    if speculation.method != "ngram" and backend is not None:
        config["attention_backend"] = backend
    config.update(speculation.options)
    return config


def spell(engine: Engine, settings: Settings, speculation: Speculation, place: Place) -> Spelled:
    """The command line; see :func:`roost.engines.spell`."""
    said = settings.model_dump(exclude_none=True)
    require_spelled(
        engine, said, {"num_speculative_tokens", "drafter_attention_backend", "extra_args"}
    )
    words = [*engine.subcommand, place.model, "--served-model-name", place.served_name]
    words += engine.always
    words += flag_words(engine, said)
    words += settings.extra_args or []
    config = speculative_config(speculation, settings, place.drafter)
    if config is not None:
        words += ["--speculative-config", json.dumps(config, separators=(",", ":"))]
    return Spelled(words, {})

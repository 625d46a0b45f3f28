"""SGLang's spelling of a launch."""

from __future__ import annotations

from roost.catalog import Engine, Speculation
from roost.engines import Place, Spelled, flag_words, require_spelled
from roost.errors import UsageError
from roost.settings import Settings


def spell(engine: Engine, settings: Settings, speculation: Speculation, place: Place) -> Spelled:
    """The command line; see :func:`roost.engines.spell`."""
    said = settings.model_dump(exclude_none=True)
    require_spelled(
        engine, said, {"num_speculative_tokens", "drafter_attention_backend", "extra_args"}
    )
    words = [*engine.subcommand, "--model-path", place.model]
    words += ["--served-model-name", place.served_name, "--host", "0.0.0.0"]  # noqa: S104  # inside the container; what is published is the site's choice
    words += ["--port", str(engine.port), *engine.always]
    words += flag_words(engine, said)
    words += settings.extra_args or []
    return Spelled(words + _speculation(speculation, settings, place), {})


def _speculation(speculation: Speculation, settings: Settings, place: Place) -> list[str]:
    if speculation.method is None:
        return []
    if speculation.method == "ngram":
        raise UsageError("speculation method ngram is not spelled for SGLang")
    words = ["--speculative-algorithm", "DFLASH" if speculation.method == "dflash" else "NEXTN"]
    if place.drafter is not None:
        words += ["--speculative-draft-model-path", place.drafter]
    if settings.num_speculative_tokens is not None:
        words += _depth(speculation, settings.num_speculative_tokens)
    backend = settings.drafter_attention_backend or settings.attention_backend
    if backend is not None and place.drafter is not None:
        words += ["--speculative-draft-attention-backend", backend]
    return words


def _depth(speculation: Speculation, proposals: int) -> list[str]:
    """SGLang counts the token that a block of drafts starts from; the neutral setting does not."""
    counted = ["--speculative-num-draft-tokens", str(proposals + 1)]
    if speculation.method == "dflash":
        return counted
    return ["--speculative-num-steps", str(proposals), "--speculative-eagle-topk", "1", *counted]

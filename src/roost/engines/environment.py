"""Images that take their settings from environment variables and write the command themselves."""

from __future__ import annotations

from typing import Any

from roost.catalog_schema import Engine, Speculation
from roost.engines import Place, Spelled, flag_words, require_spelled
from roost.errors import UsageError
from roost.settings import Settings

_MODEL, _DRAFTER, _SERVED_NAME, _EXTRA = (
    "MODEL_PATH",
    "DFLASH_DRAFTER",
    "SERVED_MODEL_NAME",
    "EXTRA_ARGS",
)
#: What the start script takes for "no drafter"; left unset, an image may have a default of its own.
_NO_DRAFTER = "off"


def spell(engine: Engine, settings: Settings, speculation: Speculation, place: Place) -> Spelled:
    """The variables; see :func:`roost.engines.spell`.

    What has no variable goes to ``EXTRA_ARGS``, which the image hands on to ``vllm serve``.
    """
    said = settings.model_dump(exclude_none=True)
    require_spelled(engine, said, {"extra_args"})
    if speculation.method not in {None, "dflash"}:
        raise UsageError(
            f"{engine.title} has no variable for speculation method {speculation.method}",
            fix="choose dflash or no speculation, or a recipe of another engine",
        )
    env = {
        _MODEL: place.model,
        _SERVED_NAME: place.served_name,
        _DRAFTER: place.drafter or _NO_DRAFTER,
    }
    env |= {
        variable: str(said[name]) for name, variable in engine.variables.items() if name in said
    }
    if extra := _extra(engine, said, settings.extra_args or []):
        env[_EXTRA] = extra
    return Spelled([], env)


def _extra(engine: Engine, said: dict[str, Any], further: list[str]) -> str:
    """The words that the start script splits again: at blanks, on one line, knowing no quotes.

    Raises:
        UsageError: A word would not arrive as it is.
    """
    words = [*flag_words(engine, said), *further]
    for word in words:
        if not word or not word.isprintable() or any(letter.isspace() for letter in word):
            raise UsageError(
                f"extra_args: {word!r} cannot be handed on by {engine.title}",
                why=f"it splits {_EXTRA} at blanks and knows no quotes, so every word must be one "
                "without blanks",
                fix="JSON can be written without blanks; what needs one cannot be said here",
            )
    return " ".join(words)

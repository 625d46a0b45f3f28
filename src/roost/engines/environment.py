"""Images that take their settings from environment variables and write the command themselves."""

from __future__ import annotations

import re
from typing import Any

from roost.catalog import Engine, Speculation
from roost.engines import Place, Spelled, flag_words, require_spelled
from roost.errors import UsageError
from roost.settings import Settings

#: What the image's start script splits into words without knowing quotes.
_PLAIN_WORD = re.compile(r"[\w./:=,@+\-]+")

_MODEL, _DRAFTER, _SERVED_NAME, _EXTRA = (
    "MODEL_PATH",
    "DFLASH_DRAFTER",
    "SERVED_MODEL_NAME",
    "EXTRA_ARGS",
)


def spell(engine: Engine, settings: Settings, speculation: Speculation, place: Place) -> Spelled:
    """The variables; see :func:`roost.engines.spell`.

    What has no variable goes to ``EXTRA_ARGS``, which the image hands on to ``vllm serve``.
    """
    said = settings.model_dump(exclude_none=True)
    require_spelled(engine, said, {"extra_args"})
    if speculation.method not in {None, "dflash"}:
        raise UsageError(
            f"{engine.title} has no variable for speculation method {speculation.method}"
        )
    env = {_MODEL: place.model, _SERVED_NAME: place.served_name}
    if place.drafter is not None:
        env[_DRAFTER] = place.drafter
    env |= {
        variable: _text(said[name]) for name, variable in engine.variables.items() if name in said
    }
    extra = [*flag_words(engine, said), *(settings.extra_args or [])]
    for word in extra:
        if not _PLAIN_WORD.fullmatch(word):
            raise UsageError(
                f"extra_args: {word!r} cannot be handed on by {engine.title}",
                why=f"it splits {_EXTRA} at blanks and knows no quotes",
            )
    if extra:
        env[_EXTRA] = " ".join(extra)
    return Spelled([], env)


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)

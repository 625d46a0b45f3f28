"""How each engine is told what to do: one module a style, one entry point for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.errors import UsageError
from roost.settings import Settings

if TYPE_CHECKING:
    from roost.catalog_schema import Engine, Speculation


class Place(NamedTuple):
    """What a launch names besides its settings: paths in the container, and the model's name."""

    model: str
    drafter: str | None
    served_name: str


class Spelled(NamedTuple):
    """What a container is given after its entrypoint, and in its environment."""

    command: list[str]
    env: dict[str, str]


#: Settings that no engine is told: they choose revision and image, or describe the image.
_DECIDED_ELSEWHERE = {"drafter_revision", "image", "engine_version"}


def spell(engine: Engine, settings: Settings, speculation: Speculation, place: Place) -> Spelled:
    """Command and environment of an engine, words ready for exec without a shell.

    Raises:
        UsageError: The engine has no way to say a setting, or no such speculation.
    """
    from roost.engines import environment, sglang, vllm

    style = {"vllm": vllm.spell, "sglang": sglang.spell, "environment": environment.spell}
    return style[engine.style](engine, settings, speculation, place)


def flag_words(engine: Engine, said: dict[str, Any]) -> Iterator[str]:
    """Every setting that has a flag, in the order of the engine's file."""
    for name, spelling in engine.flags.items():
        if name not in said:
            continue
        value = said[name]
        if spelling.kind == "value":
            yield from (spelling.flag, str(value))
        elif bool(value) != (spelling.kind == "inverse"):
            yield spelling.flag
        elif spelling.kind == "toggle":
            yield spelling.flag.replace("--", "--no-", 1)


def require_spelled(engine: Engine, said: Iterable[str], handled: set[str]) -> None:
    """Refuse a setting that would be dropped in silence.

    Raises:
        UsageError: Naming each of them.
    """
    lost = set(said) - set(engine.flags) - set(engine.variables) - handled - _DECIDED_ELSEWHERE
    if lost:
        raise UsageError(
            f"{engine.title} has no way to say: {', '.join(sorted(lost))}",
            fix="leave the setting out, or say it in the engine's own words with extra_args",
        )

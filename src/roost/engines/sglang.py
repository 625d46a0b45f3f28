"""SGLang's spelling of a launch."""

from __future__ import annotations

from collections.abc import Iterator

from roost.catalog_schema import Engine, Speculation
from roost.engines import Place, Spelled, flag_words, require_spelled
from roost.errors import UsageError
from roost.settings import Settings

#: What ``--speculative-algorithm`` calls a method. DFlash and DFlash2 share one name: SGLang tells
#: them apart by the architecture in the drafter's configuration.
_ALGORITHMS = {"dflash": "DFLASH", "mtp": "NEXTN"}


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
    words += _speculation(speculation, settings, place)
    # Last: of a flag said twice, argparse takes the last.
    words += settings.extra_args or []
    return Spelled(words, {})


def _speculation(speculation: Speculation, settings: Settings, place: Place) -> Iterator[str]:
    if speculation.method is None:
        return
    if speculation.method not in _ALGORITHMS:
        raise UsageError(
            f"speculation method {speculation.method} is not spelled for SGLang",
            why="known are: " + ", ".join(_ALGORITHMS),
        )
    yield from ("--speculative-algorithm", _ALGORITHMS[speculation.method])
    if place.drafter is not None:
        yield from ("--speculative-draft-model-path", place.drafter)
    if settings.num_speculative_tokens is not None:
        yield from _depth(speculation, settings.num_speculative_tokens)
    # SGLang hands the target's attention backend to a DFlash drafter by itself; it is said so that
    # the command shows what runs. A head of the model's own gets one only where it was asked for.
    inherited = settings.attention_backend if place.drafter is not None else None
    if backend := settings.drafter_attention_backend or inherited:
        yield from ("--speculative-draft-attention-backend", backend)
    for name, value in speculation.options.items():
        flag = "--speculative-" + name.replace("_", "-")
        if not isinstance(value, bool):
            yield from (flag, str(value))
        elif value:
            yield flag


def _depth(speculation: Speculation, proposals: int) -> Iterator[str]:
    """How many tokens are drafted at once.

    SGLang counts the token that a block of drafts starts from as one of them (its verification
    compares ``block - 1`` proposals); the neutral setting counts proposals only.
    """
    if speculation.method == "mtp":
        # A chain of drafts, one a step: its only other shape is a tree.
        yield from ("--speculative-num-steps", str(proposals), "--speculative-eagle-topk", "1")
    yield from ("--speculative-num-draft-tokens", str(proposals + 1))

"""Where the catalogue says something of a checkpoint that its files do not bear out."""

from __future__ import annotations

from collections.abc import Iterator

from roost.plan.architecture import Architecture, Drafter
from roost.plan.checkpoint import Checkpoint
from roost.plan.contents import Contents
from roost.settings import Strict


class Disagreement(Strict):
    """Something that the catalogue says and the checkpoint does not bear out."""

    key: str
    catalogue: str
    observed: str


def disagreements(
    observed: Checkpoint,
    *,
    architecture: Architecture | None = None,
    drafter: Drafter | None = None,
    contents: Contents | None = None,
    method: str | None = None,
    weights: str | None = None,
) -> list[Disagreement]:
    """Where the catalogue disagrees with what is there. What it does not say is not compared.

    Args:
        observed: What was read.
        architecture: Of a target, as the catalogue has it.
        drafter: Of a drafter.
        contents: Tensors and bytes by part; bytes are compared where both sides know them.
        method: Of quantization (``modelopt``, ``compressed-tensors``).
        weights: ``bf16`` for weights that are not quantized, else their format.

    Raises:
        RoostError: The observed config gives no architecture or drafter to compare.
    """
    pairs: list[tuple[str, object, object]] = []
    if architecture is not None:
        pairs.append(("architecture", architecture, observed.architecture()))
    if drafter is not None:
        pairs.append(("drafter", drafter, observed.drafter()))
    if contents is not None:
        pairs.append(("contents", contents, observed.contents))
    quantization = observed.quantization
    pairs.append(("method", method, quantization and quantization.method))
    pairs.append(("weights", weights, quantization.format if quantization else "bf16"))
    return [found for pair in pairs for found in _differences(*pair)]


def _differences(key: str, known: object, seen: object) -> Iterator[Disagreement]:
    if isinstance(known, Strict) and isinstance(seen, Strict):
        # Parts that are left out are not said to be empty; elsewhere a default is a fact.
        said = known.model_fields_set if isinstance(known, Contents) else type(known).model_fields
        for name in filter(said.__contains__, type(known).model_fields):
            yield from _differences(f"{key}.{name}", getattr(known, name), getattr(seen, name))
    elif known == seen or (known is None and not isinstance(seen, Strict)):
        return
    elif key.endswith(".bytes") and seen is None:
        return  # a shard is absent: nothing was counted
    else:
        yield Disagreement(key=key, catalogue=_text(known), observed=_text(seen))


def _text(value: object) -> str:
    if isinstance(value, Strict):
        return ", ".join(f"{key} {item}" for key, item in value.model_dump().items())
    return "none" if value is None else str(value)

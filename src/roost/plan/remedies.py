"""Settings that make room on a GPU; each is offered only where it was tried and fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from roost.plan.case import Case

#: What is changed, by the names of the settings.
Change = dict[str, Any]
#: Whether a case with other settings is free of what is to be mended.
Mends = Callable[[Case], bool]

#: No smaller prefill slice is offered: prompts would take many steps.
_LEAST_SLICE = 512


def changed(case: Case, change: Change) -> Case:
    """The case with other settings."""
    return case.model_copy(update={"settings": case.settings.model_copy(update=change)})


def written(change: Change) -> str:
    """A change as the user pastes it, each setting after a ``--set``."""
    return " and ".join(f"{name}={_value(value)}" for name, value in change.items())


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def making_room(
    case: Case,
    mends: Mends,
    *,
    pools: Callable[[Case], Iterable[Change]],
    taken: dict[str, int],
) -> str:
    """What makes room for a pool, ready to paste; empty: nothing that was tried does.

    Args:
        case: What does not fit.
        mends: Judges a change.
        pools: Other sizes of the pool that are worth a try, for a case; they cost nothing else, so
            they come first.
        taken: Bytes by the name of a term.
    """
    for pool in pools(case):
        if mends(changed(case, pool)):
            return written(pool)
    movable = sorted(_movable(case), key=lambda one: -taken.get(one[0], 0))
    alone = [found for _, tries in movable if (found := _first(case, tries, mends))]
    if alone:
        return ", or ".join(written(change) for change in alone)
    for _, tries in movable:
        for change in tries:
            for pool in pools(changed(case, change)):
                if mends(changed(case, both := change | pool)):
                    return written(both)
    return ""


def _first(case: Case, tries: Iterable[Change], mends: Mends) -> Change | None:
    return next((change for change in tries if mends(changed(case, change))), None)


def _movable(case: Case) -> Iterator[tuple[str, list[Change]]]:
    """Terms that a setting makes smaller, and its values, the mildest first."""
    settings = case.settings
    sequences, tokens = settings.max_num_seqs or 1, settings.max_num_batched_tokens or 1
    if case.machine.gpus > case.ranks:
        yield "weights", [{"tensor_parallel": case.machine.gpus}]
    least = max(_LEAST_SLICE, sequences)
    yield (
        "activation peak",
        [{"max_num_batched_tokens": value} for value in _halves(tokens) if value >= least],
    )
    if not settings.enforce_eager:
        yield "CUDA graphs", [{"max_num_seqs": value} for value in _halves(sequences)]
        # Costs speed, so it comes after what costs requests at a time.
        yield "", [{"enforce_eager": True}]


def _halves(amount: int) -> Iterator[int]:
    """Powers of two below an amount, the largest first."""
    value = 1 << max(0, amount - 1).bit_length()
    while value > 1:
        value //= 2
        yield value

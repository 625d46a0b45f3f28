"""The points of a search: which settings are tried, in which order."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from roost import catalog, deployment, site
from roost.deployment import Deployment
from roost.errors import UsageError
from roost.experiment import Variant
from roost.inventory import Host
from roost.plan import planner

#: Settings that can be varied, and their names in tables.
VARIED = {
    "num_speculative_tokens": "K",
    "max_num_seqs": "sequences",
    "max_num_batched_tokens": "batched",
    "max_model_len": "context",
}
#: Of these the present value is tried with its half and its double where nobody says what to vary.
_BY_DEFAULT = ("num_speculative_tokens", "max_num_seqs", "max_num_batched_tokens")
PRESENT = "present"
#: Combinations that a grid may have: all are planned, and a week measures some hundreds.
_MOST = 1000
#: Characters of a wrong value in a message.
_SHOWN = 80
#: The largest value to try, which no setting comes near to.
_LARGEST = 10**12 - 1


def axes(given: Mapping[str, Any]) -> dict[str, list[int]]:
    """Values by setting, as a notebook or a command line gives them.

    Raises:
        UsageError: A setting is not varied, or a value is no whole number.
    """
    found = {}
    for name, values in given.items():
        if name not in VARIED:
            raise UsageError(
                f"vary: {name} is not varied", fix=f"settings that are: {', '.join(VARIED)}"
            )
        words = values.split(",") if isinstance(values, str) else values
        words = words if isinstance(words, list | tuple) else [words]
        numbers = [_whole(word) for word in words]
        known = sorted({one for one in numbers if one is not None})
        if not numbers or None in numbers:
            raise UsageError(
                f"vary: {name}: {short(values)} are no whole numbers from 1 to {_LARGEST:,}",
                fix=f"such as {name}: [2, 4, 8]",
            )
        found[name] = known
    return found


def _whole(word: Any) -> int | None:
    """A value to try; papermill and a command line may give digits as text."""
    if isinstance(word, str) and re.fullmatch("[0-9]{1,12}", word.strip()):
        word = int(word)
    sound = isinstance(word, int) and not isinstance(word, bool) and 1 <= word <= _LARGEST
    return int(word) if sound else None


def short(value: Any) -> str:
    """A wrong value for a message: thousands of values are not told."""
    said = repr(value)
    return said if len(said) <= _SHOWN else f"{said[: _SHOWN - 1]}…"


def variants(host: Host, resolved: Deployment, axes: Mapping[str, Sequence[int]]) -> list[Variant]:
    """Every point of the grid: the present settings first, then those with the fewest changes.

    Args:
        host: Whose own settings all points keep.
        resolved: Its deployment by the inventory.
        axes: Values by setting; none: around the present ones.

    Raises:
        UsageError: A depth of speculation is to be varied, and nothing speculates; or there are
            more combinations than a search can try.
    """
    known = catalog.current()
    settled = planner.examine(deployment.resolved_again(resolved, known), catalog=known).settings
    present = {name: value for name in VARIED if (value := getattr(settled, name)) is not None}
    if not resolved.speculates:
        if "num_speculative_tokens" in axes:
            raise UsageError(
                f"vary: {host.name} serves {resolved.recipe} without speculation",
                fix="choose one first: roost_speculation",
            )
        present.pop("num_speculative_tokens", None)
    axes = axes or {
        name: sorted({max(1, present[name] // 2), present[name], present[name] * 2})
        for name in _BY_DEFAULT
        if name in present
    }
    # With the present value among them, every setting is also varied by itself.
    axes = {name: sorted({*values, present.get(name, values[0])}) for name, values in axes.items()}
    size = math.prod(len(values) for values in axes.values())
    if size > _MOST:
        raise UsageError(
            f"vary: {size:,} combinations are more than the {_MOST:,} that can be planned",
            why="each takes minutes to measure, and the present values are among them",
            fix="fewer values, or fewer settings at a time",
        )
    own = site.from_variables(host.name, host.variables).settings
    grid = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    changes = [
        {name: value for name, value in point.items() if present.get(name) != value}
        for point in [{}, *grid]
    ]
    changes.sort(key=len)
    found: dict[str, Variant] = {}
    for changed in changes:
        name = ", ".join(f"{VARIED[key]} {value}" for key, value in changed.items()) or PRESENT
        variables = {"roost_settings": {**own, **changed}} if changed else {}
        found.setdefault(name, Variant(name, variables, {**present, **changed}))
    return list(found.values())

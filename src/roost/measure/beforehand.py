"""What a notebook would refuse of a host, found out before a kernel is started for it.

A kernel takes seconds, and a run that is refused is none. The rules are the notebooks' own, called
here with the parameters that they are going to get; run by hand or by papermill they ask again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from roost import runs
from roost.inventory import Host
from roost.measure import verify
from roost.measure.benchmark import planning


def require(notebook: str, host: Host, parameters: Mapping[str, Any]) -> None:
    """Nothing, or why a notebook will not begin with a host.

    Args:
        notebook: Its name; of one that looks at more than one host nothing is asked.
        host: Of the inventory.
        parameters: The notebook's, without those that name the host and the run's folder.

    Raises:
        RoostError: As the notebook itself would say it.
    """
    if ask := _ASKS.get(notebook):
        ask(host, parameters)


def _verify(host: Host, parameters: Mapping[str, Any]) -> None:
    # What the notebook does not have is refused when it is executed.
    known = inspect.signature(verify.options).parameters
    given = {name: value for name, value in parameters.items() if name in known}
    verify.options(runs.resolve(host), **given)


def _benchmark(host: Host, parameters: Mapping[str, Any]) -> None:
    planning.plan(parameters.get("suite"), parameters.get("prompts"))
    given = {name: parameters.get(name) for name in ("release", "variables")}
    runs.resolve(host, **given)


_ASKS: dict[str, Callable[[Host, Mapping[str, Any]], None]] = {
    "verify": _verify,
    "benchmark": _benchmark,
}

"""What a benchmark is going to ask: a suite, and its prompts or the user's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from roost.measure import suites
from roost.measure.suites import Cell, Suite
from roost.root import first_place
from roost.runs import text


@dataclass(frozen=True)
class Plan:
    """What is going to be asked."""

    name: str
    suite: Suite
    cells: list[Cell]
    prompts: str

    @property
    def question(self) -> str:
        """The suite and the text of the prompts; what a deployment adds to them is kept apart."""
        texts = [(cell.id, [prompt.text for prompt in cell.prompts]) for cell in self.cells]
        asked = f"{self.suite.model_dump_json()}{texts}"
        return f"{self.name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"

    def describe(self) -> dict[str, str]:
        """For the first output of a notebook."""
        repetitions = self.suite.repetitions
        return {
            "suite": f"{self.name}: {self.suite.protocol} ({self.suite.source})",
            "prompts": self.prompts,
            "points": ", ".join(cell.id for cell in self.cells),
            "repetitions": f"{repetitions.least} to {repetitions.most}, until half the interval of "
            f"the throughput is {repetitions.tight:.0%} of it",
        }


def plan(suite: Any, prompts: Any = None) -> Plan:
    """Check a notebook's parameters.

    Args:
        suite: The suite's name.
        prompts: The user's own file of prompts, from the working directory or the repository root;
            or none.

    Raises:
        UsageError: No such suite or file of prompts, or a line in it is no prompt.
    """
    name = text("suite", suite)
    chosen = suites.suite(name)
    if prompts is None:
        return Plan(name, chosen, suites.cells(chosen), f"roost's own: {chosen.prompts}")
    file = first_place(text("prompts", prompts))
    return Plan(name, chosen, suites.cells(chosen, suites.read_prompts(file)), str(file))

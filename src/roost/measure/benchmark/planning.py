"""What a benchmark is going to ask: a suite, and its prompts or the user's own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from roost.measure import questions, render_prompts, suites
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
        """The suite's name, and a hash of everything that is asked of a server.

        Nothing that only tells of it, as its title or the published tables with its protocol, and
        not how often it is repeated: that is how well the answer is known. What a deployment adds
        to it, the arguments of its chat template, is kept beside it.
        """
        asked = {
            "points": [
                [
                    cell.id,
                    cell.concurrency,
                    [one.text if one.tokens is None else one.tokens for one in cell.prompts],
                ]
                for cell in self.cells
            ],
            "output_tokens": self.suite.output_tokens,
            "ignore_eos": self.suite.ignore_eos,
            "fresh": self.suite.fresh,
            "warmups": self.suite.warmups,
        }
        if self.suite.lengths is not None:
            # Prompts that are made to length have no text of their own.
            asked["filler"] = [render_prompts.FILLER, render_prompts.QUESTION]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return f"{self.name}{questions.MARK}{digest[:12]}"

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

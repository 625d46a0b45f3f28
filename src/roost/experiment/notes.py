"""What an experiment is about, and what is noted of it as it comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from roost import atomic
from roost.inventory import Host
from roost.measure.benchmark import planning
from roost.rollout import record

FILE = "experiment.json"


class Tried(BaseModel):
    """What became of one variant.

    Attributes:
        name: Of the variant.
        release: Id of what it comes to on the host; none where it was refused before that.
        refusal: Why the planner does not allow it; such a variant is never tried.
        run: The benchmark's folder.
        failure: Why it has none, though it was tried.
        seconds: What trying it took.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    settings: dict[str, Any] = {}
    release: str | None = None
    refusal: str | None = None
    run: str | None = None
    failure: str | None = None
    seconds: float = 0.0

    @property
    def open(self) -> bool:
        """Whether it is still to be tried."""
        return self.refusal is None and self.run is None and self.failure is None


class Notes(BaseModel):
    """``experiment.json``. What is asked of every variant (suite, prompts) is in ``question``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    host: str
    question: str
    tried: list[Tried]


@dataclass(frozen=True)
class Variant:
    """One deployment to try.

    Attributes:
        name: For people, unique in an experiment.
        variables: ``roost_*`` variables that win over the inventory's.
        settings: What of them was varied, for tables.
    """

    name: str
    variables: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Experiment:
    """One that has begun.

    Attributes:
        unended: Whether the host still serves what an experiment that was killed has tried.
        lost: Why the host is this experiment's no more, once that was seen.
        made: Whether its folder is new.
    """

    inventory: Path
    host: Host
    plan: planning.Plan
    prompts: Path | None
    folder: Path
    runs_dir: Path
    variants: dict[str, Variant]
    notes: Notes
    become_password: str | None = None
    say: Callable[[str], None] = print
    unended: bool = False
    lost: str = ""
    made: bool = False

    @property
    def owner(self) -> str:
        """Whose lease the host has meanwhile."""
        return record.owner(lock_path(self.runs_dir, self.host.name))

    @property
    def refused(self) -> list[Tried]:
        return [one for one in self.notes.tried if one.refusal is not None]

    @property
    def measured(self) -> list[Tried]:
        return [one for one in self.notes.tried if one.run is not None]

    def note(self, now: Tried) -> None:
        """Keep what became of a variant."""
        tried = [now if one.name == now.name else one for one in self.notes.tried]
        self.notes = self.notes.model_copy(update={"tried": tried})
        self.save()

    def save(self) -> None:
        """Write the notes down."""
        atomic.write(self.folder / FILE, self.notes.model_dump_json(indent=1) + "\n")

    def tell(self, line: str) -> None:
        """One line of progress; a terminal that is gone must not keep a host from going back."""
        with suppress(OSError):
            self.say(f"{self.host.name}: {line}")


def lock_path(runs_dir: Path, host: str) -> Path:
    """The file that the only experiment on a host with runs in a folder locks."""
    return runs_dir / re.sub(r"[^\w.+-]", "_", f".experiment-{host}.lock")

"""What a benchmark leaves behind, as data: ``benchmark.json`` of a run's folder.

A benchmark is cells, a cell is repetitions, and a repetition is one call of the harness with every
request of it. Requests and draft positions are long, so they are Parquet files beside it; in
memory they are part of the repetition. Figures are derived here and nowhere else, so a table, a
chart and a comparison say the same.
"""

from __future__ import annotations

import json
import statistics as plain
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from roost import kept_files, parquet, runs
from roost.errors import RoostError, UsageError
from roost.figures import Figure as PublishedFigure
from roost.measure import questions, statistics
from roost.measure.checks import Evidence
from roost.measure.metrics import SpecCounters
from roost.measure.statistics import Estimate
from roost.parquet import Table

Row = dict[str, Any]

FILE = "benchmark.json"
#: One row a request; seconds by the harness, tokens by the engine.
REQUESTS = "requests.parquet"
_REQUEST_COLUMNS: dict[str, type] = {
    "point": str,
    "repetition": int,
    "prompt": str,
    "prompt_tokens": int,
    "output_tokens": int,
    "ttft": float,
    "latency": float,
}
#: One row a repetition and draft position (from 1): how often its token was accepted, in how many
#: drafts.
ACCEPTANCE = "acceptance.parquet"
_ACCEPTANCE_COLUMNS: dict[str, type] = {
    "point": str,
    "repetition": int,
    "position": int,
    "accepted": float,
    "drafts": float,
}


class _Data(BaseModel):
    # JSON has neither infinity nor what is no number; Python's reader takes both.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


#: As a table can hold it.
_Int = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class RequestPoint(_Data):
    """One request; seconds by the harness, tokens by the engine."""

    prompt: str
    prompt_tokens: _Int
    output_tokens: _Int
    ttft: float
    latency: float

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first."""
        if self.output_tokens < 2 or self.latency <= self.ttft:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)


class Speculation(_Data):
    """Differences of the engine's counters over a repetition."""

    drafts: float
    draft_tokens: float
    accepted: float
    per_position: list[float] = []

    @property
    def counters(self) -> SpecCounters:
        return SpecCounters(self.drafts, self.draft_tokens, self.accepted, tuple(self.per_position))


class Repetition(_Data):
    """One call of the harness.

    Attributes:
        output_throughput: The harness's own figure, tokens per second of all users.
        accept_length: From counters; in older runs of SGLang the harness's own mean.
        clock: Median GPU clock while the load ran, MHz; none of a load of a few seconds.
        raw: The harness's file in the run's folder.
        marks: Why it is left out of the figures; none: it counts.
    """

    duration: float
    output_throughput: float
    requests: list[RequestPoint] = []
    speculation: Speculation | None
    accept_length: float | None
    clock: float | None
    raw: str
    marks: list[str]


class Published(_Data):
    """A published figure of the same point, in the unit of the metric."""

    metric: str
    value: float
    source: str
    table: str


class CellPoints(_Data):
    """One point of the suite with everything that was measured of it."""

    id: str
    category: str
    concurrency: _Int
    repetitions: list[Repetition]
    published: list[Published]

    @property
    def clean(self) -> list[Repetition]:
        """The repetitions that count."""
        return [repetition for repetition in self.repetitions if not repetition.marks]

    @property
    def per_position(self) -> list[float]:
        """Fraction of the drafts whose n-th token was accepted, over the repetitions that count."""
        known = [one.speculation for one in self.clean if one.speculation is not None]
        drafts = sum(one.drafts for one in known)
        if not drafts:
            return []
        longest = max(len(one.per_position) for one in known)
        return [
            sum(one.per_position[at] for one in known if at < len(one.per_position)) / drafts
            for at in range(longest)
        ]


class Benchmark(_Data):
    """``benchmark.json``.

    Attributes:
        question: The suite's name and a hash of what was asked of the server: what two benchmarks
            must share to be compared. Empty in those from before it was kept.
        chat_template_kwargs: What the prompts were rendered with, such as ``enable_thinking``;
            none: not known, in those from before it was kept.
        complete: False where the suite was not measured to its end.
    """

    suite: str
    protocol: str
    prompts: str
    question: str = ""
    chat_template_kwargs: dict[str, bool | str | int] | None = None
    complete: bool
    cells: list[CellPoints]

    def asks_as(self, other: Benchmark) -> bool:
        """Whether both asked the same, as far as that is known of both."""
        if self.renders_otherwise(other):
            return False
        same = questions.same(self.question, other.question)
        if same is not None:
            return same
        return (self.suite, self.protocol, self.prompts) == (
            other.suite,
            other.protocol,
            other.prompts,
        )

    def asked_otherwise(self, other: Benchmark) -> str:
        """In what the two did not ask the same; empty where they did, as far as that is known."""
        if self.renders_otherwise(other):
            arguments = [json.dumps(one.chat_template_kwargs) for one in (self, other)]
            return (
                "their prompts went through the chat template with other arguments: "
                f"{' and '.join(arguments)}"
            )
        if self.asks_as(other):
            return ""
        if self.prompts == other.prompts:
            return (
                f"both are of {other.suite} and of its prompts {other.prompts!r}, but the suite or "
                "their texts have changed between the two"
            )
        return (
            f"both are of {other.suite}, with other prompts, or the suite asked otherwise: "
            f"{self.prompts} and {other.prompts}"
        )

    def renders_otherwise(self, other: Benchmark) -> bool:
        """Whether the chat template is known to have had other arguments."""
        known = self.chat_template_kwargs, other.chat_template_kwargs
        return None not in known and known[0] != known[1]

    def cell(self, cell_id: str) -> CellPoints | None:
        return next((cell for cell in self.cells if cell.id == cell_id), None)


@dataclass(frozen=True)
class Metric:
    """One kind of figure.

    Attributes:
        belongs_to: Whose property it is.
        of_repetition: Its value in one repetition, or
        of_request: its value in one request; one of the two.
    """

    key: str
    title: str
    unit: str
    better: Literal["higher", "lower"]
    belongs_to: Literal["hardware", "model"]
    of_repetition: Callable[[Repetition], float | None] | None = None
    of_request: Callable[[RequestPoint], float | None] | None = None

    def by_repetition(self, cell: CellPoints) -> list[float]:
        """One value for each repetition that counts."""
        assert self.of_repetition is not None  # noqa: S101 - asked only where it is
        values = [self.of_repetition(repetition) for repetition in cell.clean]
        return [value for value in values if value is not None]

    def by_prompt(self, cell: CellPoints) -> dict[str, float]:
        """One value for each prompt: the median of all times it was asked.

        Two answers to the same prompt are no independent values; two prompts are.
        """
        assert self.of_request is not None  # noqa: S101 - asked only where it is
        found: dict[str, list[float]] = {}
        for repetition in cell.clean:
            for request in repetition.requests:
                value = self.of_request(request)
                if value is not None:
                    found.setdefault(request.prompt, []).append(value)
        return {prompt: plain.median(values) for prompt, values in found.items()}

    def estimate(self, cell: CellPoints) -> Estimate | None:
        """Median and interval, or nothing where nothing was measured."""
        values = (
            self.by_repetition(cell) if self.of_repetition else list(self.by_prompt(cell).values())
        )
        if self.of_request and len(values) < statistics.FEWEST:
            # One prompt asked several times, or two: then the repetitions are all there is.
            values = self._by_repetition_of_requests(cell)
        return statistics.estimate(values) if values else None

    def ratio(
        self,
        baseline: CellPoints,
        other: CellPoints,
        confidence: float = statistics.CONFIDENCE,
    ) -> Estimate | None:
        """``other / baseline`` with its interval, or nothing where one of them has no value."""
        return self.over([(baseline, other)], confidence)

    def over(
        self,
        pairs: Sequence[tuple[CellPoints, CellPoints]],
        confidence: float = statistics.CONFIDENCE,
    ) -> Estimate | None:
        """The ratio over several points, each a baseline and what is divided by it.

        A time is compared prompt by prompt, but all prompts of a repetition share what the machine
        did meanwhile: its interval must hold for other repetitions as well as for other prompts.
        """
        values = self._by_repetition_of_requests if self.of_request else self.by_repetition
        groups = [(values(baseline), values(other)) for baseline, other in pairs]
        known = [(a, b) for a, b in groups if a and b and min(*a, *b) > 0]
        found = statistics.mean_ratio(known, confidence) if known else None
        if self.of_request:
            first, second = (
                {
                    (cell.id, prompt): v
                    for cell in cells
                    for prompt, v in self.by_prompt(cell).items()
                }
                for cells in zip(*pairs, strict=True)
            )
            if len(first.keys() & second.keys()) >= statistics.FEWEST:
                by_prompt = statistics.paired_ratio(first, second, confidence)
                return by_prompt.widened(found) if by_prompt and found else None
        return found

    def _by_repetition_of_requests(self, cell: CellPoints) -> list[float]:
        assert self.of_request is not None  # noqa: S101 - asked only where it is
        found = []
        for repetition in cell.clean:
            values = [self.of_request(request) for request in repetition.requests]
            known = [value for value in values if value is not None]
            if known:
                found.append(plain.median(known))
        return found


def _accept_rate(repetition: Repetition) -> float | None:
    rate = repetition.speculation.counters.accept_rate if repetition.speculation else None
    return None if rate is None else rate * 100


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


#: In the order they are shown.
METRICS = (
    Metric(
        "output_throughput", "Throughput of all users", "tokens/s", "higher", "hardware",
        of_repetition=lambda repetition: repetition.output_throughput,
    ),
    Metric(
        "accept_length", "Accept length", "tokens/step", "higher", "model",
        of_repetition=lambda repetition: repetition.accept_length,
    ),
    Metric(
        "accept_rate", "Accept rate", "%", "higher", "model", of_repetition=_accept_rate,
    ),
    Metric(
        "ttft", "Time to first token", "ms", "lower", "hardware",
        of_request=lambda request: request.ttft * 1000,
    ),
    Metric(
        "tpot", "Time per token after the first", "ms", "lower", "hardware",
        of_request=lambda request: _milliseconds(request.tpot),
    ),
    Metric(
        "decode_speed", "Decode speed of one user", "tokens/s", "higher", "hardware",
        of_request=lambda request: 1 / request.tpot if request.tpot else None,
    ),
)  # fmt: skip

#: Published names of the metrics, with the factor from the published unit to ours.
_PUBLISHED: dict[tuple[str, str], tuple[str, float]] = {
    ("output_throughput", "tok/s"): ("output_throughput", 1),
    ("output_throughput", "tokens/s"): ("output_throughput", 1),
    ("output_throughput_per_user", "tok/s"): ("decode_speed", 1),
    ("decode_throughput", "tok/s"): ("decode_speed", 1),
    ("accept_length", "tokens"): ("accept_length", 1),
    ("ttft", "ms"): ("ttft", 1),
    ("ttft", "s"): ("ttft", 1000),
    ("ttft_p50", "ms"): ("ttft", 1),
    ("tpot", "ms"): ("tpot", 1),
    ("tpot_p50", "ms"): ("tpot", 1),
}


def metric(key: str) -> Metric:
    """The metric of that key."""
    return next(one for one in METRICS if one.key == key)


def published(
    figures: Sequence[PublishedFigure],
    *,
    hardware: str,
    speculation: str,
    tables: Sequence[str],
    match: dict[str, object],
    depth: int | None = None,
    own_depth: int | None = None,
) -> list[Published]:
    """The published figures of one point: same table, hardware, choice and conditions.

    Args:
        figures: Of the recipe.
        hardware, speculation: What is measured.
        tables: Those with the suite's protocol.
        match: Conditions of the point.
        depth: Tokens of a draft that is measured; another depth has another accept length.
        own_depth: The recipe's own; figures that name no depth are of it.
    """
    found = []
    for figure in figures:
        known = _PUBLISHED.get((figure.what, figure.unit))
        same = all(figure.conditions.get(key) == wanted for key, wanted in match.items())
        theirs = figure.conditions.get("num_speculative_tokens", own_depth)
        same &= depth is None or theirs in {None, depth}
        if (
            known is None
            or not same
            or figure.table not in tables
            or figure.hardware != hardware
            or figure.speculation != speculation
            or isinstance(figure.value, list)
            or figure.value is None
        ):
            continue
        key, factor = known
        value = round(figure.value * factor, 6)
        found.append(Published(metric=key, value=value, source=figure.source, table=figure.table))
    return found


def document(benchmark: Benchmark) -> str:
    """``benchmark.json``: everything but what :func:`tables` has."""
    long = {"requests": True, "speculation": {"per_position": True}}
    left_out: Any = {"cells": {"__all__": {"repetitions": {"__all__": long}}}}
    return benchmark.model_dump_json(indent=1, exclude=left_out) + "\n"


def tables(benchmark: Benchmark) -> dict[str, Table]:
    """The long part of a benchmark, by file name. Repetitions count from 1, as raw files do."""
    requests, acceptance = Table(_REQUEST_COLUMNS), Table(_ACCEPTANCE_COLUMNS)
    for cell in benchmark.cells:
        for number, one in enumerate(cell.repetitions, 1):
            here = {"point": cell.id, "repetition": number}
            requests.rows += [{**here, **request.model_dump()} for request in one.requests]
            if one.speculation is not None:
                acceptance.rows += [
                    {**here, "position": at, "accepted": count, "drafts": one.speculation.drafts}
                    for at, count in enumerate(one.speculation.per_position, 1)
                ]
    return {REQUESTS: requests, ACCEPTANCE: acceptance}


def of(evidence: Evidence) -> Benchmark:
    """The benchmark that a measurement has just made."""
    rows = {name: table.rows for name, table in evidence.tables.items()}
    return _join(parse(evidence.artefacts[FILE]), rows.get(REQUESTS, []), rows.get(ACCEPTANCE, []))


def read(folder: Path) -> Benchmark:
    """The points of a finished run.

    Raises:
        UsageError: The folder is no run, or none of a benchmark.
        RoostError: It is empty or unfinished, or a file of it is broken.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such run", fix="runs are folders under runs/")
    result = runs.read(folder)
    if not (folder / FILE).is_file():
        raise UsageError(f"{folder}: no benchmark", why=f"it is a run of {result.notebook}")
    return load(folder)


def load(folder: Path) -> Benchmark:
    """The points in a folder, whatever its result says.

    Raises:
        RoostError: There are none, or a file of them is broken.
    """
    try:
        found = parse(kept_files.text(folder / FILE), folder / FILE)
    except OSError as error:
        raise RoostError(f"{folder / FILE}: cannot be read", why=str(error.strerror)) from None
    except UnicodeDecodeError as error:
        raise RoostError(f"{folder / FILE}: no text", why=str(error)) from None
    repetitions = [one for cell in found.cells for one in cell.repetitions]
    if all("requests" in one.model_fields_set for one in repetitions):
        # A run that was kept before there were tables has everything in its document.
        return found
    requests = parquet.read(folder / REQUESTS, _REQUEST_COLUMNS)
    return _join(found, requests, parquet.read(folder / ACCEPTANCE, _ACCEPTANCE_COLUMNS))


def _join(found: Benchmark, requests: list[Row], acceptance: list[Row]) -> Benchmark:
    """The document with its long part back in place."""
    asked = _by_repetition(requests)
    accepted = _by_repetition(acceptance)

    def whole(cell: str, number: int, one: Repetition) -> Repetition:
        rows = asked.get((cell, number), [])
        changes: dict[str, object] = {
            "requests": [
                RequestPoint(**{key: row[key] for key in RequestPoint.model_fields}) for row in rows
            ]
        }
        if one.speculation is not None:
            positions = sorted(accepted.get((cell, number), []), key=lambda row: row["position"])
            changes["speculation"] = one.speculation.model_copy(
                update={"per_position": [row["accepted"] for row in positions]}
            )
        return one.model_copy(update=changes)

    cells = [
        cell.model_copy(
            update={
                "repetitions": [
                    whole(cell.id, number, one) for number, one in enumerate(cell.repetitions, 1)
                ]
            }
        )
        for cell in found.cells
    ]
    return found.model_copy(update={"cells": cells})


def _by_repetition(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["point"], row["repetition"]), []).append(row)
    return found


def parse(text: str, path: Path = Path(FILE)) -> Benchmark:
    """``benchmark.json``, decoded; ``path`` is only for messages.

    Raises:
        RoostError: It is none.
    """
    try:
        return Benchmark.model_validate_json(text)
    except ValidationError as error:
        raise RoostError(f"{path}: {runs.first_defect(error)}") from None

"""Folders of runs, made up: benchmarks with every file that a run keeps."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import nbformat

from roost import runs
from roost.measure import points, throttling
from roost.measure.checks import Check, Figure
from roost.measure.points import Benchmark, CellPoints, Published, Repetition, RequestPoint
from roost.measure.throttling import Sample, Watch
from roost.runs import Pins, Result

NOW = dt.datetime(2026, 11, 29, 16, 0, 5, tzinfo=dt.UTC)
DIGEST = "sha256:" + "5" * 64


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "ok": True,
        "notebook": "benchmark",
        "recipe": "smollm2-135m",
        "host": "spark-01",
        "hardware": "gb10",
        "speculation": "dflash",
        "lock": Pins(file="roost.lock.yml", image=f"i@{DIGEST}", model="m@1", drafter="d@2"),
        "started": NOW,
        "finished": NOW + dt.timedelta(seconds=90),
        "checks": [Check(id="coding-c1", ok=True, expected="3 that count", observed="3 of 3")],
    }
    return Result(**{**values, **changes})


def benchmark(
    seed: int = 1,
    *,
    speed: float = 100.0,
    length: float = 3.4,
    categories: int = 1,
    requests: int = 4,
) -> Benchmark:
    """Three repetitions a point with 1 % noise; the first points are called coding and prose."""
    draw = random.Random(seed)  # noqa: S311

    def repetition(number: int) -> Repetition:
        drift = draw.lognormvariate(0, 0.01)
        asked = [
            RequestPoint(
                prompt=f"p{at}", prompt_tokens=20, output_tokens=101, ttft=0.1 / drift,
                latency=0.1 / drift + 100 / (speed * drift),
            )
            for at in range(requests)
        ]  # fmt: skip
        accepted = [100 * 0.8**at for at in range(1, 6)]
        return Repetition(
            duration=10.0,
            output_throughput=speed * drift,
            requests=asked,
            speculation=points.Speculation(
                drafts=100, draft_tokens=500, accepted=sum(accepted), per_position=accepted
            ),
            accept_length=length * draw.lognormvariate(0, 0.005),
            clock=2400.0,
            raw=f"harness_coding-c1_{number}.json",
            marks=[],
        )

    names = ["coding", "prose", *(f"kind{at}" for at in range(2, categories))][:categories]
    return Benchmark(
        suite="spec-bench",
        protocol="one user, 20 warm-ups",
        prompts="roost's own: spec-bench",
        chat_template_kwargs={"enable_thinking": False},
        complete=True,
        cells=[
            CellPoints(
                id=f"{name}-c1",
                category=name,
                concurrency=1,
                repetitions=[repetition(number) for number in range(1, 4)],
                published=[
                    Published(
                        metric="output_throughput", value=93.41, source="source 000", table="gb10"
                    )
                ],
            )
            for name in names
        ],
    )


def host_json(driver: str = "580.95.05", version: str = "0.24.0") -> str:
    gpu = {"index": 0, "name": "NVIDIA GB10", "driver": driver}
    facts = {"machine": "aarch64", "kernel": "6.14.0-1015-nvidia", "gpus": [gpu]}
    return json.dumps({"facts": facts, "engine_version": version, "not_read": ""})


def notebook(*outputs: dict[str, Any], source: str = "tables.points(found)") -> str:
    """An executed notebook with one heading and one code cell."""
    cell = nbformat.v4.new_code_cell(source, execution_count=1)  # type: ignore[no-untyped-call]
    cell.outputs = [nbformat.from_dict(one) for one in outputs]  # type: ignore[no-untyped-call]
    title = nbformat.v4.new_markdown_cell("# Benchmark one host\n\nHow fast is it?")  # type: ignore[no-untyped-call]
    made = nbformat.v4.new_notebook(cells=[title, cell])  # type: ignore[no-untyped-call]
    return str(nbformat.writes(made))  # type: ignore[no-untyped-call]


def html_output(html: str) -> dict[str, Any]:
    data = {"text/html": html, "text/plain": "<HTML object>"}
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}


def keep(
    root: Path, name: str, measured: Benchmark | None = None, executed: str = "", **changes: Any
) -> Path:
    """Write a run as roost does, and return its folder."""
    folder = root / name
    folder.mkdir(parents=True)
    artefacts = {"engine.log": "Application startup complete.\n", "host.json": host_json()}
    tables = {}
    if measured is not None:
        figures = {}
        for cell in measured.cells:
            found = points.metric("output_throughput").estimate(cell)
            if found is None:
                continue
            figures[f"{cell.id}.output_throughput"] = Figure(
                title=f"Throughput of all users, {cell.category}",
                value=found.value,
                unit="tokens/s",
                source="suite spec-bench: 3 repetitions; "
                + ", ".join(one.raw for one in cell.clean),
                low=found.low,
                high=found.high,
            )
        changes = {"figures": figures, **changes}
        artefacts |= {
            points.FILE: points.document(measured),
            **{f"harness_coding-c1_{at}.json": '{"duration": 10.0}\n' for at in range(1, 4)},
        }
        samples = [Sample("0", 2400.0 - at, 38.0, 60.0 + at / 10, (), at * 2.0) for at in range(40)]
        watch = throttling.table({("coding-c1", 1): Watch(samples)})
        tables = {**points.tables(measured), throttling.FILE: watch}
    if executed:
        (folder / runs.EXECUTED).write_text(executed)
    runs.write(folder, result(**changes), artefacts, tables)
    return folder

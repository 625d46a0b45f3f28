"""What a host must show after its swap: the verify notebook, and a short benchmark.

papermill runs both here, on the controller. A benchmark is compared with one of the same host and
of the release before; the floors are those of the deploy's own gate.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean

from roost import notebooks
from roost.deployment import Deployment, Gate
from roost.errors import RoostError
from roost.measure import points
from roost.notebooks import Outcome

#: Parameters of the notebook verify that leave out what takes minutes.
_BRIEF = {"long_context": 0, "bad_requests": False}
#: Other work makes a host slower and never faster, so what falls short is measured once more.
ATTEMPTS = 2


@dataclass
class Judged:
    """What was found on a host.

    Attributes:
        why: What speaks against it; empty: nothing.
        runs: Folders of the executed notebooks, by what they are.
        remark: How it compares with its baseline.
    """

    why: str = ""
    runs: dict[str, Path] = field(default_factory=dict)
    remark: str = ""


class Judge:
    """Runs notebooks for hosts of an inventory.

    Args:
        inventory: Its absolute path.
        folder: The rollout's.
        suite: What the benchmark measures.
        wanted: The deployment of every host.
        brief: Verify without the long prompt and without what must be refused.
    """

    def __init__(
        self,
        inventory: Path,
        folder: Path,
        suite: str,
        wanted: Mapping[str, Deployment],
        *,
        brief: bool = False,
    ) -> None:
        self._parameters: dict[str, Mapping[str, object]] = {
            "benchmark": {"suite": suite},
            "verify": _BRIEF if brief else {},
        }
        self._inventory = inventory
        self._folder = folder
        self._wanted = wanted

    def measure(self, served: Mapping[str, Mapping[str, object]]) -> dict[str, Judged]:
        """Benchmark what hosts serve now.

        Args:
            served: By host, the deployment that its release was made from.
        """
        own = self._folder / "before"
        own.mkdir(exist_ok=True)
        for host, deployment in served.items():
            (own / f"{host}.json").write_text(json.dumps(deployment), encoding="utf-8")
        each = {host: {"release": str(own / f"{host}.json")} for host in served}
        found = {}
        for outcome in self._run("benchmark", served, each):
            found[outcome.host] = Judged(_against(outcome), {"before": outcome.folder})
        return found

    def judge(self, baselines: Mapping[str, Path | None]) -> dict[str, Judged]:
        """Verify hosts, then benchmark those that are well and compare them.

        Args:
            baselines: By host, the folder of the benchmark to compare with; none: there is none.
        """
        found = {
            outcome.host: Judged(_against(outcome), {"verify": outcome.folder})
            for outcome in self._run("verify", baselines)
        }
        left = [host for host, one in found.items() if not one.why]
        for _ in range(ATTEMPTS):
            for outcome in self._run("benchmark", left):
                one, baseline = found[outcome.host], baselines[outcome.host]
                one.runs["benchmark"] = outcome.folder
                one.why = _against(outcome)
                if baseline and not one.why:
                    gate = self._wanted[outcome.host].gate
                    one.why, one.remark = compared(baseline, outcome.folder, gate)
            left = [host for host in left if found[host].why]
        return found

    def _run(
        self,
        notebook: str,
        hosts: Iterable[str],
        each: Mapping[str, Mapping[str, object]] | None = None,
    ) -> list[Outcome]:
        chosen = list(hosts)
        if not chosen:
            return []
        return list(
            notebooks.execute_all(
                notebook,
                self._inventory,
                chosen,
                parameters=self._parameters[notebook],
                each=each,
                runs_dir=self._folder / "runs",
                jobs=min(notebooks.DEFAULT_JOBS, os.cpu_count() or 1),
            )
        )


def compared(baseline: Path, run: Path, gate: Gate) -> tuple[str, str]:
    """What speaks against a benchmark beside its baseline, and how the two compare.

    Args:
        baseline: Folder of the benchmark before.
        run: Folder of the one after.
        gate: Of the host's deployment, for its floors.
    """
    try:
        after = points.read(run)
    except RoostError as error:
        return str(error), ""
    try:
        before = points.read(baseline)
    except RoostError as error:
        # Old runs may have been cleared away; that says nothing of the release.
        return "", f"not compared: {error.what}"
    if otherwise := before.asked_otherwise(after):
        # Nor does what was asked otherwise: thinking, for one, changes both figures.
        return "", f"not compared with its baseline: {otherwise}"
    against, remarks = [], []
    for key, floor in (
        ("output_throughput", gate.speed_floor),
        ("accept_length", gate.accept_length_floor),
    ):
        metric = points.metric(key)
        ratios = [
            ratio.value
            for cell in before.cells
            if (other := after.cell(cell.id)) and (ratio := metric.ratio(cell, other))
        ]
        if not ratios:
            continue
        share = geometric_mean(ratios)
        remark = f"{metric.title.lower()} {share:.2f} of what it was"
        remarks.append(remark)
        if share < floor:
            against.append(f"{remark}, which must be {floor:g}")
    return "; ".join(against), "; ".join(remarks)


def _against(outcome: Outcome) -> str:
    """What speaks against a host in the outcome of a notebook; empty: nothing."""
    if outcome.result is None:
        return str(outcome.error)
    return "" if outcome.ok else outcome.result.summary()

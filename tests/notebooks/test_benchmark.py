"""The benchmark notebook on a deployed lab host: the real harness against the real engine."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.notebooks.conftest import Deployed
from tests.notebooks.readme import Checkout
from tests.playbooks.playbook import PATIENCE_S, ROOT

from roost import reportsite, runs
from roost.lab.hosts import Host
from roost.measure import points
from roost.runs import PROGRESS

pytestmark = [pytest.mark.lab, pytest.mark.engine]


def hang_up(host: Host, kept: Path) -> None:
    """Break the connection under the load of a point's second repetition."""
    # In one go on the host: seen from here, the load may have ended meanwhile.
    script = "pgrep -f 'bench [s]erve' >/dev/null && pkill -f '^sshd: root@'"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        said = "".join(one.read_text() for one in kept.glob(f"*/{PROGRESS}"))
        if "-c1 repetition 2" in said and host.exec(["sh", "-c", script]).returncode == 0:
            return
        assert time.monotonic() < deadline, said
        time.sleep(0.1)


def test_the_smoke_suite_says_what_the_harness_says(deployed: Deployed, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, deployed.where, deployed.host.name)
    with ThreadPoolExecutor() as other:
        hung_up = other.submit(hang_up, deployed.host, checkout.runs)
        done = checkout.run("benchmark")
        hung_up.result()
    assert done.returncode == 0, done.stderr
    (folder,) = checkout.runs.iterdir()
    result, measured = runs.read(folder), points.read(folder)
    assert measured.complete
    (suite,) = [check for check in result.checks if check.id == "suite"]
    assert suite.observed == "2 measured; SSH connections that broke: 1"

    for cell in measured.cells:
        raw = [json.loads((folder / one.raw).read_text()) for one in cell.repetitions]
        # Two prompts of 32 tokens each, whatever the model would have liked to say.
        assert [one["total_output_tokens"] for one in raw] == [64, 64]
        throughput = statistics.median(one["output_throughput"] for one in raw)
        assert result.figures[f"{cell.id}.output_throughput"].value == pytest.approx(throughput)
        # Our counters, read around the harness, against those it reads itself.
        for one, theirs in zip(cell.repetitions, raw, strict=True):
            assert one.marks == []
            assert one.accept_length == pytest.approx(theirs["spec_decode_acceptance_length"])
        # Two prompts are too few for an interval: these are by repetition, as the harness has it.
        for key in ("ttft", "tpot"):
            theirs_ms = statistics.median(one[f"median_{key}_ms"] for one in raw)
            ours = result.figures[f"{cell.id}.{key}"].value
            assert ours == pytest.approx(theirs_ms, rel=1e-6), key

    left = deployed.host.exec(["docker", "exec", "roost-llm", "ls", "/tmp"])  # noqa: S108
    assert "roost-bench" not in left.stdout

    done = checkout.run("fleet")
    assert done.returncode == 0, done.stderr
    (folder,) = checkout.runs.glob("*-fleet-*")
    observed = {check.id: check.observed for check in runs.read(folder).checks}
    assert observed["runs spark-01"].startswith("1 kept")


def test_real_runs_side_by_side_and_as_a_site(deployed: Deployed, tmp_path: Path) -> None:
    """The fleet notebook and the site read what the notebooks of a real engine left."""
    kept = tmp_path / "runs"
    assert deployed.verify(kept / "verify").ok
    program = Path(sys.executable).with_name("papermill")
    command = [program, "notebooks/fleet.ipynb", tmp_path / "out.ipynb", "--no-progress-bar"]
    command += ["-p", "inventory", deployed.where, "-p", "runs_dir", kept, "-p", "live", "True"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = kept.glob("*-fleet-*")
    observed = {check.id: check.observed for check in runs.read(folder).checks}
    assert observed[f"runs {deployed.host.name}"].startswith("1 kept; verified: ")
    assert "kernel" in observed[f"reached {deployed.host.name}"]

    built = reportsite.build(kept, tmp_path / "site")
    assert built.problems == []
    page = built.pages["verify"].read_text()
    machine = json.loads((kept / "verify" / "host.json").read_text())
    for fact in (machine["engine_version"], machine["facts"]["kernel"], "answer_capital"):
        assert fact in page
    assert deployed.deployment().spec.image in page

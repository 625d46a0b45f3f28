"""``roost plan`` as a user meets it: the contract, host facts of every kind, and bad input."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.probes import probe_output

from roost import hosts
from roost.errors import RoostError
from roost.plan_cli import plan

HERETIC = "ornith-1.0-35b-heretic-nvfp4-dflash"
FP8 = "ornith-1.0-35b-fp8"
ROOT = Path(__file__).parents[2]

GB10 = probe_output(
    machine=(0, "aarch64"),
    meminfo=(0, "MemTotal:       127600748 kB\nMemAvailable:   118566368 kB"),
    gpu=(0, "0, GPU-0, NVIDIA GB10, [N/A], [N/A], 580.173.02, 12.1"),
)


def run(*words: str) -> Result:
    return CliRunner().invoke(plan, list(words))


def planned(*words: str) -> dict[str, Any]:
    done = run(*words, "--json")
    assert done.exit_code in {0, 3}, done.output
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def facts_file(path: Path, probe: str) -> str:
    file = path / "facts.json"
    facts = hosts.parse(probe).model_dump(mode="json")
    file.write_text(json.dumps([{"host": "spark-01", "facts": facts, "error": None}]))
    return str(file)


def ids(data: dict[str, Any], severity: str = "error") -> set[str]:
    return {one["id"] for one in data["findings"] if one["severity"] == severity}


def test_json_has_the_contract_s_keys() -> None:
    data = planned(HERETIC, "--on", "rtx5070ti-x2")
    assert {"verdict", "memory", "findings"} <= set(data)
    assert {
        "weights_bytes",
        "drafter_bytes",
        "kv_cache_bytes",
        "attention_block_size",
        "page_size_bytes",
        "kv_groups",
        "num_blocks",
        "blocks_per_request",
        "max_concurrency",
        "kv_pool_tokens",
        "mamba_bytes_per_seq",
        "free_bytes",
        "terms",
    } <= set(data["memory"])
    assert {"name", "bytes", "source"} <= set(data["memory"]["terms"][0])
    for finding in data["findings"]:
        assert {"id", "severity", "summary", "why", "fix", "source"} <= set(finding)


def test_refusal_is_exit_code_3_and_ends_with_a_fix() -> None:
    done = run(FP8, "--on", "gb10", "--set", f"kv_cache_bytes={4 * 2**30}")
    assert done.exit_code == 3
    # Source 001's engine asks for "5.xx GiB": a little over five for the full window.
    needed = re.search(r"fix: kv_cache_bytes=(\d+), or max_model_len=205920", done.output)
    assert needed
    assert 5.0 < int(needed[1]) / 2**30 < 5.2
    # 252 blocks are also fewer than the recipe's 256 sequences.
    enough = ("--set", f"kv_cache_bytes={needed[1]}", "--set", "max_num_seqs=4")
    assert run(FP8, "--on", "gb10", *enough).exit_code == 0


def test_gb10_is_planned_from_meminfo(tmp_path: Path) -> None:
    data = planned(HERETIC, "--on", "gb10", "--host-facts", facts_file(tmp_path, GB10))
    machine = data["memory"]["machine"]
    assert machine["kind"] == "unified"
    assert machine["total_bytes"] == 127600748 * 1024
    assert machine["available_bytes"] == 118566368 * 1024
    assert ids(data) == set()


@pytest.mark.parametrize(
    ("gpu", "finding"),
    [
        ((127, ""), "gpu"),
        ((6, "No devices were found"), "gpu"),
        (
            (
                0,
                "0, GPU-a, NVIDIA GeForce RTX 5070 Ti, 16303, 16100, 610.47, 12.0\n"
                "1, GPU-b, NVIDIA GeForce RTX 5090, 32607, 32000, 610.47, 12.0",
            ),
            "unlike-gpus",
        ),
        ((0, "0, GPU-a, NVIDIA GeForce RTX 5070 Ti, 16303, 16100, 610.47, 12.0"), "gpu-count"),
        (
            (
                0,
                "0, GPU-a, NVIDIA GeForce RTX 5070 Ti, 16303, 16100, 570.47, 12.0\n"
                "1, GPU-b, NVIDIA GeForce RTX 5070 Ti, 16303, 16100, 570.47, 12.0",
            ),
            "driver",
        ),
        (
            (
                0,
                "0, GPU-a, NVIDIA GeForce RTX 3090, 24576, 24000, 610.47, 8.6\n"
                "1, GPU-b, NVIDIA GeForce RTX 3090, 24576, 24000, 610.47, 8.6",
            ),
            "compute-capability",
        ),
    ],
)
def test_hosts_that_are_not_what_is_planned_for(
    tmp_path: Path, gpu: tuple[int, str], finding: str
) -> None:
    facts = facts_file(tmp_path, probe_output(gpu=gpu))
    data = planned(HERETIC, "--on", "rtx5070ti-x2", "--host-facts", facts)
    assert data["verdict"] == "refuse"
    assert finding in ids(data)


def test_unified_memory_in_use_lowers_the_highest_utilisation(tmp_path: Path) -> None:
    """Case V12: the share that starts now, and 90 of 127.6 GB are no more than 0.70."""
    busy = GB10.replace("118566368", "90000000")
    data = planned(HERETIC, "--on", "gb10", "--host-facts", facts_file(tmp_path, busy))
    found = next(one for one in data["findings"] if one["id"] == "utilization-too-high")
    share = float(found["fix"].removeprefix("gpu_memory_utilization="))
    assert 0.6 < share <= 0.70
    again = planned(
        HERETIC,
        "--on",
        "gb10",
        "--set",
        f"gpu_memory_utilization={share}",
        "--host-facts",
        facts_file(tmp_path, busy),
    )
    assert ids(again) == set()


def test_memory_in_use_lowers_the_highest_utilisation(tmp_path: Path) -> None:
    busy = "\n".join(
        f"{n}, GPU-{n}, NVIDIA GeForce RTX 5070 Ti, 16303, 12000, 610.47, 12.0" for n in (0, 1)
    )
    facts = facts_file(tmp_path, probe_output(gpu=(0, busy)))
    data = planned(HERETIC, "--on", "rtx5070ti-x2", "--host-facts", facts)
    found = next(one for one in data["findings"] if one["id"] == "utilization-too-high")
    assert re.fullmatch(r"gpu_memory_utilization=0\.\d+", found["fix"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be read as JSON"),
        ("<html>", "cannot be read as JSON"),
        ("[]", "holds 0 hosts"),
        ("[1, 2]", "holds 2 hosts"),
        ("[7]", "is not what `roost probe HOST --json` prints"),
        ('{"machine": "x86_64"}', "is not what `roost probe HOST --json` prints"),
        ('[{"host": "a", "facts": null, "error": "unreachable"}]', "the host was not probed"),
    ],
)
def test_host_facts_that_are_none(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    done = run(FP8, "--on", "gb10", "--host-facts", str(path))
    assert isinstance(done.exception, RoostError)
    assert reason in str(done.exception)


def test_frontier_trades_depth_for_requests(tmp_path: Path) -> None:
    picture = tmp_path / "frontier.svg"
    data = planned(HERETIC, "--on", "rtx5070ti-x2", "--frontier", "--plot", str(picture))
    rows = data["frontier"]["rows"]
    short = [row["cells"][0]["requests"] for row in rows if not row["refused"]]
    assert short == sorted(short, reverse=True)
    assert short[0] > short[-1]
    assert picture.read_text().lstrip().startswith("<?xml")
    table = run(HERETIC, "--on", "rtx5070ti-x2", "--frontier").output
    assert "requests at a time" in table


def test_text_fits_a_terminal() -> None:
    for line in run(FP8, "--on", "gb10").output.splitlines():
        if not line.startswith("  why:") and not line.startswith("  fix:"):
            assert len(line) <= 120, line


def test_every_finding_has_its_row_in_the_docs() -> None:
    page = (ROOT / "docs" / "plan.md").read_text()
    documented = set(re.findall(r"`([a-z0-9{}\-]+)`", page.split("## Findings")[1]))
    raised = set()
    places = [*(ROOT / "src/roost/plan/findings").glob("*.py"), ROOT / "src/roost/plan/planner.py"]
    for path in places:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                names = [k.value for k in node.keywords if k.arg == "id"]
                if isinstance(node.func, ast.Name) and node.func.id == "_obstacle":
                    names = node.args[:1]
                raised |= {n.value for n in names if isinstance(n, ast.Constant)}
    assert raised
    assert {name for name in raised if isinstance(name, str)} <= documented

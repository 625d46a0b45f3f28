"""``roost plan`` as a user meets it: the contract, host facts of every kind, and bad input."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.plan_checkpoints import header
from tests.unit.plan_configs import qwen35_35b
from tests.unit.probes import probe_output

from roost import hosts
from roost.errors import RoostError, UsageError
from roost.plan import names, reading, shown
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
        pytest.param("[" * 100_000, "cannot be read as JSON", id="deep"),
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
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith(f"{path}: {reason}")


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


def test_every_finding_has_a_name_that_can_be_accepted() -> None:
    raised = set()
    places = [
        *(ROOT / "src/roost/plan/findings").glob("*.py"),
        *(ROOT / "src/roost/plan").glob("*.py"),
    ]
    for path in places:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                found = [k.value for k in node.keywords if k.arg == "id"]
                if isinstance(node.func, ast.Name) and node.func.id == "_obstacle":
                    found = node.args[:1]
                raised |= {n.value for n in found if isinstance(n, ast.Constant)}
    assert raised
    assert raised <= set(names.NAMES)


@pytest.mark.parametrize(
    ("said", "near"),
    [
        ("kv-to-small", "did you mean kv-too-small"),
        ("max_model_len-beyond-known", "did you mean max-model-len-beyond-known"),
        ("engine-lacks-dflash3", "did you mean engine-lacks-dflash2"),
        ("{setting}-refused", "-refused"),
        ("xyz", "docs/plan.md lists them"),
        ("", "docs/plan.md lists them"),
    ],
)
def test_a_name_that_no_finding_has_is_no_acceptance(said: str, near: str) -> None:
    done = run(FP8, "--on", "gb10", "--accept", "kv-too-small", "--accept", said)
    assert isinstance(done.exception, UsageError)
    assert f"--accept: no finding has the name {said!r}" in str(done.exception)
    assert near in str(done.exception)
    assert done.output == ""


def console_blocks(page: str) -> list[tuple[str, list[str]]]:
    """The commands of a page's console blocks, each with the output that it shows."""
    text = (ROOT / "docs" / page).read_text()
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
        command, *output = block.splitlines()
        found.append((command.removeprefix("$ roost plan "), output))
    return found


@pytest.mark.parametrize(("command", "output"), console_blocks("plan.md"))
def test_the_page_shows_what_is_printed(
    command: str, output: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of three dots stands for lines that are left out."""

    def nothing(*_: object, **__: object) -> None:
        raise reading.NotReadError("no hub here")

    # The lab of the inventory's hub may be up on this machine.
    monkeypatch.setattr(reading, "from_hub", nothing)
    done = CliRunner().invoke(plan, shlex.split(command), env={"COLUMNS": "120"})
    lines = [r"(?:.*\n)*" if line == "…" else re.escape(line) + "\n" for line in output]
    assert re.fullmatch("".join(lines), done.output), done.output


def test_sglang_s_memory_is_filled_in_and_marked() -> None:
    memory = planned("ornith-1.5-35b-nvfp4-dflash2", "--on", "gb10")["memory"]
    by_name = {term["name"]: term["bytes"] for term in memory["terms"]}
    assert memory["weights_bytes"] == by_name["weights"] + by_name["rotary table"]
    assert memory["kv_cache_bytes"] == by_name["KV pool"]
    assert memory["drafter_bytes"] > by_name["drafter"]
    assert memory["free_bytes"] >= 0
    assert memory["max_concurrency"] == memory["kv_pool_tokens"] / 262_144
    assert memory["estimated"]
    assert not planned(FP8, "--on", "gb10")["memory"]["estimated"]


def test_sglang_that_does_not_fit_is_refused() -> None:
    recipe = ("ornith-1.5-35b-nvfp4-dflash2", "--on", "gb10")
    data = planned(*recipe, "--set", "gpu_memory_utilization=0.2")
    assert ids(data) == {"out-of-memory"}
    fix = next(one["fix"] for one in data["findings"] if one["id"] == "out-of-memory")
    assert ids(planned(*recipe, "--set", fix)) == set()


def test_a_machine_without_an_image_is_refused_until_one_is_named() -> None:
    assert ids(planned(FP8, "--on", "rtx5090", "--set", "tensor_parallel=1")) >= {"no-image"}
    image = f"image=vllm/vllm-openai@sha256:{'0' * 64}"
    assert "no-image" not in ids(planned(FP8, "--on", "rtx5090", "--set", image))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ornith-1.5-35b-nvfp4-dflash2", "--on", "gb10", "--frontier"], "only vLLM keeps states"),
        (["smollm2-135m", "--on", "cpu", "--frontier"], "not known here"),
        (["qwen3.5-27b-aeon-nvfp4-dflash", "--on", "gb10", "--frontier"], "nobody has read"),
        ([FP8, "--on", "gb10", "--plot", "x.bmp"], "its suffix is no kind of figure"),
        ([FP8, "--on", "gb10", "--plot", "/nowhere/x.svg"], "No such file or directory"),
    ],
)
def test_what_has_no_frontier_or_figure_says_why(words: list[str], message: str) -> None:
    done = run(*words)
    assert isinstance(done.exception, RoostError)
    assert message in str(done.exception)


def damaged(folder: Path, config: str | None, **files: bytes) -> str:
    """A directory of snapshots with one damaged one."""
    place = folder / "deepreinforce-ai--Ornith-1.0-35B-FP8" / "main"
    place.mkdir(parents=True)
    if config is not None:
        (place / "config.json").write_text(config)
    for name, content in files.items():
        (place / name.replace("__", ".")).write_bytes(content)
    return str(folder)


GOOD = json.dumps(qwen35_35b())
WHOLE: dict[str, bytes] = {"model__safetensors": header({"lm_head.weight": ("BF16", [0])})[0]}


@pytest.mark.parametrize(
    ("config", "files", "message"),
    [
        (None, {}, "there is no config.json"),
        ("<html>not here</html>", {}, "is HTML or XML, not JSON"),
        ("version https://git-lfs.github.com/spec/v1\n", {}, "is a Git LFS pointer"),
        ("[]", {}, "must be a mapping, not a list"),
        ("[" * 100_000, {}, "is not JSON that can be a configuration"),
        ("{}", WHOLE, "num_hidden_layers: is missing"),
        (GOOD.replace('"head_dim": 256', '"head_dim": "256"'), WHOLE, "head_dim"),
        (GOOD.replace(": 40,", f": {10**30},"), WHOLE, "num_hidden_layers"),
        (json.dumps({"text_config": [1]}), WHOLE, "text_config"),
        (GOOD, {}, "there are no .safetensors weights"),
        (GOOD, {"model__safetensors": (1000).to_bytes(8, "little") + b'{"a":'}, "is cut off"),
        (GOOD, {"model__safetensors__index__json": b'{"weight_map": 7}'}, "must be a mapping"),
    ],
)
def test_a_damaged_snapshot_is_a_finding(
    tmp_path: Path, config: str | None, files: dict[str, bytes], message: str
) -> None:
    data = planned(FP8, "--on", "gb10", "--models", damaged(tmp_path, config, **files))
    found = next(one for one in data["findings"] if one["id"] == "checkpoint-defective")
    assert message in found["summary"] + found["why"]
    assert "planned-from-catalogue" not in {one["id"] for one in data["findings"]}


def test_absent_shards_say_nothing_of_the_size(tmp_path: Path) -> None:
    index = {"metadata": {}, "weight_map": {"model.layers.0.x": "a.safetensors"}}
    files = {"model__safetensors__index__json": json.dumps(index).encode()}
    data = planned(FP8, "--on", "gb10", "--models", damaged(tmp_path, GOOD, **files))
    assert "shards-missing" in ids(data)
    known = planned(FP8, "--on", "gb10")["memory"]
    assert data["memory"]["weights_bytes"] == known["weights_bytes"]


def test_a_directory_without_the_snapshot_is_named(tmp_path: Path) -> None:
    data = planned(FP8, "--on", "gb10", "--models", str(tmp_path))
    found = next(one for one in data["findings"] if one["id"] == "planned-from-catalogue")
    assert str(tmp_path) in found["why"]


def test_a_terminal_s_lines_break_between_words_and_fixes_not_at_all() -> None:
    text = ["error some-id: " + "word " * 20, "  why: " + "word " * 20, "  fix: " + "x=1 " * 20]
    lines = "\n".join(shown.wrapped(text, 40)).splitlines()
    assert lines[-1] == text[-1]
    assert all(len(line) <= 40 for line in lines[:-1])
    assert lines[1].startswith("  word")
    assert [line for line in lines if line.startswith("    word")]


def test_a_narrow_terminal_has_whole_words_of_each_term(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.terminal.present", lambda: True)
    words = ["ornith-1.0-35b-heretic-nvfp4-dflash", "--on", "rtx5070ti-x2"]
    shown = CliRunner().invoke(plan, words, env={"COLUMNS": "60"}).output
    memory = shown.partition("KV pool:")[0]
    assert "…" not in memory
    terms = memory.partition("\nmemory of ")[2]
    assert max(map(len, terms.splitlines())) <= 60
    assert "  CUDA context and NCCL        645.12 MiB  estimate\n" in memory
    assert "\n  CUDA context and NCCL: measured on rtx3090" in memory


@pytest.mark.parametrize("columns", ["40", "80"])
@pytest.mark.parametrize("terminal", [True, False])
def test_no_figure_and_no_name_is_cut(
    columns: str, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["ornith-1.0-35b-heretic-nvfp4-dflash", "--on", "gb10", "--frontier"]
    monkeypatch.setattr("roost.terminal.present", lambda: terminal)
    shown = CliRunner().invoke(plan, words, env={"COLUMNS": columns}).output
    assert "…" not in shown.replace("roost plan …", "")
    data = planned(*words)
    for term in data["memory"]["terms"]:
        assert re.search(f"  {re.escape(term['name'])} +[0-9,.]+ (GiB|MiB|bytes)  ", shown), term
    for row in data["frontier"]["rows"]:
        for cell in row["cells"]:
            assert f" {cell['requests']:,}" in shown or not cell["requests"]


def test_a_closed_output_is_no_terminal() -> None:
    words = "plan ornith-1.0-35b-fp8 --on gb10 >&-"
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m roost.cli {words}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("url", ["http://", "spark-01", "ftp://hub"])
def test_an_address_without_a_host_is_none(url: str) -> None:
    done = CliRunner().invoke(plan, [FP8, "--on", "gb10", "--hub", url])
    assert done.exit_code == 2
    assert "http://HOST" in done.output
    assert f"it is {url!r}" in " ".join(done.output.split())


def test_what_is_not_locked_is_locked_before_a_hub_is_read() -> None:
    made = planned(FP8, "--on", "gb10", "--lock-file", os.devnull)
    fixes = {one["id"]: one["fix"] for one in made["findings"]}
    assert fixes["planned-from-catalogue"].startswith(f"roost lock {FP8}, then roost plan … --hub")


def test_a_closed_input_has_no_password() -> None:
    program = "from roost import options; options.password(True)"
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -c '{program}' <&-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "UsageError: --ask-become-pass: there is no password to read" in done.stderr

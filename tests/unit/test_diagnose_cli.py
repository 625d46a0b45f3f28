"""``roost diagnose`` as a user meets it: whole processes and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.unit.logs import log

FAILING = "vllm-0.24.0-fails-kv-too-small"


def diagnose(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "roost.cli", "diagnose", *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_failing_log(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text(log(FAILING), encoding="utf-8")
    done = diagnose(str(file))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("error: one request of 262,144 tokens needs 5.08 GiB")
    assert lines[1].startswith("  line 68: ValueError: To serve at least one request")
    assert lines[2].startswith("  why: ")
    assert "kv_cache_bytes: 5460983808" in lines[3]
    assert "looks worse than it is:" in lines
    assert not done.stderr


def test_json_has_the_contract_s_keys() -> None:
    done = diagnose("-", "--json", stdin=log(FAILING))
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    contract = {"id", "title", "severity", "evidence", "why", "fix", "source"}
    assert all(set(row) == contract | {"line", "values"} for row in rows)
    assert rows[0]["id"] == "kv-pool-too-small"
    assert rows[0]["severity"] == "error"


def test_a_healthy_log_and_an_empty_one_are_good() -> None:
    done = diagnose("-", stdin=log("vllm-0.24.0-healthy-bf16-8gib-262144"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing wrong found\n")
    done = diagnose("-", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    done = diagnose("-")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing was read: ")


def test_only_one_engine_s(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_text("Free memory on device cuda:0 (1.0/2.0 GiB) on startup is less than desired ")
    assert diagnose(str(file), "--engine", "sglang").returncode == 0


def test_usage() -> None:
    for words in (["/no/such/file"], ["."], [], ["-", "--engine", "spam"]):
        done = diagnose(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert done.stderr

"""``roost diagnose`` as a user meets it: whole processes and their exit codes."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.unit.logs import log

import roost.diagnose
from roost import collecting
from roost.collecting import Collected
from roost.diagnose import fingerprints

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


def test_a_compressed_log_is_read(tmp_path: Path) -> None:
    file = tmp_path / "engine.txt.gz"
    packed = gzip.compress(log(FAILING).encode())
    file.write_bytes(packed)
    done = diagnose(str(file))
    assert done.returncode == 1
    assert done.stdout.startswith("error: one request of 262,144 tokens needs 5.08 GiB")
    file.write_bytes(packed[:-400])
    done = diagnose(str(file))
    assert done.returncode == 1
    assert "its compressed content is damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_archive_of_roost_logs_has_its_diagnosis(tmp_path: Path) -> None:
    file = tmp_path / "logs.tar.gz"
    kept = roost.diagnose.diagnose(log(FAILING))
    found = Collected("spark-01", files={}, diagnosis=kept)
    found.files["roost-llm.log"] = log(FAILING)
    found.files["diagnosis.json"] = json.dumps([dataclasses.asdict(item) for item in kept])
    collecting.write(found, file, datetime(2026, 11, 29, tzinfo=UTC))
    done = diagnose(str(file), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == json.loads(found.files["diagnosis.json"])
    file.unlink()
    found.files["diagnosis.json"] = "{}"
    collecting.write(found, file, datetime(2026, 11, 29, tzinfo=UTC))
    assert diagnose(str(file)).returncode == 2
    file.unlink()
    del found.files["diagnosis.json"]
    collecting.write(found, file, datetime(2026, 11, 29, tzinfo=UTC))
    done = diagnose(str(file))
    assert done.returncode == 2
    assert f"tar -xf {file}" in done.stderr


def test_the_engine_is_asked_for_of_an_archive_too(tmp_path: Path) -> None:
    by_engine = {item.engine: item for item in fingerprints.builtin()}
    names = {engine: item.id for engine, item in by_engine.items()}
    (one, *_) = roost.diagnose.diagnose(log(FAILING))
    # A later version of roost may know more.
    ids = [*names.values(), "unknown", "of-a-later-version"]
    rows = [dataclasses.asdict(dataclasses.replace(one, id=name)) for name in ids]
    found = Collected("spark-01", files={"diagnosis.json": json.dumps(rows)})
    collecting.write(found, tmp_path / "logs.tar.gz", datetime(2026, 11, 29, tzinfo=UTC))
    done = diagnose(str(tmp_path / "logs.tar.gz"), "--engine", "sglang", "--json")
    said = [item["id"] for item in json.loads(done.stdout)]
    assert said == [name for name in ids if name != names["vllm"]]


def tar(content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("engine.log")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x01\0", tar(b"error\n" * 2000)])
def test_what_is_no_text_is_not_called_healthy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "engine.log"
    for made in (content, gzip.compress(content)):
        file.write_bytes(made)
        done = diagnose(str(file))
        assert (done.returncode, done.stdout) == (2, "")
        assert "is no log" in done.stderr or "without a diagnosis" in done.stderr


@pytest.mark.parametrize("start", [b"\0" * 100, b"\0" * 100_000])
def test_zeros_that_a_crash_left_are_no_reason(tmp_path: Path, start: bytes) -> None:
    file = tmp_path / "engine.log"
    file.write_bytes(start + log(FAILING).encode())
    assert diagnose(str(file)).stdout.startswith("error: one request of 262,144 tokens needs")


def test_a_log_of_a_windows_terminal(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    file.write_bytes(log(FAILING).encode("utf-16"))
    assert diagnose(str(file)).stdout.startswith("error: one request of 262,144 tokens needs")


def test_an_empty_log_is_empty_when_it_is_packed(tmp_path: Path) -> None:
    file = tmp_path / "engine.log.gz"
    file.write_bytes(gzip.compress(b""))
    assert diagnose(str(file)).stdout.startswith("nothing was read: ")


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

"""Kept runs read back, and as data frames; the broken ones included."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.kept_runs import benchmark, keep

from roost import measure
from roost.errors import RoostError, UsageError
from roost.measure import compare, points, store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    keep(tmp_path, "1-spark-01", benchmark(1, categories=2))
    keep(tmp_path, "2-spark-02", benchmark(2), host="spark-02", ok=False)
    keep(tmp_path, "3-spark-01", notebook="verify", recipe="other")
    return tmp_path


def nothing(line: str) -> None:
    raise AssertionError(line)


def test_frames_have_what_the_folders_have(root: Path) -> None:
    found = measure.load_runs(root, say=nothing)
    assert list(found.runs["run"]) == ["1-spark-01", "2-spark-02", "3-spark-01"]
    first = found.runs.iloc[0]
    assert (first["kind"], first["state"], first["suite"]) == ("benchmark", "passed", "spec-bench")
    assert (first["seconds"], first["engine_version"], first["driver"]) == (
        90,
        "0.24.0",
        "580.95.05",
    )
    assert str(first["started"]) == "2026-11-29 16:00:05+00:00"
    assert list(found.runs["state"]) == ["passed", "failed", "passed"]
    mine = found.points.query("run == '1-spark-01' and metric == 'output_throughput'")
    assert list(mine["point"]) == ["coding-c1", "prose-c1"]
    figure = found.figures.set_index(["run", "key"]).loc[
        ("1-spark-01", "coding-c1.output_throughput")
    ]
    assert mine.iloc[0]["value"] == figure["value"]
    assert mine.iloc[0]["low"] < mine.iloc[0]["value"] < mine.iloc[0]["high"]
    assert len(found.checks) == 3
    assert len(found.requests()) == (2 + 1) * 3 * 4
    assert len(found.acceptance()) == (2 + 1) * 3 * 5
    assert list(found.gpu_samples()["clock"])[:2] == [2400, 2399]


def test_requests_are_read_when_they_are_asked_for(root: Path) -> None:
    found = measure.load_runs(root, say=nothing)
    short = found.kept[0].benchmark
    assert short is not None
    assert [len(one.requests) for cell in short.cells for one in cell.repetitions] == [0] * 6
    assert found.kept[0].whole() == points.load(root / "1-spark-01")
    assert found.kept[2].whole() is None
    (root / "2-spark-02" / points.REQUESTS).unlink()
    with pytest.raises(RoostError, match=r"2-spark-02/requests\.parquet: cannot be read"):
        found.requests()


def test_only_what_was_asked_for(root: Path) -> None:
    def names(**wanted: str | list[str]) -> list[str]:
        return list(measure.load_runs(root, say=nothing, **wanted).runs["run"])

    assert names(kind="verify") == ["3-spark-01"]
    assert names(host=["spark-01"], kind="benchmark") == ["1-spark-01"]
    assert names(recipe="none") == []


def test_no_run_gives_frames_with_their_columns(tmp_path: Path) -> None:
    found = measure.load_runs(tmp_path, say=nothing)
    assert found.runs.empty
    assert str(found.runs["started"].dtype).startswith("datetime64")
    assert list(found.requests().columns)[:2] == ["run", "point"]
    assert found.gpu_samples().empty
    with pytest.raises(UsageError, match="no such folder"):
        measure.load_runs(tmp_path / "nowhere")


def with_value(folder: Path, key: str, value: float) -> str:
    """The folder's benchmark with another value in its first repetition."""
    data = json.loads((folder / points.FILE).read_text())
    data["cells"][0]["repetitions"][0][key] = value
    return json.dumps(data)


MADE = {"ok": True, "notebook": "x"}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({}, "no result.json (the run was killed, or is still going on)"),
    "cut": ({"result.json": '{"ok": tr'}, "result.json: no JSON"),
    "list": ({"result.json": "[]"}, "result.json: no JSON object"),
    "deep": ({"result.json": "[" * 100_000}, "result.json: no JSON"),
    "year": (
        {"result.json": '{"ok": true, "notebook": "x", "started": "0001-01-01T00:00Z"}'},
        "started",
    ),
    "lacking": ({"result.json": json.dumps(MADE)}, "started: Field required"),
    "killed": ({"executed.ipynb": "{}"}, "no result.json"),
    "points": ({"benchmark.json": "{"}, "benchmark.json"),
    "table": ({"requests.parquet": "PAR1"}, "requests.parquet"),
    "machine": ({"host.json": '{"facts": [1]}'}, "host.json: facts"),
    "nan": ({"benchmark.json": math.nan}, "benchmark.json: cells.0.repetitions.0.duration"),
    "infinite": ({"benchmark.json": math.inf}, "benchmark.json: cells.0.repetitions.0.duration"),
    "bottomless": (
        {"host.json": '{"facts": {"x": ' + "[" * 400 + "]" * 400 + "}}"},
        "host.json: no document",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_one_message_and_the_others_load(name: str, root: Path) -> None:
    files, message = BROKEN[name]
    folder = root / "0-broken"
    whole = name in {"points", "table", "machine", "nan", "infinite", "bottomless"}
    if whole:
        keep(root, folder.name, benchmark(4))
    folder.mkdir(exist_ok=True)
    for file, text in files.items():
        if isinstance(text, float):
            text = with_value(folder, "duration", text)
        (folder / file).write_text(text)
    said: list[str] = []
    found = measure.load_runs(root, say=said.append)
    assert len(said) == 1
    assert str(folder) in said[0]
    assert message in said[0]
    assert found.problems == said
    assert list(found.runs["run"]) == ["0-broken", "1-spark-01", "2-spark-02", "3-spark-01"]
    assert (found.runs.iloc[0]["state"] in {"passed", "failed"}) == whole


def test_a_number_beyond_all_engines_stops_no_other_run(root: Path) -> None:
    file = keep(root, "0-odd", benchmark(4)) / points.FILE
    file.write_text(with_value(file.parent, "output_throughput", 1e308))
    said: list[str] = []
    found = measure.load_runs(root, say=said.append)
    assert len(said) == 1
    assert said[0].startswith(f"{file}: no figures in it (")
    assert set(found.points["run"]) == {"1-spark-01", "2-spark-02"}
    with pytest.raises(RoostError, match="no figures in it"):
        compare.load([file.parent, root / "1-spark-01"])


def test_a_folder_whose_name_is_no_text_is_told_as_one(root: Path) -> None:
    """What Python makes of such a name no terminal takes."""
    (root / os.fsdecode(b"0-\xff")).mkdir()
    said: list[str] = []
    found = measure.load_runs(root, say=said.append)
    assert [line.encode().rpartition(b"/")[2] for line in said] == [
        b"0-?: no result.json (the run was killed, or is still going on)"
    ]
    assert found.runs.iloc[0]["run"] == "0-?"


def test_a_count_that_no_table_holds_stops_no_other_run(root: Path) -> None:
    file = keep(root, "0-odd", benchmark(4)) / points.FILE
    data = json.loads(file.read_text())
    data["cells"][0]["concurrency"] = 10**30
    file.write_text(json.dumps(data))
    said: list[str] = []
    found = measure.load_runs(root, say=said.append)
    assert len(said) == 1
    assert said[0].startswith(f"{file}: cells.0.concurrency: ")
    assert set(found.points["run"]) == {"1-spark-01", "2-spark-02"}


READ = ["result.json", "host.json", "benchmark.json", "requests.parquet", "acceptance.parquet"]


@pytest.mark.parametrize("file", READ)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_links_and_pipes_in_a_run_are_told_and_not_followed(
    kind: str, file: str, root: Path, tmp_path: Path
) -> None:
    path = keep(root, "0-odd", benchmark(4)) / file
    elsewhere = path.rename(tmp_path / f"elsewhere-{file}")
    if kind == "link":
        path.symlink_to(elsewhere)
    else:
        os.mkfifo(path)
    said: list[str] = []
    found = measure.load_runs(root, say=said.append)
    assert len(said) == 1
    assert said[0].startswith(f"{path}: cannot be read (a {kind}")
    assert list(found.runs["run"])[1:] == ["1-spark-01", "2-spark-02", "3-spark-01"]


def test_samples_behind_a_link_are_not_read(root: Path, tmp_path: Path) -> None:
    path = root / "1-spark-01" / "gpu.parquet"
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    with pytest.raises(RoostError, match=r"gpu\.parquet: cannot be read\n.*a link"):
        measure.load_runs(root, say=nothing).gpu_samples()


def test_a_file_that_is_larger_than_any_of_a_run_is_not_read(root: Path) -> None:
    with (root / "1-spark-01" / "result.json").open("r+b") as sparse:
        sparse.truncate(2**40)
    said: list[str] = []
    measure.load_runs(root, say=said.append)
    assert len(said) == 1
    assert "1-spark-01/result.json: cannot be read (1,048,576 MiB, 128 at the most)" in said[0]


def test_a_folder_of_runs_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "named").symlink_to(root)
    found = measure.load_runs(tmp_path / "named", say=nothing)
    assert list(found.runs["run"]) == ["1-spark-01", "2-spark-02", "3-spark-01"]
    assert not found.requests().empty


def test_where_no_run_is_finished_frames_have_their_columns(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "result.json").write_text('{"notebook": "half \\ud800"}')
    found = measure.load_runs(tmp_path, say=lambda _: None)
    assert list(found.runs["kind"]) == ["unknown", "half ?"]
    assert list(found.runs["host"]) == ["", ""]


def test_a_run_of_before_there_were_tables_is_read(root: Path) -> None:
    new = root / "1-spark-01"
    whole = points.read(new)
    (new / points.FILE).write_text(whole.model_dump_json())
    for gone in (points.REQUESTS, points.ACCEPTANCE, "gpu.parquet", "host.json"):
        (new / gone).unlink()
    found = measure.load_runs(root, say=nothing)
    assert len(found.requests()) == (2 + 1) * 3 * 4
    assert found.runs.iloc[0]["driver"] == ""


def test_runs_within_runs_are_found_and_a_site_among_them_is_not(root: Path) -> None:
    keep(root, "4-rollout/hosts/spark-01", benchmark(3))
    keep(root, "4-rollout/hosts/spark-02", benchmark(5))
    (root / "1-spark-01" / "details").mkdir()
    (root / "site" / "runs").mkdir(parents=True)
    (root / "site" / store.SITE_MARK).touch()
    (root / "loop").symlink_to(root)
    assert [one.name for one in store.read_all(root)][3:] == [
        "4-rollout/hosts/spark-01",
        "4-rollout/hosts/spark-02",
    ]


def test_a_folder_in_place_of_a_result_is_no_run_of_its_own(root: Path) -> None:
    (root / "0-odd" / "result.json").mkdir(parents=True)
    first, *others = store.read_all(root)
    assert (first.name, first.state) == ("0-odd", "unreadable")
    assert first.problem == f"{root}/0-odd/result.json: cannot be read (Is a directory)"
    assert len(others) == 3


def close(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything, so the call that lists a folder refuses this one."""
    listed = os.scandir

    def scandir(path: str | os.PathLike[str]) -> object:
        if Path(path) == folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.parametrize("name", ["2-spark-02", "9-other", "1-spark-01/hosts"])
def test_a_folder_that_is_closed_to_us_is_named(
    name: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / name).mkdir(parents=True, exist_ok=True)
    close(root / name, monkeypatch)
    said: list[str] = []
    found = measure.load_runs(root, say=said.append)
    assert said == [f"{root}/{name}: cannot be read (Permission denied)"]
    states = dict(zip(found.runs["run"], found.runs["state"], strict=True))
    assert states[name] == "unreadable"
    assert {"3-spark-01", "1-spark-01"} <= set(states)


def test_runs_that_nobody_may_list_are_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close(root, monkeypatch)
    with pytest.raises(RoostError, match="cannot be read"):
        store.read_all(root)


def test_measuring_does_not_wait_for_pandas() -> None:
    program = "import roost.measure.compare, sys; sys.exit('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ, check=False)
    assert done.returncode == 0

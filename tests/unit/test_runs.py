"""A run's folder and result."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.deployments import deployment
from tests.unit.disks import full_disk

from roost import runs
from roost.errors import RoostError, UsageError
from roost.inventory import Connection, Host
from roost.measure.checks import Check, Evidence, Figure, inapplicable, unseen
from roost.parquet import Table

NOW = dt.datetime(2026, 11, 29, 16, 0, 5, tzinfo=dt.UTC)


def run(folder: Path) -> runs.Run:
    host = Host("spark-01", {}, Connection("10.0.0.1"))
    return runs.Run("verify", folder, host, deployment(folder), NOW)


def evidence(*, ok: bool = True) -> Evidence:
    return Evidence(
        checks=[
            Check(id="health", ok=True, expected="200", observed="200"),
            Check(id="answer_sum", ok=ok, expected="4", observed="5 " * 200, why="wrong"),
        ],
        figures={"x": Figure(title="X", value=1.5, unit="ms", source="one request")},
        artefacts={"engine.log": "ready\n"},
    )


def test_folders_are_named_by_time_host_and_recipe_and_never_shared(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: runs.new_folder(tmp_path, "a/b", "r-1", NOW), range(24)))
    assert len(set(made)) == 24
    assert sorted(item.name for item in made)[0] == "20261129T160005Z-a_b-r-1"


def test_finish_writes_everything_and_reads_back(tmp_path: Path) -> None:
    result = run(tmp_path).finish(evidence())
    assert runs.read(tmp_path) == result
    data = json.loads((tmp_path / "result.json").read_text())
    assert data["ok"] is True
    assert (data["recipe"], data["host"], data["hardware"]) == ("smollm2-135m", "spark-01", "cpu")
    assert data["speculation"] == "dflash"
    assert data["started"] == "2026-11-29T16:00:05Z"
    assert data["lock"]["image"].endswith("@sha256:" + "5" * 64)
    assert data["lock"]["drafter"] == "roost-lab/SmolLM2-135M-DFlash@" + "4" * 40
    assert data["figures"]["x"] == {
        "title": "X",
        "value": 1.5,
        "unit": "ms",
        "source": "one request",
        "low": None,
        "high": None,
    }
    # What the figures are of, to the last flag.
    assert data["command"][:2] == ["vllm", "serve"]
    assert "--speculative-config" in data["command"]
    assert data["env"]["VLLM_CPU_KVCACHE_SPACE"]
    assert data["trial"] is False
    assert (tmp_path / "engine.log").read_text() == "ready\n"
    names = {item.name for item in tmp_path.iterdir()} - {"roost.lock.yml"}
    assert names == {"engine.log", "report.html", "result.json"}
    result.require()


def test_a_failed_check_fails_the_run_in_words(tmp_path: Path) -> None:
    result = run(tmp_path).finish(evidence(ok=False))
    with pytest.raises(runs.ChecksFailed) as caught:
        result.require()
    first, second, cause, why, fix = str(caught.value).splitlines()
    assert cause.startswith("  cause: healthy, and answers wrongly (wrong-answers): answer_sum: ")
    assert (why[:9], fix[:9]) == ("    why: ", "    fix: ")
    assert first == "spark-01: 1 of 2 checks failed"
    assert second.startswith("  answer_sum: expected 4; observed 5 5 ")
    assert second.endswith("…; wrong")
    assert len(second) < 300


@pytest.mark.parametrize(
    ("log", "ids"),
    [
        # What the log knows comes before what was seen from outside.
        ("OSError: [Errno 98] Address already in use\n", ["port-in-use", "wrong-answers"]),
        ("ready\n", ["wrong-answers"]),
        # An error that nothing died of explains no wrong answer.
        ("INFO: Application startup complete.\nERROR one request\n", ["wrong-answers"]),
    ],
)
def test_a_failed_run_is_diagnosed(tmp_path: Path, log: str, ids: list[str]) -> None:
    failed = evidence(ok=False)
    failed.artefacts["engine.log"] = log
    run(tmp_path).finish(failed)
    data = json.loads((tmp_path / "result.json").read_text())
    assert [cause["id"] for cause in data["diagnosis"]] == ids


def test_a_failed_run_that_nobody_can_explain_shows_the_likely_root(tmp_path: Path) -> None:
    failed = Evidence(checks=[Check(id="health", ok=False, expected="200")])
    failed.artefacts["engine.log"] = "KeyError: 'rope_typo'\n"
    (cause,) = run(tmp_path).finish(failed).diagnosis
    assert (cause["id"], cause["evidence"]) == ("unknown", "KeyError: 'rope_typo'")


def test_a_run_without_checks_has_not_passed(tmp_path: Path) -> None:
    assert not run(tmp_path).finish(Evidence()).ok


@pytest.mark.parametrize("room", [0, 100, 5000])
def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, room: int) -> None:
    begun = run(tmp_path)
    found = evidence()
    found.artefacts["engine.log"] = "x" * 20_000
    found.tables["requests.parquet"] = Table({"n": int}, [{"n": at} for at in range(9000)])
    with full_disk(room), pytest.raises(RoostError, match="cannot be written") as caught:
        begun.finish(found)
    assert "File too large" in caught.value.why
    assert not {"result.json", "engine.log"} & {item.name for item in tmp_path.iterdir()}
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inventory": ...}, "parameter inventory is not set"),
        ({"host": None}, "parameter host is not set"),
        ({"host": ""}, "parameter host is not set"),
        ({"host": 7}, "parameter host is 7, which is no text[\\s\\S]*-r host"),
        ({}, "no such inventory: nowhere"),
    ],
)
def test_wrong_parameters(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"inventory": "nowhere", "host": "spark-01", **change}
    with pytest.raises(UsageError, match=message):
        runs.start("verify", **given)


def test_a_folder_that_cannot_be_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(RoostError, match="cannot be made") as caught:
            runs.given_folder(str(tmp_path / name))
        assert caught.value.why in {"File exists", "Not a directory"}
    assert runs.given_folder(tmp_path / "new" / "one").is_dir()


def test_a_release_is_found_from_here_and_from_the_repository_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JupyterLab's working directory is that of the notebook."""
    for folder in ("playbooks", "notebooks", "kept"):
        (tmp_path / folder).mkdir()
    (tmp_path / "deploy.yml").touch()
    deployed = deployment(tmp_path)
    (tmp_path / "kept" / "deployment.json").write_text(deployed.model_dump_json())
    of = SimpleNamespace(host=lambda name: Host(name, {}, Connection("10.0.0.1")))
    monkeypatch.setattr(runs.inventories, "load", lambda _: of)
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given in ("kept/deployment.json", "../kept/deployment.json"):
        begun = runs.start("benchmark", inventory="i", host="spark-01", release=given)
        assert begun.deployment == deployed
        assert begun.folder.parent == tmp_path / "runs"
    own = runs.start("benchmark", inventory="i", host="h", release=given, runs_dir="~/runs")
    assert own.folder.parent == tmp_path / "home" / "runs"
    with pytest.raises(UsageError, match=r"^kept/other: no deployment"):
        runs.start("benchmark", inventory="i", host="spark-01", release="kept/other")
    # What was taken once may be refused by now, for a secret that no message may repeat.
    document = deployed.model_dump(mode="json")
    document["asked"]["settings"]["extra_args"] = ["--api-key", "sk-planted"]
    (tmp_path / "kept" / "before.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"before\.json: no deployment") as refused:
        runs.start("benchmark", inventory="i", host="spark-01", release="kept/before.json")
    assert "sk-planted" not in str(refused.value)


@pytest.mark.parametrize("below", ["", "below"])
def test_a_folder_behind_a_link_that_leads_nowhere_is_said_in_words(
    below: str, tmp_path: Path
) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted")
    folder = tmp_path / "runs" / below
    for make in (lambda: runs.new_folder(folder, "h", "r"), lambda: runs.given_folder(folder)):
        with pytest.raises(RoostError, match="cannot be made") as caught:
            make()
        why = f"{tmp_path}/runs is a link to {tmp_path}/unmounted, which is not there"
        assert caught.value.why == why
    (tmp_path / "unmounted").mkdir()
    assert runs.new_folder(folder, "h", "r").parent == folder


def test_runs_that_are_a_file_are_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RoostError, match="runs: cannot be made") as caught:
        runs.new_folder(tmp_path / "runs", "h", "r")
    assert caught.value.why == "File exists"


@pytest.mark.parametrize("left", [runs.RESULT, runs.PROGRESS])
def test_a_folder_belongs_to_one_run(left: str, tmp_path: Path) -> None:
    """Killed midway, a second one would leave its raw files beside the first one's figures."""
    (tmp_path / "executed.ipynb").write_text("{}")
    assert runs.given_folder(tmp_path) == tmp_path
    (tmp_path / left).write_text("{}")
    with pytest.raises(UsageError, match="has another run in it") as caught:
        runs.given_folder(tmp_path)
    assert caught.value.why == f"{left} is there, and a folder belongs to one run"
    # A search that is gone on with.
    assert runs.given_folder(tmp_path, resumed=True) == tmp_path


def test_a_folder_that_is_closed_to_us_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    # What root may do, nobody may forbid.
    monkeypatch.setattr(Path, "exists", closed)
    assert runs.given_folder(tmp_path) == tmp_path


def test_a_folder_in_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runs.own_path("~/look") == tmp_path / "look"


def test_refused_parameters_leave_no_empty_folder(tmp_path: Path) -> None:
    for name, kept in (("empty", False), ("begun", True)):
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        begun = dataclasses.replace(run(tmp_path / "elsewhere"), folder=tmp_path / name)
        begun.folder.mkdir()
        if kept:
            (begun.folder / "executed.ipynb").write_text("{}")
        with pytest.raises(UsageError), begun.or_nothing():
            raise UsageError("parameter long_context is 'x'")
        assert begun.folder.exists() is kept


def test_reading_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RoostError, match="no finished run"):
        runs.read(tmp_path)
    (tmp_path / "result.json").write_text('{"ok": true}')
    with pytest.raises(RoostError, match=r"result\.json: notebook: Field required"):
        runs.read(tmp_path)
    (tmp_path / "result.json").write_text('{"ok": tr')
    with pytest.raises(RoostError, match=r"result\.json: Invalid JSON"):
        runs.read(tmp_path)
    (tmp_path / "result.json").write_bytes(b"\xff\xfe")
    with pytest.raises(RoostError, match=r"result\.json: no text"):
        runs.read(tmp_path)


def test_what_cannot_be_asked_is_told_once(tmp_path: Path) -> None:
    reason = "spark-01 (10.0.0.1:22): cannot connect"
    failed = [
        Check(id=name, ok=False, expected="x", why=reason, fix="look at it")
        for name in ("health", "container")
    ]
    other = Check(id="answer_sum", ok=False, expected="4", observed="5", why="wrong")
    result = run(tmp_path).finish(Evidence(checks=[*failed, other]))
    assert result.summary().split("\n")[:4] == [
        "spark-01: 3 of 3 checks failed",
        f"  health, container; {reason}",
        "    fix: look at it",
        "  answer_sum: expected 4; observed 5; wrong",
    ]


def test_what_was_not_seen_is_no_silent_pass(tmp_path: Path) -> None:
    made = [
        Check(id="health", ok=True, expected="200", observed="200"),
        unseen("log_moe", "moe_backend humming", "the log does not say"),
        inapplicable("api_key", "the site has no key"),
    ]
    result = run(tmp_path).finish(Evidence(checks=made))
    assert result.ok
    assert result.summary() == "spark-01: 1 of 2 checks passed, not seen: log_moe"
    report = (tmp_path / "report.html").read_text()
    assert "? not seen" in report
    assert "Of 1 nothing was to be seen" in " ".join(report.split())
    kept = json.loads((tmp_path / "result.json").read_text())["checks"]
    assert [check["verdict"] for check in kept] == ["pass", "not seen", "not applicable"]


def test_a_result_without_verdicts_is_read_all_the_same(tmp_path: Path) -> None:
    run(tmp_path).finish(evidence(ok=False))
    data = json.loads((tmp_path / "result.json").read_text())
    for check in data["checks"]:
        del check["verdict"], check["fix"]
    (tmp_path / "result.json").write_text(json.dumps(data))
    assert [check.verdict for check in runs.read(tmp_path).checks] == ["pass", "fail"]

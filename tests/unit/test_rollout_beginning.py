"""What a rollout begins with, what it takes over, and what is refused before anything is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from click.testing import CliRunner
from tests.unit.deployments import deployment, write_lock
from tests.unit.rollouts import MINE, FakeFleet

from roost import releases
from roost.cli import cli
from roost.deployment import Deployment
from roost.errors import RoostError, UsageError
from roost.measure import points
from roost.measure.points import Benchmark
from roost.rollout import beginning, record, report
from roost.rollout.record import Rollout

ROOT = Path(__file__).parents[2]
INVENTORY = Path("/fleet")


def open_or_new(
    runs_dir: Path, wanted: dict[str, Deployment], **given: Any
) -> tuple[Path, Rollout]:
    options = {"limit": None, "sizes": None, "suite": None, "resume": False, **given}
    options.setdefault("fleet", lambda _: FakeFleet({}))
    folder, rollout = beginning.open_or_new(INVENTORY, wanted, runs_dir=runs_dir, **options)
    record.write(folder, rollout)
    return folder, rollout


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, Deployment]:
    return {
        "s1": deployment(tmp_path, "gb10"),
        "s2": deployment(tmp_path, "gb10", speculation="none"),
        "c1": deployment(tmp_path, "cpu"),
    }


def other(tmp_path: Path, wanted: dict[str, Deployment]) -> dict[str, Deployment]:
    settings = {"max_num_seqs": 3}
    return {**wanted, "c1": deployment(tmp_path, "cpu", settings=settings)}


def test_hosts_of_each_kind_have_a_canary_of_their_own(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    _, rollout = open_or_new(tmp_path, wanted)
    assert [batch.hosts for batch in rollout.batches] == [("s1",), ("s2",), ("c1",)]
    assert rollout.hosts["c1"].kind == "cpu, smollm2-135m, dflash"
    assert rollout.hosts["c1"].wanted == releases.release(wanted["c1"])["id"]
    assert (rollout.sizes, rollout.suite) == ("1,25%,100%", "gate")


def test_one_that_was_interrupted_is_gone_on_with(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    first, _ = open_or_new(tmp_path, wanted, sizes="50%", suite="smoke", limit="fleet")
    for resume in (False, True):
        folder, rollout = open_or_new(tmp_path, wanted, resume=resume)
        assert (folder, rollout.sizes, rollout.suite) == (first, "50%", "smoke")
    assert beginning.interrupted_limit(tmp_path, INVENTORY) == "fleet"
    assert beginning.interrupted_limit(tmp_path, Path("/other")) is None
    with pytest.raises(UsageError, match="begun with other batches") as caught:
        open_or_new(tmp_path, wanted, sizes="1")
    assert "--batches 50% --suite smoke" in caught.value.why


def test_other_wishes_begin_a_new_one_and_are_not_resumed(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    first, rollout = open_or_new(tmp_path, wanted)
    with pytest.raises(UsageError, match="cannot be gone on with"):
        open_or_new(tmp_path, other(tmp_path, wanted), resume=True)
    folder, new = open_or_new(tmp_path, other(tmp_path, wanted))
    assert folder != first
    assert new.verdict == "running"
    assert record.read(first).verdict == "superseded"
    assert rollout.hosts["c1"].wanted != new.hosts["c1"].wanted


def test_the_report_of_one_that_is_given_up_says_so_and_whom_it_leaves(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    folder, rollout = open_or_new(tmp_path, wanted)
    rollout.batches[0].started = rollout.batches[1].started = record.now()
    rollout.hosts["s1"].verdict = "passed"
    record.write(folder, rollout)
    # s2 may serve a release that nobody has judged, and the new one goes to others.
    open_or_new(tmp_path, {"s1": wanted["s1"], "c1": wanted["c1"]})
    said = (folder / report.MARKDOWN).read_text()
    assert said.startswith("# Rollout of fleet: Given up for a later rollout\n")
    assert "s2: begun and not judged; the later rollout leaves it out: deploy it" in said
    assert "s1: begun" not in said
    assert record.read(folder).reason in said


def test_hosts_that_a_later_rollout_leaves_out_are_free_again(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    first, _ = open_or_new(tmp_path, wanted)
    fleet = FakeFleet({}, leases={name: {"owner": MINE} for name in wanted}, off={"s1"})
    folders = []

    def of(folder: Path) -> FakeFleet:
        folders.append((folder, record.read(folder).verdict))
        return fleet

    open_or_new(tmp_path, {"c1": wanted["c1"]}, fleet=of)
    assert fleet.steps == ["let go s1,s2"]
    assert set(fleet.leases) == {"s1", "c1"}
    # Before it is given up: killed in between, it is done again.
    assert folders == [(first, "running")]
    said = "s1: still has this rollout's lease: deploy with --despite-lease, or roll out again"
    assert record.read(first).reason == said
    # One that has the same hosts has nobody to let go.
    open_or_new(tmp_path, {"c1": wanted["s1"]}, fleet=of)
    assert len(fleet.steps) == 1


def test_nothing_to_resume(tmp_path: Path, wanted: dict[str, Deployment]) -> None:
    with pytest.raises(UsageError, match="no rollout of it was interrupted"):
        open_or_new(tmp_path, wanted, resume=True)
    folder, rollout = open_or_new(tmp_path, wanted)
    record.write(folder, rollout.model_copy(update={"verdict": "passed"}))
    with pytest.raises(UsageError, match="no rollout of it was interrupted"):
        open_or_new(tmp_path, wanted, resume=True)


def test_what_was_not_judged_is_no_release_to_go_back_to(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    folder, first = open_or_new(tmp_path, wanted)
    first.hosts["c1"].before = "r-proved"
    first.batches[2].started = record.now()
    first.hosts["s1"].before = "r-s1"
    first.hosts["s1"].verdict = "passed"
    first.batches[0].started = record.now()
    record.write(folder, first)
    _, new = open_or_new(tmp_path, other(tmp_path, wanted))
    assert new.hosts["c1"].before == "r-proved"
    assert new.hosts["c1"].unjudged == [first.hosts["c1"].wanted]
    assert new.hosts["s1"].unjudged == new.hosts["s2"].unjudged == []
    # And again, over a second one that was not judged either.
    _, newer = open_or_new(tmp_path, wanted)
    assert newer.hosts["c1"].before == "r-proved"
    assert newer.hosts["c1"].unjudged == [first.hosts["c1"].wanted]


def test_the_last_benchmark_of_the_same_kind_is_a_baseline(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    folder, first = open_or_new(tmp_path, wanted)
    for name in wanted:
        run = folder / "runs" / name
        run.mkdir(parents=True)
        kept = Benchmark(suite="gate", protocol="", prompts="", complete=True, cells=[])
        (run / points.FILE).write_text(kept.model_dump_json())
        first.hosts[name].runs["benchmark"] = f"runs/{name}"
        first.hosts[name].verdict = "passed"
    first.hosts["s2"].verdict = "back"
    record.write(folder, first.model_copy(update={"verdict": "stopped"}))
    _, new = open_or_new(tmp_path, {**wanted, "s1": wanted["s2"]})
    kept = record.Baseline(release=first.hosts["c1"].wanted, run=str(folder / "runs/c1"))
    assert new.hosts["c1"].baseline == kept
    # Another kind now; and one that was taken back.
    assert new.hosts["s1"].baseline is new.hosts["s2"].baseline is None
    (folder / "other").mkdir()
    _, of_other_suite = open_or_new(tmp_path / "other", wanted, suite="smoke")
    assert of_other_suite.hosts["c1"].baseline is None


def test_a_benchmark_that_was_cut_off_is_no_baseline(
    tmp_path: Path, wanted: dict[str, Deployment]
) -> None:
    folder, first = open_or_new(tmp_path, wanted)
    (folder / "runs" / "c1").mkdir(parents=True)
    (folder / "runs" / "c1" / points.FILE).write_text("{")
    first.hosts["c1"].runs["benchmark"] = "runs/c1"
    first.hosts["c1"].verdict = "passed"
    record.write(folder, first.model_copy(update={"verdict": "passed"}))
    _, new = open_or_new(tmp_path, wanted)
    assert new.hosts["c1"].baseline is None


def test_a_second_rollout_of_an_inventory_is_refused(tmp_path: Path) -> None:
    inventory = tmp_path / "fleet"
    with record.turn(inventory), record.turn(tmp_path / "other"):
        with pytest.raises(RoostError, match="another rollout of this inventory") as caught:
            record.turn(inventory).__enter__()
        assert f"process {os.getpid()} of " in caught.value.why
    with record.turn(inventory):
        pass


def test_a_turn_that_another_user_took_first_is_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a file that root may not open there is none.
    monkeypatch.setattr(os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(RoostError, match="belongs to somebody else"):
        record.turn(tmp_path / "fleet").__enter__()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / record.FILE).write_text("{")
    with pytest.raises(RoostError, match=record.FILE) as caught:
        record.read(tmp_path)
    assert "move its folder elsewhere" in caught.value.fix


# The command, and the playbook


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """An inventory of two hosts of which one is of no known hardware."""
    write_lock(tmp_path / "lock.yml")
    common = {
        "ansible_connection": "local",
        "roost_recipe": "smollm2-135m",
        "roost_lock_file": str(tmp_path / "lock.yml"),
        "roost_hardware": "cpu",
    }
    document = {"all": {"vars": common, "hosts": {"h1": {}, "h2": {"roost_hardware": "abacus"}}}}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--batches", "0%"], "'0%' is no size of a batch"),
        (["--batches", "some"], "'some' is no size of a batch"),
        (["--batches", ""], "'' is no size of a batch"),
        ([], "h2: hardware 'abacus' is not in the catalogue"),
        (["--limit", "h1", "--suite", "smok"], "did you mean smoke"),
        (["--limit", "h1", "--resume"], "no rollout of it was interrupted"),
        (["--limit", "h3"], "no host matches"),
    ],
)
def test_wrong_wishes_are_one_message(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(ROOT)
    given = ["rollout", "-i", str(fleet), "--runs", str(tmp_path / "runs"), *words]
    done = CliRunner().invoke(cli, given)
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert done.output == ""
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-e", "rollout_batches=0%"], "'0%' is no size of a batch"),
        (["-e", '{"rollout_batches": 0}'], "'0' is no size of a batch"),
        (["-e", "rollout_batches="], "'' is no size of a batch"),
        (["-e", "roost_recipe=other"], "-e roost_recipe: a rollout is of what the inventory says"),
    ],
)
def test_the_playbook_says_the_same(fleet: Path, words: list[str], says: str) -> None:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/rollout.yml"]
    command += ["-i", str(fleet), "--limit", "h1", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


def test_check_mode_begins_none(fleet: Path) -> None:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/rollout.yml"]
    command += ["-i", str(fleet), "--check", "--limit", "h1", "-e", "rollout_batches=0%"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "skipping" in done.stdout

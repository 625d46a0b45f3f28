"""`roost bench` and `roost compare` through the real papermill, against stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
import yaml
from click.testing import CliRunner, Result
from tests.unit import stand_in_engine
from tests.unit.deployments import write_lock
from tests.unit.kept_runs import result
from tests.unit.stand_in_engine import Container, Engine

from roost import notebooks, notebooks_cli, runs
from roost.deployment import from_variables
from roost.errors import RoostError, UsageError
from roost.measure.checks import Check
from roost.notebooks import Outcome

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A host of an inventory, this machine, with stand-ins of container and load generator."""
    monkeypatch.chdir(ROOT)
    write_lock(tmp_path / "lock.yml")
    with stand_in_engine.serving() as engine:
        variables = {
            "ansible_connection": "local",
            "roost_hardware": "cpu",
            "roost_recipe": "smollm2-135m",
            "roost_port": engine.port,
            "roost_lock_file": str(tmp_path / "lock.yml"),
        }
        Container.of(from_variables("spark-01", variables, tmp_path)).install(tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        monkeypatch.setenv("STAND_IN_SCENARIO", str(tmp_path / "scenario.json"))
        inventory = {"all": {"vars": variables, "hosts": {"spark-01": {}}}}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
        yield engine


def bench(tmp_path: Path, engine: Engine, **scenario: object) -> tuple[Result, Path]:
    (tmp_path / "scenario.json").write_text(json.dumps({"port": engine.port, **scenario}))
    before = set((tmp_path / "runs").glob("*"))
    arguments = ["-i", str(tmp_path / "hosts.yml"), "--suite", "smoke"]
    done = CliRunner().invoke(notebooks_cli.bench, [*arguments, "--runs", str(tmp_path / "runs")])
    (folder,) = set((tmp_path / "runs").glob("*")) - before
    return done, folder


def test_a_regression_from_measuring_to_the_verdict(engine: Engine, tmp_path: Path) -> None:
    good, baseline = bench(tmp_path, engine, seed=1)
    assert good.exit_code == 0, good.output
    assert "] 100% smoke: point 2 of 2, done" in good.stderr
    assert str(baseline / "report.html") in good.stdout
    names = {item.name for item in baseline.iterdir()}
    assert {"benchmark.json", "harness_code-c1_1.json", "metrics_prose-c1_2_after.txt"} <= names
    executed = nbformat.read(baseline / "executed.ipynb", as_version=4)
    shown = json.dumps([cell.get("outputs") for cell in executed.cells])
    assert "<svg role=" in shown
    assert "95 % interval" in shown

    _, slower = bench(tmp_path, engine, seed=2, accept_length=2.5, speed=75)
    done = CliRunner().invoke(
        notebooks_cli.compare,
        [baseline.name, slower.name, "--runs", str(tmp_path / "runs"), "--json"],
    )
    assert done.exit_code == 1, done.output
    (outcome,) = json.loads(done.stdout)
    failed = {check["id"]: check for check in outcome["result"]["checks"] if not check["ok"]}
    assert set(failed) == {"all points", "code-c1", "prose-c1"}
    assert failed["code-c1"]["why"].startswith("the model or its drafter")
    folder = Path(outcome["run"])
    assert runs.read(folder).notebook == "compare"
    executed = nbformat.read(folder / "executed.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].ename == "ChecksFailed"

    again = CliRunner().invoke(
        notebooks_cli.compare, [str(slower), str(baseline), "--runs", str(tmp_path / "runs")]
    )
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[-1].startswith("spark-01             passed")


def test_what_breaks_leaves_a_run_that_says_so(engine: Engine, tmp_path: Path) -> None:
    done, folder = bench(tmp_path, engine, breaks_at=3)
    assert done.exit_code == 1
    result = runs.read(folder)
    assert not result.ok
    assert "the engine's harness failed" in result.failed[-1].why
    assert "code-c1.output_throughput" in result.figures
    assert "FAILED" in done.stdout


def test_the_playbook_measures(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "scenario.json").write_text(json.dumps({"port": engine.port}))
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [program, "playbooks/benchmark.yml", "-i", tmp_path / "hosts.yml"]
    command += ["-e", f"benchmark_runs={tmp_path / 'runs'}"]

    def play(suite: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, "-e", f"benchmark_suite={suite}"],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    done = play("smoke")
    assert done.returncode == 0, done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert "] 100% smoke: point 2 of 2, done" in done.stdout
    result = runs.read(folder)
    assert result.notebook == "benchmark"
    assert f"{result.summary()}; {folder}/report.html" in done.stdout
    refused = play("smok")
    assert refused.returncode == 2
    assert "no suite 'smok'" in refused.stdout
    assert "did you mean smoke?" in refused.stdout


@pytest.mark.parametrize(
    ("number", "who", "code"),
    [
        # A terminal's Ctrl-C is for all processes in it, a service manager's and a user's kill not.
        (signal.SIGINT, os.killpg, 130),
        (signal.SIGTERM, os.kill, 130),
        (signal.SIGKILL, os.kill, -signal.SIGKILL),
    ],
)
def test_an_interrupted_benchmark_leaves_nothing_behind(
    engine: Engine,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    number: signal.Signals,
    who: Callable[[int, int], None],
    code: int,
) -> None:
    lasts = tmp_path / "pid"
    scenario = {"port": engine.port, "lasts": str(lasts)}
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    program = Path(sys.executable).with_name("roost")
    command = [program, "bench", "-i", tmp_path / "hosts.yml", "--suite", "smoke"]
    temporary = tmp_path_factory.mktemp("t")  # short enough for sockets
    with (tmp_path / "said").open("w") as said:
        child = subprocess.Popen(
            [*command, "--runs", tmp_path / "runs"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    request.addfinalizer(lambda: (child.kill(), child.wait()))  # if it outlives the test
    eventually(lambda: lasts.is_file() and lasts.read_text())
    family = descendants(child.pid)
    assert len(family) > 2
    assert list(temporary.glob("roost-kernel-*"))
    who(child.pid, number)
    assert child.wait(60) == code
    eventually(lambda: not [pid for pid in family if Path("/proc", str(pid)).exists()])
    assert not list(temporary.glob("roost-*"))
    lines = (tmp_path / "said").read_text().splitlines()
    told = [line for line in lines if line and not line.startswith("spark-01: [")]
    # After a kill -9 Python's own helper has something to say.
    assert number == signal.SIGKILL or told == ["roost: interrupted"]
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / runs.RESULT).exists()
    for written in folder.glob("*.ipynb"):
        nbformat.read(written, as_version=4)
    with pytest.raises(RoostError, match="no finished run"):
        runs.read(folder)


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def descendants(pid: int) -> set[int]:
    found = set()
    for task in Path("/proc", str(pid), "task").glob("*/children"):
        for one in map(int, task.read_text().split()):
            found |= {one, *descendants(one)}
    return found


def test_wrong_names_are_refused_before_anything_runs(tmp_path: Path) -> None:
    runner = CliRunner()
    cases = [
        (notebooks_cli.bench, ["-i", "x", "--suite", "smok"], "did you mean smoke"),
        (notebooks_cli.bench, ["-i", "nowhere", "--suite", "smoke"], "no such inventory"),
        (notebooks_cli.compare, ["one"], "needs two runs"),
    ]
    for verb, arguments, message in cases:
        (tmp_path / "one").mkdir(exist_ok=True)
        done = runner.invoke(verb, [*arguments, "--runs", str(tmp_path / "runs")])
        assert isinstance(done.exception, UsageError)
        assert message in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_runs_are_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As other options of a command line; without one, in the repository from wherever."""
    (tmp_path / "kept" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(notebooks_cli.compare, ["one", "two", "--runs", "kept"])
    assert str(done.exception).startswith(f"{tmp_path}/kept/one: no finished run")

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(
        notebooks, "execute_all", lambda *_, parameters, **__: asked.append(parameters) or []
    )
    for options in ([], ["--runs", "kept"]):
        CliRunner().invoke(notebooks_cli.verify, ["-i", "x", *options])
    assert [one["runs_dir"] for one in asked] == ["runs", str(tmp_path / "kept")]


def test_a_narrow_terminal_shows_what_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("roost.terminal.present", lambda: True)
    checks = [
        Check(id="run 20261129T160005Z-spark-01-smol", ok=True, expected="", observed="2 points"),
        Check(id="coding-c1", ok=False, expected="as fast", observed="-20.2 %"),
    ]
    found = result(ok=False, checks=checks)
    with pytest.raises(SystemExit):
        notebooks_cli.report([Outcome("", tmp_path, found)], False, "not compared")
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert "-20.2 %" in said


def test_a_file_has_what_was_observed_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    observed = "so many points, of which each was looked at, " * 4 + "and the last"
    check = Check(id="points", ok=True, expected="", observed=observed)
    long = Check(id="a name that is longer than its neighbour's", ok=True, expected="", observed="")
    notebooks_cli.report(
        [Outcome("", tmp_path, result(ok=True, checks=[check, long]))], False, "not compared"
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(observed)]
    assert all(line == line.rstrip() for line in lines)


def test_a_run_over_several_hosts_is_headed_by_its_name_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = result(ok=False).model_copy(
        update={"host": "mine", "recipe": "", "hardware": "", "speculation": ""}
    )
    with pytest.raises(SystemExit):
        notebooks_cli.report([Outcome("mine", tmp_path, nothing)], False, "not looked at")
    assert "mine\n" in capsys.readouterr().out


def test_a_path_in_an_error_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    path = "/somewhere/that/is/longer/than/forty/columns.ipynb"
    failed = Outcome("a", tmp_path, None, RoostError("x.ipynb: no", fix=f"look at {path}"))
    with pytest.raises(SystemExit):
        notebooks_cli.report([failed], False, "not verified")
    assert path in capsys.readouterr().out

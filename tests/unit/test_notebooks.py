"""Notebooks through the real papermill, against stand-ins of engine and container."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import nbformat
import pytest
import yaml
from click.testing import CliRunner
from papermill.engines import NBClientEngine
from tests.unit import stand_in_engine
from tests.unit.deployments import write_lock
from tests.unit.stand_in_engine import Container, Engine
from tests.unit.test_measure_compare import result

from roost import notebooks, notebooks_cli, papermill_engine, runs
from roost.deployment import from_variables
from roost.errors import RefusedError, RoostError, UsageError

ROOT = Path(__file__).parents[2]
BENCH, SMOKE = notebooks_cli.bench, ["--suite", "smoke"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Two hosts of an inventory, both this machine, with everything right."""
    monkeypatch.chdir(ROOT)
    write_lock(tmp_path / "lock.yml")
    with stand_in_engine.serving() as engine:
        variables = {
            "ansible_connection": "local",
            "roost_hardware": "cpu",
            "roost_recipe": "smollm2-135m",
            "roost_port": engine.port,
            "roost_model_dir": str(tmp_path / "models"),
            "roost_lock_file": str(tmp_path / "lock.yml"),
        }
        deployment = from_variables("spark-01", variables, tmp_path)
        stand_in_engine.write_weights(deployment)
        Container.of(deployment).install(tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        inventory = {"all": {"vars": variables, "hosts": {"spark-01": {}, "spark-02": {}}}}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
        yield engine


def parameters(tmp_path: Path) -> dict[str, str]:
    return {"inventory": str(tmp_path / "hosts.yml"), "host": "spark-01"}


@pytest.mark.usefixtures("engine")
def test_a_run_leaves_result_report_and_evidence(tmp_path: Path) -> None:
    result = notebooks.execute("verify", parameters(tmp_path), tmp_path / "run")
    assert result.ok
    assert {item.name for item in (tmp_path / "run").iterdir()} == {
        "executed.ipynb",
        "result.json",
        "report.html",
        "engine.log",
        "engine-start.log",
        "host.json",
        "metrics_before.txt",
        "metrics_after.txt",
    }
    executed = nbformat.read(tmp_path / "run" / "executed.ipynb", as_version=4)
    shown = json.dumps(executed.cells[-4].outputs)
    assert "answer_capital" in shown
    assert "FAIL" not in shown
    assert "not applicable" in shown


def test_a_failed_check_fails_the_notebook_but_has_a_result(engine: Engine, tmp_path: Path) -> None:
    engine.answers["capital of France"] = "<b>La la</b>"
    result = notebooks.execute("verify", parameters(tmp_path), tmp_path / "run")
    assert [check.id for check in result.failed] == ["answer_capital"]
    executed = nbformat.read(tmp_path / "run" / "executed.ipynb", as_version=4)
    error = executed.cells[-1].outputs[0]
    assert error.ename == "ChecksFailed"
    assert error.traceback == [result.summary()]
    assert "<b>La" not in executed.cells[-4].outputs[0].data["text/html"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"hots": "x"},
            "no parameter 'hots', did you mean host?; inventory and host must be given",
        ),
        ({"inventory": "x"}, "verify.ipynb: host must be given"),
        ({"inventory": "x", "host": "y", "zebra": 1}, "no parameter 'zebra'"),
    ],
)
def test_wrong_parameters_are_refused_before_a_kernel_starts(
    given: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        notebooks.execute("verify", given, tmp_path / "run")
    assert message in str(caught.value)
    assert (
        "inventory (required), host (required), long_context, long_context_seconds"
        in caught.value.fix
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("engine")
def test_a_notebook_that_is_refused_leaves_no_run(tmp_path: Path) -> None:
    """It would be listed as one that was killed."""
    given = {**parameters(tmp_path), "host": "spark-1"}
    with pytest.raises(RoostError, match=r"no host 'spark-1'[\s\S]*spark-01") as caught:
        notebooks.execute("verify", given, tmp_path / "run")
    assert "executed.ipynb" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    # What else is there was not this run's to remove, and is evidence.
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RoostError, match="no host 'spark-1'") as caught:
        notebooks.execute("verify", given, tmp_path / "run")
    assert str(tmp_path / "run" / "executed.ipynb") in caught.value.fix
    assert (tmp_path / "run" / "executed.ipynb").is_file()


@pytest.mark.parametrize("left", ["executed.ipynb", "result.json", "progress.txt"])
def test_a_folder_belongs_to_one_run(tmp_path: Path, left: str) -> None:
    """The notebook refuses it, too, but by then papermill has written over the other's."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / left).write_text("the other's")
    with pytest.raises(UsageError, match="has another run in it") as caught:
        notebooks.execute("verify", parameters(tmp_path), folder)
    assert str(folder) in caught.value.what
    assert left in caught.value.why
    assert "not there yet" in caught.value.fix
    assert {path.name: path.read_text() for path in folder.iterdir()} == {left: "the other's"}


@pytest.mark.usefixtures("engine")
def test_a_notebook_that_breaks_says_why_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = nbformat.read(ROOT / "notebooks" / "verify.ipynb", as_version=4)
    broken.cells[2:] = [nbformat.v4.new_code_cell("1 / 0")]
    nbformat.write(broken, tmp_path / "verify.ipynb")
    with monkeypatch.context() as patch:
        patch.setattr(notebooks, "find", lambda _: tmp_path / "verify.ipynb")
        with pytest.raises(RoostError, match="ZeroDivisionError: division by zero") as caught:
            notebooks.execute("verify", parameters(tmp_path), tmp_path / "run")
        # That of an earlier time is not how it ended now.
        (tmp_path / "run" / "result.json").write_text(result().model_dump_json())
        with pytest.raises(RoostError, match="ZeroDivisionError"):
            notebooks.execute("verify", parameters(tmp_path), tmp_path / "run", resumed=True)
    assert str(tmp_path / "run" / "executed.ipynb") in caught.value.fix
    with pytest.raises(UsageError, match="no notebook 'verfy'"):
        notebooks.execute("verfy", {}, tmp_path)


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, out: Path, **__: object) -> None:
        out.write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(notebooks.papermill, "execute_notebook", full)
    with pytest.raises(RoostError, match="No space left on device") as caught:
        notebooks.execute("verify", {"inventory": "x", "host": "y"}, tmp_path / "run")
    assert caught.value.what == f"{tmp_path / 'run'}: the run cannot be kept"
    assert not (tmp_path / "run").exists()


def test_all_hosts_in_parallel_and_the_table(engine: Engine, tmp_path: Path) -> None:
    inventory = str(tmp_path / "hosts.yml")
    runner = CliRunner()
    done = runner.invoke(notebooks_cli.verify, ["-i", inventory, "--runs", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    assert done.output.count("answer_capital") == 2
    folders = sorted((tmp_path / "runs").iterdir())
    assert [folder.name.split("-", 1)[1] for folder in folders] == [
        "spark-01-smollm2-135m",
        "spark-02-smollm2-135m",
    ]
    for folder in folders:
        assert str(folder / "report.html") in done.output
        assert runs.read(folder).ok

    engine.answers["2+2"] = "2+2 is 5."
    done = runner.invoke(
        notebooks_cli.verify,
        ["-i", inventory, "--host", "spark-02", "--json", "--runs", str(tmp_path / "more")],
    )
    assert done.exit_code == 1
    (only,) = json.loads(done.output)
    assert (only["host"], only["ok"], only["error"]) == ("spark-02", False, None)
    assert [check["id"] for check in only["result"]["checks"] if not check["ok"]] == ["answer_sum"]


def test_what_is_asked_of_the_notebook_on_the_command_line(engine: Engine, tmp_path: Path) -> None:
    command = ["-i", str(tmp_path / "hosts.yml"), "--host", "spark-01", "--runs", str(tmp_path)]
    options = ["--long-context", "0", "--no-bad-requests", "--require-seen"]
    done = CliRunner().invoke(notebooks_cli.verify, [*command, *options, "--json"])
    assert done.exit_code == 1
    (only,) = json.loads(done.stdout)
    checks = {check["id"]: check for check in only["result"]["checks"]}
    assert checks["long_context"]["verdict"] == "not applicable"
    assert not any("max_tokens is too large" in str(check) for check in checks.values())
    failed = {name: check["verdict"] for name, check in checks.items() if not check["ok"]}
    assert failed == {"pool_tokens": "not seen", "pool_concurrency": "not seen"}
    assert not any("Zubrowka" in str(body) for body in engine.requests)


@pytest.mark.usefixtures("engine")
def test_a_notebook_checks_its_parameters_by_itself(tmp_path: Path) -> None:
    """Whoever runs papermill has no verb that has looked at them."""
    given = {**parameters(tmp_path), "reference": "nowhere"}
    with pytest.raises(RoostError, match="reference nowhere: no such run"):
        notebooks.execute("verify", given, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def nothing_starts(
    engine: Engine,  # noqa: ARG001  # it writes the inventory
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The inventory; a kernel that is started all the same fails the test, as does a folder."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a kernel would be started")

    monkeypatch.setattr(notebooks, "ProcessPoolExecutor", start)
    return tmp_path / "hosts.yml"


@pytest.mark.parametrize(
    ("verb", "options", "variables", "kind", "message"),
    [
        (notebooks_cli.verify, [], {"roost_lock_file": "lock"}, RefusedError, "is not pinned"),
        (BENCH, SMOKE, {"roost_lock_file": "lock"}, RefusedError, "is not pinned"),
        (notebooks_cli.verify, [], {"roost_prot": 1}, UsageError, "did you mean roost_port?"),
        (BENCH, SMOKE, {"roost_recipe": "smol"}, UsageError, "is not in the catalogue"),
        (
            notebooks_cli.verify,
            ["--reference", "nowhere"],
            {},
            UsageError,
            "reference nowhere: no such run",
        ),
        (
            notebooks_cli.verify,
            ["--reference", "notebooks"],
            {},
            UsageError,
            "no finished run",
        ),
        (
            notebooks_cli.verify,
            ["--long-context-seconds", "86401"],
            {},
            UsageError,
            "parameter long_context_seconds is 86401.0",
        ),
    ],
)
def test_what_no_host_can_run_is_one_message_before_anything_starts(
    nothing_starts: Path,
    verb: click.Command,
    options: list[str],
    variables: dict[str, object],
    kind: type[RoostError],
    message: str,
) -> None:
    if "roost_lock_file" in variables:
        variables = {"roost_lock_file": str(nothing_starts.with_name("empty.yml"))}
        nothing_starts.with_name("empty.yml").touch()
    document = yaml.safe_load(nothing_starts.read_text())
    document["all"]["vars"] |= variables
    document["all"]["hosts"] = {"spark-01": {}}
    nothing_starts.write_text(yaml.safe_dump(document))
    kept = nothing_starts.with_name("runs")
    done = CliRunner().invoke(verb, ["-i", str(nothing_starts), *options, "--runs", str(kept)])
    assert type(done.exception) is kind
    assert done.exception.exit_code in {2, 3}
    assert message in str(done.exception)
    assert any(word in str(done.exception) for word in ("  fix: ", "did you mean"))
    assert done.output == ""
    assert not kept.exists()


def test_hosts_that_are_refused_alike_are_told_once(nothing_starts: Path) -> None:
    command = ["-i", str(nothing_starts), "--runs", str(nothing_starts.with_name("runs"))]
    done = CliRunner().invoke(notebooks_cli.verify, [*command, "--reference", "nowhere", "--json"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).count("no such run") == 1
    assert done.stdout == ""

    nothing_starts.with_name("empty.yml").touch()
    change(nothing_starts.parent, "spark-02", roost_lock_file=f"{nothing_starts.parent}/empty.yml")
    change(nothing_starts.parent, "spark-03", roost_prot=8001)
    change(nothing_starts.parent, "spark-01", roost_recipe="nothing")
    done = CliRunner().invoke(notebooks_cli.verify, command)
    assert isinstance(done.exception, RefusedError)
    what, *reasons = str(done.exception).splitlines()
    assert what.startswith("spark-01, spark-02, spark-03: every host is refused")
    assert "spark-01: recipe 'nothing' is not in the catalogue" in reasons[0]
    assert "spark-02: smollm2-135m on cpu is not pinned" in reasons[1]
    assert "spark-03: " in reasons[2]


@pytest.mark.usefixtures("engine")
def test_a_host_that_cannot_be_resolved_does_not_stop_the_others(tmp_path: Path) -> None:
    document = yaml.safe_load((tmp_path / "hosts.yml").read_text())
    (tmp_path / "empty.yml").touch()
    document["all"]["hosts"]["spark-02"] = {"roost_lock_file": str(tmp_path / "empty.yml")}
    document["all"]["hosts"]["spark-03"] = {"roost_prot": 8001}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(document))
    done = CliRunner().invoke(
        notebooks_cli.verify,
        ["-i", str(tmp_path / "hosts.yml"), "--runs", str(tmp_path / "runs")],
    )
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "spark-02: not verified smollm2-135m on cpu is not pinned" in said
    assert "fix: run `roost lock -i INVENTORY`" in said
    assert "spark-03: not verified" in said
    assert "did you mean roost_port?" in said
    assert "spark-01 passed" in said
    # Only what was begun is a run.
    assert [runs.read(folder).host for folder in (tmp_path / "runs").iterdir()] == ["spark-01"]


@pytest.mark.usefixtures("engine")
def test_an_interruption_leaves_no_folders_of_runs_that_never_began(tmp_path: Path) -> None:
    document = yaml.safe_load((tmp_path / "hosts.yml").read_text())
    document["all"]["hosts"] |= {"spark-03": {}, "spark-04": {}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(document))
    outcomes = notebooks.execute_all(
        "verify", tmp_path / "hosts.yml", runs_dir=tmp_path / "runs", jobs=1
    )
    first = next(outcomes)
    with pytest.raises(KeyboardInterrupt):
        outcomes.throw(KeyboardInterrupt)  # type: ignore[attr-defined]  # a generator
    left = {folder.name.split("-smol")[0][-8:] for folder in (tmp_path / "runs").iterdir()}
    assert first.host in left
    assert not {"spark-03", "spark-04"} & left


def sockets(place: Path, timeout: float = 300) -> Path:
    """The folder of a kernel that is being started, as soon as it is there."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := list(place.glob("roost-kernel-*/kernel.json")):
            return found[0].parent
        time.sleep(0.05)
    raise AssertionError(f"no kernel was started in {place}")


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of one's own, short enough for sockets."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.usefixtures("engine")
def test_an_interruption_leaves_no_sockets(tmp_path: Path, temporary: Path) -> None:
    outcomes = notebooks.execute_all(
        "verify", tmp_path / "hosts.yml", runs_dir=tmp_path / "runs", jobs=1
    )
    next(outcomes)
    folder = sockets(temporary)  # of the second host
    with pytest.raises(KeyboardInterrupt):
        outcomes.throw(KeyboardInterrupt)  # type: ignore[attr-defined]  # a generator
    assert not folder.exists()
    assert list(temporary.glob("roost-kernel-*")) == []


#: Of Python's own: a kernel says which process it is, and may take its time to begin.
SLOW_KERNEL = """
import os, time
if "ipykernel" in open("/proc/self/cmdline").read():
    open(os.environ["SLOW_KERNEL"], "w").write(str(os.getpid()))
    time.sleep(float(os.environ["SLOW_SECONDS"]))
"""


@pytest.mark.parametrize("seconds", [0, 600])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_plain_papermill_that_is_told_to_end_leaves_no_kernel(
    tmp_path: Path, temporary: Path, seconds: int, number: signal.Signals
) -> None:
    """Neither one that is at work nor one that has only begun, and would make its folder anew."""
    at_work = tmp_path / "at-work"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [
        nbformat.v4.new_code_cell(
            f"import time\nopen({str(at_work)!r}, 'w').close()\ntime.sleep(600)"
        )
    ]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "roost": {}})
    nbformat.write(notebook, tmp_path / "a.ipynb")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SLOW_KERNEL)
    before = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path / 'site'}:{before}".rstrip(":"),
        "SLOW_KERNEL": str(tmp_path / "kernel.pid"),
        "SLOW_SECONDS": str(seconds),
    }
    program = Path(sys.executable).with_name("papermill")
    with subprocess.Popen(
        [program, "--no-progress-bar", tmp_path / "a.ipynb", tmp_path / "out.ipynb"],
        env=environment,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        try:
            folder = sockets(temporary)
            waited = tmp_path / "kernel.pid" if seconds else at_work
            while not (waited.is_file() and (waited == at_work or waited.read_text())):
                assert process.poll() is None
                time.sleep(0.05)
            kernel_pid = int((tmp_path / "kernel.pid").read_text())
            process.send_signal(number)
            _, said = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM, said
    assert b"Traceback" not in said
    assert not folder.exists()
    assert not Path(f"/proc/{kernel_pid}").exists()


def play(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``playbooks/verify.yml`` over the inventory."""
    program = Path(sys.executable).with_name("ansible-playbook")
    return subprocess.run(
        [program, "playbooks/verify.yml", "-i", tmp_path / "hosts.yml", *options],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def change(tmp_path: Path, host: str, **variables: object) -> None:
    document = yaml.safe_load((tmp_path / "hosts.yml").read_text())
    document["all"]["hosts"][host] = variables
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(document))


class Meeting(list[dict[str, Any]]):
    """Requests to an engine, of which the first two are answered together."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(2, timeout=100)

    def append(self, request: dict[str, Any]) -> None:
        super().append(request)
        if len(self) <= 2:
            self._both.wait()


def test_the_playbook_verifies_all_hosts_at_a_time(engine: Engine, tmp_path: Path) -> None:
    engine.requests = Meeting()
    change(tmp_path, "spark-02", roost_settings={"max_model_len": 1024})
    (tmp_path / "empty.yml").touch()
    change(tmp_path, "spark-03", roost_lock_file=str(tmp_path / "empty.yml"))
    kept = tmp_path / "runs"
    done = play(tmp_path, "-e", f"verify_runs={kept}", "-e", "verify_long_context=0")
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    good, bad = sorted(kept.iterdir(), key=lambda path: path.name.split("-", 1)[1])
    passed = runs.read(good)
    assert passed.ok
    assert f"{passed.summary()}; {good}/report.html" in said
    assert f"spark-02: 1 of {len(passed.checks)} checks failed command: expected " in said
    assert "word 9 is '2048' instead of '1024'" in said
    assert f"{bad}/report.html" in said
    assert "smollm2-135m on cpu is not pinned" in said
    recap = {line.split()[0]: line for line in done.stdout.splitlines() if "unreachable=" in line}
    failed = {host: "failed=1" in line for host, line in recap.items()}
    assert failed == {"spark-01": False, "spark-02": True, "spark-03": True}
    assert all("changed=0" in line for line in recap.values())
    checks = {check.id: check.verdict for check in passed.checks}
    assert checks["long_context"] == "not applicable"
    # Each has begun before the other has ended.
    times = [
        nbformat.read(run / "executed.ipynb", as_version=4).metadata.papermill
        for run in (good, bad)
    ]
    assert max(one.start_time for one in times) < min(one.end_time for one in times)


@pytest.mark.usefixtures("engine")
def test_the_playbook_asks_nothing_in_check_mode_or_in_vain(tmp_path: Path) -> None:
    kept = ("-e", f"verify_runs={tmp_path / 'runs'}")
    done = play(tmp_path, "--check", *kept)
    assert done.returncode == 0, done.stdout
    assert "skipped=" in done.stdout
    for wrong, message in (
        ("verify_long_contxt=0", "here -e takes verify_bad_requests, verify_long_context,"),
        ("roost_port=1", "-e roost_port: notebooks go by what the inventory says"),
        ("verify_long_context=many", "'many' is not a valid integer"),
    ):
        done = play(tmp_path, "--limit", "spark-01", *kept, "-e", wrong)
        assert done.returncode == 2
        assert message in " ".join(done.stdout.split())
        assert "Traceback" not in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("engine")
def test_unknown_host_or_inventory_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for arguments, message in (
        (["-i", str(tmp_path / "hosts.yml"), "--host", "spark-1"], "did you mean spark-01"),
        (["-i", "inventory/nowhere"], "no such inventory"),
        (["-i", str(tmp_path / "hosts.yml"), "--limit", "zzz"], "no host matches 'zzz'"),
    ):
        done = CliRunner().invoke(
            notebooks_cli.verify, [*arguments, "--runs", str(tmp_path / "runs")]
        )
        assert isinstance(done.exception, UsageError)
        assert message in str(done.exception)
    assert not (tmp_path / "runs").exists()


def papermill(*arguments: str, room: int | None = None) -> subprocess.CompletedProcess[str]:
    """Plain papermill; with ``room`` no file may grow beyond it, as on a full disk."""
    program = Path(sys.executable).with_name("papermill")
    limit = [] if room is None else ["prlimit", f"--fsize={room}"]
    return subprocess.run(
        [*limit, program, "--no-progress-bar", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_plain_papermill_is_as_strict(engine: Engine, tmp_path: Path) -> None:
    out = str(tmp_path / "out.ipynb")
    inventory = str(tmp_path / "hosts.yml")
    ask = ("notebooks/verify.ipynb", out, "-p", "runs_dir", str(tmp_path / "runs"))
    done = papermill(*ask, "-p", "inventory", inventory, "-p", "host", "spark-01")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1

    # What makes no sense leaves no folder either.
    done = papermill(
        *ask, "-p", "inventory", inventory, "-p", "host", "spark-01", "-p", "long_context", "all"
    )
    assert done.returncode == 1
    assert "Error: verify.ipynb: parameter long_context is 'all'" in done.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1

    done = papermill(*ask, "-p", "inventory", inventory, "-p", "hosts", "spark-01")
    assert done.returncode == 2
    assert "no parameter 'hosts', did you mean host?; host must be given" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Executing notebook with kernel" not in done.stderr

    engine.answers["2+2"] = "2+2 is 5."
    done = papermill(*ask, "-p", "inventory", inventory, "-p", "host", "spark-01")
    assert done.returncode == 1
    assert "answer_sum: expected an answer that says 4; observed 2+2 is 5." in done.stderr
    assert "Traceback" not in done.stderr


def test_plain_papermill_on_a_full_disk_is_one_message(tmp_path: Path) -> None:
    out = tmp_path / "out.ipynb"
    given = ("-p", "inventory", "x", "-p", "host", "y")
    done = papermill("notebooks/verify.ipynb", str(out), *given, room=3000)
    assert done.returncode == 1
    assert f"Error: {out}: cannot be written\n  why: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()
    done = papermill("notebooks/verify.ipynb", f"{tmp_path}/nowhere/out.ipynb", *given)
    assert f"why: output folder {tmp_path}/nowhere doesn't exist" in done.stderr


@pytest.mark.parametrize(("given", "taken"), [({}, 600), ({"start_timeout": 900}, 900)])
def test_a_kernel_that_starts_beside_many_has_time(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, int], taken: int
) -> None:
    seen: list[Any] = []

    def execute(_: Any, __: Any, ___: str, **options: Any) -> None:
        seen.append(options["start_timeout"])

    monkeypatch.setattr(NBClientEngine, "execute_notebook", classmethod(execute))
    nb = nbformat.v4.new_notebook(metadata={"roost": {}, "papermill": {}})
    papermill_engine.RoostEngine.execute_notebook(nb, "python3", **given)
    assert seen == [taken]


@pytest.mark.parametrize(
    ("number", "named", "raised"),
    [(errno.EACCES, True, papermill_engine.NotWritten), (errno.EMFILE, False, OSError)],
)
def test_a_notebook_that_was_not_touched_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    named: bool,
    raised: type[Exception],
) -> None:
    out = tmp_path / "out.ipynb"
    out.write_text("of an earlier run")

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, "refused", str(out) if named else None)

    monkeypatch.setattr(papermill_engine.NBClientEngine, "execute_notebook", refused)
    notebook = nbformat.v4.new_notebook(metadata={"roost": {}, "papermill": {}})
    with pytest.raises(raised) as caught:
        papermill_engine.RoostEngine.execute_notebook(notebook, "python3", output_path=str(out))
    assert isinstance(caught.value, papermill_engine.NotWritten) == named
    assert out.read_text() == "of an earlier run"


@pytest.mark.usefixtures("engine")
def test_the_kernel_is_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"argv": ["/bin/false"], "display_name": "elsewhere", "language": "python"}
    folder = tmp_path / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    assert notebooks.execute("verify", parameters(tmp_path), tmp_path / "run").ok


@pytest.mark.parametrize("folder", ["short", "long" * 25])
def test_a_kernel_is_reached_by_sockets_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Of two that start side by side one may have been promised the other's port."""
    temporary = tmp_path / folder
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    shows = (
        "import json, os\nfrom ipykernel.connect import get_connection_file\n"
        "path = get_connection_file()\nwith open(path) as file: print(file.read())\n"
        "print(path, oct(os.stat(os.path.dirname(path)).st_mode))"
    )
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel, "roost": {}}
    cells = [nbformat.v4.new_code_cell(shows)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), tmp_path / "a.ipynb")
    done = papermill(str(tmp_path / "a.ipynb"), str(tmp_path / "out.ipynb"))
    assert done.returncode == 0, done.stderr
    text = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[0].outputs[0].text
    document, _, rest = text.rpartition("}\n")
    path, mode = rest.split()
    assert json.loads(document + "}")["transport"] == "ipc"
    assert mode.endswith("700")
    assert not Path(path).parent.exists()


def test_other_notebooks_are_left_to_papermill(tmp_path: Path) -> None:
    cells = [
        nbformat.v4.new_code_cell("x = ...", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("print(y)"),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}),
        tmp_path / "other.ipynb",
    )
    done = papermill(str(tmp_path / "other.ipynb"), str(tmp_path / "out.ipynb"), "-p", "y", "2")
    assert done.returncode == 0, done.stderr
    assert "Passed unknown parameter: y" in done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_notebooks_are_clean(path: Path) -> None:
    nb = nbformat.read(path, as_version=4)
    nbformat.validate(nb)
    assert "roost" in nb.metadata
    assert [cell for cell in nb.cells if "parameters" in cell.metadata.get("tags", [])]
    for cell in nb.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
            # Thin: what is worth testing is in the package. Parameters are as many as they are.
            parameters = "parameters" in cell.metadata.get("tags", [])
            assert parameters or len(cell.source.splitlines()) <= 9

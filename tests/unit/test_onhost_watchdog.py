"""What the watchdog does about what it sees: an engine that is dead, and memory that runs out."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import deployment
from tests.unit.processes import until
from tests.unit.test_onhost_vigil import series

from roost.onhost import NAME, engine_watch, evidence
from roost.onhost import store as stores
from roost.onhost.chronicle import Chronicle
from roost.onhost.docker_api import DockerApi
from roost.onhost.endpoint import Reply
from roost.onhost.engine_watch import EngineWatch
from roost.onhost.machine import RELIEVED, Machine, MachineError
from roost.onhost.memory_guard import MemoryGuard
from roost.onhost.store import Store
from roost.onhost.vigil import Limits

KEY = "s3cret-of-the-endpoint"
LIMITS = Limits(frozen=300, silent=180)


@dataclass
class Host(Machine, DockerApi):
    """Docker, systemd and the engine's endpoint as a few values."""

    folder: Path
    running: bool = True  # type: ignore[assignment]
    id: str = "a" * 64
    started: str = "2026-11-29T20:00:00Z"
    exit_code: int = 0
    unit_state: str = "active"
    restarts: int = 0
    metrics: str | None = None
    health: int = 200
    others: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    trouble: str = ""
    at: float = 0.0
    #: Status of an answer, and how often one was asked for.
    answers: int = 0
    asked: int = 0

    def inspect(self, container: str) -> dict[str, Any] | None:
        assert container == NAME
        if self.trouble == "docker":
            raise MachineError("docker: connection refused")
        return {
            "Id": self.id,
            "State": {
                "Running": self.running,
                "StartedAt": self.started,
                "ExitCode": self.exit_code,
                "OOMKilled": False,
            },
            "Config": {"Env": ["HF_TOKEN=hf_abcdefgh1234"]},
        }

    def unit(self, name: str) -> dict[str, str]:
        assert name == NAME
        return {"ActiveState": self.unit_state, "NRestarts": str(self.restarts)}

    def age(self, inspected: dict[str, Any]) -> float:
        assert inspected["Id"] == self.id
        return self.at

    def stop(self, container: str) -> None:
        if self.trouble == "stop":
            raise MachineError("docker stop roost-llm: timed out after 120 seconds")
        self.stopped.append(container)
        self.running = False

    def kill(self, container: str) -> None:
        self.stopped.append(f"killed {container}")
        self.running = False
        self.others = {}

    def unit_stop(self, name: str) -> None:
        self.stopped.append(f"unit {name}")

    def sleep(self, seconds: float) -> None:
        assert seconds == 0.1

    # -- the endpoint

    def get(self, path: str, timeout: float) -> Reply:
        assert timeout == 25
        if path == "/health":
            return Reply(self.health, "", 0.0)
        return Reply(200 if self.metrics else 0, self.metrics or "refused", 0.0)

    def chat(self, body: Mapping[str, Any], timeout: float) -> Reply:
        assert body["max_tokens"] == 1
        assert timeout == 60
        self.asked += 1
        return Reply(self.answers, {}, 0.0)


class Docker:
    """The daemon's half of :class:`Host`, of which ``running`` is a question."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.inspect = host.inspect
        self.kill = host.kill

    def running(self, prefix: str) -> dict[str, str]:
        assert prefix == NAME
        return {**({NAME: self._host.id} if self._host.running else {}), **self._host.others}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    found = Host(tmp_path)
    found.metrics = series("vllm", 0, 500)
    monkeypatch.setattr(engine_watch, "endpoint_of", lambda _: found)
    monkeypatch.setattr(engine_watch, "keys_of", lambda _: [KEY])
    said = {"docker": f"log of the engine, {KEY}\n", "dmesg": "NVRM: Xid 79\nusb\n"}
    monkeypatch.setattr(evidence, "said", lambda argv: said.get(argv[0], ""))
    return found


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return deployment(tmp_path_factory.mktemp("record")).model_dump(mode="json")


@pytest.fixture
def store(tmp_path: Path, record: dict[str, Any]) -> Iterator[Store]:
    root = tmp_path / "releases"
    root.mkdir()
    found = Store(str(root), str(tmp_path / "run"))
    found.write(record, "r-1", "deployment.json")
    found.point("current", "r-1")
    yield found
    found.end_turn()


@pytest.fixture
def chronicle(tmp_path: Path) -> Chronicle:
    return Chronicle(str(tmp_path), 4, {"floor_mib": 4096})


@pytest.fixture
def watch(host: Host, store: Store, chronicle: Chronicle) -> Callable[[float], None]:
    """Looks every 15 s for so many seconds."""
    watching = EngineWatch(LIMITS, host, Docker(host), store, chronicle)  # type: ignore[arg-type]

    def looks(seconds: float) -> None:
        for _ in range(int(seconds / 15)):
            host.at += 15
            watching.look(host.at)

    return looks


def state(host: Host) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((host.folder / "state.json").read_text())
    return found


def told(host: Host) -> list[str]:
    return [f"{one['what']} {one['why']}" for one in state(host)["events"]]


# The engine


@pytest.fixture
def service() -> Iterator[None]:
    """What systemd starts makes files for others to read, whatever the user's shell does."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("service")
def test_a_wedged_engine_is_ended_with_its_evidence_kept_first(
    host: Host, watch: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    host.metrics = series("vllm", 2, 500)
    watch(300)
    assert host.stopped == []
    watch(15)
    assert host.stopped == [NAME]
    (event,) = state(host)["events"]
    assert told(host) == ["restarted frozen"]
    assert host.asked == 1
    assert event["said"].startswith("2 requests are held, and no token or block moved for 300 s")
    assert event["release"] == "r-1"
    line = capsys.readouterr().out
    assert line.startswith("<4>{")
    assert line.count("\n") == 1
    assert json.loads(line[3:])["evidence"] == event["evidence"]
    case = Path(event["evidence"])
    assert (case / "roost-llm.log").read_text() == "log of the engine, <redacted>\n"
    assert (case / "kernel.log").read_text() == "NVRM: Xid 79\n"
    assert "num_requests_running" in (case / "metrics.txt").read_text()
    assert "HF_TOKEN=<redacted>" in (case / "inspect.json").read_text()
    assert "MemTotal" in (case / "meminfo.txt").read_text()
    assert case.stat().st_mode & 0o777 == 0o700
    assert (host.folder / "state.json").stat().st_mode & 0o777 == 0o644


def test_an_engine_that_answers_is_not_ended_for_its_counters(
    host: Host, watch: Callable[[float], None]
) -> None:
    host.metrics, host.answers = series("vllm", 2, 500), 200
    watch(915)
    assert host.stopped == []
    assert told(host) == []
    # Once, each time that the limit is reached.
    assert host.asked == 3
    host.answers = 500
    watch(300)
    assert host.stopped == [NAME]


def test_an_engine_that_it_ended_and_that_starts_again_has_not_crashed(
    host: Host, watch: Callable[[float], None]
) -> None:
    host.metrics = series("vllm", 2, 500)
    watch(330)
    host.unit_state = "activating"
    watch(30)
    host.running, host.unit_state = True, "active"
    host.started, host.restarts = "2026-11-29T21:00:00Z", 1
    watch(60)
    assert told(host) == ["restarted frozen"]


def test_nothing_is_done_while_somebody_changes_the_host(
    host: Host, watch: Callable[[float], None], store: Store
) -> None:
    host.metrics = series("vllm", 2, 500)
    watch(300)
    deploying = Store(str(store.root), str(store.runtime))
    deploying.take_turn("a deploy", 0)
    watch(3000)
    deploying.end_turn()
    # And what it knew before counts for nothing afterwards.
    watch(300)
    assert host.stopped == []
    watch(45)
    assert host.stopped == [NAME]


def test_a_deploy_that_begins_at_the_last_moment_comes_first(
    host: Host,
    watch: Callable[[float], None],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host.metrics = series("vllm", 2, 500)
    deploying = Store(str(store.root), str(store.runtime))
    deploying.take_turn("a deploy", 0)
    monkeypatch.setattr(store, "holder", lambda: None)
    monkeypatch.setattr(stores, "GLANCE", 0)
    watch(600)
    deploying.end_turn()
    assert host.stopped == []
    assert told(host) == []


def test_the_turn_is_given_back(host: Host, watch: Callable[[float], None], store: Store) -> None:
    host.metrics = series("vllm", 2, 500)
    watch(330)
    assert store.holder() is None
    assert store.take_turn("a deploy", 0) == ""


def test_what_its_unit_does_not_run_is_left_alone(
    host: Host, watch: Callable[[float], None]
) -> None:
    host.metrics = series("vllm", 2, 500)
    host.unit_state = "inactive"
    watch(3600)
    assert host.stopped == []
    assert told(host) == ["left frozen"]


def test_an_engine_that_cannot_be_ended_is_told(host: Host, watch: Callable[[float], None]) -> None:
    host.metrics, host.trouble = series("vllm", 2, 500), "stop"
    watch(330)
    assert told(host) == ["cannot_end frozen"]
    assert "cannot be ended: docker stop" in state(host)["events"][0]["said"]


def test_a_crash_is_told_with_its_exit_code(host: Host, watch: Callable[[float], None]) -> None:
    watch(30)
    host.running, host.unit_state, host.exit_code = False, "activating", 139
    watch(60)
    assert told(host) == ["ended dead"]
    assert state(host)["events"][0]["said"] == "it has ended with exit code 139"


def test_a_crash_between_two_looks_is_told(host: Host, watch: Callable[[float], None]) -> None:
    watch(30)
    host.started, host.restarts = "2026-11-29T21:00:00Z", 1
    watch(60)
    assert told(host) == ["ended dead"]


@pytest.mark.parametrize("how", ["stopped by hand", "started anew by hand", "another container"])
def test_what_somebody_does_is_no_crash(
    host: Host, watch: Callable[[float], None], how: str
) -> None:
    watch(30)
    if how == "stopped by hand":
        host.running, host.unit_state = False, "inactive"
    elif how == "started anew by hand":
        host.started = "2026-11-29T21:00:00Z"
    else:
        host.id, host.started, host.restarts = "b" * 64, "2026-11-29T21:00:00Z", 1
    watch(60)
    assert told(host) == []


def test_an_engine_that_was_given_up_is_told_once_and_its_log_is_kept(
    host: Host, watch: Callable[[float], None], store: Store
) -> None:
    host.running, host.unit_state, host.exit_code = False, "failed", 1
    watch(600)
    again = Chronicle(str(host.folder), 4, {})
    EngineWatch(LIMITS, host, Docker(host), store, again).look(0)  # type: ignore[arg-type]
    assert told(host) == ["gave_up attempts"]
    (event,) = state(host)["events"]
    assert event["said"] == "it was given up after several starts (exit code 1)"
    assert "log of the engine" in Path(event["evidence"], "roost-llm.log").read_text()


def test_an_engine_that_ends_too_often_is_called_restless_once(
    host: Host, watch: Callable[[float], None]
) -> None:
    for life in range(7):
        host.running, host.unit_state, host.started = True, "active", f"life {life}"
        watch(30)
        host.running, host.unit_state = False, "activating"
        watch(15)
    assert told(host).count("restless ends") == 1
    assert told(host)[5] == "restless ends"
    assert state(host)["events"][5]["said"] == "it has ended 5 times in 24 hours"


def test_the_last_events_are_remembered(host: Host, chronicle: Chronicle) -> None:
    for life in range(25):
        chronicle.tell("left", "frozen", "said", life=str(life))
    assert [one["life"] for one in state(host)["events"]] == [str(life) for life in range(5, 25)]


def test_a_daemon_that_is_away_is_waited_for(host: Host, watch: Callable[[float], None]) -> None:
    host.metrics = series("vllm", 2, 500)
    watch(300)
    host.trouble = "docker"
    watch(600)
    host.trouble = ""
    watch(300)
    assert host.stopped == []


def test_releases_of_an_older_roost_are_watched_by_their_answers(
    host: Host, watch: Callable[[float], None], store: Store
) -> None:
    old = store.read("r-1", "deployment.json") or {}
    del old["watched"]
    store.write(old, "r-1", "deployment.json")
    host.metrics = series("vllm", 2, 500)
    watch(3600)
    assert host.stopped == []
    host.metrics = None
    watch(195)
    assert told(host) == ["restarted silent"]


def test_a_compiler_in_the_container_is_seen(tmp_path: Path) -> None:
    for pid, name, group in (("7", "ptxas", "docker/abc"), ("8", "python3", "docker/def")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(f"{name}\n")
        (tmp_path / pid / "cgroup").write_text(f"0::/{group}\n")
    (tmp_path / "9").mkdir()
    assert engine_watch.compiles("abc", tmp_path)
    assert not engine_watch.compiles("def", tmp_path)


@pytest.mark.parametrize(
    ("output", "watts"),
    [("11.20\n10.80\n", 11.2), ("[N/A]\n", None), ("", None), ("No devices were found", None)],
)
def test_power_is_that_of_the_card_that_draws_most(
    monkeypatch: pytest.MonkeyPatch, output: str, watts: float | None
) -> None:
    monkeypatch.setattr(evidence, "said", lambda _: output)
    assert engine_watch.watts() == watts


# Memory


@dataclass
class Memory:
    """A guard whose memory is written down."""

    host: Host
    guard: MemoryGuard
    path: Path

    def look(self, *mib: int) -> float:
        last = 0.0
        for each in mib:
            self.path.write_text(f"MemTotal: 1 kB\nMemAvailable: {each * 1024} kB\n")
            last = self.guard.look()
        return last


@pytest.fixture
def memory(host: Host, store: Store, chronicle: Chronicle, tmp_path: Path) -> Memory:
    path = tmp_path / "meminfo"
    docker = Docker(host)
    guard = MemoryGuard(4096, host, docker, store, chronicle, path)  # type: ignore[arg-type]
    return Memory(host, guard, path)


def test_below_the_floor_the_engine_is_stopped_and_stays_so(memory: Memory, host: Host) -> None:
    memory.look(100_000, 4096)
    assert host.stopped == []
    memory.look(3000)
    assert host.stopped == [f"killed {NAME}", f"unit {NAME}"]
    held = state(host)["held"]
    assert held["said"] == "3000 MiB of memory were available, the floor is 4096 MiB"
    case = Path(held["evidence"])
    assert "MemAvailable: 3072000 kB" in (case / "meminfo.txt").read_text()
    assert len((case / "processes.txt").read_text().splitlines()) > 2
    assert (case / "roost-llm.log").exists()


@pytest.mark.parametrize("trouble", ["no room for the note", "systemd does not answer"])
def test_nothing_that_fails_beside_it_keeps_the_engine_running(
    memory: Memory, host: Host, store: Store, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def fails(_name: str) -> None:
        raise MachineError("systemctl stop roost-llm: timed out after 120 seconds")

    if trouble == "no room for the note":
        (store.runtime / RELIEVED).mkdir(parents=True)
    else:
        monkeypatch.setattr(host, "unit_stop", fails)
    memory.look(3000)
    assert f"killed {NAME}" in host.stopped
    assert told(host) == ["stopped memory"]


def test_the_dip_of_a_moment_is_none(memory: Memory, host: Host) -> None:
    memory.path.write_text("MemAvailable: 1024 kB\n")

    def sleep(seconds: float) -> None:  # noqa: ARG001
        memory.path.write_text("MemAvailable: 99999999 kB\n")

    host.sleep = sleep  # type: ignore[method-assign]
    memory.guard.look()
    assert host.stopped == []


def test_it_is_told_once_until_there_is_enough_again(memory: Memory, host: Host) -> None:
    host.running = False
    memory.look(3000, 2000, 4500, 3000, 6000, 3000)
    assert told(host) == ["none memory"]
    memory.look(6200, 3000)
    assert told(host) == ["none memory", "none memory"]


def test_who_starts_one_while_memory_is_short_is_stopped_again(memory: Memory, host: Host) -> None:
    memory.look(3000, 2500)
    assert told(host) == ["stopped memory"]
    host.running = True
    memory.look(2500)
    assert told(host) == ["stopped memory", "stopped memory"]


def test_a_release_on_trial_fails_and_says_why(memory: Memory, host: Host, store: Store) -> None:
    deploying = Store(str(store.root), str(store.runtime))
    deploying.take_turn("a deploy", 0)
    host.running, host.others = False, {"roost-llm-0a1b": "c" * 64}
    memory.look(3000)
    # What to do about it is the deploy's.
    assert host.stopped == ["killed roost-llm-0a1b"]
    assert state(host)["held"] is None
    runtime = str(store.runtime)
    said = "3000 MiB of memory were available, the floor is 4096 MiB"
    assert host.relieved({"Id": "c" * 64}, runtime) == said
    assert host.relieved({"Id": "d" * 64}, runtime) == ""
    assert host.relieved({"Id": "c" * 64}, "/nowhere") == ""
    deploying.end_turn()


def test_what_was_stopped_is_held_until_it_runs_again(
    memory: Memory, host: Host, watch: Callable[[float], None]
) -> None:
    memory.look(3000)
    watch(60)
    assert state(host)["held"]
    host.running, host.started = True, "2026-11-29T22:00:00Z"
    watch(15)
    assert state(host)["held"] is None
    assert told(host) == ["stopped memory"]


@pytest.mark.parametrize(("mib", "seconds"), [(100_000, 1.0), (7096, 0.5), (4200, 0.1), (99, 0.1)])
def test_the_nearer_the_floor_the_sooner_it_looks_again(
    memory: Memory, mib: int, seconds: float
) -> None:
    assert memory.look(mib) == pytest.approx(seconds)


def test_without_a_floor_nothing_is_stopped(host: Host, store: Store, chronicle: Chronicle) -> None:
    docker = Docker(host)
    guard = MemoryGuard(0, host, docker, store, chronicle, Path("/nowhere"))  # type: ignore[arg-type]
    guard.look()
    assert host.stopped == []


# Evidence


def test_cases_are_few_and_files_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(14):
        moment = time.struct_time((2026, 1, 1, 0, at, 0, 0, 0, 0))
        monkeypatch.setattr(time, "gmtime", lambda moment=moment: moment)
        evidence.capture(tmp_path, {"why": "frozen"}, metrics="x" * 1_000_000)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert len(kept) == evidence.KEPT
    assert kept[-1].startswith("20260101T0013")
    assert (tmp_path / kept[-1] / "metrics.txt").stat().st_size == evidence.LARGEST


def test_a_program_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = subprocess.Popen

    def begun(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        """Its time begins when it has said what it says."""
        child = begin(*words, **options)
        until((tmp_path / "said").exists)
        return child

    started = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", begun)
        found = evidence.said(["sh", "-c", f"echo so far; > {tmp_path}/said; exec sleep 600"], 0.3)
    assert time.monotonic() - started < 300
    assert found == "sh: no end after 0 s\nso far\n"
    assert evidence.said(["no-such-program"]) == "no-such-program: No such file or directory\n"


def test_of_much_output_the_end_is_kept() -> None:
    found = evidence.said(["sh", "-c", "yes | head -c 600000; echo end"])
    assert len(found) == evidence.LARGEST
    assert found.endswith("end\n")


def test_a_disk_that_takes_nothing_keeps_nobody_from_acting(tmp_path: Path) -> None:
    (tmp_path / "cases").write_text("a file where a directory should be")
    assert evidence.capture(tmp_path / "cases", {"why": "frozen"}) == ""


def test_processes_are_listed_by_what_they_hold() -> None:
    rows = [line.split() for line in evidence.processes().splitlines()]
    sizes = [int(row[0]) + int(row[1]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert len(rows) <= evidence.PROCESSES

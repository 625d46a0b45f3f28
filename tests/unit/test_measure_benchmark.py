"""The benchmark against stand-ins of engine and load generator: figures, reasons, breakdowns."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit import stand_in_engine
from tests.unit.deployments import deployment, write_lock
from tests.unit.stand_in_engine import Container, Engine

from roost import lock, runs, ssh
from roost.deployment import Deployment
from roost.errors import RoostError, UsageError
from roost.inventory import Connection, Host
from roost.measure import harness, metrics, points, reconnecting, render_prompts, throttling
from roost.measure.benchmark import (
    accounting,
    concluding,
    measuring,
    planning,
    rendering,
    repeating,
)
from roost.measure.benchmark.session import Session
from roost.measure.client import Client, EngineError
from roost.measure.harness import HarnessResult, Request
from roost.measure.kept import environment
from roost.measure.metrics import Reading, SpecCounters
from roost.measure.points import Benchmark, CellPoints, Repetition, Speculation
from roost.measure.verify import Evidence, Target, reach
from roost.settings import Settings

DATA = Path(__file__).parent / "data"
NOW = dt.datetime(2026, 11, 29, 16, 0, 5, tzinfo=dt.UTC)


@dataclass
class Bench:
    """A host with the stand-ins; tests change the scenario.

    The smoke suite has two points, two repetitions of each, and two prompts of 32 tokens in them.
    """

    engine: Engine
    folder: Path
    said: list[str] = field(default_factory=list)
    #: What is different in the deployment.
    changes: dict[str, Any] = field(default_factory=dict)
    #: The host's.
    variables: dict[str, Any] = field(default_factory=dict)
    #: What stands between the host and its benchmark.
    through: Callable[[ssh.Remote], ssh.Remote] = lambda remote: remote

    def scenario(self, **values: Any) -> None:
        (self.folder / "scenario.json").write_text(json.dumps({"port": self.engine.port, **values}))

    def measure(
        self, suite: str = "smoke", prompts: str | None = None
    ) -> tuple[Evidence, Benchmark]:
        resolved = deployment(self.folder, port=self.engine.port).model_copy(update=self.changes)
        host = Host("host-01", self.variables, Connection(address="127.0.0.1", local=True))
        with reach(host, resolved) as target:
            target.remote = self.through(target.reached())
            asked = planning.plan(suite, prompts)
            evidence = measuring.measure(target, asked, folder=self.folder, say=self.said.append)
        return evidence, points.of(evidence)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with stand_in_engine.serving() as engine:
        Container.of(deployment(tmp_path, port=engine.port)).install(tmp_path / "bin")
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        monkeypatch.setenv("STAND_IN_SCENARIO", str(tmp_path / "scenario.json"))
        made = Bench(engine, tmp_path)
        made.scenario()
        yield made


def connecting(through: Callable[[ssh.Remote], Any]) -> Callable[[Host], Any]:
    """Connect to a host, and put something between."""
    plain = ssh.connect

    @contextmanager
    def connect(host: Host) -> Iterator[Any]:
        with plain(host) as remote:
            yield through(remote)

    return connect


def failed(evidence: Evidence) -> dict[str, str]:
    return {check.id: check.why for check in evidence.failed}


def test_figures_are_the_harnesss_own(bench: Bench) -> None:
    evidence, measured = bench.measure()
    assert failed(evidence) == {}
    assert (measured.complete, [cell.id for cell in measured.cells]) == (
        True,
        ["code-c1", "prose-c1"],
    )
    cell = measured.cells[0]
    raw = [json.loads((bench.folder / one.raw).read_text()) for one in cell.repetitions]
    figure = evidence.figures["code-c1.output_throughput"]
    assert figure.value == pytest.approx(sum(one["output_throughput"] for one in raw) / 2)
    # Two repetitions are no interval.
    assert (figure.low, figure.high) == (None, None)
    assert "harness_code-c1_1.json, harness_code-c1_2.json" in figure.source
    # Accept length and rate by the counters: the stand-in proposes four a step.
    pages = [f"metrics_code-c1_{n}_{when}.txt" for n in (1, 2) for when in ("before", "after")]
    for key in ("accept_length", "accept_rate"):
        assert evidence.figures[f"code-c1.{key}"].source.endswith(f"; {', '.join(pages)}")
    length = evidence.figures["code-c1.accept_length"].value
    assert length == pytest.approx(3.4, rel=0.02)
    assert evidence.figures["code-c1.accept_rate"].value == pytest.approx((length - 1) * 25)
    assert evidence.figures["code-c1.decode_speed"].value == pytest.approx(figure.value, rel=0.01)
    assert {request.prompt for request in cell.repetitions[0].requests} == {"code-01", "code-02"}
    assert (bench.folder / "metrics_code-c1_1_before.txt").is_file()
    assert "engine.log" in evidence.artefacts
    told = {check.id: check for check in evidence.checks}
    assert told["machine"].observed.startswith("engine 0.32.0+cpu, ")
    assert told["suite"].expected == (
        "2 points of smoke: two categories, one user, 32 tokens; too few repetitions for an "
        "interval (roost); prompts: roost's own: styles"
    )
    bars = [
        f"[{'#' * done}{'.' * (20 - done)}] {share} smoke: point "
        for done, share in ((0, "  0%"), (0, "  0%"), (5, " 25%"), (10, " 50%"), (15, " 75%"))
    ]
    assert bench.said[0].startswith(f"{bars[0]}1 of 2, prompts")
    told = [line for line in bench.said if "repetition" in line]
    for line, bar in zip(told, bars[1:], strict=True):
        assert line.startswith(bar)
    assert bench.said[4].startswith(f"{bars[3]}2 of 2, prose-c1 warm-up")
    assert bench.said[-1].startswith(f"[{'#' * 20}] 100% smoke: point 2 of 2, done")


def test_what_is_long_is_parquet_and_comes_back(bench: Bench) -> None:
    evidence, measured = bench.measure()
    assert '"requests"' not in evidence.artefacts[points.FILE]
    assert len(evidence.tables[points.REQUESTS].rows) == 8
    begun = runs.Run(
        "benchmark", bench.folder, Host("h", {}, Connection("h")), deployment(bench.folder), NOW
    )
    begun.finish(evidence)
    assert points.read(bench.folder) == measured
    # As it was before there were tables: everything in one document.
    (bench.folder / points.REQUESTS).unlink()
    with pytest.raises(RoostError, match=r"requests\.parquet: cannot be read"):
        points.read(bench.folder)
    (bench.folder / points.FILE).write_text(measured.model_dump_json())
    assert points.read(bench.folder) == measured


def test_positions_of_drafts_come_back_in_their_order() -> None:
    def one(*accepted: float) -> Repetition:
        counters = Speculation(
            drafts=10, draft_tokens=30, accepted=sum(accepted), per_position=list(accepted)
        )
        return Repetition(
            duration=1, output_throughput=1, speculation=counters, accept_length=2, clock=None,
            raw="x", marks=[],
        )  # fmt: skip

    cell = CellPoints(
        id="a-c1", category="a", concurrency=1, repetitions=[one(9, 5, 1), one(8, 4)], published=[]
    )
    made = Benchmark(suite="s", protocol="p", prompts="o", complete=True, cells=[cell])
    evidence = Evidence(artefacts={points.FILE: points.document(made)}, tables=points.tables(made))
    evidence.tables[points.ACCEPTANCE].rows.reverse()
    assert points.of(evidence) == made
    last = {"point": "a-c1", "repetition": 1, "position": 1, "accepted": 9.0, "drafts": 10.0}
    assert evidence.tables[points.ACCEPTANCE].rows[-1] == last


@pytest.mark.parametrize("key", ["null", "harness", "code", "token", "1"])
def test_a_key_that_is_a_word_of_ours_breaks_no_document(bench: Bench, key: str) -> None:
    bench.variables = {"roost_api_key": key}
    evidence, _ = bench.measure()
    assert points.of(evidence).cells
    assert json.loads(evidence.artefacts["host.json"])


def test_the_key_is_in_nothing_that_is_kept(bench: Bench) -> None:
    """An engine that prints it, and a page and a file that have it, as a page of errors may."""
    key = 'sk-"secret"-0123456789'
    bench.variables = {"roost_api_key": key}
    docker = bench.folder / "bin" / "docker"
    docker.write_text(docker.read_text().replace("2026-01-02 out", f"2026-01-02 api_key={key}"))
    bench.engine.comment = f"# {key}"
    bench.scenario(failed=1, error=f"401 for {key}")
    evidence, _ = bench.measure()
    host = Host("host-01", bench.variables, Connection("h"))
    runs.Run("benchmark", bench.folder, host, deployment(bench.folder), NOW).finish(evidence)
    kept = [path for path in bench.folder.iterdir() if path.is_file()]
    kept.remove(bench.folder / "scenario.json")
    texts = {path.name: path.read_bytes().decode(errors="replace") for path in kept}
    assert [name for name, text in texts.items() if "secret" in text] == []
    for name in ("engine.log", "metrics_code-c1_1_before.txt", "harness_code-c1_1.json"):
        assert "[the API key]" in texts[name], name
    # A hole in a document is none in its form.
    for name in ("harness_code-c1_1.json", "host.json", points.FILE):
        json.loads(texts[name])
    # So has the table of checks in the notebook.
    assert "401 for [the API key]" in failed(evidence)["code-c1"]


def test_the_host_is_kept_with_its_figures(bench: Bench) -> None:
    kept = json.loads(bench.measure()[0].artefacts["host.json"])
    assert kept["facts"]["kernel"]
    assert kept["engine_version"] == "0.32.0+cpu"
    assert kept["not_read"] == ""


def test_warm_ups_are_requests_that_no_figure_sees(bench: Bench) -> None:
    _, measured = bench.measure()
    # One a point; the readings of a repetition stand around the harness alone.
    assert [body["max_tokens"] for body in bench.engine.requests] == [32, 32]
    asked = bench.engine.requests[0]["messages"][0]["content"]
    assert re.match(r"\[[0-9a-f]{8}\] \w", asked)
    assert all(not one.marks for cell in measured.cells for one in cell.repetitions)


@pytest.mark.parametrize(
    ("scenario", "why"),
    [
        ({"failed": 1}, "2 left out: 1 of 2 requests failed: Bad Gateway"),
        (
            {"foreign_tokens": 10},
            "2 left out: another client was served: the engine generated 74 tokens, the harness's "
            "requests took 64",
        ),
        ({"foreign_tokens": -10}, "2 left out: the counters are not its own"),
        ({"restart": True}, "2 left out: the engine restarted between two readings"),
    ],
)
def test_repetitions_that_do_not_count_say_why(
    scenario: dict[str, Any], why: str, bench: Bench
) -> None:
    bench.engine.load = [1e6] * 4
    bench.scenario(**scenario)
    evidence, measured = bench.measure()
    assert set(failed(evidence)) == {"code-c1", "prose-c1"}
    assert failed(evidence)["code-c1"].startswith(why)
    # Nothing is said about what may not be believed, and everything is kept.
    assert evidence.figures == {}
    assert len(measured.cells[0].repetitions) == 2
    assert (bench.folder / "harness_code-c1_2.json").is_file()


def test_a_harness_that_leaves_out_prompts_ends_the_suite(bench: Bench) -> None:
    """Times would stand under the prompts after those that it left out."""
    bench.scenario(left_out=1)
    evidence, measured = bench.measure()
    assert set(failed(evidence)) == {"code-c1", "suite"}
    assert "the engine's harness sent 1 of 2 prompts" in failed(evidence)["suite"]
    assert not measured.complete


@pytest.mark.parametrize(
    ("tail", "why"), [("x", ""), (None, "the prompts were not rendered in the container")]
)
def test_what_libraries_say_beside_the_prompts(tail: str | None, why: str, bench: Bench) -> None:
    bench.scenario(says_after="cache saved", tail=tail)
    evidence, _ = bench.measure()
    assert why in failed(evidence).get("suite", "")
    assert bool(evidence.failed) is bool(why)


def test_what_breaks_ends_the_suite_and_keeps_what_was_measured(bench: Bench) -> None:
    bench.scenario(breaks_at=3)
    evidence, measured = bench.measure()
    assert not measured.complete
    assert [len(cell.repetitions) for cell in measured.cells] == [2, 0]
    assert set(failed(evidence)) == {"prose-c1", "suite"}
    assert "host-01: the engine's harness failed" in failed(evidence)["suite"]
    assert "ClientConnectorError: cannot connect" in failed(evidence)["suite"]
    assert "code-c1.output_throughput" in evidence.figures
    assert bench.said[-1].startswith(f"[{'#' * 10}{'.' * 10}]  50% smoke: point 2 of 2, stopped")


class Breaking:
    """A connection that breaks at some calls of the harness, and is another one after it.

    Args:
        remote: What it breaks.
        at: The calls, from one; 0: when prompts are rendered first.
        unreachable: Commands after a break that reach no host.
        unready: Commands after that which reach no container.
        meanwhile: What happens on the host behind it.
    """

    def __init__(
        self,
        remote: ssh.Remote,
        *at: int,
        unreachable: int = 0,
        unready: int = 0,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self._remote = remote
        self._at = at
        self._calls = 0
        self._unreachable = unreachable
        self._down = 0
        self._unready = unready
        self._meanwhile = meanwhile
        self.cleared: list[str] = []
        self.tunnel = remote.tunnel

    def run(self, argv: Sequence[str], *given: Any, **options: Any) -> ssh.Completed:
        if self._down:
            self._down -= 1
            raise ssh.SshError("host-01: cannot connect")
        renders = "-i" in argv and not self._calls and not self.cleared
        if "bench" in argv or renders:
            self._calls += "bench" in argv
            if self._calls in self._at:
                self._down = self._unreachable
                self._meanwhile()
                raise ssh.BrokenConnectionError("host-01: the SSH connection broke")
        if argv[-2] == reconnecting._END:
            self.cleared.append(argv[-1])
            if len(self.cleared) <= self._unready:
                return ssh.Completed(1, "", "Cannot connect to the Docker daemon")
            return ssh.Completed(0, "", "")
        return self._remote.run(argv, *given, **options)


def test_a_point_whose_connection_broke_is_measured_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    monkeypatch.setattr(time, "sleep", paused.append)
    found: list[Breaking] = []

    def through(remote: ssh.Remote) -> ssh.Remote:
        found.append(Breaking(remote, 2, 6, unreachable=2))
        return found[0]

    bench.through = through
    evidence, measured = bench.measure()
    assert failed(evidence) == {}
    assert measured.complete
    assert [len(cell.repetitions) for cell in measured.cells] == [2, 2]
    (suite,) = [check for check in evidence.checks if check.id == "suite"]
    assert suite.observed == "2 measured; SSH connections that broke: 2"
    assert [check.id for check in evidence.checks].count("thinking") == 1
    # Whatever still ran there was ended, by its folder; each attempt had another one.
    (breaking,) = found
    assert len(set(breaking.cleared)) == 2
    assert paused.count(reconnecting._PAUSE_S) == 4
    said = [line for line in bench.said if "the SSH connection broke, waiting for the host" in line]
    assert len(said) == 2


class Cutting:
    """A way to the engine that is cut at some of its requests."""

    def __init__(self, remote: ssh.Remote, how: str) -> None:
        self._remote = remote
        self._how = how
        self._away = False
        self.asked = 0
        self.opened: ssh.Tunnel | None = None

    @contextmanager
    def tunnel(self, port: int, address: str = "127.0.0.1") -> Iterator[ssh.Tunnel]:
        with self._remote.tunnel(port, address) as opened:
            self.opened = opened
            yield opened

    def cut(self) -> None:
        self._away = self._how == "away"
        if self._how == "tunnel":
            assert self.opened is not None
            self.opened.broke(": reset by peer")

    def run(self, argv: Sequence[str], *given: Any, **options: Any) -> ssh.Completed:
        if self._away:
            self._away = False
            raise ssh.SshError("host-01: cannot connect")
        if argv[-2:-1] == [reconnecting._END]:
            return ssh.Completed(0, "", "")
        return self._remote.run(argv, *given, **options)


@pytest.mark.parametrize("request_", ["chat", "metrics"])
@pytest.mark.parametrize(("how", "again"), [("away", True), ("tunnel", True), ("engine", False)])
def test_a_request_whose_connection_broke_is_no_engine_that_is_down(
    how: str, again: bool, request_: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm-up and a reading of the counters go through the tunnel, not over a command."""
    found: list[Cutting] = []
    asked = getattr(Client, request_)

    def cut_at_the_second(self: Client, *given: Any, **options: Any) -> Any:
        (cutting,) = found
        cutting.asked += 1
        if cutting.asked != 2:
            return asked(self, *given, **options)
        cutting.cut()
        raise EngineError("no connection", why="server disconnected")

    def through(remote: ssh.Remote) -> Any:
        found.append(Cutting(remote, how))
        return found[0]

    monkeypatch.setattr(ssh, "connect", connecting(through))
    monkeypatch.setattr(Client, request_, cut_at_the_second)
    evidence, measured = bench.measure()
    assert measured.complete is again
    assert "no connection" in failed(evidence).get("suite", "no connection")
    assert (failed(evidence) == {}) is again


def test_a_host_that_cannot_be_cleared_hides_no_reason(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(_: object) -> None:
        raise ssh.SshError("host-01: cannot connect")

    bench.engine.chat_status = 500
    monkeypatch.setattr(rendering, "_clear", unreachable)
    assert "HTTP 500" in failed(bench.measure()[0])["suite"]


def test_a_connection_that_always_breaks_ends_the_suite(bench: Bench) -> None:
    bench.through = lambda remote: Breaking(remote, *range(3, 99))
    evidence, measured = bench.measure()
    assert "the SSH connection broke" in failed(evidence)["suite"]
    assert [len(cell.repetitions) for cell in measured.cells] == [2, 0]


def test_a_host_that_stays_away_ends_the_suite(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "PATIENCE_S", 0.0)
    bench.through = lambda remote: Breaking(remote, 4, unreachable=99)
    evidence, measured = bench.measure()
    assert "host-01: cannot connect" in failed(evidence)["suite"]
    # What there was of the point is kept, and does not suffice.
    assert [len(cell.repetitions) for cell in measured.cells] == [2, 1]


def test_a_docker_that_is_not_ready_yet_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that starts anew lets one in before its Docker answers."""
    paused: list[float] = []
    monkeypatch.setattr(time, "sleep", paused.append)
    bench.through = lambda remote: Breaking(remote, 2, unready=2)
    assert failed(bench.measure()[0]) == {}
    assert paused.count(reconnecting._PAUSE_S) == 2
    monkeypatch.setattr(reconnecting, "PATIENCE_S", 0.0)
    bench.through = lambda remote: Breaking(remote, 2, unready=99)
    why = failed(bench.measure()[0])["suite"]
    assert "what was under way in roost-llm could not be ended" in why
    assert "Cannot connect to the Docker daemon" in why


def test_prompts_whose_rendering_broke_are_judged_when_it_is_repeated(bench: Bench) -> None:
    bench.scenario(tail="<|im_start|>assistant\n<think>\n")
    bench.changes = {"chat_template_kwargs": {"enable_thinking": False}}
    bench.through = lambda remote: Breaking(remote, 0)
    assert "did not take the recipe's arguments" in failed(bench.measure()[0])["thinking"]


@pytest.mark.parametrize(
    ("change", "check", "why"),
    [
        ("started", "suite", "it was started at 2026-01-01T11:00:00Z, what was measured so far at"),
        ("deployed", "image_digest", "roost-llm runs another image"),
    ],
)
def test_behind_a_broken_connection_nothing_else_may_have_begun_to_run(
    change: str, check: str, why: str, bench: Bench
) -> None:
    container = Container.of(deployment(bench.folder, port=bench.engine.port))
    if change == "started":
        container.inspect["State"]["StartedAt"] = "2026-01-01T11:00:00Z"
    else:
        container.image["RepoDigests"] = ["i@sha256:" + "6" * 64]

    def meanwhile() -> None:
        container.install(bench.folder / "bin")

    bench.through = lambda remote: Breaking(remote, 3, meanwhile=meanwhile)
    evidence, measured = bench.measure()
    assert why in failed(evidence)[check]
    assert "is not the container any more that was measured" in failed(evidence)["suite"]
    assert [len(cell.repetitions) for cell in measured.cells] == [2, 0]
    assert [one.id for one in evidence.checks].count("container") == 1


def test_an_abandoned_attempt_leaves_no_files_among_the_evidence(bench: Bench) -> None:
    """The second attempt may need fewer repetitions than the first had."""
    bench.engine.context = 1000
    bench.scenario(noise=0.2)

    def meanwhile() -> None:
        bench.scenario(noise=0.001)

    bench.through = lambda remote: Breaking(remote, 5, meanwhile=meanwhile)
    evidence, measured = bench.measure("prompt-length")
    (cell,) = measured.cells
    assert (failed(evidence), len(cell.repetitions)) == ({}, 3)
    kept = {file.name for file in bench.folder.glob("harness_*")}
    assert kept == {one.raw for one in cell.repetitions}
    assert len(list(bench.folder.glob("metrics_*"))) == 6


def test_what_renders_prompts_is_found_by_their_folder(bench: Bench) -> None:
    found: list[list[str]] = []

    class Listening(Breaking):
        def run(self, argv: Sequence[str], *given: Any, **options: Any) -> ssh.Completed:
            if "-i" in argv and given[0]:
                found.append([argv[-1], json.loads(given[0])["directory"]])
            return super().run(argv, *given, **options)

    bench.through = Listening
    bench.measure()
    ((word, folder),) = found
    assert word == folder


def test_prompts_that_are_too_long_are_named_before_the_load(bench: Bench) -> None:
    """By the engine, one HTTP 400 would end the suite, and name none."""
    own = bench.folder / "own.jsonl"
    # Of 2048 tokens 32 are for an answer; the digits before a prompt are a word here.
    words = {"short": 3, "long": 2015, "longer": 2016}
    rows = {
        name: json.dumps({"prompt": "Why? " * count, "id": name}) for name, count in words.items()
    }
    own.write_text(f"{rows['short']}\n{rows['long']}\n")
    evidence, _ = bench.measure(prompts=str(own))
    assert failed(evidence) == {}
    bench.engine.requests.clear()
    own.write_text(f"{rows['short']}\n\n{rows['longer']}\n")
    evidence, measured = bench.measure(prompts=str(own))
    why = failed(evidence)["suite"]
    assert f"{own}: too long for the server: line 3 (2,017 tokens)\n" in why
    assert "its context is 2,048 tokens, and 32 of them are for the answer" in why
    assert (measured.complete, measured.cells, bench.engine.requests) == (False, [], [])


def test_a_prompt_goes_to_the_host_once(bench: Bench) -> None:
    """Every user and every repetition asks it again: 8 MiB of prompts would be 180."""
    given: list[str] = []

    class Listening(Breaking):
        def run(self, argv: Sequence[str], *words: Any, **options: Any) -> ssh.Completed:
            if "-i" in argv and words[0]:
                given.append(words[0])
            return super().run(argv, *words, **options)

    bench.through = Listening
    bench.measure()
    (job,) = given
    texts = [prompt.text for cell in planning.plan("smoke").cells for prompt in cell.prompts]
    assert [job.count(json.dumps(text)) for text in texts] == [1] * 4
    assert len(json.loads(job)["files"]) == 4


def test_a_load_that_nobody_waits_for_is_ended(tmp_path: Path) -> None:
    folder = tmp_path / "roost-bench-1"
    folder.mkdir()
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen([*sleeping, str(folder / "prompts.jsonl")]) as load,
        subprocess.Popen(sleeping) as other,
        # Any process may have words that are no text.
        subprocess.Popen([*sleeping, b"\xff"]) as untold,
    ):
        end = [sys.executable, "-c", reconnecting._END, str(folder)]
        subprocess.run(end, check=True)
        assert load.wait(60) == -signal.SIGTERM
        assert other.poll() is None
        other.kill()
        untold.kill()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "check", "why"),
    [
        ("depth", "command", "word "),
        ("image", "image_digest", "roost-llm runs another image"),
        ("gone", "container", "No such container"),
    ],
)
def test_nothing_is_measured_of_what_is_not_pinned(
    change: str, check: str, why: str, bench: Bench
) -> None:
    """Figures of an older release must not carry the lock of the one that was not deployed yet."""
    container = Container.of(deployment(bench.folder, port=bench.engine.port))
    if change == "depth":
        command = container.inspect["Config"]["Cmd"]
        at = next(at for at, word in enumerate(command) if "num_speculative_tokens" in word)
        command[at] = command[at].replace('"num_speculative_tokens":', '"num_speculative_tokens":1')
    elif change == "image":
        container.image["RepoDigests"] = ["i@sha256:" + "6" * 64]
    container.install(bench.folder / "bin")
    if change == "gone":
        docker = bench.folder / "bin" / "docker"
        docker.write_text("#!/bin/sh\necho 'Error: No such container: roost-llm' >&2\nexit 1\n")
    evidence, measured = bench.measure()
    assert {check, "suite"} <= set(failed(evidence))
    assert why in failed(evidence)[check]
    assert "roost-llm is not what was to be measured" in failed(evidence)["suite"]
    assert (measured.complete, measured.cells, evidence.figures) == (False, [], {})
    assert bench.engine.requests == []


def test_an_engine_that_is_down_is_one_failed_check(bench: Bench) -> None:
    bench.engine.chat_status = 500
    evidence, measured = bench.measure()
    assert set(failed(evidence)) == {"suite"}
    assert "HTTP 500" in failed(evidence)["suite"]
    assert measured.cells == []


@pytest.mark.parametrize(("kwargs", "ok"), [({}, True), ({"enable_thinking": False}, False)])
def test_prompts_that_open_a_thinking_block_are_found(
    kwargs: dict[str, bool], ok: bool, bench: Bench
) -> None:
    bench.scenario(tail="<|im_start|>assistant\n<think>\n")
    bench.changes = {"chat_template_kwargs": kwargs}
    evidence, measured = bench.measure()
    assert measured.chat_template_kwargs == kwargs
    (check,) = [check for check in evidence.checks if check.id == "thinking"]
    assert check.ok is ok
    assert ("did not take the recipe's arguments" in check.why) is not ok


def test_lengths_beyond_the_servers_context_are_left_out(bench: Bench) -> None:
    bench.engine.context = 2042 + 256
    evidence, measured = bench.measure("prompt-length")
    assert [cell.id for cell in measured.cells] == ["0.5K-c1", "2K-c1"]
    (context,) = [check for check in evidence.checks if check.id == "context"]
    assert (context.ok, context.observed) == (True, "left out: 8K, 32K, 131K, 250K")
    # One prompt: its interval is over the times it was asked.
    figure = evidence.figures["2K-c1.ttft"]
    times = [one.requests[0].ttft * 1000 for one in measured.cells[1].repetitions]
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < min(times) < max(times) < figure.high


def test_every_length_warms_up_at_its_own(bench: Bench) -> None:
    """The first prompt of its length meets kernels that nobody has compiled or tuned for it."""
    bench.engine.context = 2042 + 256
    evidence, measured = bench.measure("prompt-length")
    assert failed(evidence) == {}
    asked = [body["messages"][0]["content"] for body in bench.engine.requests]
    # The stand-in for the renderer makes four characters of a token.
    around = len("[01234567] ") + len(render_prompts.QUESTION)
    assert [len(one) - around for one in asked] == [511 * 4, 2042 * 4]
    assert all(render_prompts.FILLER in one for one in asked)
    assert asked[0][:11] != asked[1][:11]
    assert len(measured.cells) == 2


def test_a_long_warm_up_may_take_its_time(tmp_path: Path) -> None:
    """A quarter of a million tokens take two minutes on a GB10 that is warm."""
    limits: list[float] = []
    client: Any = SimpleNamespace(chat=lambda *_, timeout: limits.append(timeout))
    planned = planning.plan("prompt-length")
    target = Target(Host("h", {}, Connection("h")), deployment(tmp_path), client=client)
    session = Session(target, planned, planned.cells, tmp_path, lambda _: None)
    repeating._warm_up(session, planned.cells[-1])
    assert limits == [120 + 2502.23 + 512]


def test_of_what_the_catalogue_does_not_give_any_more_no_settings_are_known(
    tmp_path: Path,
) -> None:
    """A kept release is measured all the same."""
    kept = deployment(tmp_path)
    older = kept.asked.settings.model_copy(update={"engine_version": "0.10.0"})
    asked = kept.asked.model_copy(update={"settings": older})
    planned = planning.plan("smoke")
    target = Target(Host("h", {}, Connection("h")), kept.model_copy(update={"asked": asked}))
    session = Session(target, planned, planned.cells, tmp_path, lambda _: None)
    assert session.settings == Settings()


def test_a_warm_up_may_wait_for_those_before_it(tmp_path: Path) -> None:
    """An engine that takes one at a time has sixteen answers of 512 tokens to give to the last."""
    limits: list[float] = []
    client: Any = SimpleNamespace(chat=lambda *_, timeout: limits.append(timeout))
    planned = planning.plan("prompt-style")
    cell = next(one for one in planned.cells if one.concurrency == 16)
    target = Target(Host("h", {}, Connection("h")), deployment(tmp_path), client=client)
    repeating._warm_up(Session(target, planned, [cell], tmp_path, lambda _: None), cell)
    # 7.2 tokens/s of all users together.
    assert limits == [120 + 1024] * 16


def test_a_noisy_host_is_measured_more_often(bench: Bench) -> None:
    bench.engine.context = 1000
    bench.scenario(noise=0.001)
    _, steady = bench.measure("prompt-length")
    bench.scenario(noise=0.2)
    _, noisy = bench.measure("prompt-length")
    assert [len(one.cells[0].repetitions) for one in (steady, noisy)] == [3, 6]


def test_all_users_warm_up(tmp_path: Path) -> None:
    """prompt-style has four warm-ups and sixteen users: a batch of sixteen is met by them."""
    together = threading.Barrier(16, timeout=120)
    client: Any = SimpleNamespace(chat=lambda *_, **__: together.wait())
    planned = planning.plan("prompt-style")
    cell = next(one for one in planned.cells if one.concurrency == 16)
    target = Target(Host("h", {}, Connection("h")), deployment(tmp_path), client=client)
    repeating._warm_up(Session(target, planned, [cell], tmp_path, lambda _: None), cell)
    assert together.n_waiting == 0


@pytest.mark.parametrize(("settings", "figures"), [({}, 2), ({"num_speculative_tokens": 8}, 0)])
def test_a_published_figure_is_of_drafts_as_deep(
    settings: dict[str, int], figures: int, tmp_path: Path
) -> None:
    """The author's figures are of K=4: with 8 more is accepted, which is no better drafter."""
    resolved = deployment(tmp_path, "gb10", settings=settings)
    planned = planning.plan("spec-bench")
    cell = next(one for one in planned.cells if one.id == "coding-c1")
    target = Target(Host("h", {}, Connection("h")), resolved)
    session = Session(target, planned, [cell], tmp_path, print)
    assert len(repeating._points(session, cell, []).published) == figures


KEY = "0123456789abcdef"


def by_environment(folder: Path, **settings: int) -> Deployment:
    """Of an image whose settings are all variables: its command says none of them."""
    path = folder / "by_environment.lock.yml"
    write_lock(path)
    locked = lock.read(path)
    (made_up,) = locked.models["z-lab/Qwen3.6-35B-A3B-DFlash"].items()
    pins = {
        repo: dict([made_up])
        for repo in ("AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4", "z-lab/Qwen3.5-27B-DFlash")
    }
    lock.write(path, locked.model_copy(update={"models": pins}))
    return deployment(
        folder,
        "gb10",
        recipe="qwen3.5-27b-aeon-nvfp4-dflash",
        settings=settings,
        lock_file=str(path),
        allow_unlocked=True,
        api_key=KEY,
    )


@pytest.mark.parametrize(("settings", "some"), [({}, True), ({"num_speculative_tokens": 8}, False)])
def test_a_depth_that_is_said_by_a_variable_is_the_depth(
    settings: dict[str, int], some: bool, tmp_path: Path
) -> None:
    """The author's figures are of K=15."""
    resolved = by_environment(tmp_path, **settings)
    depth = str(settings.get("num_speculative_tokens", 15))
    assert resolved.spec.env["DFLASH_NUM_SPEC_TOKENS"] == depth
    assert KEY not in environment(resolved.spec.env)
    planned = planning.plan("prompt-style")
    cell = next(one for one in planned.cells if one.id == "code-c1")
    target = Target(Host("h", {}, Connection("h")), resolved)
    session = Session(target, planned, [cell], tmp_path, print)
    assert bool(repeating._points(session, cell, []).published) == some


@pytest.mark.parametrize(
    ("users", "says"), [(2, ""), (16, "2 of 16 users are served at a time (max_num_seqs)")]
)
def test_users_that_wait_in_a_queue_are_told(users: int, says: str, tmp_path: Path) -> None:
    """Two 5070 Ti serve two at a time: the others' time to the first token is not the engine's."""
    by_variable = by_environment(tmp_path, max_num_seqs=2)
    for resolved in (deployment(tmp_path, "rtx5070ti-x2"), by_variable):
        target = Target(Host("h", {}, Connection("h")), resolved)
        session = Session(target, planning.plan("smoke"), [], tmp_path, print)
        cell = CellPoints(id="a", category="a", concurrency=users, repetitions=[], published=[])
        concluding._judge_cell(session, cell)
        (check,) = session.evidence.checks
        assert check.why.startswith(says)
        assert bool(check.why) == bool(says)


@pytest.mark.parametrize(
    ("speculation", "drafts", "accepted", "says"),
    [
        ("dflash", 100.0, 240.0, ""),
        ("dflash", 100.0, 2.0, ""),
        (
            "dflash",
            1000.0,
            2.0,
            "accept length 1.00 over 2000 drafts: they cost time and are not accepted; the drafter "
            "does not belong to this model, or its weights were not loaded",
        ),
        (
            "dflash",
            0.0,
            0.0,
            "no drafts, although dflash speculates: the counters of drafts did not move",
        ),
        (
            "dflash",
            None,
            0.0,
            "no drafts, although dflash speculates: the engine has no counters of drafts",
        ),
        # What looks drafts up in the prompt may find none.
        ("ngram", 0.0, 0.0, ""),
        ("none", None, 0.0, ""),
    ],
)
def test_drafts_that_bring_nothing_are_told(
    speculation: str, drafts: float | None, accepted: float, says: str, tmp_path: Path
) -> None:
    """The point counts, as fast as it is: a speed alone does not say that its drafter is idle."""
    target = Target(Host("h", {}, Connection("h")), deployment(tmp_path, speculation=speculation))
    session = Session(target, planning.plan("smoke"), [], tmp_path, print)
    made = None
    if drafts is not None:
        made = Speculation(drafts=drafts, draft_tokens=4 * drafts, accepted=accepted)
    one = Repetition(
        duration=1.0, output_throughput=9.0, speculation=made, accept_length=None, clock=None,
        raw="r", marks=[],
    )  # fmt: skip
    cell = CellPoints(id="a", category="a", concurrency=1, repetitions=[one, one], published=[])
    concluding._judge_cell(session, cell)
    (check,) = session.evidence.checks
    assert (check.ok, check.why) == (True, says)
    # Of what does not count nothing is said but why.
    left = [one.model_copy(update={"marks": ["slow"]})] * 2
    concluding._judge_cell(session, cell.model_copy(update={"repetitions": left}))
    assert session.evidence.checks[-1].why == "2 left out: slow"


def smi(bench: Bench, row: str, rc: int = 0) -> None:
    script = bench.folder / "bin" / "nvidia-smi"
    script.write_text(
        f"#!/bin/sh\n# Stand-in: says what a test decided.\necho '{row}'\nexit {rc}\n"
    )
    script.chmod(0o755)


def test_a_throttled_gpu_is_a_reason(bench: Bench) -> None:
    smi(bench, "0, 1400, 3003, 61.5, 92, 96, Not Active, Active")
    evidence, measured = bench.measure()
    why = failed(evidence)["code-c1"]
    assert why == "2 left out: the GPU was slowed down (sw thermal slowdown, 92 °C)"
    # Too short a load to tell its clock from that of the harness's own beginning.
    assert measured.cells[0].repetitions[0].clock is None
    sampled = evidence.tables[throttling.FILE].rows[0]
    assert (sampled["point"], sampled["repetition"], sampled["clock"]) == ("code-c1", 1, 1400)
    assert sampled["slowed"] == "sw thermal slowdown"
    assert 0 < sampled["at"] < 60


def test_a_host_that_cannot_be_sampled_is_measured_all_the_same(bench: Bench) -> None:
    smi(bench, 'Field "clocks_throttle_reasons.hw_slowdown" is not a valid field to query.', 2)
    evidence, measured = bench.measure()
    assert failed(evidence) == {}
    assert measured.cells[0].repetitions[0].clock is None
    (host,) = [check for check in evidence.checks if check.id == "host"]
    assert host.observed.startswith('not sampled: Field "clocks_throttle')
    assert host.verdict == "not applicable"
    bench.changes["hardware"] = "gb10"
    evidence, _ = bench.measure()
    (host,) = [check for check in evidence.checks if check.id == "host"]
    # Nobody knows whether it was throttled, which is not as good as seeing that it was not.
    assert (host.ok, host.verdict) == (True, "not seen")


def test_what_was_sampled_is_told(bench: Bench) -> None:
    smi(bench, "0, 2418, 3003, 38.2, 61, 96, Not Active, Not Active")
    evidence, _ = bench.measure()
    (host,) = [check for check in evidence.checks if check.id == "host"]
    assert host.verdict == "pass"
    assert host.observed.endswith(" samples, 2418 to 2418 MHz, 38 to 38 W, 61 to 61 °C")


def test_rows_of_nvidia_smi() -> None:
    gb10 = "0, 2418, 3003, 38.21, 61, 96, Not Active, Not Active\n"
    gb10 += "1, [N/A], [N/A], [N/A], N/A, [N/A], [N/A], Active\n"
    first, second = throttling.parse(gb10)
    assert (first.highest, first.busy, second.highest, second.busy) == (3003, 96, None, None)
    assert (first.clock, first.power, first.temperature, first.slowed) == (2418, 38.21, 61, ())
    assert (second.clock, second.slowed) == (None, ("sw thermal slowdown",))
    with pytest.raises(RoostError, match="answered something else"):
        throttling.parse("No devices were found")


def test_the_clock_is_that_of_the_load() -> None:
    """Twelve seconds of the harness's own, with a GPU that waits, before twenty of load."""
    waiting = [throttling.Sample("0", 210.0, 5.0, 40.0, at=at) for at in (0, 2, 4, 6, 8, 10)]
    loaded = [throttling.Sample("0", 2400.0, 60.0, 70.0, at=at) for at in range(12, 32, 2)]
    watch = throttling.Watch([*waiting, *loaded], lasted=32.0)
    assert watch.clock(20.0) == 2400.0
    # Of a short load two moments are left, and which of them it was nobody knows.
    assert throttling.Watch([*waiting, *loaded[:2]], lasted=16.0).clock(3.0) is None
    # Five rows of one moment are five GPUs.
    many = [throttling.Sample(str(gpu), 2400.0, 60.0, 70.0, at=15.0) for gpu in range(5)]
    assert throttling.Watch(many, lasted=16.0).clock(3.0) is None
    silent = [throttling.Sample("0", None, None, 70.0, at=at) for at in range(12, 32, 2)]
    assert throttling.Watch(silent, lasted=32.0).clock(20.0) is None


def load(*gpus: tuple[float, float | None], highest: float = 3003.0) -> throttling.Watch:
    """Twenty seconds of load on GPUs of some clock and business."""
    samples = [
        throttling.Sample(str(at), clock, 20.0, 50.0, at=moment, highest=highest, busy=busy)
        for moment in range(0, 20, 2)
        for at, (clock, busy) in enumerate(gpus)
    ]
    return throttling.Watch(samples, lasted=20.0)


def test_the_slowest_of_two_gpus_is_what_counts() -> None:
    """Two GPUs that work together, one of them a seventh slower for heat."""
    slow, fast = load((2800, 95), (2400, 99)).clock(20.0), load((2800, 95), (2800, 95)).clock(20.0)
    assert (slow, fast) == (2400, 2800)
    assert throttling.clock_marks([fast, slow, fast])[1].startswith("the GPU ran at 2400 MHz")
    # A third one serves nobody, or draws a screen.
    for busy in (0, 1, 10):
        assert load((2800, 95), (2800, 95), (210, busy)).clock(20.0) == 2800
    # As much as it was busy, that was not for long enough to tell.
    seldom = load((2800, 95), (210, 95)).samples
    short = [one for one in seldom if one.gpu == "0" or one.at > 13]
    assert throttling.Watch(short, lasted=20.0).clock(20.0) == 2800
    assert load((2800, None)).clock(20.0) == 2800


def test_a_gpu_that_is_slow_in_every_repetition_is_a_reason() -> None:
    """A GB10 that its power supply starves: no reason, no heat, and always the same clock."""
    (mark,) = load((513, 96)).marks()
    assert mark.startswith("GPU 0 was stuck at 513 of 3003 MHz")
    assert load((2418, 96)).marks() == []
    # Power-capped, as a consumer's card may be all day: its own speed.
    assert load((1500, 96)).marks() == []
    assert load((208, 0)).marks() == []
    assert load((513, None)).marks() == []
    # While it wakes up.
    assert throttling.Watch(load((513, 96)).samples[:2], lasted=3.0).marks() == []


def test_what_slows_down_a_gpu_that_the_load_does_not_use_is_no_reason() -> None:
    """The card that draws the screen is hot; the one that serves is not."""
    hot = "sw thermal slowdown"

    def moments(
        gpu: str, busy: float | None, *slowed: str, hotter: float
    ) -> list[throttling.Sample]:
        return [
            throttling.Sample(gpu, 2400.0, 20.0, hotter, slowed, at, highest=3003.0, busy=busy)
            for at in (0.0, 2.0, 4.0)
        ]

    works = moments("0", 96, hotter=61)
    for busy in (0, 10):
        assert throttling.Watch([*works, *moments("1", busy, hot, hotter=92)]).marks() == []
    # The temperature is that of what was slowed down, and not of the card beside it.
    slowed = [*moments("0", 96, hot, hotter=88), *moments("1", 0, hotter=95)]
    assert throttling.Watch(slowed).marks() == [f"the GPU was slowed down ({hot}, 88 °C)"]
    # A moment in which the load's own GPU had nothing to do is one of the load's all the same.
    waits = moments("0", 0, hot, hotter=88)[:1]
    assert throttling.Watch([*waits, *works]).marks() != []
    # One that does not say how busy it is may be the load's.
    assert throttling.Watch(moments("1", None, hot, hotter=92)).marks() != []


def test_a_clock_far_below_another_repetitions_is_a_reason() -> None:
    marks = throttling.clock_marks([2400.0, 2000.0, None, 2300.0])
    assert marks == ["", "the GPU ran at 2000 MHz, at 2400 MHz in another repetition", "", ""]


def test_a_point_that_is_slow_in_all_repetitions_has_a_remark(tmp_path: Path) -> None:
    """Each of its repetitions is as slow as the others, and no clock is low enough to be stuck."""
    pace = throttling.Pace
    slow = throttling.slow_points({"a": pace(1500, 30), "b": pace(2400, 60), "c": pace(2300, 40)})
    said = "the GPU ran at 1500 MHz and 30 W, at 2400 MHz and 60 W at b: something held it back"
    assert slow == {"a": said}
    # At the cap of its power: a heavier load is slower, and rightly.
    assert throttling.slow_points({"a": pace(1900, 300), "b": pace(2400, 250)}) == {}
    # As fast but for noise; and a GPU that does not tell its power.
    assert throttling.slow_points({"a": pace(2200, 30), "b": pace(2400, 60)}) == {}
    assert throttling.slow_points({"a": pace(1500, None), "b": pace(2400, None)}) == {}

    target = Target(Host("h", {}, Connection("h")), deployment(tmp_path, speculation="none"))
    session = Session(target, planning.plan("smoke"), [], tmp_path, print)
    for name, clock, watts in (("a-c1", 1500.0, 30.0), ("b-c1", 2400.0, 60.0)):
        samples = [
            throttling.Sample("0", clock, watts, 50.0, at=at, highest=3003.0, busy=96)
            for at in range(0, 20, 2)
        ]
        session.watches[name, 1] = throttling.Watch(samples, lasted=20.0)
        one = Repetition(
            duration=20, output_throughput=1, speculation=None, accept_length=None, clock=clock,
            raw="", marks=[],
        )  # fmt: skip
        session.measured.append(
            CellPoints(id=name, category=name, concurrency=1, repetitions=[one], published=[])
        )
    concluding.conclude(session, "")
    told = {check.id: check.why for check in session.evidence.checks}
    assert told["a-c1"] == said.replace("at b:", "at b-c1:")
    assert told["b-c1"] == ""


def test_a_repetition_at_another_clock_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left out for its clock alone, it would leave two of the three that a point needs."""
    clocks = iter([2400.0, 2100.0, 2400.0, 2400.0, 2400.0])

    def repeat(*_: object) -> Repetition:
        return Repetition(
            duration=20, output_throughput=100, speculation=None, accept_length=None,
            clock=next(clocks), raw="", marks=[],
        )  # fmt: skip

    monkeypatch.setattr(repeating, "_repeat", repeat)
    monkeypatch.setattr(repeating, "_warm_up", lambda *_: None)
    planned = planning.plan("spec-bench")
    target = Target(Host("h", {}, Connection("h")), deployment(tmp_path))
    session = Session(target, planned, planned.cells[:1], tmp_path, lambda _: None)
    repeating.measure_cell(session, session.cells[0])
    (cell,) = session.measured
    assert (len(cell.repetitions), len(cell.clean)) == (4, 3)


def reading(tokens: float, drafts: float | None = 0.0) -> Reading:
    spec = None if drafts is None else SpecCounters(drafts, drafts * 4, drafts * 2, (drafts,))
    return Reading(0.0, tokens, spec)


def test_counters_explain_what_the_harness_counted_or_not() -> None:
    path = DATA / "harness" / "vllm_0.24_plain_c1.json"
    result = harness.parse_vllm(path.read_text())
    assert result.total_output_tokens == 1024
    assert accounting.judge(result, reading(0, None), reading(1030, None)) == ([], None)
    (mark,), _ = accounting.judge(result, reading(0, None), reading(1040, None))
    assert mark.startswith("another client was served: the engine generated 1040 tokens")
    # A long prompt that is answered with one token.
    sent = dataclasses.replace(reading(0, None), requests=5.0)
    for finished, who in ((14, "another client was served"), (12, "the counters are not its own")):
        after = dataclasses.replace(reading(1025, None), requests=finished)
        (mark,), _ = accounting.judge(result, sent, after)
        assert mark == (f"{who}: the engine finished {finished - 5} requests, the harness sent 8")
    after = dataclasses.replace(reading(1024, None), requests=13.0)
    assert accounting.judge(result, sent, after) == ([], None)
    marks, spec = accounting.judge(result, reading(0), reading(1024, 100))
    assert marks == []
    assert spec is not None
    assert spec.counters.accept_length == 3.0


def test_another_clients_long_prompt_is_seen_by_what_was_read() -> None:
    """A quarter of a million tokens, answered with few: half a minute of the GPU."""
    path = DATA / "harness" / "vllm_0.24_plain_c1.json"
    result = harness.parse_vllm(path.read_text())
    # Eight prompts of 524 tokens, as vLLM's tokenizer has them.
    before = dataclasses.replace(reading(0, None), prompt_tokens=1000.0)

    def marks(read: float, found: HarnessResult = result) -> list[str]:
        after = dataclasses.replace(reading(1024, None), prompt_tokens=1000.0 + read)
        return accounting.judge(found, before, after)[0]

    assert marks(4192 + 250_000) == [
        "another client was served: the engine read 254192 tokens of prompts, the harness's had "
        "4192"
    ]
    # A token before each that the harness does not know, and one per cent.
    assert marks(4192 + 8 + 41) == []
    assert marks(4192 + 8 + 42) != []
    # What is in a cache need not be counted, and an engine need not count at all.
    assert marks(1000) == marks(0) == []
    # A harness that does not know its lengths.
    unknown = dataclasses.replace(result.requests[0], prompt_tokens=0)
    requests = (unknown, *result.requests[1:])
    assert marks(99_999, dataclasses.replace(result, requests=requests)) == []


def of_sglang(count: int, tokens: int) -> HarnessResult:
    """What SGLang's harness would say of requests of so many tokens."""
    requests = tuple(Request(40, tokens, 0.1, 1.0) for _ in range(count))
    return HarnessResult(9.0, count, 0, count * tokens, 1.0, requests, accept_length=9.9)


def sglang_page(name: str) -> Reading:
    """What SGLang's own collectors wrote: 20 requests of 128 tokens in 20 steps each."""
    return metrics.parse((DATA / "metrics" / f"sglang_{name}.txt").read_text())


def test_sglangs_counters_explain_what_its_harness_counted_or_not() -> None:
    before, after = sglang_page("before"), sglang_page("after")
    marks, spec = accounting.judge(of_sglang(20, 128), before, after)
    assert marks == []
    assert spec is not None
    assert spec.counters.accept_length == pytest.approx(6.35)
    # Its harness misses an answer's last token where that is no text.
    assert accounting.judge(of_sglang(20, 127), before, after)[0] == []
    (mark,), _ = accounting.judge(of_sglang(20, 126), before, after)
    assert mark == (
        "another client was served: the engine generated 2560 tokens, the harness's requests "
        "took 2520"
    )
    # One more request than ours is another client's, however few tokens it took.
    (mark,), _ = accounting.judge(of_sglang(19, 134), before, after)
    assert mark == (
        "another client was served: the engine finished 20 requests, the harness sent 19"
    )
    (mark,), _ = accounting.judge(of_sglang(21, 122), before, after)
    assert mark.startswith("the counters are not its own: the engine finished 20 requests")
    (mark,), spec = accounting.judge(of_sglang(30, 64), before, sglang_page("restarted"))
    assert mark.startswith("the engine restarted between two readings of /metrics (another start")
    assert spec is None


def counts_as_sglang(engine: Engine, *, steps: bool = True) -> str:
    """SGLang's families, moved by the stand-in of the load generator; its requests are of 32."""
    tokens, drafts, *_ = engine.load
    requests = tokens // 32 + len(engine.requests)
    lines = [
        f"sglang:generation_tokens_total {tokens + 8 * len(engine.requests)}",
        f"sglang:num_requests_total {requests}",
        "sglang:spec_num_draft_tokens 5.0",
        "sglang:spec_accept_length 9.9",
    ]
    return (
        "\n".join([*lines, *([f"sglang:spec_verify_calls_total {drafts}"] if steps else [])]) + "\n"
    )


@pytest.fixture
def sglang(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(Session, "style", "sglang")
    monkeypatch.setattr(harness, "sglang_command", harness.vllm_command)
    monkeypatch.setattr(harness, "parse_sglang", lambda text, _: harness.parse_vllm(text))
    monkeypatch.setattr(bench.engine, "metrics", lambda: counts_as_sglang(bench.engine))
    return bench


def test_on_sglang_figures_are_from_counters_and_say_from_which(sglang: Bench) -> None:
    evidence, measured = sglang.measure()
    assert failed(evidence) == {}
    figure = evidence.figures["code-c1.accept_length"]
    one = measured.cells[0].repetitions[0].speculation
    assert one is not None
    assert one.draft_tokens == pytest.approx(one.drafts * 4)
    assert one.accepted == pytest.approx(64 - 2 - one.drafts)
    assert figure.value == pytest.approx(62 / 64 * 3.4, rel=0.02)
    said = "; from counters of steps and tokens: SGLang counts no accepted drafts"
    assert said in figure.source
    assert said in evidence.figures["code-c1.accept_rate"].source
    assert said not in evidence.figures["code-c1.ttft"].source


def test_on_sglang_another_client_is_seen_by_one_request(sglang: Bench) -> None:
    sglang.scenario(foreign_tokens=32)
    why = failed(sglang.measure()[0])["code-c1"]
    assert why == (
        "2 left out: another client was served: the engine finished 3 requests, the harness sent 2"
    )


def test_where_sglang_counts_no_steps_there_is_no_accept_length(
    sglang: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the gauge's nor the mean that the harness was told."""
    page = counts_as_sglang
    monkeypatch.setattr(sglang.engine, "metrics", lambda: page(sglang.engine, steps=False))
    evidence, measured = sglang.measure()
    assert failed(evidence) == {}
    assert measured.cells[0].repetitions[0].speculation is None
    assert "code-c1.output_throughput" in evidence.figures
    assert not [key for key in evidence.figures if "accept" in key]


def test_parameters_are_refused_in_words(tmp_path: Path) -> None:
    for given, message in (
        (("smok",), "did you mean smoke"),
        ((None,), "parameter suite is not set"),
        ((3,), "no text"),
        (("smoke", str(tmp_path / "none.jsonl")), "cannot be read"),
        (("smoke", 7), "parameter prompts is 7"),
    ):
        with pytest.raises(UsageError, match=message):
            planning.plan(*given)


class Tokenizer:
    """One token a word; a template that thinks unless told not to."""

    @classmethod
    def from_pretrained(cls, path: str, *, trust_remote_code: bool) -> Tokenizer:
        assert (path, trust_remote_code) == ("/model", False)
        return cls()

    def encode(self, text: str, *, add_special_tokens: bool) -> list[str]:
        del add_special_tokens  # it has none
        return text.split()

    def decode(self, ids: list[str]) -> str:
        return " ".join(ids)

    def apply_chat_template(
        self, messages: list[dict[str, str]], *, enable_thinking: bool = True, **options: bool
    ) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        block = "<think>\n" if enable_thinking else "<think>\n\n</think>\n\n"
        return f"<user> {messages[0]['content']} <assistant>\n{block}"


#: A hundred words with the question's seven and five of the template.
FILLED = " ".join((render_prompts.FILLER * 4).split()[: 100 - 12])


@pytest.mark.parametrize("style", ["vllm", "sglang"])
def test_prompts_are_rendered_inside_with_the_recipes_arguments(
    style: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = {
        "directory": str(tmp_path / "made"),
        "tokenizer": "/model",
        "trust_remote_code": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "format": style,
        "texts": ["", "Why?"],
        "limit": 99,
        "files": {
            "a": [{"text": 1, "tokens": None, "nonce": "[1234] "}],
            "b": [{"text": 0, "tokens": 100, "nonce": "[5678] "}],
        },
    }
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=Tokenizer))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job)))
    importlib.import_module("roost.measure.render_prompts").main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["tail"].endswith("<think>\n\n</think>\n\n")
    assert answer["too_long"] == [["b", 0, 100]]
    # <user> [5678], seven words of the question, <assistant> and the block around it.
    assert answer["filler"] == {"b": len(FILLED)}
    (line,) = (tmp_path / "made" / "a.jsonl").read_text().splitlines()
    rendered = "<user> [1234] Why? <assistant>\n<think>\n\n</think>\n\n"
    wanted = {"prompt": rendered}
    if style == "sglang":
        wanted = {"conversations": [{"content": rendered}, {"content": "…"}]}
    assert json.loads(line) == wanted
    long = json.loads((tmp_path / "made" / "b.jsonl").read_text())
    text = long["prompt"] if style == "vllm" else long["conversations"][0]["content"]
    assert len(text.split()) == 100


def test_acceptance_by_position_names_the_pages_it_is_from(tmp_path: Path) -> None:
    spec = Speculation(drafts=10, draft_tokens=20, accepted=9, per_position=[6, 3])
    one = Repetition(
        duration=1, output_throughput=1, speculation=spec, accept_length=1.9, clock=None,
        raw="harness_a-c1_1.json", marks=[],
    )  # fmt: skip
    marked = one.model_copy(update={"marks": ["another client was served"]})
    cell = CellPoints(
        id="a-c1", category="a", concurrency=1, repetitions=[marked, one], published=[]
    )
    target = Target(Host("h", {}, Connection("h")), deployment(tmp_path))
    session = Session(target, planning.plan("smoke"), [], tmp_path, print)
    concluding._figures(session, cell)
    figure = session.evidence.figures["a-c1.accept_rate_position_2"]
    assert figure.value == 30
    pages = "metrics_a-c1_2_before.txt, metrics_a-c1_2_after.txt"
    assert figure.source == f"suite smoke: counters of all repetitions that count; {pages}"


def test_a_point_with_nothing_that_counts_has_no_figure() -> None:
    cell = CellPoints(id="a", category="a", concurrency=1, repetitions=[], published=[])
    assert [metric.estimate(cell) for metric in points.METRICS] == [None] * len(points.METRICS)
    assert cell.per_position == []


def test_positions_are_over_all_drafts_that_count() -> None:
    def repetition(drafts: float, accepted: list[float], marks: list[str]) -> Repetition:
        counters = Speculation(drafts=drafts, draft_tokens=0, accepted=0, per_position=accepted)
        return Repetition(
            duration=1, output_throughput=1, requests=[], speculation=counters,
            accept_length=None, clock=None, raw="", marks=marks,
        )  # fmt: skip

    cell = CellPoints(
        id="a",
        category="a",
        concurrency=1,
        repetitions=[
            repetition(10, [9, 5], []),
            repetition(30, [21, 7, 4], []),
            repetition(100, [0, 0, 0], ["another client was served"]),
        ],
        published=[],
    )
    assert cell.per_position == [0.75, 0.3, 0.1]

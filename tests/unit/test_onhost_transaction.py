"""A deploy is a transaction: what comes of it when an engine misbehaves, or its host does."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.deployments import deployment
from tests.unit.fake_machine import Behaviour, FakeMachine, Killed, counted, fake_machine

from roost import releases
from roost.onhost import NAME, lease, transaction
from roost.onhost.endpoint import Endpoint, Reply
from roost.onhost.logs import unpacked
from roost.onhost.store import KEPT, Store
from roost.onhost.trial import Wanted

WRONG = {"capital of France": "La capitale de la, la, la", "2+2": "4"}


class Site:
    """A host, its releases, and deploys to it as the role makes them."""

    def __init__(self, machine: FakeMachine, folder: Path) -> None:
        self.machine = machine
        self.store = Store(str(folder / "releases"), str(folder / "run"))
        self.store.root.mkdir()
        self.folder = folder

    def wanted(self, served_name: str = "a", **variables: Any) -> Wanted:
        """A release; the served name tells one from another."""
        variables = {"speed_floor": 0.0, "port": self.machine.engine.port, **variables}
        made = deployment(self.folder, served_name=served_name, **variables)
        release = releases.release(made)
        # Short enough for what never gets healthy.
        release["deployment"]["ready_timeout"] = 0.05
        return Wanted(
            id=release["id"],
            name=release["container"],
            container="",
            deployment=release["deployment"],
            files=release["files"],
            answer_timeout=60,
            who="tester",
        )

    def deploy(
        self, wanted: Wanted, behaviour: Behaviour | None = None, **changes: Any
    ) -> dict[str, Any]:
        """Compare, make a container where something differs, and have it serve."""
        return transaction.serve(
            self.machine, self.store, self.made(wanted, behaviour)._replace(**changes)
        )

    def made(self, wanted: Wanted, behaviour: Behaviour | None = None) -> Wanted:
        """With the container that serves, if it is the same, else with one made for it."""
        serving = self.machine.found.get(NAME)
        if serving and serving.running and serving.made_of == wanted.id:
            return wanted._replace(container=serving.id)
        made = self.machine.made(wanted.name, wanted.id, behaviour)
        return wanted._replace(container=made)

    def rests_with(self, wanted: Wanted | None) -> None:
        """This release serves, alone, and nothing is left of any other."""
        assert self.machine.running() == ([wanted.id] if wanted else [])
        assert set(self.machine.found) <= {NAME}
        assert self.store.begun() is None
        assert self.store.pointed("current") == (wanted.id if wanted else None)
        assert self.machine.active is (wanted is not None)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with fake_machine() as machine:
        yield Site(machine, tmp_path)


TUNING = {"owner": "t1", "who": "ann@desk", "inventory": "/fleet", "experiment": "tune"}


def held(site: Site) -> str | None:
    """What an experiment on the host goes back to, and whether it has the host still."""
    release = site.store.pointed("held")
    assert lease.has(site.store, "t1") is (release is not None)
    return release


def experiment(site: Site) -> Wanted:
    """Begin one on what serves, which is returned."""
    before = site.wanted("a")
    site.deploy(before)
    lease.take(site.store, TUNING)
    site.store.point("held", before.id)
    return before


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_an_experiment_goes_on_until_something_serves_that_is_to_stay(
    site: Site, again: bool, restored: bool
) -> None:
    """By another swap, or because just what is tried is deployed by hand, or gone back to."""
    before = experiment(site)
    tried = site.wanted("tried")
    site.deploy(tried, tries=True)
    assert held(site) == before.id
    site.deploy(tried, tries=True)
    assert held(site) == before.id
    if restored:
        assert site.deploy(site.wanted("bad"), Behaviour(answers=WRONG))["outcome"] == "restored"
        assert held(site) == before.id
    site.deploy(tried if again else site.wanted("other"))
    assert held(site) is None


@pytest.mark.parametrize("again", [False, True])
def test_whoever_deploys_after_an_experiment_can_go_back_to_what_served_before_it(
    site: Site, again: bool
) -> None:
    """However many were tried after it, and though what stays is one of them."""
    site.deploy(site.wanted("older"))
    before = experiment(site)
    tried = [site.wanted(f"tried-{number}") for number in range(KEPT + 2)]
    for one in tried:
        site.deploy(one, tries=True)
    assert site.store.pointed("previous") == site.wanted("older").id
    chosen = tried[-1] if again else site.wanted("chosen")
    assert site.deploy(chosen)["previous"] == before.id
    assert site.store.pointed("previous") == before.id
    assert before.id in site.store.ids()
    assert site.deploy(before)["outcome"] == "serves"


def test_going_back_from_an_experiment_leaves_no_trace_of_what_it_tried(site: Site) -> None:
    site.deploy(site.wanted("older"))
    before = experiment(site)
    site.deploy(site.wanted("tried"), tries=True)
    site.deploy(before)
    assert (site.store.pointed("current"), site.store.pointed("previous")) == (
        before.id,
        site.wanted("older").id,
    )


# When it is stopped


def test_what_was_tried_and_stopped_gives_way_to_what_served_before_it(site: Site) -> None:
    """As `roost start` has it: the release that is there to stay, gone back to."""
    before = experiment(site)
    site.deploy(site.wanted("tried"), tries=True)
    assert transaction.halt(site.machine, site.store)
    assert site.store.lasting() == before.id
    assert site.deploy(before, going_back=True)["outcome"] == "serves"
    site.rests_with(before)
    assert site.store.pointed("previous") is None
    assert held(site) is None


def test_a_first_deploy_that_was_killed_is_stopped(site: Site) -> None:
    assert kill(site, site.wanted("a"), Behaviour(), 2)
    swap = site.store.begun()
    assert swap is not None
    site.store.begin({**swap, "phase": "trial"})
    assert site.machine.running() != []
    assert transaction.halt(site.machine, site.store)
    assert site.machine.running() == []


def test_an_engine_without_a_unit_is_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an older roost, or because somebody has removed the unit's file."""
    site.deploy(site.wanted())
    none = {"ActiveState": "inactive", "UnitFileState": ""}
    monkeypatch.setattr(site.machine, "unit", lambda _: none)
    monkeypatch.setattr(site.machine, "unit_disable", lambda _: pytest.fail("there is none"))
    assert transaction.halt(site.machine, site.store)
    assert site.machine.running() == []


def test_a_stopped_engine_stays_so_until_it_is_wanted(site: Site) -> None:
    wanted = site.wanted()
    site.deploy(wanted)
    assert transaction.halt(site.machine, site.store)
    assert not transaction.halt(site.machine, site.store)
    site.machine.reboot()
    assert site.machine.running() == []
    assert site.store.pointed("current") == wanted.id
    assert site.deploy(wanted)["outcome"] == "serves"
    site.rests_with(wanted)
    site.machine.reboot()
    assert site.machine.running() == [wanted.id]


def test_one_that_was_only_ended_by_hand_is_stopped_too(site: Site) -> None:
    """A reboot would start it."""
    site.deploy(site.wanted())
    site.machine.unit_stop(NAME)
    assert transaction.halt(site.machine, site.store)
    site.machine.reboot()
    assert site.machine.running() == []


def test_nothing_is_stopped_where_nothing_serves(site: Site) -> None:
    assert not transaction.halt(site.machine, site.store)
    assert site.machine.steps == 0


@pytest.mark.parametrize("reboot", [True, False])
def test_a_stop_after_a_kill_ends_what_had_begun(tmp_path: Path, reboot: bool) -> None:
    def check(site: Site, _: bool) -> None:
        if reboot:
            site.machine.reboot()
        transaction.halt(site.machine, site.store)
        assert site.machine.running() == []
        site.machine.reboot()
        assert site.machine.running() == []
        assert site.store.begun() is None
        wanted = site.wanted("a")
        assert site.deploy(wanted)["outcome"] == "serves"
        site.rests_with(wanted)

    every_step(tmp_path, check, Behaviour())


# When all goes well


def test_the_first_release_serves_and_is_recorded(site: Site) -> None:
    wanted = site.wanted()
    result = site.deploy(wanted)
    assert (result["outcome"], result["changed"], result["previous"]) == ("serves", True, None)
    assert result["answers"]["capital"] == "The capital of France is Paris."
    assert result["figures"]["accept_length"] == 4.0
    site.rests_with(wanted)
    assert site.store.read(wanted.id, "release.json") == wanted.files["release.json"]
    assert site.store.read(wanted.id, "deployment.json") == wanted.deployment
    gate = site.store.read(wanted.id, "gate.json")
    assert gate
    assert gate["figures"]["accept_length"] == 4.0
    assert [found["id"] for found in gate["checks"]] == [
        "answer_capital",
        "answer_sum",
        "accept_length",
    ]


def test_the_same_again_changes_nothing_and_warms_nothing_up(site: Site) -> None:
    wanted = site.wanted()
    site.deploy(wanted)
    steps, asked = site.machine.steps, len(site.machine.engine.requests)
    before = site.store.read(wanted.id, "times.json")
    result = site.deploy(wanted)
    assert (result["outcome"], result["changed"]) == ("serves", False)
    assert site.machine.steps == steps
    # Only the two questions.
    assert len(site.machine.engine.requests) == asked + 2
    assert site.store.read(wanted.id, "times.json") == before


def test_the_next_release_replaces_it_and_the_one_before_is_kept(site: Site) -> None:
    first, second = site.wanted("a"), site.wanted("b")
    site.deploy(first)
    result = site.deploy(second)
    assert (result["outcome"], result["previous"]) == ("serves", first.id)
    site.rests_with(second)
    assert site.store.pointed("previous") == first.id


def test_the_last_five_releases_are_kept_and_the_previous_one(site: Site) -> None:
    every = [site.wanted(f"r{number}") for number in range(8)]
    for wanted in every:
        assert site.deploy(wanted)["outcome"] == "serves"
    kept = [wanted.id for wanted in reversed(every[-5:])]
    assert site.store.ids() == kept
    # Going back to the oldest of them makes it the last to have served.
    assert site.deploy(every[3], going_back=True)["outcome"] == "serves"
    assert site.store.ids() == [every[3].id, *kept[:4]]
    assert site.store.pointed("previous") == every[7].id


def test_what_docker_alone_kept_running_is_taken_over(site: Site) -> None:
    site.machine.made(NAME, "something older")
    site.machine.start(NAME)
    wanted = site.wanted()
    assert site.deploy(wanted)["outcome"] == "serves"
    site.rests_with(wanted)
    assert site.machine.enabled


def test_a_stopped_engine_is_started_again(site: Site) -> None:
    wanted = site.wanted()
    site.deploy(wanted)
    site.machine.stop(NAME)
    result = site.deploy(wanted)
    assert (result["outcome"], result["changed"]) == ("serves", True)
    site.rests_with(wanted)


def test_one_that_is_dead_inside_is_started_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "LATE_HEALTH", 0.05)
    wanted = site.wanted()
    site.deploy(wanted)
    site.machine.engine.health = 503  # as long as this process of it lives
    result = site.deploy(wanted)
    assert (result["outcome"], result["changed"]) == ("serves", True)
    assert "did not answer 200" in result["died"]["what"]
    kept = site.store.failure()
    assert kept
    assert kept["kind"] == "died"
    site.rests_with(wanted)


def test_one_that_has_read_another_key_is_started_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_text("first-key-of-tests\n")
    engine, start = site.machine.engine, site.machine.unit_start

    def reads_it(name: str) -> None:
        engine.key = key.read_text().strip()
        start(name)

    monkeypatch.setattr(site.machine, "unit_start", reads_it)
    wanted = site.wanted(api_key="first-key-of-tests")
    wanted.deployment["spec"]["secrets"][0]["source"] = str(key)
    engine.key = "first-key-of-tests"
    assert site.deploy(wanted)["outcome"] == "serves"
    assert site.deploy(wanted)["changed"] is False
    # A run wrote another one and was killed before it came to the engine.
    key.write_text("second-key-of-tests\n")
    result = site.deploy(wanted)
    assert (result["outcome"], result["changed"], result["died"]) == ("serves", True, None)
    site.rests_with(wanted)


def test_wrong_answers_of_what_serves_are_told_and_it_is_left_alone(site: Site) -> None:
    wanted = site.wanted()
    site.deploy(wanted)
    site.machine.engine.answers = WRONG
    result = site.deploy(wanted)
    assert (result["outcome"], result["changed"]) == ("fails", False)
    assert result["failure"]["step"] == "gate"
    site.rests_with(wanted)


# When the new engine misbehaves

FAULTS: dict[str, tuple[Behaviour, str, str]] = {
    "crash at start": (
        Behaviour(exit_code=2, log=("vllm: error: unrecognized arguments: --x",)),
        "engine",
        "ended with exit code 2 before it was healthy",
    ),
    "never healthy": (Behaviour(healthy=False), "health", "did not answer 200 within 0 s"),
    "fatal line": (
        Behaviour(healthy=False, log=("INFO fine", "ERROR EngineCore failed to start.")),
        "health",
        "gave up: ERROR EngineCore failed to start.",
    ),
    "dies at the first request": (Behaviour(lives=1), "engine", "ended with exit code 0"),
    "dies at the last": (Behaviour(lives=5), "engine", "ended with exit code 0 while it was"),
    "wrong answers": (Behaviour(answers=WRONG), "gate", "does not pass its gate"),
    "no tokens": (
        Behaviour(answers={"capital of France": "", "2+2": ""}),
        "gate",
        "does not pass its gate",
    ),
    "drafts accepted less": (Behaviour(accepted=1.0), "gate", "does not pass its gate"),
    "drafts never accepted": (Behaviour(accepted=0.0), "gate", "does not pass its gate"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_brings_back_the_release_before(site: Site, name: str) -> None:
    behaviour, step, what = FAULTS[name]
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    result = site.deploy(bad, behaviour)
    assert result["outcome"] == "restored"
    assert result["failure"]["step"] == step
    assert what in result["failure"]["what"]
    assert result["restored"] == "healthy, with right answers"
    assert result["previous"] == good.id
    site.rests_with(good)
    # It never served, so only why it was not kept is kept.
    assert site.store.ids() == [good.id]
    assert not (site.store.root / bad.id).exists()
    why = site.store.read("last-failed", "why.json")
    assert why
    assert (why["release"], why["step"]) == (bad.id, step)


@pytest.mark.parametrize("name", [name for name in FAULTS if name != "drafts accepted less"])
def test_a_fault_of_the_first_release_leaves_nothing(site: Site, name: str) -> None:
    behaviour, step, _ = FAULTS[name]
    result = site.deploy(site.wanted(), behaviour)
    assert (result["outcome"], result["failure"]["step"]) == ("nothing", step)
    site.rests_with(None)


def test_a_container_that_docker_cannot_start(site: Site) -> None:
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    site.machine.refuse[bad.name] = 'could not select device driver ""'
    result = site.deploy(bad)
    assert result["outcome"] == "restored"
    assert "does not start: could not select device driver" in result["failure"]["what"]
    site.rests_with(good)


def test_one_that_the_watchdog_stopped_for_want_of_memory(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.machine, "relieved", lambda _: "900 MiB were available")
    result = site.deploy(site.wanted(), Behaviour(exit_code=137))
    assert result["failure"]["what"] == (
        "the engine ended with exit code 137 (the watchdog stopped it: 900 MiB were available) "
        "before it was healthy"
    )


@pytest.mark.parametrize(
    ("answered", "when"), [(0, "at the first request"), (2, "while it was judged")]
)
def test_an_end_that_docker_notices_later_than_the_client(
    site: Site, monkeypatch: pytest.MonkeyPatch, answered: int, when: str
) -> None:
    """The connection is gone at once; Docker says so some looks later, and why later still."""
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    asked: list[object] = []
    looks: list[object] = []
    chat, inspect = Endpoint.chat, site.machine.inspect

    def hangs_up(endpoint: Endpoint, body: Any, timeout: float) -> Reply:
        container = site.machine.found.get(bad.name)
        if container is None or not container.running:
            return chat(endpoint, body, timeout)
        asked.append(body)
        if len(asked) > answered:
            return Reply(0, "Remote end closed connection without response", 0.1)
        return chat(endpoint, body, timeout)

    def late(container: str) -> dict[str, Any] | None:
        found = inspect(container)
        if found and container == bad.name and len(asked) > answered:
            looks.append(container)
            ended, why = len(looks) > 3, len(looks) > 4
            found["State"].update(Running=not ended, ExitCode=137, OOMKilled=why)
        return found

    monkeypatch.setattr(Endpoint, "chat", hangs_up)
    monkeypatch.setattr(site.machine, "inspect", late)
    result = site.deploy(bad)
    assert result["failure"]["what"] == (
        f"the engine ended with exit code 137 (the kernel killed it for memory) {when}"
    )
    assert result["outcome"] == "restored"


def test_two_faults_at_once_are_told_apart(site: Site) -> None:
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    site.machine.found[NAME].behaviour.answers = WRONG
    result = site.deploy(bad, Behaviour(exit_code=1))
    assert result["outcome"] == "unproved"
    assert "answer_capital" in result["restored"]
    assert site.machine.running() == [good.id]


def test_what_did_not_serve_before_is_not_started(site: Site) -> None:
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    site.machine.unit_stop(NAME)
    result = site.deploy(bad, Behaviour(exit_code=1))
    assert result["outcome"] == "nothing"
    assert site.machine.running() == []
    assert site.deploy(good)["outcome"] == "serves"
    site.rests_with(good)


@pytest.mark.parametrize("unit", ["activating", "active"])
def test_what_its_unit_is_about_to_start_again_is_brought_back(site: Site, unit: str) -> None:
    """It has crashed and is in a pause before the next start; or Docker was just started."""
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    site.machine.found[NAME].running = False
    site.machine.gave_up = unit if unit == "activating" else ""
    assert site.deploy(bad, Behaviour(exit_code=1))["outcome"] == "restored"
    site.rests_with(good)


def test_what_was_given_up_is_not_brought_back(site: Site) -> None:
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    site.machine.found[NAME].running, site.machine.gave_up = False, "failed"
    result = site.deploy(bad, Behaviour(exit_code=1))
    assert result["outcome"] == "nothing"
    assert site.machine.running() == []


def test_a_record_that_cannot_be_written_stops_it_before_the_swap(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, new = site.wanted("a"), site.wanted("b")
    site.deploy(good)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site.store, "begin", full)
    result = site.deploy(new)
    assert result["outcome"] == "untouched"
    assert "No space left" in result["failure"]["what"]
    site.rests_with(good)
    assert not (site.store.root / new.id).exists()


def test_docker_that_was_stopped_before_it_began_is_started(site: Site) -> None:
    good, new = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    made = site.made(new)
    site.machine.docker_stopped = True
    site.machine.found[NAME].running = False
    assert transaction.serve(site.machine, site.store, made)["outcome"] == "serves"
    site.rests_with(new)


def test_docker_that_went_away_is_started_for_the_release_before(site: Site) -> None:
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    site.machine.refuse[NAME] = "Cannot connect to the Docker daemon"
    assert site.deploy(bad, Behaviour(exit_code=1))["outcome"] == "restored"
    site.rests_with(good)


def test_docker_that_stays_away_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "DOCKER_AWAY", 0.05)
    good, bad = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    site.machine.refuse[NAME] = "Cannot connect to the Docker daemon"
    monkeypatch.setattr(site.machine, "start_docker", lambda: None)
    result = site.deploy(bad, Behaviour(exit_code=1))
    assert (result["outcome"], result["restored"]) == (
        "unproved",
        "Cannot connect to the Docker daemon",
    )
    # Nothing is in the way of its start, at the next boot or by systemd.
    site.machine.reboot()
    site.rests_with(good)


# What is kept and told of a failure


def test_its_whole_log_is_kept_and_told_without_the_key(site: Site, tmp_path: Path) -> None:
    key = "plain-endpoint-key-0815"
    (tmp_path / "key").write_text(f"{key}\n")
    wanted = site.wanted(api_key=key)
    (secret,) = wanted.deployment["spec"]["secrets"]
    secret["source"] = str(tmp_path / "key")
    said = (f"non-default args: {key}", "root cause", *(f"line {n}" for n in range(1000)))
    result = site.deploy(wanted, Behaviour(exit_code=1, log=(*said, "HF_TOKEN=hf_planted0815")))
    log = unpacked(result["failure"]["log"]).splitlines()
    assert log[:2] == ["non-default args: <redacted>", "root cause"]
    assert log[-1] == "HF_TOKEN=<redacted>"
    assert len(log) == len(said) + 1
    assert site.store.failed_log().splitlines() == log
    why = site.store.read("last-failed", "why.json")
    assert why
    assert (why["at"], why["kind"], why["exit_code"]) == (result["kept"], "not kept", 1)
    assert "log" not in why
    for path in (site.store.root / "last-failed").iterdir():
        assert key not in path.read_text()
    assert key not in json.dumps(result)


def test_an_answer_that_holds_the_key_is_told_without_it(site: Site, tmp_path: Path) -> None:
    key = "plain-endpoint-key-0815"
    (tmp_path / "key").write_text(f"{key}\n")
    wanted = site.wanted(api_key=key)
    wanted.deployment["spec"]["secrets"][0]["source"] = str(tmp_path / "key")
    site.machine.engine.key = key
    result = site.deploy(wanted, Behaviour(answers={"capital of France": key, "2+2": "4"}))
    assert result["failure"]["step"] == "gate"
    assert key not in json.dumps(result["failure"])
    assert key not in (site.store.root / "last-failed" / "why.json").read_text()


@pytest.mark.parametrize("unit", ["failed", "activating"])  # given up, or in a pause between starts
def test_what_has_died_is_told_and_kept_before_it_is_started_again(site: Site, unit: str) -> None:
    wanted = site.wanted()
    site.deploy(wanted, Behaviour(log=("RuntimeError: it was this",)))
    container = site.machine.found[NAME]
    container.running, container.exit_code, site.machine.gave_up = False, 3, unit
    site.machine.killed = ["[1.0] Memory cgroup out of memory: Killed process 7 (vllm)"]
    result = site.deploy(wanted)
    assert (result["outcome"], result["failure"]) == ("serves", None)
    assert result["died"]["what"] == "the engine ended with exit code 3 while it served"
    assert result["died"]["kernel"] == site.machine.killed
    assert unpacked(result["died"]["log"]) == "RuntimeError: it was this\n"
    kept = site.store.failure()
    assert kept
    assert (kept["kind"], kept["release"]) == ("died", wanted.id)
    assert site.store.failed_log() == "RuntimeError: it was this\n"
    # What somebody has stopped has not died.
    site.machine.stop(NAME)
    assert site.deploy(wanted)["died"] is None


def test_what_serves_and_fails_is_kept_too(site: Site) -> None:
    wanted = site.wanted()
    site.deploy(wanted)
    site.machine.engine.answers = WRONG
    result = site.deploy(wanted)
    kept = site.store.failure()
    assert kept
    assert (kept["kind"], kept["at"], kept["step"]) == ("fails", result["kept"], "gate")


def test_a_release_before_whose_key_is_gone_is_started_unproved(site: Site, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("plain-endpoint-key-0815\n")
    good = site.wanted("a", api_key="plain-endpoint-key-0815")
    good.deployment["spec"]["secrets"][0]["source"] = str(key)
    site.machine.engine.key = "plain-endpoint-key-0815"
    assert site.deploy(good)["outcome"] == "serves"
    key.unlink()
    result = site.deploy(site.wanted("b"), Behaviour(exit_code=1))
    assert result["outcome"] == "unproved"
    assert "No such file" in result["restored"]
    site.rests_with(good)


def test_whoever_comes_back_ends_the_swap_of_another_too(site: Site) -> None:
    good, lost, mine = (site.wanted(name) for name in "abc")
    site.deploy(good)
    # The run of `lost` was killed after that of `mine` had lost its connection.
    site.made(lost)
    swap = {"phase": "trial", "new": lost.id, "container": lost.name, "old": good.id}
    site.store.begin({**swap, "served": True, "who": "somebody"})
    site.machine.unit_stop(NAME)
    site.machine.start(lost.name)
    result = transaction.abandon(site.machine, site.store, mine, "the line was cut")
    assert result["outcome"] == "restored"
    site.rests_with(good)


# What a release is compared with


def test_the_same_release_must_answer_as_it_did(site: Site) -> None:
    wanted = site.wanted()
    site.deploy(wanted)
    site.machine.engine.answers = {**site.machine.engine.answers, "2+2": "Four it is."}
    result = site.deploy(wanted)
    assert result["outcome"] == "fails"
    (found,) = [found for found in result["checks"] if not found["ok"]]
    assert found["id"] == "same_sum"
    assert (found["expected"], found["observed"]) == ("2+2 is 4.", "Four it is.")
    assert site.deploy(site.wanted(same_answers=False))["outcome"] == "serves"


def test_a_release_with_other_settings_may_answer_otherwise(site: Site) -> None:
    site.deploy(site.wanted())
    other = site.wanted(settings={"max_model_len": 1024})
    differently = Behaviour(answers={"capital of France": "Paris.", "2+2": "4"})
    assert site.deploy(other, differently)["outcome"] == "serves"


@pytest.mark.parametrize("counts_as", ["vllm", "sglang"])
def test_a_worse_drafter_passes_first_and_is_stopped_after_a_better_one(
    site: Site, counts_as: str
) -> None:
    site.machine.engine.counts_as = counts_as
    worse, better = site.wanted("a"), site.wanted("b")
    early, main = Behaviour(accepted=1.0), Behaviour(accepted=3.6)
    assert site.deploy(worse, early)["outcome"] == "serves"
    assert site.deploy(better, main)["outcome"] == "serves"
    result = site.deploy(worse, early)
    assert result["outcome"] == "restored"
    (found,) = [found for found in result["checks"] if not found["ok"]]
    assert found["id"] == "accept_length"
    assert f"3.68 tokens per step: 0.8 of the 4.6 that {better.id}" in found["expected"]
    # Somebody who wants it back all the same goes back: it is what it always was.
    assert site.deploy(worse, early, going_back=True)["outcome"] == "serves"


def test_a_floor_of_its_own_counts_without_a_release_before(site: Site) -> None:
    wanted = site.wanted(min_accept_length=4.5)
    result = site.deploy(wanted, Behaviour(accepted=3.0))
    assert result["outcome"] == "nothing"
    assert result["checks"][-1]["expected"] == "4.5 tokens per step"


def test_another_depth_is_not_compared(site: Site) -> None:
    site.deploy(site.wanted("a"), Behaviour(accepted=3.6))
    shallow = site.wanted("b", settings={"num_speculative_tokens": 2})
    assert site.deploy(shallow, Behaviour(accepted=1.5))["outcome"] == "serves"


# When records are damaged

RECORDS = ("release.json", "deployment.json", "gate.json", "baseline.json", "times.json")
DAMAGE = (b"", b'{"serial": ', b"null", b"[]", b"{}", b"\x00\xff")


@pytest.mark.parametrize("content", DAMAGE, ids=str)
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_is_in_no_deploy_s_way(site: Site, name: str, content: bytes) -> None:
    first, second, bad = site.wanted("a"), site.wanted("b"), site.wanted("c")
    site.deploy(first)
    (site.store.root / first.id / name).write_bytes(content)
    result = site.deploy(bad, Behaviour(exit_code=1))
    assert result["outcome"] in {"restored", "unproved"}
    assert "defect" not in json.dumps(result)
    site.rests_with(first)
    assert site.deploy(second)["outcome"] == "serves"
    site.rests_with(second)
    # Deployed again, it has records again.
    assert site.deploy(first)["outcome"] == "serves"
    site.rests_with(first)
    assert site.store.ids() == [first.id, second.id]


def test_records_that_were_brought_back_without_their_links(site: Site) -> None:
    """A copy or a backup that follows links has made directories of them."""
    one, two = site.wanted("a"), site.wanted("b")
    site.deploy(one)
    site.deploy(two)
    for link in ("current", "previous"):
        where = site.store.root / link
        release = where.resolve()
        where.unlink()
        shutil.copytree(release, where)
    assert site.deploy(one)["outcome"] == "serves"
    site.rests_with(one)
    assert site.deploy(two)["outcome"] == "serves"
    assert site.store.pointed("previous") == one.id
    assert site.store.ids() == [two.id, one.id]


@pytest.mark.parametrize("content", DAMAGE, ids=str)
def test_a_damaged_note_of_a_swap_is_taken_for_none(site: Site, content: bytes) -> None:
    good = site.wanted("a")
    site.deploy(good)
    (site.store.root / "transaction.json").write_bytes(content)
    assert site.deploy(site.wanted("b"))["outcome"] == "serves"
    site.rests_with(site.wanted("b"))


# When whoever works on the host is killed


def kill(site: Site, wanted: Wanted, behaviour: Behaviour, at: int) -> bool:
    """Deploy, killed before step ``at``; whether there was such a step."""
    site.machine.kill_at = site.machine.steps + at
    try:
        site.deploy(wanted, behaviour)
    except Killed:
        return True
    finally:
        site.machine.kill_at = None
    return False


def every_step(
    tmp_path: Path,
    check: Callable[[Site, bool], None],
    behaviour: Behaviour,
    *,
    tries: bool = False,
    trying: bool = False,
) -> int:
    """Swap from a to b, killed at every step in turn; ``check`` gets the site each time.

    With ``trying``, in an experiment; with ``tries``, on its behalf.
    """
    at = 0
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        with fake_machine() as machine:
            site = Site(machine, folder)
            if trying:
                experiment(site)
            else:
                site.deploy(site.wanted("a"))
            for name in ("begin", "end", "point", "served"):
                setattr(site.store, name, counted(machine, getattr(site.store, name)))
            killed = kill(site, site.wanted("b")._replace(tries=tries), behaviour, at)
            check(site, killed)
        if not killed:
            return at
        at += 1


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("reboot", [True, False])
@pytest.mark.parametrize("next_name", ["a", "b", "c"])
def test_the_next_deploy_repairs_what_a_kill_has_left(
    tmp_path: Path, good: bool, reboot: bool, next_name: str
) -> None:
    behaviour = Behaviour() if good else Behaviour(answers=WRONG)

    def check(site: Site, killed: bool) -> None:
        if reboot:
            site.machine.reboot()
            names = {site.wanted("a").id, site.wanted("b").id}
            running = site.machine.running()
            # Between two renames there is nothing to start; otherwise one of the two serves,
            # and what did not pass never does.
            assert len(running) <= 1
            assert set(running) <= (names if good else {site.wanted("a").id})
        wanted = site.wanted(next_name)
        if next_name == "b" and not good:
            assert site.deploy(wanted, behaviour)["outcome"] == "restored"
            wanted = site.wanted("a")
        else:
            result = site.deploy(wanted)
            assert result["outcome"] == "serves", result
        site.rests_with(wanted)
        assert killed or site.store.begun() is None

    assert every_step(tmp_path, check, behaviour) >= 8


@pytest.mark.parametrize("tries", [True, False])
def test_a_kill_ends_an_experiment_neither_too_soon_nor_too_late(
    tmp_path: Path, tries: bool
) -> None:
    def check(site: Site, killed: bool) -> None:
        before, b = site.wanted("a").id, site.wanted("b").id
        if tries:
            assert held(site) == before
        # What is to stay has passed, and was not in place yet, or is.
        site.deploy(site.wanted("c"), Behaviour(answers=WRONG), tries=True)
        stays = not tries and site.store.pointed("current") == b
        assert held(site) == (None if stays else before)
        assert killed or tries or stays

    assert every_step(tmp_path, check, Behaviour(), tries=tries, trying=True) >= 8


@settings(max_examples=30)
@given(
    lives=st.lists(
        st.tuples(
            st.sampled_from("abc"), st.booleans(), st.none() | st.integers(0, 12), st.booleans()
        ),
        max_size=5,
    )
)
def test_any_history_of_deploys_kills_and_reboots_is_repaired_by_the_next_deploy(
    lives: list[tuple[str, bool, int | None, bool]],
) -> None:
    with TemporaryDirectory() as folder, fake_machine() as machine:
        site = Site(machine, Path(folder))
        for name in ("begin", "end", "point", "served"):
            setattr(site.store, name, counted(machine, getattr(site.store, name)))
        for name, good, at, reboot in lives:
            behaviour = Behaviour() if good else Behaviour(answers=WRONG)
            wanted = site.wanted(f"{name}-{good}")
            if at is None:
                result = site.deploy(wanted, behaviour)
                assert (result["outcome"] == "serves") is good
            else:
                kill(site, wanted, behaviour, at)
            if reboot:
                machine.reboot()
            # Whatever happened, what does not pass never takes the place of what serves.
            place = machine.found.get(NAME)
            assert place is None or place.behaviour.answers != WRONG
        last = site.wanted("last")
        assert site.deploy(last)["outcome"] == "serves"
        site.rests_with(last)


def test_a_reboot_alone_brings_back_the_release_before_while_the_new_one_is_on_trial(
    site: Site,
) -> None:
    good, new = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    # Stopped the unit, stopped the container, started the new one.
    assert kill(site, new, Behaviour(), 3)
    assert site.machine.running() == [new.id]
    site.machine.reboot()
    assert site.machine.running() == [good.id]


def test_a_worker_that_is_killed_is_ended_by_who_waits_for_it(tmp_path: Path) -> None:
    def check(site: Site, killed: bool) -> None:
        if not killed:
            return
        good, bad = site.wanted("a"), site.wanted("b")
        begun = site.store.begun()
        result = transaction.abandon(site.machine, site.store, bad, "it was killed")
        if begun is None and site.store.pointed("current") == good.id:
            assert result["outcome"] in {"untouched"}
        else:
            assert result["outcome"] in {"restored", "untouched"}
            assert site.store.begun() is None
            assert site.machine.running() == [good.id]

    every_step(tmp_path, check, Behaviour(answers=WRONG))


def test_what_a_killed_trial_has_stopped_runs_again_though_the_next_cannot_begin(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, new = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    assert kill(site, new, Behaviour(), 3)
    assert site.machine.running() == [new.id]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site.store, "begin", full)
    assert site.deploy(site.wanted("c"))["outcome"] == "untouched"
    site.rests_with(good)


@pytest.mark.parametrize("good", [True, False])
def test_containers_that_were_cleared_away_after_a_kill_are_in_nobody_s_way(
    tmp_path: Path, good: bool
) -> None:
    def check(site: Site, killed: bool) -> None:  # noqa: ARG001  # as `every_step` calls it
        site.machine.reboot()
        # `docker system prune`, by somebody who sees that nothing runs.
        site.machine.found = {n: one for n, one in site.machine.found.items() if one.running}
        nothing = not site.machine.found
        behaviour = Behaviour() if good else Behaviour(exit_code=1)
        result = site.deploy(site.wanted("c"), behaviour)
        if good:
            site.rests_with(site.wanted("c"))
        elif nothing:
            assert (result["outcome"], result["restored"]) == ("nothing", "")
        else:
            # What is called the current release is what runs.
            assert site.machine.running() == [site.store.pointed("current")]

    every_step(tmp_path, check, Behaviour())


def test_a_release_whose_container_another_deploy_took_away(site: Site) -> None:
    good, new = site.wanted("a"), site.wanted("b")
    site.deploy(good)
    result = transaction.serve(site.machine, site.store, new._replace(container="gone"))
    assert result["outcome"] == "untouched"
    assert "gone" in result["failure"]["what"]
    site.rests_with(good)


def test_two_deploys_that_were_compared_before_either_began(site: Site) -> None:
    old, one, two = site.wanted("a"), site.wanted("b"), site.wanted("c")
    site.deploy(old)
    # Each made its container, or found that it serves; then they take turns.
    first, second, same = site.made(one), site.made(two), site.made(old)
    site.machine.found[two.name].created = time.strftime("%Y-%m-%dT%H:%M:%S.0Z", time.gmtime())
    assert transaction.serve(site.machine, site.store, first)["outcome"] == "serves"
    assert transaction.serve(site.machine, site.store, second)["outcome"] == "serves"
    # What it saw serving does not any more; the other's release is not taken for its own.
    result = transaction.serve(site.machine, site.store, same)
    assert (result["outcome"], result["changed"]) == ("untouched", False)
    site.rests_with(two)
    # Of the same release the second finds done what the first did.
    first, second = site.made(old), site.made(old)
    assert transaction.serve(site.machine, site.store, first)["changed"]
    assert not transaction.serve(site.machine, site.store, second)["changed"]
    site.rests_with(old)


def test_leftovers_of_deploys_that_never_came_to_a_swap_are_swept_up(site: Site) -> None:
    site.machine.made(f"{NAME}-leftover", "older")  # created long ago, by the fake's clock
    site.machine.made(f"{NAME}-waits", "of a deploy that has waited two hours for its turn")
    made = time.gmtime(time.time() - 7200)
    site.machine.found[f"{NAME}-waits"].created = time.strftime("%Y-%m-%dT%H:%M:%S.0Z", made)
    wanted = site.wanted()
    site.deploy(wanted)
    assert set(site.machine.found) == {NAME, f"{NAME}-waits"}
    site.machine.remove(f"{NAME}-waits")
    site.rests_with(wanted)

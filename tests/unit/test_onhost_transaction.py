"""A deploy is a transaction: what comes of it when an engine misbehaves, or its host does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.deployments import deployment
from tests.unit.fake_machine import Behaviour, FakeMachine, Killed, counted, fake_machine

from roost import releases
from roost.onhost import NAME, transaction
from roost.onhost.store import Store
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
            answer_timeout=5,
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


def test_a_worse_drafter_passes_first_and_is_stopped_after_a_better_one(site: Site) -> None:
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


def every_step(tmp_path: Path, check: Callable[[Site, bool], None], behaviour: Behaviour) -> int:
    """Swap from a to b, killed at every step in turn; ``check`` gets the site each time."""
    at = 0
    while True:
        folder = tmp_path / str(at)
        folder.mkdir()
        with fake_machine() as machine:
            site = Site(machine, folder)
            site.deploy(site.wanted("a"))
            for name in ("begin", "end", "point", "served"):
                setattr(site.store, name, counted(machine, getattr(site.store, name)))
            killed = kill(site, site.wanted("b"), behaviour, at)
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


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    wanted = site.wanted()
    site.deploy(wanted)
    site.rests_with(wanted)

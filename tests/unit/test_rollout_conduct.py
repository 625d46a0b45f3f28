"""What comes next in a rollout, whatever fails and whenever it is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.unit.rollouts import MINE, NEW, OLD, FakeFleet, KilledError, new_rollout

from roost.errors import RoostError
from roost.rollout import record
from roost.rollout.conduct import Conductor
from roost.rollout.record import Rollout

FOUR = dict.fromkeys(("a", "b", "c", "d"), "gb10")
#: Batches: a; b; c and d.


#: What another controller has written down on a host.
THEIRS = {
    "owner": "theirs",
    "who": "ann@laptop",
    "inventory": "/home/ann/fleet",
    "since": "2026-01-01T10:00:00Z",
    "renewed": "2026-01-01T11:00:00Z",
}


def conduct(folder: Path, fleet: FakeFleet, rollout: Rollout, **options: bool) -> Rollout:
    fleet.folder = folder
    return Conductor(rollout, folder, fleet, fleet, lambda _: None, **options).run()


def four(**faults: Any) -> FakeFleet:
    return FakeFleet(dict.fromkeys(FOUR, OLD), **faults)


def test_a_good_release_goes_over_the_whole_fleet(tmp_path: Path) -> None:
    fleet = four()
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert (done.verdict, done.reason) == ("passed", "")
    assert set(fleet.serves.values()) == {NEW}
    assert {host.verdict for host in done.hosts.values()} == {"passed"}
    # Everything is there before anything is swapped, and each batch is judged before the next.
    assert [step for step in fleet.steps if not step.startswith(("look", "hold", "let go"))] == [
        "prepare a,b,c,d",
        "measure a",
        "deploy a",
        "judge a",
        "measure b",
        "deploy b",
        "judge b",
        "measure c,d",
        "deploy c,d",
        "judge c,d",
    ]
    assert fleet.baselines == {name: tmp_path / f"runs/{name}-before" for name in FOUR}
    assert record.read(tmp_path) == done


def test_a_canary_that_fails_its_own_gate_stops_it(tmp_path: Path) -> None:
    fleet = four(fails={"a"})
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert done.verdict == "stopped"
    assert done.reason == "batch 1 of 3: a did not pass\na: too slow"
    assert set(fleet.serves.values()) == {OLD}
    assert [host.verdict for host in done.hosts.values()] == ["back", *["waiting"] * 3]
    # Nobody asks notebooks about what was refused already, nor rolls back what is back.
    assert not any(step.startswith(("judge", "back")) for step in fleet.steps)


def test_a_batch_in_which_one_fails_goes_back_as_a_whole(tmp_path: Path) -> None:
    fleet = four(judged_bad={"d"})
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert fleet.serves == {"a": NEW, "b": NEW, "c": OLD, "d": OLD}
    assert [batch.verdict for batch in done.batches] == ["passed", "passed", "back"]
    assert done.reason == "batch 3 of 3: d did not pass\nd: answers wrongly"
    assert [host.verdict for host in done.hosts.values()] == ["passed", "passed", "back", "back"]
    assert fleet.steps.count(f"back to {OLD} c,d") == 1


@pytest.mark.parametrize("faults", [{}, {"fails": {"c"}}, {"judged_bad": {"b"}}], ids=str)
@pytest.mark.parametrize("after", [0.0, 0.5], ids=["before a step", "after it"])
def test_killed_at_any_step_it_is_gone_on_with(
    tmp_path: Path, faults: dict[str, set[str]], after: float
) -> None:
    three = dict.fromkeys(("a", "b", "c"), "gb10")
    behind = {"a", "b"}
    whole = FakeFleet(dict.fromkeys(three, OLD), **faults, behind=behind)
    expected = conduct(tmp_path, whole, new_rollout(three, "1,2"))
    for at in range(len(whole.steps)):
        folder = tmp_path / str(at)
        folder.mkdir()
        fleet = FakeFleet(dict.fromkeys(three, OLD), **faults, behind=behind, kill_at=at + after)
        rollout = new_rollout(three, "1,2")
        record.write(folder, rollout)
        with pytest.raises(KilledError):
            conduct(folder, fleet, rollout)
        fleet.kill_at = None
        done = conduct(folder, fleet, record.read(folder))
        assert fleet.serves == whole.serves, whole.steps[at]
        assert not fleet.drained
        assert not fleet.leases
        assert (done.verdict, done.reason) == (expected.verdict, expected.reason)
        assert [h.verdict for h in done.hosts.values()] == [
            h.verdict for h in expected.hosts.values()
        ]


def test_what_passed_is_not_done_again_unless_the_host_serves_something_else(
    tmp_path: Path,
) -> None:
    fleet = four(kill_at=11)
    with pytest.raises(KilledError):
        conduct(tmp_path, fleet, new_rollout(FOUR))
    assert fleet.steps[-1] == "deploy b"
    fleet.kill_at = None
    begun = len(fleet.steps)
    # Somebody has rolled the canary back meanwhile.
    fleet.serves["a"] = OLD
    conduct(tmp_path, fleet, record.read(tmp_path))
    again = fleet.steps[begun:]
    assert "deploy a" in again
    assert not any(step.startswith(("prepare", "measure a", "measure b")) for step in again)


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ({"off": {"a"}}, "a not reached, and nothing was changed\na: No route to host"),
        ({"off": {"d"}}, "d not reached, and nothing was changed\nd: No route to host"),
        ({"unprepared": {"c"}}, "c cannot be prepared; no host was swapped\nc: no disk"),
    ],
)
def test_refused_before_any_host_is_swapped(
    tmp_path: Path, faults: dict[str, set[str]], reason: str
) -> None:
    fleet = four(**faults)
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert (done.verdict, done.reason) == ("refused", reason)
    assert not any(step.startswith("deploy") for step in fleet.steps)
    if "off" in faults:
        assert fleet.steps == ["hold a,b,c,d", "let go a,b,c,d"]
    assert not fleet.leases


def test_another_controllers_rollout_is_not_disturbed(tmp_path: Path) -> None:
    fleet = four(leases={"c": THEIRS})
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert done.verdict == "refused"
    assert done.reason.startswith(
        "c left to somebody else, and nothing was changed\n"
        "c: ann@laptop rolls out /home/ann/fleet, since 2026-01-01T10:00:00Z, "
        "last heard of 2026-01-01T11:00:00Z\n"
    )
    assert "--take-over" in done.reason
    assert fleet.steps == ["hold a,b,c,d", "let go a,b,c,d"]
    # What was held until that was seen is free again.
    assert fleet.leases == {"c": THEIRS}


def test_what_another_controller_left_unjudged_is_not_what_to_go_back_to(tmp_path: Path) -> None:
    left = {**THEIRS, "wanted": "r-unjudged", "before": OLD}
    fleet = four(judged_bad={"a"}, kept=(OLD, "r-unjudged", NEW), leases={"a": left, "b": THEIRS})
    fleet.serves["a"] = "r-unjudged"
    done = conduct(tmp_path, fleet, new_rollout(FOUR), take_over=True)
    assert (done.verdict, done.hosts["a"].verdict) == ("stopped", "back")
    assert fleet.serves["a"] == OLD
    assert not fleet.leases


def test_a_host_of_an_experiment_is_left_alone(tmp_path: Path) -> None:
    theirs = {**THEIRS, "experiment": "tune"}
    fleet = four(leases={"c": theirs}, held={"c": OLD})
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert done.verdict == "refused"
    assert "c: ann@laptop tries deployments (tune) of /home/ann/fleet, since" in done.reason
    assert fleet.leases == {"c": theirs}


@pytest.mark.parametrize("left", [{}, {"a": {**THEIRS, "experiment": "tune"}}])
def test_what_an_experiment_only_tried_is_not_what_to_go_back_to(
    tmp_path: Path, left: dict[str, dict[str, str]]
) -> None:
    """One whose controller is no more, with its lease or after a day."""
    kept = (OLD, "r-tried", NEW)
    fleet = four(judged_bad={"a"}, kept=kept, leases=left, held={"a": OLD})
    fleet.serves["a"] = "r-tried"
    done = conduct(tmp_path, fleet, new_rollout(FOUR), take_over=bool(left))
    assert (done.verdict, done.hosts["a"].verdict) == ("stopped", "back")
    assert fleet.serves["a"] == OLD
    # Where it can serve no more, what serves is the best that is left.
    fleet.kept, fleet.serves["a"] = ("r-tried", NEW), "r-tried"
    conduct(tmp_path, fleet, new_rollout(FOUR))
    assert fleet.serves["a"] == "r-tried"


@pytest.mark.parametrize("step", ["judge a", "judge b", "prepare a,b,c,d"])
def test_a_rollout_that_was_taken_over_changes_nothing_more(tmp_path: Path, step: str) -> None:
    fleet = four(judged_bad={"b"})
    original = fleet._step

    def taken_over(what: str, hosts: Any, do: Any) -> Any:
        played = original(what, hosts, do)
        if fleet.steps[-1] == step:
            fleet.leases = dict.fromkeys(FOUR, THEIRS)
        return played

    fleet._step = taken_over  # type: ignore[method-assign]
    with pytest.raises(RoostError, match="somebody else has begun") as caught:
        conduct(tmp_path, fleet, new_rollout(FOUR))
    assert "a: ann@laptop rolls out" in caught.value.why
    assert fleet.steps[-2:] == [step, "hold a,b,c,d"]
    assert fleet.leases == dict.fromkeys(FOUR, THEIRS)
    # It can be gone on with, not against the other one.
    left = record.read(tmp_path)
    assert left.verdict == "running"
    with pytest.raises(RoostError, match="somebody else has begun"):
        conduct(tmp_path, fleet, left)
    fleet._step = original  # type: ignore[method-assign]
    assert conduct(tmp_path, fleet, left, take_over=True).verdict == "stopped"
    assert not fleet.leases


def test_hosts_know_what_whoever_takes_them_over_should(tmp_path: Path) -> None:
    fleet = four(kill_at=11)
    with pytest.raises(KilledError):
        conduct(tmp_path, fleet, new_rollout(FOUR))
    assert fleet.steps[-1] == "deploy b"
    mine = {"owner": MINE}
    began = {**mine, "wanted": NEW, "before": OLD}
    assert fleet.leases == {"a": mine, "b": began, "c": mine, "d": mine}


def test_a_host_that_is_lost_in_the_middle_is_stuck_and_said(tmp_path: Path) -> None:
    fleet = four(judged_bad={"b"})
    rollout = new_rollout(FOUR, "1,3")
    original = fleet.judge

    def judge(baselines: Any) -> Any:
        found = original(baselines)
        if "c" in baselines:
            fleet.off.add("c")
        return found

    fleet.judge = judge  # type: ignore[method-assign]
    done = conduct(tmp_path, fleet, rollout)
    assert done.verdict == "stopped"
    assert {name: host.verdict for name, host in done.hosts.items()} == {
        "a": "passed",
        "b": "back",
        "c": "stuck",
        "d": "back",
    }
    assert "it was not taken back: No route to host" in done.hosts["c"].why
    assert done.batches[1].verdict == "failing"


@pytest.mark.parametrize("resumed", [False, True])
def test_hosts_that_did_not_hear_of_its_end_are_named(tmp_path: Path, resumed: bool) -> None:
    fleet = four()
    rollout = new_rollout(FOUR)
    if resumed:
        assert conduct(tmp_path, fleet, rollout).ok
        # Nothing is left to be done, so it was the process before that took the leases.
        rollout = record.read(tmp_path).model_copy(update={"verdict": "running"})
    said = "b: still has this rollout's lease: deploy with --despite-lease, or roll out again"
    original = fleet.let_go

    def let_go(hosts: Any) -> Any:
        fleet.off.add("b")
        return original(hosts)

    fleet.let_go = let_go  # type: ignore[method-assign]
    done = conduct(tmp_path, fleet, rollout)
    assert (done.verdict, done.reason) == ("passed", said)
    assert record.read(tmp_path).reason == said
    # Where Ansible itself cannot run, none has.
    fleet.off.clear()
    fleet.let_go = Mock(side_effect=RoostError("no ansible"))  # type: ignore[method-assign]
    lines = conduct(tmp_path, fleet, new_rollout(FOUR)).reason.splitlines()
    assert [line.partition(": still has")[0] for line in lines] == list(FOUR)


def test_what_serves_is_known_of_a_host_whose_docker_was_down(tmp_path: Path) -> None:
    fleet = four(no_docker={"a", "b"}, judged_bad={"a"})
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert done.hosts["a"].verdict == "back"
    assert fleet.steps[1:4] == ["look a,b,c,d", "prepare a,b,c,d", "look a,b"]
    assert set(fleet.serves.values()) == {OLD}


def test_no_host_is_swapped_that_does_not_say_what_it_serves(tmp_path: Path) -> None:
    fleet = four(no_docker={"b"})
    fleet.prepare = lambda hosts: fleet._step("prepare", hosts, lambda _: None)  # type: ignore[method-assign]
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert done.verdict == "refused"
    assert done.reason.startswith("b does not say what it serves; no host was swapped\nb: docker:")
    assert not any(step.startswith("deploy") for step in fleet.steps)


def test_nothing_to_go_back_to_is_said(tmp_path: Path) -> None:
    fleet = FakeFleet({"a": None, "b": NEW}, judged_bad={"a", "b"})
    done = conduct(tmp_path, fleet, new_rollout({"a": "gb10", "b": "gb10"}, "2"))
    assert done.verdict == "stopped"
    assert "nothing served there before" in done.hosts["a"].why
    assert "it served this release before the rollout too" in done.hosts["b"].why
    assert {host.verdict for host in done.hosts.values()} == {"stuck"}
    assert not any(step.startswith("back") for step in fleet.steps)


def test_a_release_that_nobody_has_judged_is_not_what_to_go_back_to(tmp_path: Path) -> None:
    fleet = FakeFleet({"a": "r-unjudged"}, judged_bad={"a"}, kept=(OLD, "r-unjudged", NEW))
    rollout = new_rollout({"a": "gb10"})
    rollout.hosts["a"].before = OLD
    rollout.hosts["a"].unjudged = ["r-unjudged"]
    assert conduct(tmp_path, fleet, rollout).hosts["a"].verdict == "back"
    assert fleet.serves == {"a": OLD}


def test_a_kept_benchmark_of_what_serves_is_the_baseline(tmp_path: Path) -> None:
    fleet = four()
    rollout = new_rollout(FOUR)
    rollout.hosts["a"].baseline = record.Baseline(release=OLD, run="/kept/a")
    rollout.hosts["b"].baseline = record.Baseline(release="r-older", run="/kept/b")
    conduct(tmp_path, fleet, rollout)
    assert fleet.baselines["a"] == Path("/kept/a")
    assert fleet.baselines["b"] == tmp_path / "runs/b-before"
    assert "measure a" not in fleet.steps


def test_behind_a_gateway_nothing_is_measured_or_changed_under_load(tmp_path: Path) -> None:
    fleet = four(behind=set(FOUR))
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert [step for step in fleet.steps if step.endswith(" b")] == [
        "look b",
        "drain b",
        "measure b",
        "deploy b",
        "judge b",
        "return b",
    ]
    assert not fleet.drained
    for host in done.hosts.values():
        ((begun, ended),) = host.out
        assert ended
        assert ended >= begun


def test_requests_that_do_not_end_stop_it_before_the_swap(tmp_path: Path) -> None:
    fleet = four(behind=set(FOUR), late={"a"})
    done = conduct(tmp_path, fleet, new_rollout(FOUR))
    assert done.reason == "batch 1 of 3: a did not pass\na: a request does not end"
    assert (done.hosts["a"].verdict, fleet.serves["a"]) == ("back", OLD)
    assert not fleet.drained
    assert not any(step.startswith("deploy") for step in fleet.steps)


def test_what_did_not_come_back_gets_no_requests(tmp_path: Path) -> None:
    fleet = FakeFleet({"a": NEW, "b": OLD}, judged_bad={"a"}, behind={"a", "b"})
    done = conduct(tmp_path, fleet, new_rollout({"a": "gb10", "b": "gb10"}, "2"))
    assert (done.hosts["a"].verdict, done.hosts["b"].verdict) == ("stuck", "back")
    assert fleet.drained == {"a"}


def test_what_cannot_be_measured_is_judged_without_a_baseline(tmp_path: Path) -> None:
    fleet = four(never_alone=True)
    rollout = new_rollout(FOUR)
    rollout.hosts["a"].baseline = record.Baseline(release="r-older", run="/kept/a")
    assert conduct(tmp_path, fleet, rollout).ok
    assert fleet.baselines == dict.fromkeys(FOUR)

"""What a person is told of a release, and which one a rollback is about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import deployment

from roost import releases
from roost.onhost.logs import packed


def result(outcome: str, **found: Any) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "release": "new-1",
        "previous": "old-1",
        "failure": None,
        "restored": "",
        "checks": [],
        "figures": {},
        "answers": {},
        "recovered": None,
        "waited_for": "",
        "kept": None,
        "died": None,
        **found,
    }


def failure(step: str = "engine", log: str = "", **found: Any) -> dict[str, Any]:
    return {
        "step": step,
        "what": "the engine ended with exit code 1",
        "exit_code": 1,
        "kernel": [],
        "checks": [],
        "log": packed(log),
        **found,
    }


def check(name: str, **found: Any) -> dict[str, Any]:
    said = {"ok": False, "expected": "the right one", "observed": "another", "why": "because"}
    return {"id": name, **said, **found}


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    return deployment(tmp_path).model_dump(mode="json")


def message(given: dict[str, Any], told: dict[str, Any]) -> str:
    found = releases.outcome(told, "spark-01", given)
    assert found["failed"]
    text: str = found["message"]
    return text


def test_a_release_that_serves_tells_answers_and_figures(given: dict[str, Any]) -> None:
    told = result(
        "serves",
        answers={"capital": "Paris.", "sum": "4"},
        figures={"ready_seconds": 41.5, "accept_length": 4.62, "tokens_per_second": 88.1},
    )
    found = releases.outcome(told, "spark-01", given)
    assert (found["failed"], found["message"]) == (False, "")
    assert found["lines"] == [
        "What is the capital of France? Paris.",
        "What is 2+2? 4",
        "healthy after 41.5 s, accept length 4.62, 88.1 tokens/s",
    ]


def test_what_was_not_judged_is_said(given: dict[str, Any]) -> None:
    why = "SGLang 0.5.12 does not count verification steps"
    checks = [check("accept_length", ok=True, observed="not judged", why=why)]
    lines = releases.outcome(result("serves", checks=checks), "spark-01", given)["lines"]
    assert lines == [f"accept length is not judged: {why}"]


@pytest.mark.parametrize(
    ("recipe", "speculation", "published"),
    [
        # Its tables of one request at a time, least and most: both of turboquant-*.
        ("qwen3.5-27b-aeon-nvfp4-dflash", "dflash", "28.14 to 64.02 tokens/s"),
        ("ornith-1.5-35b-nvfp4-dflash2", "mtp", "72.1 tokens/s"),
        ("qwen3.5-27b-aeon-nvfp4-dflash", "none", None),
        # From its shortest prompt to its whole context.
        ("ornith-1.0-35b-fp8", "none", "20.9 to 37.9 tokens/s"),
        ("nobodys", "none", None),
    ],
)
def test_a_speed_without_a_floor_is_shown_beside_the_published_ones(
    given: dict[str, Any], recipe: str, speculation: str, published: str | None
) -> None:
    asked = {**given, "recipe": recipe, "hardware": "gb10", "speculation": speculation}
    told = result("serves", figures={"tokens_per_second": 40.0})
    lines = releases.outcome(told, "spark-01", asked)["lines"][1:]
    assert len(lines) == (published is not None)
    assert all(f"one request at a time: {published} (" in line for line in lines)
    told["checks"] = [check("speed", ok=True)]
    assert releases.outcome(told, "spark-01", asked)["lines"][1:] == []


def test_a_failed_gate_says_what_was_asked_and_what_serves_now(given: dict[str, Any]) -> None:
    broken = failure(
        "gate", checks=[check("answer_capital"), check("speed", observed="3 tokens/s")]
    )
    text = message(
        given, result("restored", failure=broken, restored="healthy, with right answers")
    )
    assert text.splitlines() == [
        "spark-01: release new-1 was not kept: it is healthy, but answers wrongly and is too slow.",
        "  answer_capital: asked 'What is the capital of France?', the answer was 'another'",
        "    wants: the right one",
        "    why: because",
        "  speed: saw 3 tokens/s",
        "    wants: the right one",
        "    why: because",
        *text.splitlines()[7:12],
        "  serves now: old-1 again (healthy, with right answers)",
        "  why it was not kept: /var/lib/roost/releases/last-failed/ on spark-01",
    ]
    cause, saw, why, fix, also = text.splitlines()[7:12]
    assert cause == "  cause: healthy, and answers wrongly (wrong-answers)"
    assert saw == "    saw: answer_capital: 'another', wants the right one"
    assert why.startswith("    why: what is computed is not the model")
    assert "enforce_eager: true" in fix
    assert also == "    also: much slower than the release before (slower)"


def test_a_dead_engine_is_shown_with_its_cause_and_the_end_of_its_log(
    given: dict[str, Any],
) -> None:
    log = [f"INFO {number}" for number in range(40)]
    log[3] = "(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory."
    log[30] = "RuntimeError: Engine core initialization failed. See root cause above."
    text = message(given, result("nothing", failure=failure(log="\n".join(log))))
    assert "  cause: the GPU ran out of memory (gpu-out-of-memory)" in text
    assert "    saw: line 4: torch.OutOfMemoryError: CUDA out of memory." in text
    assert re.search(r"^    fix: gpu_memory_utilization", text, re.MULTILINE)
    assert "    INFO 39" in text
    assert "INFO 24" not in text
    assert "serves now: nothing, as before" in text


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (
            result("unproved", failure=failure(), restored="answer_sum: wrong"),
            "old-1 was started again, but: answer_sum: wrong",
        ),
        (
            result("fails", failure=failure()),
            "this release, as it was. The one before is a rollback away",
        ),
        (result("untouched", failure=failure()), "was not tried"),
        (
            result("busy", waited_for="ann@desk deploys x-2, since noon"),
            "another deploy is at work on this host (ann@desk deploys x-2, since noon)",
        ),
        (result("unknown"), "the connection was lost before anything was begun"),
        (
            {"unreachable": True, "msg": "Connection timed out"},
            "The host goes on by itself",
        ),
        ({"msg": "No module named json"}, "could not judge the release\n  why: No module"),
    ],
)
def test_every_other_end_says_what_serves_and_what_to_do(
    given: dict[str, Any], told: dict[str, Any], says: str
) -> None:
    assert says in message(given, told)


def test_what_happened_on_the_way_is_told(given: dict[str, Any]) -> None:
    swap = {"phase": "trial", "new": "lost-1", "who": "ann@desk", "way": "back"}
    told = result("serves", recovered=swap, waited_for="ben@desk deploys x-2, since noon")
    waited, undone = releases.outcome(told, "spark-01", given)["lines"]
    assert "ben@desk deploys x-2" in waited
    assert "first undone: a swap to lost-1 that ann@desk had begun" in undone
    swap["way"] = "forwards"
    assert "first completed" in releases.outcome(told, "spark-01", given)["lines"][1]


def test_the_record_leaves_out_what_differs_from_day_to_day(tmp_path: Path) -> None:
    one = releases.release(deployment(tmp_path))
    other = releases.release(deployment(tmp_path, ready_timeout=60, speed_floor=0.1))
    assert one["id"] == other["id"]
    assert other["files"]["deployment.json"]["ready_timeout"] == 60
    assert one["container"] == "roost-llm-" + one["id"].rpartition("-")[2]
    planned = releases.release(deployment(tmp_path), {"verdict": "ok"})
    assert planned["id"] == one["id"]
    assert planned["files"]["plan.json"] == {"verdict": "ok"}


LEASE = {
    "owner": "a1",
    "who": "ann@desk",
    "inventory": "/fleet",
    "since": "2026-11-30T09:00:00Z",
    "renewed": "2026-11-30T09:10:00Z",
}


def test_a_host_that_takes_part_in_a_rollout_was_not_changed(given: dict[str, Any]) -> None:
    told = {key: value for key, value in result("held", lease=LEASE).items() if key != "checks"}
    found = releases.outcome(told, "spark-01", given)
    # It was drained before the rollout came; that drains it again when its turn is come.
    assert (found["failed"], found["serves"], found["record"]) == (True, True, None)
    assert releases.outcome(told, "spark-01", given, drained=True) == found
    first, fix = found["message"].splitlines()
    assert first == (
        "spark-01: takes part in a rollout (ann@desk rolls out /fleet, since 2026-11-30T09:00:00Z, "
        "last heard of 2026-11-30T09:10:00Z)"
    )
    assert fix.startswith(
        "  fix: wait for its end, or go on with it where it was begun (roost roll"
    )
    assert "-e despite_lease=true" in fix
    assert fix.endswith("nothing was changed")


# Rollback

KEPT = [
    {"id": "r-0123456789ab", "missing": [], "times": {"last_served": "today"}},
    {"id": "r-cdef01234567", "missing": ["image x is gone"], "times": {"last_served": "before"}},
]


def facts(**found: Any) -> dict[str, Any]:
    return {
        "current": "r-0123456789ab",
        "previous": "r-cdef01234567",
        "releases": KEPT,
        "chosen": None,
        "transaction": None,
        "busy": None,
        "rollout": None,
        "held": None,
        "last_failed": None,
        "watchdog": {"unit": "active", "state": None},
        "engine": {
            "exists": True,
            "running": True,
            "healthy": True,
            "restarts": 0,
            "exit_code": 0,
            "unit": "active",
            "at_boot": True,
            "failure": None,
        },
        "deployment": None,
        **found,
    }


def test_status_says_whose_rollout_a_host_takes_part_in() -> None:
    assert not [line for line in releases.status(facts()) if "rollout" in line]
    lines = releases.status(facts(rollout=LEASE))
    assert any(line.startswith("takes part in a rollout: ann@desk rolls out /fl") for line in lines)


def test_status_says_that_what_serves_is_only_tried() -> None:
    lease = {**LEASE, "experiment": "tune"}
    lines = releases.status(facts(rollout=lease, held="r-cdef01234567"))
    assert any(line.startswith("takes part in an experiment: ann@desk tries") for line in lines)
    (tried,) = [line for line in lines if line.startswith("what serves is only tried")]
    assert (
        "goes back to r-cdef01234567, and so do roost rollback and roost start; any other" in tried
    )


def test_status_tells_a_stopped_engine_from_one_that_ended() -> None:
    ended = facts()
    ended["engine"] |= {"running": False, "healthy": False, "unit": "inactive", "exit_code": 143}
    assert releases.serving(ended) == "does not run (exit code 143)"
    ended["engine"]["at_boot"] = False
    assert releases.serving(ended).startswith("was stopped, and stays so; roost start, or a deploy")
    ended["held"] = ended["current"]  # by an experiment that has tried nothing yet
    assert releases.serving(ended).startswith("was stopped, and stays so; roost start, or a deploy")
    ended["held"] = "r-cdef01234567"
    assert releases.serving(ended) == (
        "was stopped, and stays so; roost start goes back to r-cdef01234567"
    )


def test_a_host_that_somebody_else_has_deployed_to_was_not_changed(given: dict[str, Any]) -> None:
    found = releases.outcome(result("held", lease=None), "spark-01", given)
    assert found["message"] == (
        "spark-01: somebody else has deployed meanwhile, or had the host taken over\n"
        "  fix: see `roost status`, and run it again if need be; nothing was changed"
    )


def test_a_kept_release_is_gone_back_to_as_it_was_recorded() -> None:
    files = {"deployment.json": {"recipe": "r"}, "release.json": {}}
    chosen = {"id": "r-0123456789ab", "files": files}
    found = releases.to_go_back_to(facts(chosen=chosen), "spark-01", "r-0123456789ab")
    assert found["refusal"] is None
    assert found["release"] == {
        "id": "r-0123456789ab",
        "container": "roost-llm-0123456789ab",
        "deployment": {"recipe": "r"},
        "files": files,
    }


@pytest.mark.parametrize("wanted", ["lasting", "before", None])
@pytest.mark.parametrize("held", [None, "r-0123456789ab", "r-cdef01234567"])
def test_a_start_or_rollback_says_where_it_goes_back_from_what_was_tried(
    held: str | None, wanted: str | None
) -> None:
    current = "r-0123456789ab"
    chosen = {"id": held or current, "files": {"deployment.json": {}}}
    kept = [{**each, "missing": []} for each in KEPT]
    known = facts(chosen=chosen, held=held, releases=kept)
    found = releases.to_go_back_to(known, "spark-01", wanted)
    assert (found["refusal"], found["release"]["id"]) == (None, chosen["id"])
    if held in {None, current}:
        assert found["note"] is None
    else:
        assert found["note"] == (
            "spark-01: r-0123456789ab was only tried, by an experiment that was never ended; this "
            "goes back to r-cdef01234567, which served before it. To have r-0123456789ab stay: "
            "roost rollback -i INVENTORY --limit spark-01 --to r-0123456789ab"
        )
    # Who names a release means it.
    assert releases.to_go_back_to(known, "spark-01", chosen["id"])["note"] is None


@pytest.mark.parametrize("wanted", ["lasting", None])
def test_what_was_held_and_cannot_be_brought_back_says_how_to_keep_what_was_tried(
    wanted: str | None,
) -> None:
    chosen = {"id": "r-cdef01234567", "files": {"deployment.json": {}}}
    known = facts(chosen=chosen, held="r-cdef01234567", previous="r-older0123456")
    found = releases.to_go_back_to(known, "spark-01", wanted)
    assert found["release"] is None
    assert found["refusal"] == (
        "spark-01: release r-cdef01234567 cannot serve again: image x is gone; nothing was "
        "changed.\n  kept are: r-0123456789ab, r-cdef01234567\n  fix: have r-0123456789ab stay, "
        "which an experiment has only tried: roost rollback -i INVENTORY --limit spark-01 --to "
        "r-0123456789ab"
    )


@pytest.mark.parametrize(
    ("rollout", "refused"), [("", True), ("b2", True), ("a1", False), (None, False)]
)
def test_a_host_of_a_rollout_is_not_rolled_back_by_others(
    rollout: str | None, refused: bool
) -> None:
    files = {"deployment.json": {}}
    leased = facts(chosen={"id": "r-0123456789ab", "files": files}, rollout=LEASE)
    found = releases.to_go_back_to(leased, "spark-01", "r-0123456789ab", rollout)
    assert (found["release"] is None) is refused
    if refused:
        said = "spark-01: takes part in a rollout (ann@desk rolls out /fleet, since 2026-11-30T09:"
        assert found["refusal"].startswith(said)
        assert "nothing was changed" in found["refusal"]
        assert "-e despite_lease=true" in found["refusal"]


@pytest.mark.parametrize(
    ("found", "wanted", "says"),
    [
        (facts(previous=None), None, "no previous release is kept"),
        (facts(), "nonesuch", "release nonesuch is not kept on this host"),
        (facts(current=None), "lasting", "no release is in place"),
        (facts(), "lasting", "release r-0123456789ab is not kept on this host"),
        # A link leads to it, and its record does not tell when it served.
        (facts(), None, "release r-cdef01234567 is not kept on this host"),
        (facts(), "before", "release r-cdef01234567 is not kept on this host"),
        (
            facts(chosen={"id": "r-cdef01234567", "files": {}}),
            None,
            "release r-cdef01234567 cannot serve again: image x is gone",
        ),
    ],
)
def test_what_cannot_serve_again_is_refused(
    found: dict[str, Any], wanted: str | None, says: str
) -> None:
    refused = releases.to_go_back_to(found, "spark-01", wanted)
    assert refused["release"] is None
    assert refused["refusal"].startswith(f"spark-01: {says}; nothing was changed.")
    assert "kept are: r-0123456789ab, r-cdef01234567" in refused["refusal"]


# Status


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({}, "healthy"),
        ({"restarts": 2}, "healthy, restarted 2 times"),
        ({"healthy": False}, "runs, but is not healthy"),
        ({"exists": False, "healthy": False}, "nothing serves"),
        (
            {
                "running": False,
                "healthy": False,
                "exit_code": 1,
                "unit": "failed",
                "failure": failure(log="OSError: [Errno 98] Address already in use"),
            },
            "was given up after several starts (exit code 1: OSError: [Errno 98] Address already",
        ),
        (
            {"running": False, "healthy": False, "exit_code": 0, "unit": "activating"},
            "has ended, and is about to be started again (exit code 0)",
        ),
        ({"running": False, "healthy": False, "unit": "inactive"}, "does not run"),
    ],
)
def test_status_says_how_the_engine_does(engine: dict[str, Any], says: str) -> None:
    found = facts()
    found["engine"] |= engine
    assert releases.serving(found).startswith(says)


def test_a_failure_comes_with_its_diagnosis_for_the_record(given: dict[str, Any]) -> None:
    log = "vllm: error: unrecognized arguments: --x\n"
    told = releases.outcome(
        result("restored", kept="then", failure=failure(log=log)), "spark-01", given
    )
    record = json.loads(told["record"])
    assert record["at"] == "then"
    (found,) = record["findings"]
    assert (found["id"], found["line"]) == ("unknown-flag", 1)
    # The release's own version makes the answer.
    assert f"(version {given['engine_version']})" in found["why"]
    # Where the host could not record it, neither can the controller.
    lost = releases.outcome(result("restored", failure=failure(log=log)), "spark-01", given)
    assert lost["record"] is None
    # What was recorded is what is told later, without the log.
    kept = {"at": "then", "release": "x-1", "kind": "not kept", "diagnosis": record["findings"]}
    (cause,) = releases.last_failure(facts(last_failed={**failure(), **kept}))
    assert cause.id == "unknown-flag"


def test_an_engine_that_may_be_loading_still_is_not_called_dead() -> None:
    found = facts()
    loading = failure("health", "INFO loading shard 3 of 12\n")
    found["engine"] |= {"healthy": False, "failure": loading}
    assert releases.status(found)[:1] == ["r-0123456789ab: runs, but is not healthy"]
    assert releases.ailing(found) == []
    found["engine"]["failure"] = failure("health", "OSError: [Errno 98] Address already in use\n")
    assert releases.status(found)[1].startswith("  cause: ")


def test_status_lists_what_could_serve_and_what_is_going_on() -> None:
    found = facts(
        transaction={"new": "x-2"},
        last_failed={
            "at": "then",
            "release": "x-1",
            "kind": "not kept",
            "diagnosis": None,
            **failure(log="vllm: error: unrecognized arguments: --x\n"),
        },
    )
    first, swap, failed, cause, saw, why, fix, kept = releases.status(found)
    assert cause == "  cause: --x is no flag of this engine (unknown-flag)"
    assert saw == "    saw: line 1: vllm: error: unrecognized arguments: --x"
    assert (why[:9], fix[:9]) == ("    why: ", "    fix: ")
    assert first == "r-0123456789ab: healthy"
    assert swap == ("a swap to x-2 has begun, and is being ended by nobody any more: deploy again")
    assert failed == "not kept, then: x-1: the engine ended with exit code 1"
    assert kept == "kept: r-cdef01234567 (previous), served last before; image x is gone"
    found["busy"] = "ann@desk deploys x-2, since noon"
    assert "by ann@desk deploys x-2" in releases.status(found)[1]


def event(what: str, at: int = 0, case: str | None = None) -> dict[str, Any]:
    said = f"said of {what}"
    return {"at": f"2026-11-29T20:00:0{at}Z", "what": what, "said": said, "evidence": case}


def test_status_shows_what_the_watchdog_has_seen_last() -> None:
    events = [event("gave_up"), event("ended", 1), event("restarted", 2, "/cases/x")]
    state = {"held": None, "events": [event("none"), *events]}
    lines = releases.status(facts(watchdog={"unit": "active", "state": state}))
    assert lines[1:4] == [
        "2026-11-29T20:00:00Z: the engine was given up: said of gave_up",
        "2026-11-29T20:00:01Z: the engine ended: said of ended",
        "2026-11-29T20:00:02Z: the watchdog ended the engine, which then started again: "
        "said of restarted; evidence: /cases/x",
    ]
    silent = releases.status(facts(watchdog={"unit": "failed", "state": {**state, "events": []}}))
    assert silent[1].startswith("the watchdog does not run (failed)")


def test_status_says_that_an_engine_is_stopped_for_want_of_memory() -> None:
    state = {"held": event("stopped"), "events": []}
    found = facts(watchdog={"unit": "active", "state": state})
    # It runs again already, and the watchdog has not looked yet.
    assert releases.serving(found) == "healthy"
    found["engine"] |= {"running": False, "healthy": False, "unit": "inactive"}
    assert releases.serving(found) == (
        "was stopped by the watchdog (said of stopped); the next deploy starts it"
    )

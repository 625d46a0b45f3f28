"""Where a failure comes from, by whatever speaks of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.logs import log

from roost import failures
from roost.diagnose import symptoms
from roost.onhost.logs import packed

OOM = (
    "[52.750001] Memory cgroup out of memory: Killed process 4242 (vllm) total-vm:9kB, "
    "anon-rss:2097152kB, file-rss:0kB"
)


def failure(step: str = "engine", said: str = "", **found: Any) -> dict[str, Any]:
    plain = {"what": "it failed", "exit_code": None, "kernel": [], "checks": []}
    return {"step": step, **plain, "log": packed(said), **found}


def check(name: str, observed: str, *, ok: bool = False, why: str = "") -> dict[str, Any]:
    return {"id": name, "ok": ok, "expected": "right", "observed": observed, "why": why}


def wrong(name: str, observed: str) -> dict[str, Any]:
    return check(name, observed, why="'What is 2+2?' was answered wrongly")


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        # The kernel knows best, whatever the engine could still say.
        (failure(said="RuntimeError: worker died\n", kernel=[OOM]), "killed-for-memory"),
        (failure(exit_code=137, what="(the kernel killed it for memory)"), "killed-for-memory"),
        (failure(exit_code=137, said="INFO serving\n"), "killed-from-outside"),
        (failure(exit_code=0, what="(the watchdog stopped it: 1 GiB left)"), "stopped-for-memory"),
        # A shell's one word says less than Docker and the kernel.
        (
            failure(exit_code=137, said="Killed\n", what="(the kernel killed it for memory)"),
            "killed-for-memory",
        ),
        (
            failure(exit_code=0, said="Killed\n", what="(the watchdog stopped it)"),
            "stopped-for-memory",
        ),
        (failure(exit_code=1, said="INFO loading\nKilled\n"), "killed-from-outside"),
        (failure(exit_code=137, said="vllm: error: unrecognized arguments: --x"), "unknown-flag"),
        # Docker's own words.
        (
            failure(
                "start",
                what="its container does not start: docker start x: Error response from daemon: "
                'could not select device driver "" with capabilities: [[gpu]].',
            ),
            "gpu-runtime-missing",
        ),
        (
            failure("record", what="cannot be written: [Errno 28] No space left on device"),
            "disk-full",
        ),
        # The log's root, not its last words, which the host saw as the line that ends the wait.
        (
            failure(
                "health",
                log("vllm-0.24.0-fails-kv-too-small"),
                what="the engine gave up: ERROR EngineCore failed to start.",
            ),
            "kv-pool-too-small",
        ),
        (failure("health", "INFO loading shard 3 of 12\n"), "never-healthy"),
        (failure(exit_code=0, said="INFO serving\n"), "ended-silently"),
        (failure("host", what="docker stop x: a timeout"), "unknown"),
        (failure(exit_code=1, said="KeyError: 'rope_typo'\n"), "unknown"),
        # What a healthy engine does wrong.
        (failure("gate", checks=[wrong("answer_a", ""), wrong("answer_b", "")]), "no-tokens"),
        (failure("gate", checks=[check("answer_capital", "timed out")]), "no-tokens"),
        (failure("gate", checks=[wrong("answer_capital", "Lyon")]), "wrong-answers"),
        # One empty answer among others is no wedge.
        (
            failure("gate", checks=[wrong("answer_capital", "Lyon"), wrong("answer_sum", "")]),
            "wrong-answers",
        ),
        (
            failure(
                "gate",
                checks=[check("answer_a", "<think>", why="the answer contains thinking text (x)")],
            ),
            "thinking-leaks",
        ),
        (
            failure(
                "gate",
                checks=[
                    check("answer_a", "First,", why="only thinking came, and no answer after it"),
                    wrong("answer_b", "5"),
                ],
            ),
            "thinks-too-long",
        ),
        (failure("gate", checks=[check("same_sum", "Four")]), "answers-changed"),
        (failure("gate", checks=[check("accept_length", "1.00")]), "drafts-never-accepted"),
        (failure("gate", checks=[check("accept_length", "no drafts")]), "drafts-never-accepted"),
        (failure("gate", checks=[check("accept_length", "2.00")]), "fewer-drafts-accepted"),
        (failure("gate", checks=[check("speed", "3.0 tokens/s")]), "slower"),
        (failure("gate", checks=[check("api_key", "HTTP 200")]), "key-not-asked-for"),
    ],
)  # fmt: skip
def test_the_root_cause_comes_first(told: dict[str, Any], cause: str) -> None:
    found = failures.explain(told)
    assert found[0].id == cause
    assert found[0].severity == "error"
    assert found[0].why
    assert found[0].fix
    if told["step"] == "gate":
        assert len(found) == 1


def test_an_unknown_failure_shows_its_likely_root_and_what_to_send() -> None:
    said = "INFO fine\nTraceback (most recent call last):\n  x\nKeyError: 'rope_typo'\n"
    root = failures.explain(failure(exit_code=1, said=said))[0]
    assert (root.id, root.line, root.evidence) == ("unknown", 4, "KeyError: 'rope_typo'")
    assert "send the log" in root.fix


def test_a_silent_death_shows_the_last_line() -> None:
    root = failures.explain(failure(exit_code=0, said="INFO one\nINFO two\n"))[0]
    assert root.evidence == "it failed; its last line: INFO two"


def test_settings_of_what_ran_make_the_fix() -> None:
    # The engine says its own at its start; where that is missing, the deployment has them.
    said = next(
        line
        for line in log("vllm-0.24.0-fails-kv-too-small").splitlines()
        if "larger than the available KV cache memory" in line
    )
    settings = {"kv_cache_bytes": 4 << 30, "max_num_seqs": None}
    ran = {"engine_version": "0.24.0", "asked": {"settings": settings}}
    assert "pinned by kv_cache_bytes" not in failures.explain(failure(said=said))[0].why
    assert "pinned by kv_cache_bytes" in failures.explain(failure(said=said), ran)[0].why


def test_questions_that_nobody_could_ask_are_no_symptom() -> None:
    unasked = [
        check("answer_a", "", why="no connection"),
        check("answer_b", "", why="no connection"),
    ]
    assert symptoms.of_checks(unasked) == []
    assert failures.of_run(unasked, "", {"engine_version": "0.24", "asked": {"settings": {}}}) == []


def test_several_symptoms_are_all_told_the_graver_first() -> None:
    checks = [check("speed", "3"), check("answer_sum", "5"), check("api_key", "HTTP 401", ok=True)]
    assert [item.id for item in symptoms.of_checks(checks)] == ["wrong-answers", "slower"]


def test_a_cause_that_several_speak_of_is_told_once_in_its_first_place() -> None:
    told = failure(
        said="vllm: error: unrecognized arguments: --x\n",
        what="No space left on device",
        kernel=[OOM, "NVRM: Xid (PCI:000f:01:00): 79, pid=7, " + OOM],
    )
    ids = [item.id for item in failures.explain(told)]
    assert ids == ["killed-for-memory", "gpu-xid", "unknown-flag", "disk-full"]


def test_a_message_is_told_with_its_cause_where_the_catalogue_knows_one() -> None:
    said = "toomanyrequests: You have reached your unauthenticated pull rate limit."
    first, cause, why, fix = failures.explained(said).splitlines()
    assert (first, cause) == (said, "  cause: the registry's pull limit is reached")
    assert why.startswith("    why: ")
    assert fix.startswith("    fix: ")
    assert failures.explained("no idea") == "no idea"
    # An error, but of no known kind.
    assert failures.explained("KeyError: 'x'") == "KeyError: 'x'"

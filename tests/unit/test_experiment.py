"""Several deployments of one host in turn: what is tried, what is not, and where the host ends."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit import trials
from tests.unit.trials import HOST, Trials

from roost import experiment, fleet, notebooks, runs, ssh
from roost.cli import cli
from roost.errors import RefusedError, RoostError, UsageError
from roost.experiment import Variant
from roost.experiment.host import DEPLOYED, DRAINED, RETURNED

EXECUTE = notebooks.execute


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    made = trials.install(tmp_path, monkeypatch)
    made.speeds = {"dflash": (180.0, 2.5), "ngram": (110.0, 1.2), "none": (100.0, None)}
    return made


def compare(host: Trials, *options: str, choices: str = "dflash,ngram,none") -> Result:
    words = ["compare", "--deploy", choices, "-i", str(host.inventory), "--host", HOST]
    words += ["--suite", "smoke", "--runs", str(host.runs), *options]
    return CliRunner().invoke(cli, words)


def notes(host: Trials) -> tuple[Path, experiment.Notes]:
    (path,) = host.runs.glob(f"*/{experiment.FILE}")
    return path.parent, experiment.Notes.model_validate_json(path.read_text())


def test_a_host_that_takes_part_in_a_rollout_is_left_alone(host: Trials) -> None:
    host.rollout = trials.LEASE
    done = compare(host)
    assert isinstance(done.exception, RefusedError)
    assert f"{HOST}: takes part in what somebody else does; nothing" in str(done.exception)
    assert "ann@desk rolls out /fleet, since 9, last heard of 10" in str(done.exception)
    assert "roost rollout --take-over" in str(done.exception)
    assert "roost start --despite-lease" in str(done.exception)
    assert "not renewed for a day counts no more" in str(done.exception)
    assert host.calls == []
    assert list(host.links) == ["current"]


def test_a_host_that_a_rollout_has_taken_is_not_brought_back(host: Trials) -> None:
    before = host.links["current"]
    host.taken_at = "deploy ngram"
    done = compare(host)
    assert "takes part in a rollout" in str(done.exception)
    assert f"is left as it is, not brought back to {before}: ann@desk rolls out" in done.stderr
    # Neither what is said nor what is held undoes it later.
    assert "roost rollback" not in str(done.exception)
    assert host.links == {"current": "rolled-out"}
    assert host.rollout == trials.LEASE


def test_a_host_that_somebody_has_deployed_to_is_not_brought_back(host: Trials) -> None:
    before = host.links["current"]
    host.intruder = "theirs-0123"
    done = compare(host)
    assert f"not brought back to {before}: somebody else has deployed theirs-0123" in done.stderr
    assert [call for call in host.calls if call.startswith("rollback")] == []
    assert host.links == {"current": "theirs-0123"}
    assert host.rollout is None


def test_nothing_is_deployed_over_what_somebody_has_deployed(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same release as is tried, so that what is measured is right."""

    def execute_all(*words: Any, **options: Any) -> Any:
        yield from host.execute_all(*words, **options)
        host.deployed(host.links["current"])

    monkeypatch.setattr(notebooks, "execute_all", execute_all)
    theirs = host.release({"roost_speculation": "dflash"})
    said = str(compare(host).exception)
    assert "ngram was not deployed" in said
    assert f"somebody else has deployed {theirs} since" in said
    assert host.links == {"current": theirs}
    _, kept = notes(host)
    assert [one.name for one in kept.tried if one.run] == ["dflash"]


def overtaken(host: Trials, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Somebody's deploy passes while this call waits for its end; the call then drains the host
    and is refused by it.
    """

    def ask(*words: Any, **options: Any) -> Any:
        calls = len(host.calls)
        found = host.ask(*words, **options)
        if host.calls[calls:] == [at]:
            host.deployed("theirs-0123")
            host.drained = True
            return {}, {HOST: "somebody else has deployed there since"}
        return found

    monkeypatch.setattr(fleet, "ask", ask)


def test_what_somebody_has_deployed_meanwhile_gets_requests(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(roost_gateway="gate")
    overtaken(host, monkeypatch, "deploy ngram")
    done = compare(host)
    assert "somebody else has deployed there since" in str(done.exception)
    assert "is left as it is" in done.stderr
    assert host.calls[-1] == "return"
    assert not host.drained
    assert host.links == {"current": "theirs-0123"}


def test_or_it_is_said_why_not(host: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write(roost_gateway="gate")
    overtaken(host, monkeypatch, "deploy ngram")
    host.failing = {"return": "host-01: its gateway gate sends it no requests"}
    done = compare(host)
    assert "somebody else has deployed there since" in str(done.exception)
    assert "host-01: its gateway gate sends it no requests" in done.stderr


@pytest.mark.parametrize("others", ["lease", "held"])
def test_what_others_only_try_gets_no_requests(
    host: Trials, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    host.write(roost_gateway="gate")
    host.taken_at = "deploy ngram"
    taken = host.deployed

    def by_an_experiment(release: str) -> None:
        if others == "lease":
            taken(release)
            monkeypatch.setattr(trials, "LEASE", {**trials.LEASE, "experiment": "tune"})
        else:  # by a rollout that has ended since, without a change
            monkeypatch.setattr(trials, "LEASE", None)
        host.drained = True

    monkeypatch.setattr(host, "deployed", by_an_experiment)
    assert "takes part in a rollout" in str(compare(host).exception)
    assert "return" not in host.calls
    assert host.drained


def test_a_way_back_that_came_too_late_is_no_failure(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(roost_gateway="gate")
    before = host.links["current"]
    overtaken(host, monkeypatch, f"rollback {before}")
    host.failing = {"benchmark ngram": "its engine was stopped"}
    done = compare(host)
    assert "the benchmark of ngram cannot be believed" in str(done.exception)
    # It would undo what they have deployed.
    assert "roost rollback" not in str(done.exception)
    assert f"not brought back to {before}: somebody else has deployed theirs-0123" in done.stderr
    assert not host.drained
    assert host.links == {"current": "theirs-0123"}


def test_a_way_back_that_ends_before_the_gateway_is_a_failure(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.links["current"]

    def ask(*words: Any, **options: Any) -> Any:
        found = host.ask(*words, **options)
        # The host has forgotten the experiment by then, as after somebody else's deploy.
        return ({}, {HOST: "gate is down"}) if words[0] == "rollback" else found

    monkeypatch.setattr(fleet, "ask", ask)
    said = str(compare(host).exception)
    assert f"was not brought back to {before}\n  why: gate is down" in said


def killed(host: Trials, at: str) -> None:
    """An experiment, by kill -9."""
    host.killed_at = at
    with pytest.raises(trials.Killed):
        compare(host)
    host.killed_at, host.killed = "", False


def test_after_a_kill_the_next_one_goes_back_to_what_served(host: Trials) -> None:
    before = host.links["current"]
    killed(host, "benchmark ngram")
    assert host.links == {"current": host.release({"roost_speculation": "ngram"}), "held": before}
    assert host.rollout is not None
    done = compare(host)
    assert done.exit_code == 0
    assert f"an experiment was not ended here; it will go back to {before}" in done.stderr
    assert host.links == {"current": before}
    assert host.rollout is None


def test_after_a_kill_on_the_way_back_the_host_is_brought_back(host: Trials) -> None:
    """Everything is measured then."""
    before = host.links["current"]
    killed(host, f"rollback {before}")
    host.calls.clear()
    done = compare(host)
    assert done.exit_code == 0
    assert host.calls == [f"rollback {before}", "notebook compare"]
    assert host.links == {"current": before}


@pytest.mark.parametrize("refused", ["planner", "preflight"])
def test_after_a_kill_the_host_is_brought_back_also_where_nothing_can_run_now(
    host: Trials, refused: str
) -> None:
    before = host.links["current"]
    killed(host, "benchmark ngram")
    _, measured = notes(host)
    host.calls.clear()
    if refused == "planner":
        host.refuses = lambda _: "the pool holds no request"
    else:
        host.failing = {"deploy preflight none": "no room on the disk"}
    done = compare(host)
    assert isinstance(done.exception, RefusedError)
    assert f"{before} serves again" in done.stderr
    assert "nothing was tried" in str(done.exception)
    assert [call for call in host.calls if "preflight" not in call] == [f"rollback {before}"]
    assert host.links == {"current": before}
    assert host.rollout is None
    # What was measured is not forgotten for it.
    assert notes(host)[1] == measured


def test_a_refused_one_that_cannot_bring_the_host_back_says_both(host: Trials) -> None:
    before = host.links["current"]
    killed(host, "benchmark ngram")
    host.failing = {
        "deploy preflight none": "no room on the disk",
        f"rollback {before}": "image i is gone",
    }
    said = str(compare(host).exception)
    assert f"was not brought back to {before}" in said
    assert "image i is gone" in said
    assert "no room on the disk" in said


def test_after_a_kill_what_somebody_has_deployed_since_is_what_served(host: Trials) -> None:
    killed(host, "benchmark ngram")
    host.deployed("theirs-0123")
    assert compare(host).exit_code == 0
    assert host.calls[-2:] == ["rollback theirs-0123", "notebook compare"]
    assert host.links == {"current": "theirs-0123"}


def test_a_host_of_another_experiment_is_left_alone(host: Trials) -> None:
    """One with runs elsewhere, which the lock beside runs does not tell apart."""
    killed(host, "benchmark ngram")
    before, owner = dict(host.links), host.rollout
    host.calls.clear()
    done = compare(host, "--runs", str(host.folder / "elsewhere"))
    assert isinstance(done.exception, RefusedError)
    assert f"tries deployments (compare) of {host.inventory}" in str(done.exception)
    assert host.calls == []
    assert (host.links, host.rollout) == (before, owner)


@pytest.mark.parametrize("release", ["theirs-0123", "the same"])
def test_a_deploy_that_was_at_work_before_is_not_undone(
    host: Trials, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    host.write(roost_gateway="gate")
    theirs = host.links["current"] if release == "the same" else release
    run = host.run

    def passes(argv: Any) -> Any:
        if argv[0] == "ln":
            host.deployed(theirs)
        return run(argv)

    monkeypatch.setattr(host, "run", passes)
    assert "somebody else has just deployed there" in str(compare(host).exception)
    assert host.links == {"current": theirs}
    assert host.rollout is None
    assert "drain" not in host.calls


def test_the_host_is_free_again_where_nothing_could_be_held(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = host.run

    def full(argv: Any) -> Any:
        return ssh.Completed(1, "", "No space left on device") if argv[0] == "ln" else run(argv)

    monkeypatch.setattr(host, "run", full)
    said = str(compare(host).exception)
    assert "cannot be held; nothing was changed\n  why: No space left on device" in said
    assert host.rollout is None


def test_choices_are_tried_in_turn_and_the_host_is_back(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The notebook at the end is the real one.
    monkeypatch.setattr(notebooks, "execute", EXECUTE)
    before = host.links["current"]
    done = compare(host, "--json")
    assert done.exit_code == 0, done.output
    tried = ["dflash", "ngram", "none"]
    assert host.calls == [
        *[f"deploy preflight {name}" for name in tried],
        *[f"{what} {name}" for name in tried for what in ("deploy", "benchmark")],
        f"rollback {before}",
    ]
    assert host.links == {"current": before}
    (outcome,) = json.loads(done.stdout)
    checks = {check["id"]: check for check in outcome["result"]["checks"]}
    assert checks["recommend code-c1"]["observed"].startswith("dflash: 1.6")
    assert checks["recommend all-c8"]["observed"].startswith("dflash: 1.6")
    assert checks["counters prose-c8 ngram"]["ok"]
    assert all(check["ok"] for check in checks.values())
    assert runs.read(Path(outcome["run"])).notebook == "compare"


@pytest.mark.parametrize("refused", ["planner", "preflight"])
def test_nothing_is_touched_where_one_of_them_cannot_run(host: Trials, refused: str) -> None:
    if refused == "planner":
        host.failing = {}
        done = compare(host, choices="dflash,mtp")
        assert isinstance(done.exception, UsageError)
        assert "mtp" in str(done.exception)
        host.refuses = lambda _: "the pool holds no request"
        done = compare(host)
        assert "dflash: kv-too-small: the pool holds no request" in str(done.exception)
        assert host.calls == []
    else:
        host.failing = {"deploy preflight ngram": "host-01 cannot run it: no room on the disk"}
        done = compare(host)
        assert "ngram: host-01 cannot run it: no room on the disk" in str(done.exception)
        assert [call for call in host.calls if "preflight" not in call] == []
    # It would be listed as one that was killed.
    assert list(host.runs.iterdir()) == []
    assert isinstance(done.exception, RefusedError)
    assert "nothing was tried" in str(done.exception)
    assert set(host.links) == {"current"}


@pytest.mark.parametrize(
    ("failing", "says"),
    [
        (
            {"deploy ngram": "release r does not pass: it is healthy, but answers wrongly."},
            "wrongly",
        ),
        ({"benchmark ngram": "a failed check"}, "the benchmark of ngram cannot be believed"),
    ],
)
def test_the_host_is_back_after_a_failure_and_a_rerun_goes_on(
    host: Trials, failing: dict[str, str | BaseException], says: str
) -> None:
    before = host.links["current"]
    host.failing = failing
    done = compare(host)
    assert isinstance(done.exception, RoostError)
    assert says in str(done.exception)
    assert host.links == {"current": before}
    assert host.calls[-1] == f"rollback {before}"
    host.calls.clear()
    host.failing = {}
    assert compare(host).exit_code == 0
    assert [call for call in host.calls if call.startswith(("deploy d", "benchmark"))] == [
        "benchmark ngram",
        "benchmark none",
    ]
    # That one is finished; the next is a new one.
    host.calls.clear()
    assert compare(host).exit_code == 0
    assert "benchmark dflash" in host.calls


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("at", ["deploy none", "benchmark none"])
def test_an_interruption_brings_the_host_back(
    host: Trials,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    number: int,
    at: str,
) -> None:
    # What nohup runs ignores it.
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, ignored))
    before = host.links["current"]

    def ask(*words: Any, **options: Any) -> Any:
        found = host.ask(*words, **options)
        if words[0] != "lease" and host.calls[-1] == at:
            os.kill(os.getpid(), number)
        return found

    def execute_all(*words: Any, **options: Any) -> Any:
        for outcome in host.execute_all(*words, **options):
            if host.calls[-1] == at:
                os.kill(os.getpid(), number)
            yield outcome

    monkeypatch.setattr(fleet, "ask", ask)
    monkeypatch.setattr(notebooks, "execute_all", execute_all)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    done = compare(host)
    # click's own of Ctrl-C is an exit; `roost` itself says "interrupted" and exits with 130.
    assert done.exit_code != 0
    assert "host-01: interrupted" in done.stderr
    assert host.links == {"current": before}
    assert [
        signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ] == handlers
    folder, kept = notes(host)
    assert [one.name for one in kept.tried if one.run] == ["dflash", "ngram"]
    assert not (folder / runs.RESULT).exists()


def test_a_host_that_cannot_be_brought_back_is_said_and_stays_held(host: Trials) -> None:
    before = host.links["current"]
    host.failing = {
        "deploy none": "it does not start",
        f"rollback {before}": "host-01: image i is gone",
    }
    done = compare(host)
    said = str(done.exception)
    assert f"host-01 was not brought back to {before}" in said
    assert "why: host-01: image i is gone" in said
    assert "it does not start" in said
    assert f"roost rollback -i {host.inventory} --limit host-01 --to {before}" in said
    assert host.links["held"] == before
    # It is said, and nobody else is kept from doing it.
    assert host.rollout is None
    # The next one knows where to go back to, whatever serves by then.
    host.failing = {}
    done = compare(host)
    assert done.exit_code == 0
    assert f"it will go back to {before}" in done.stderr
    assert host.links == {"current": before}


def test_two_at_once_do_not_share_a_host(host: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second would go on with the first one's notes, and deploy over what it measures."""
    seen: list[Result] = []

    def execute_all(*words: Any, **options: Any) -> Any:
        if not seen:
            calls = len(host.calls)
            seen.append(compare(host, "--anew", choices="ngram,none"))
            assert [call for call in host.calls[calls:] if "preflight" not in call] == []
        yield from host.execute_all(*words, **options)

    monkeypatch.setattr(notebooks, "execute_all", execute_all)
    assert compare(host).exit_code == 0
    (second,) = seen
    assert "another search or comparison deploys and measures there" in str(second.exception)
    # It is over with the process.
    assert compare(host).exit_code == 0


def test_a_folder_of_runs_that_is_closed_is_said_to_be(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def closed(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if ".experiment-" in str(path) and flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", closed)
    refused = str(compare(host).exception)
    assert "cannot be opened\n  why: Permission denied" in refused


def test_clients_do_not_get_what_is_only_tried(host: Trials) -> None:
    host.write(roost_gateway="gate")
    before = host.links["current"]
    assert compare(host).exit_code == 0
    assert host.calls[3:5] == ["drain", "deploy dflash"]
    assert host.calls[-2:] == [f"rollback {before}", "notebook compare"]
    assert host.measured_drained == [True, True, True]
    assert not host.drained


def test_a_host_that_is_not_drained_is_not_measured(host: Trials) -> None:
    host.write(roost_gateway="gate")
    before = host.links["current"]
    host.failing = {"drain": "host-01: it was not drained, and nothing was changed"}
    assert "it was not drained" in str(compare(host).exception)
    assert host.calls[3:] == ["drain", f"rollback {before}"]
    assert host.links == {"current": before}


def test_what_stays_on_a_fresh_host_gets_requests(host: Trials) -> None:
    host.write(roost_gateway="gate")
    host.links.clear()
    host.drained = True
    assert compare(host).exit_code == 0
    assert host.calls[-2:] == ["return", "notebook compare"]
    assert not host.drained


def test_what_is_waited_for_in_playbooks_is_there() -> None:
    roles = Path(__file__).parents[2] / "roles"
    for file, task in {
        "llm_server/tasks/transaction.yml": DEPLOYED,
        "gateway/tasks/drain.yml": DRAINED,
        "gateway/tasks/return.yml": RETURNED,
    }.items():
        assert f"- name: {task}\n" in (roles / file).read_text()


def test_on_a_fresh_host_the_last_one_stays(host: Trials) -> None:
    host.links.clear()
    done = compare(host)
    assert done.exit_code == 0
    assert "nothing is deployed; the last that is measured will stay" in done.stderr
    assert host.links == {"current": host.release({"roost_speculation": "none"})}


def test_somebody_else_s_deploy_is_not_measured_as_ours(host: Trials) -> None:
    host.intruder = "theirs-0123"
    done = compare(host)
    assert "somebody else deployed theirs-0123 meanwhile" in str(done.exception)
    _, kept = notes(host)
    assert [one.run for one in kept.tried] == [None, None, None]


def test_the_gate_does_not_judge_a_variant_by_the_one_before(
    host: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def ask(playbook: str, *words: Any, **options: Any) -> Any:
        if playbook == "deploy" and "tags" not in options:
            given.append(options["extra_vars"])
        return host.ask(playbook, *words, **options)

    monkeypatch.setattr(fleet, "ask", ask)
    assert compare(host).exit_code == 0
    assert [one["roost_speed_floor"] for one in given] == [0, 0, 0]
    assert [one["roost_accept_length_floor"] for one in given] == [0, 0, 0]


def test_what_comes_to_the_same_release_is_tried_once(host: Trials) -> None:
    same = {"roost_speculation": "none"}
    begun = experiment.begin(
        "compare",
        host.inventory,
        HOST,
        lambda *_: [Variant("one", same), Variant("two", same)],
        suite="smoke",
        runs_dir=host.runs,
    )
    assert [one.refusal for one in begun.notes.tried] == [None, "the same as one"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--deploy", "dflash"], "--deploy needs --inventory and --host and --suite"),
        (["a", "--host", "h"], "--host goes with --deploy"),
        ([], "give two RUNs, or --deploy CHOICES"),
    ],
)
def test_options_that_make_no_sense_together(words: list[str], says: str) -> None:
    done = CliRunner().invoke(cli, ["compare", *words])
    assert done.exit_code == 2
    assert says in done.output


def test_one_choice_is_no_comparison(host: Trials) -> None:
    for choices in ("dflash", "dflash,dflash"):
        done = compare(host, choices=choices)
        assert isinstance(done.exception, UsageError)
        assert "two different choices" in str(done.exception)

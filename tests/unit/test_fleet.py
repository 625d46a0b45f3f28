"""Running playbooks: interruptions, and what is asked of Ansible."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ansible_runner
import pytest

from roost import fleet
from roost.errors import RoostError, UsageError

INVENTORY = Path(__file__).parents[2] / "inventory" / "lab"


def run(status: str, events: list[dict[str, Any]] | None = None, **stats: Any) -> Any:
    """A stand-in for ansible-runner, which takes two signals' handlers as the real one does."""

    def runs(**options: Any) -> SimpleNamespace:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        for event in events or []:
            options["event_handler"](event)
        return SimpleNamespace(status=status, rc=0, stats={"processed": {"lab-01": 1}, **stats})

    return runs


@pytest.mark.parametrize("status", ["successful", "canceled"])
def test_signals_are_the_callers_own_again(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    monkeypatch.setattr(ansible_runner, "run", run(status))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    if status == "canceled":
        with pytest.raises(KeyboardInterrupt):
            fleet.run_playbook("deploy", INVENTORY)
    else:
        assert fleet.run_playbook("deploy", INVENTORY).ok
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_terminal_that_goes_away_interrupts_it_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its folder may have the password of sudo in it."""
    folders: list[Path] = []

    def runs(**options: Any) -> Any:
        folders.append(Path(options["private_data_dir"]))
        assert folders[0].parent == tmp_path
        ended = run("canceled")(**options)
        told: list[int] = []
        # As ansible-runner, which ends Ansible and returns.
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
        os.kill(os.getpid(), signal.SIGHUP)
        assert told == [signal.SIGTERM]
        return ended

    monkeypatch.setattr(ansible_runner, "run", runs)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        # Else this process would end.
        monkeypatch.setattr(os, "kill", guarded(os.kill))
        with pytest.raises(KeyboardInterrupt):
            fleet.run_playbook("deploy", INVENTORY)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not folders[0].exists()


def guarded(kill: Any) -> Any:
    """``os.kill`` that fails where nobody takes the signal."""

    def checked(pid: int, number: int) -> None:
        assert signal.getsignal(number) != signal.SIG_DFL
        kill(pid, number)

    return checked


@pytest.mark.parametrize("terminal", [True, False])
def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    seen: dict[str, Any] = {}

    def runs(**options: Any) -> Any:
        seen.update(options["envvars"])
        return run("successful")(**options)

    monkeypatch.setattr(ansible_runner, "run", runs)
    monkeypatch.setattr("roost.terminal.present", lambda: terminal)
    fleet.run_playbook("deploy", INVENTORY)
    assert seen.get("ANSIBLE_NOCOLOR") == (None if terminal else "1")


def test_what_a_run_imports_beforehand_is_found_beside_the_user_s_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ansible-runner names a folder of callbacks itself, so ansible.cfg's is asked no more."""
    seen: dict[str, Any] = {}

    def runs(**options: Any) -> Any:
        seen.update(options["envvars"])
        return run("successful")(**options)

    monkeypatch.setattr(ansible_runner, "run", runs)
    monkeypatch.setenv("ANSIBLE_CALLBACK_PLUGINS", "/their/own")
    fleet.run_playbook("deploy", INVENTORY)
    theirs, ours = seen["ANSIBLE_CALLBACK_PLUGINS"].split(":")
    assert theirs == "/their/own"
    assert (Path(ours) / "preload.py").is_file()


def event(kind: str, host: str, task: str, **result: Any) -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "task": task, "res": result}}


def test_who_was_reached_again_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        event("runner_on_unreachable", "a", "Swap", msg="Broken pipe"),
        event("runner_on_ok", "a", "Say", x=1),
        event("runner_on_ok", "b", "Say", x=2),
        event("runner_on_failed", "b", "Return", msg="no requests"),
        event("runner_on_unreachable", "c", "Swap", msg="No route to host"),
    ]
    ended = run("failed", events, failures={"b": 1}, dark={"c": 1})
    monkeypatch.setattr(ansible_runner, "run", ended)
    found, failed = fleet.ask("deploy", "Say", INVENTORY)
    assert found == {"a": {"x": 1}, "b": {"x": 2}}
    assert failed == {"b": "no requests", "c": "No route to host"}


def test_why_ansible_did_not_start_is_said() -> None:
    with pytest.raises(RoostError, match="ended before it reached a host") as caught:
        fleet.ask("no-such-playbook", "Say", INVENTORY)
    assert "no-such-playbook.yml could not be found" in caught.value.why
    assert "above" not in caught.value.fix


@pytest.mark.parametrize(
    ("text", "limit", "said"),
    [
        ("all: [\n", None, "Ansible cannot read it"),
        ("all: {hosts: {}}\n", None, "no hosts in it"),
        ("all: {hosts: {a: }}\n", "b", "no host matches 'b'"),
    ],
)
def test_an_inventory_without_the_host_is_the_users_slip(
    tmp_path: Path, text: str, limit: str | None, said: str
) -> None:
    (tmp_path / "hosts.yml").write_text(text)
    with pytest.raises(UsageError, match=said):
        fleet.ask("status", "Say", tmp_path / "hosts.yml", limit=limit)


def test_the_pattern_is_given_as_it_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def runs(**options: Any) -> Any:
        given.append(options["limit"])
        return run("successful")(**options)

    monkeypatch.setattr(ansible_runner, "run", runs)
    fleet.run_playbook("deploy", INVENTORY, limit="lab-0[1-2]")
    assert given == [r"~lab\-0(1|2)$"]

"""Running a playbook over an inventory, through ansible-runner.

A relative inventory path makes ansible-runner run no host at all and call that successful, so
paths are made absolute first, and a run that reached no host is a failure.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roost import ansible_environment, interruptions, scratch, terminal
from roost import inventory as inventories
from roost.errors import RoostError
from roost.root import repository_root

#: For playbooks that swap a release: whoever drained the host gives it back to its gateway, once
#: what serves is known to be good for clients.
STAYS_OUT = {"llm_server_return": False}

#: Characters of the end of Ansible's output in which its reason is looked for.
_MOST_SAID = 20_000


@dataclass(frozen=True)
class PlayResult:
    """How a playbook ended, per host."""

    status: str
    changed: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every host was processed and none failed."""
        return self.status == "successful" and bool(self.hosts)

    def require(self, what: str) -> None:
        """Nothing, or the hosts that failed or were not reached.

        Args:
            what: Was done, for the message: ``deploy``.

        Raises:
            RoostError: It did not work on every host.
        """
        if not self.ok:
            ended = {"failed on": self.failed, "did not reach": self.unreachable}
            bad = [f"{how}: {', '.join(hosts)}" for how, hosts in ended.items() if hosts]
            raise RoostError(f"{what} {'; '.join(bad) or f'ended early ({self.status})'}")


def run_playbook(
    name: str,
    inventory: Path,
    *,
    limit: str | None = None,
    tags: str | None = None,
    check: bool = False,
    diff: bool = False,
    become_password: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    watch: Callable[[Mapping[str, Any]], bool] | None = None,
) -> PlayResult:
    """Run ``playbooks/<name>.yml``; Ansible's own output goes to the terminal.

    Args:
        name: Of the playbook.
        inventory: Its path.
        limit: An Ansible host pattern.
        tags: Only tasks with one of these, with commas between them.
        check: Change nothing, say what would change.
        diff: Show differences.
        become_password: For hosts where sudo asks; answered at Ansible's prompt, so it is in no
            argument list and no environment.
        extra_vars: Variables that win over the inventory's.
        watch: Called with every event; Ansible then prints nothing itself. An event for which it
            returns false is dropped and counts in no result.

    Raises:
        UsageError: The inventory cannot be read, or has no host that the pattern matches.
        RoostError: No host was processed, or Ansible did not get that far.
        KeyboardInterrupt: The process was interrupted, or told to end. Ansible's own process was
            killed by then, so no further task begins. Its workers have sessions of their own and
            are not: each goes on to the end of the task that it is at (of all items of a loop), and
            so does what that does on a host.
    """
    import ansible_runner

    path = inventories.resolve_path(inventory)
    root = repository_root()
    options = [*(["--check"] if check else []), *(["--diff"] if diff else [])]
    passwords = {}
    if become_password is not None:
        options.append("--ask-become-pass")
        passwords[r"^BECOME password.*:\s*$"] = become_password
    with (
        interruptions.cleaning_up(),
        scratch.folder("roost-run-") as private,
        _handlers_kept(),
    ):
        run = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(root),
            playbook=str(root / "playbooks" / f"{name}.yml"),
            inventory=str(path),
            limit=inventories.pattern(limit),
            tags=tags,
            cmdline=" ".join(options) or None,
            passwords=passwords or None,
            extravars=dict(extra_vars) if extra_vars else None,
            quiet=watch is not None,
            event_handler=watch,
            envvars={
                "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
                "ANSIBLE_CALLBACK_PLUGINS": _callbacks(root),
                # Ansible sees a terminal of ansible-runner's, whatever ours is.
                **({} if terminal.present() else {"ANSIBLE_NOCOLOR": "1"}),
                **ansible_environment.environment(),
            },
        )
        stats = run.stats or {}
        said = ""
        if watch is not None and not stats:
            with run.stdout as output:
                said = output.read()[-_MOST_SAID:]
    if run.status == "canceled":
        raise KeyboardInterrupt
    result = PlayResult(
        status=run.status,
        changed=dict(stats.get("changed", {})),
        failed=sorted(stats.get("failures", {})),
        unreachable=sorted(stats.get("dark", {})),
        hosts=sorted(stats.get("processed", {})),
    )
    if not result.hosts:
        # What is wrong with the inventory or the pattern is said best where they are read.
        inventories.load(inventory, limit)
        if run.rc:
            raise RoostError(
                f"{inventory}: Ansible ended before it reached a host ({run.status}, exit "
                f"status {run.rc})",
                why=inventories.message(said),
                fix="" if said else "its own message stands above",
            )
        raise RoostError(
            f"{inventory}: no host was processed",
            fix=f"ansible-inventory -i {inventory} --graph",
        )
    return result


def _callbacks(root: Path) -> str:
    """Where callbacks are: ansible-runner adds its own, and ansible.cfg is not asked any more."""
    given = os.environ.get("ANSIBLE_CALLBACK_PLUGINS")
    return os.pathsep.join([*([given] if given else []), str(root / "plugins" / "callback")])


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """ansible-runner takes the handlers of two signals and never gives them back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def ask(
    name: str,
    task: str,
    inventory: Path,
    *,
    limit: str | None = None,
    check: bool = False,
    become_password: str | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    tags: str | None = None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Run a playbook in silence, for what one of its tasks finds out.

    Args:
        name: Of the playbook.
        task: Whose results are wanted, by its name.
        inventory: Its path.
        limit, check, become_password, extra_vars, tags: As for :func:`run_playbook`.

    Returns:
        The task's results by host, and what Ansible said about hosts that did not come to the
        playbook's end.

    Raises:
        UsageError: The inventory cannot be read, or has no host that the pattern matches.
        RoostError: No host was processed, or Ansible did not get that far.
    """
    found: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}

    def watch(event: Mapping[str, Any]) -> bool:
        data = event.get("event_data") or {}
        if event["event"] == "runner_on_ok" and data.get("task") == task:
            found[data["host"]] = data["res"]
        elif event["event"] in {"runner_on_failed", "runner_on_unreachable"}:
            failed[data["host"]] = str(data["res"].get("msg", "no reason given")).strip()
        return True

    result = run_playbook(
        name,
        inventory,
        limit=limit,
        check=check,
        become_password=become_password,
        extra_vars=extra_vars,
        tags=tags,
        watch=watch,
    )
    # A lost connection, for instance, may have come back.
    ended = {*result.failed, *result.unreachable}
    return found, {host: why for host, why in failed.items() if host in ended}

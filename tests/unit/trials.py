"""A host on which experiments deploy and measure, as a few dictionaries.

Playbooks, the benchmark notebook and SSH are stood in for; the plan is whatever a test says. The
real ones are tested on the lab's hosts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.unit.deployments import write_lock
from tests.unit.test_measure_choices import cell
from tests.unit.test_measure_compare import result

from roost import asking, experiment, fleet, notebooks, releases, runs, ssh
from roost import inventory as inventories
from roost.deployment import Deployment
from roost.experiment import Variant
from roost.inventory import Connection, Host, Inventory
from roost.measure import points
from roost.measure.points import Benchmark
from roost.notebooks import Outcome
from roost.plan import gate
from roost.ssh import Completed, SshError

HOST = "host-01"
#: Of a rollout.
LEASE = {"owner": "a1", "who": "ann@desk", "inventory": "/fleet", "since": "9", "renewed": "10"}


class Killed(BaseException):
    """The process is no more: nothing is done after it."""


@dataclass
class Trials:
    """The host and what was done to it; tests change what goes wrong."""

    folder: Path
    links: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    #: By variant: tokens/s, and tokens a step.
    speeds: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    #: Why a deploy, a rollback or a preflight fails, by what it is of.
    failing: dict[str, str | BaseException] = field(default_factory=dict)
    #: What the planner says of settings.
    refuses: Callable[[Mapping[str, Any]], str | None] = lambda _: None
    reachable: bool = True
    #: Whether its gateway sends it no requests.
    drained: bool = False
    #: Whether it was while something was measured.
    measured_drained: list[bool] = field(default_factory=list)
    #: The lease of what the host takes part in, as the probe sees it.
    rollout: dict[str, str] | None = None
    #: The deploy, or the like, that finds that a rollout has taken the host.
    taken_at: str = ""
    #: What somebody else deploys while a benchmark runs.
    intruder: str = ""
    #: What the process is killed at; then whether it is no more.
    killed_at: str = ""
    killed: bool = False
    host: Host = field(init=False)
    #: Of the notebook at the end.
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yml"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def write(self, **variables: Any) -> None:
        """The host's inventory, and what serves by it."""
        write_lock(self.folder / "lock.yml")
        given = {
            "ansible_connection": "local",
            "roost_hardware": "cpu",
            "roost_recipe": "smollm2-135m",
            "roost_lock_file": str(self.folder / "lock.yml"),
            **variables,
        }
        self.inventory.write_text(yaml.safe_dump({"all": {"vars": given, "hosts": {HOST: {}}}}))
        # As Ansible would read it, without the second that it takes.
        self.host = Host(HOST, given, Connection(address="127.0.0.1", local=True))
        self.links["current"] = self.release({})

    def release(self, variables: Mapping[str, Any]) -> str:
        """Id of what variables come to."""
        resolved = experiment.resolve(self.host, Variant("", variables))
        return str(releases.release(resolved)["id"])

    def name(self, variables: Mapping[str, Any]) -> str:
        """What a test calls a variant: its choice, and what it sets."""
        said = [str(variables.get("roost_speculation", ""))]
        said += [f"{key}={value}" for key, value in variables.get("roost_settings", {}).items()]
        return " ".join(word for word in said if word) or "present"

    # -- what stands in

    def load(self, _path: object) -> Inventory:
        return Inventory(self.inventory, {HOST: self.host})

    def execute(
        self, name: str, parameters: Mapping[str, Any], folder: Path, *, resumed: bool
    ) -> runs.Result:
        """A notebook at the end, which finds everything measured."""
        assert resumed, "what was measured lies in its folder already"
        self.calls.append(f"notebook {name}")
        self.parameters = dict(parameters)
        outcome = result(notebook=name)
        runs.write(folder, outcome, {})
        return outcome

    def ask(
        self, playbook: str, _task: str, _inventory: Path, **options: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        variables = options["extra_vars"]
        self.live()
        if playbook == "lease":
            return self.lease(variables["lease_of"][HOST], variables["lease_state"])
        if playbook in {"drain", "return"}:
            self.calls.append(playbook)
            self.live(playbook)
            if why := self.failing.get(playbook):
                return {}, {HOST: str(why)}
            self.drained = playbook == "drain"
            return {HOST: {}}, {}
        tags = f" {options['tags']}" if options.get("tags") else ""
        about = variables.get("rollback_to") or self.name(variables)
        call = f"{playbook}{tags} {about}"
        self.calls.append(call)
        self.live(call)
        if call == self.taken_at:
            self.deployed("rolled-out")
            self.rollout = LEASE
        owner = self.rollout["owner"] if self.rollout else None
        wrong = self.failing.get(call)
        if owner != variables["rollout_owner"] and not (tags and owner is None):
            wrong = "takes part in a rollout"
        if isinstance(wrong, BaseException):
            raise wrong
        if wrong:
            return {}, {HOST: wrong}
        if not tags and variables.get("llm_server_return", True):
            self.drained = False
        if "rollback_to" in variables:
            self.deployed(variables["rollback_to"])
        elif not tags:
            self.links["current"] = self.release(
                {
                    key: value
                    for key, value in variables.items()
                    if not key.endswith("_floor") and key.startswith("roost_")
                }
            )
        return {HOST: {}}, {}

    def deployed(self, release: str) -> None:
        """Somebody has a release serve that is to stay, which ends an experiment."""
        self.links = {"current": release}
        self.rollout = None

    def lease(self, mine: Mapping[str, str], state: str) -> tuple[dict[str, Any], dict[str, str]]:
        """What :mod:`roost.onhost.lease` does."""
        if not self.reachable:
            return {}, {HOST: f"{HOST}: cannot connect"}
        was = self.rollout
        others = was is not None and was["owner"] != mine["owner"]
        if state == "free":
            self.rollout = was if others else None
            return {HOST: {}}, {}
        if not others:
            self.rollout = {**mine, "since": "1", "renewed": "2"}
        return {HOST: {"held": not others, "was": was}}, {}

    def execute_all(
        self, name: str, _inventory: Path, _hosts: Sequence[str], **options: Any
    ) -> Iterator[Outcome]:
        variables = options["parameters"]["variables"]
        about = self.name(variables)
        self.calls.append(f"{name} {about}")
        wrong = self.failing.get(f"{name} {about}")
        if isinstance(wrong, BaseException):
            raise wrong
        self.live(f"{name} {about}")
        self.measured_drained.append(self.drained)
        if self.intruder:
            self.deployed(self.intruder)
        folder = runs.new_folder(options["runs_dir"], HOST, "r", dt.datetime.now(dt.UTC))
        speed, steps = self.speeds.get(about, (100.0, 2.0))
        cells = [
            cell(len(self.calls), speed * users**0.5, steps, kind=kind, users=users)
            for kind in ("code", "prose")
            for users in (1, 8)
        ]
        suite = options["parameters"]["suite"]
        measured = Benchmark(suite=suite, protocol="p", prompts="own", complete=True, cells=cells)
        artefacts = {points.FILE: measured.model_dump_json()}
        speculation = variables.get("roost_speculation", "dflash")
        outcome = result(ok=not wrong, host=HOST, speculation=speculation)
        runs.write(folder, outcome, artefacts)
        yield Outcome(HOST, folder, outcome)

    def live(self, call: str = "") -> None:
        self.killed = self.killed or (call != "" and call == self.killed_at)
        if self.killed:
            raise Killed

    @contextmanager
    def connect(self, _host: object) -> Iterator[Trials]:
        self.live()
        if not self.reachable:
            raise SshError(f"{HOST}: cannot connect")
        yield self

    def run(self, argv: Sequence[str]) -> Completed:
        """What an experiment does on the host by itself."""
        link = argv[-1].rpartition("/")[2]
        if argv[0] == "readlink":
            return Completed(0, self.links.get(link, "") + "\n", "")
        if argv[0] == "ln":
            self.links[link] = argv[2]
        else:
            del self.links[link]
        return Completed(0, "", "")

    def plans(
        self, deployments: Iterable[Deployment], _facts: object, _token: object
    ) -> list[SimpleNamespace]:
        found = []
        for resolved in deployments:
            why = self.refuses(resolved.asked.settings.model_dump(exclude_none=True))
            refused = [SimpleNamespace(id="kv-too-small", summary=why)] if why else []
            found.append(SimpleNamespace(refused=refused))
        return found


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Put the stand-ins in place."""
    made = Trials(folder)
    made.write()
    monkeypatch.setattr(inventories, "load", made.load)
    monkeypatch.setattr(notebooks, "execute", made.execute)
    monkeypatch.setattr(fleet, "ask", made.ask)
    monkeypatch.setattr(notebooks, "execute_all", made.execute_all)
    monkeypatch.setattr(ssh, "connect", made.connect)
    monkeypatch.setattr(asking, "facts", lambda *_: SimpleNamespace(rollout=made.rollout))
    monkeypatch.setattr(gate, "plans", made.plans)
    return made

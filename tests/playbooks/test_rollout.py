"""Rollouts over hosts of a lab, with the stand-in engine: stopped at the canary, and gone on with.

Real hosts, playbooks and notebooks; the benchmark is the short suite `smoke`, on the stand-in's own
harness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.playbooks.playbook import inventory

from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.rollout import record, run
from roost.rollout.record import Rollout

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]


@dataclass
class Fleet:
    """Hosts with a release of the stand-in on them."""

    hosts: Sequence[Host]
    inventory: Path
    image: str
    runs: Path
    said: list[str] = field(default_factory=list)

    def wants(self, *standin: str, **variables: Any) -> None:
        """Have the inventory ask for a release whose engine does these things."""
        path = self.inventory / "hosts.yml"
        document = yaml.safe_load(path.read_text())
        words = [f"--standin-{word}" for word in standin]
        settings = {"image": self.image, "extra_args": words}
        document["all"]["vars"].update(roost_settings=settings, **variables)
        path.write_text(yaml.safe_dump(document))

    def roll_out(self, **options: Any) -> Rollout:
        given = {"suite": "smoke", "runs_dir": self.runs, **options}
        self.said.clear()
        folder, done = run.run(self.inventory, say=self.said.append, **given)
        assert record.read(folder) == done
        return done

    def serving(self) -> list[str]:
        """The first word of each host's engine that says which release it is."""
        script = "docker inspect roost-llm --format '{{join .Config.Cmd \" \"}}'"
        found = []
        for host in self.hosts:
            done = host.exec(["sh", "-c", script])
            words = [word for word in done.stdout.split() if word.startswith("--standin-log=")]
            found.append(words[0].partition("=")[2])
        return found


@pytest.fixture(scope="module")
def fleet(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Fleet:
    shared_lab.lab.registry.start()
    image = standin_image(shared_lab.lab.cache, print)
    hosts = [shared_lab.host("cpu", fresh=True) for _ in range(3)]
    folder = tmp_path_factory.mktemp("rollout")
    where = inventory(
        folder / "inventory",
        shared_lab.lab,
        hosts,
        roost_recipe="smollm2-135m",
        roost_lock_file=str(shared_lab.lab.lock_file),
        roost_ready_timeout=60,
    )
    made = Fleet(hosts, where, image, folder / "runs")
    made.wants("log=first")
    # A fleet that has nothing yet: there is no release to measure before the swap.
    done = made.roll_out(sizes="1,100%")
    assert done.ok, done.reason
    return made


def test_a_new_release_goes_over_the_fleet(fleet: Fleet) -> None:
    fleet.wants("log=second")
    done = fleet.roll_out(sizes="1,100%")
    assert done.ok, done.reason
    assert fleet.serving() == ["second"] * 3

"""A deployed lab host, for every test of a notebook on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.playbooks.playbook import ROOT, deploy, inventory

from roost import inventory as inventories
from roost import notebooks, runs
from roost.deployment import Deployment, from_variables
from roost.lab.build import Artefacts, engine
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host


class Deployed:
    """A lab host that serves, and the inventory it was deployed with."""

    def __init__(self, host: Host, where: Path) -> None:
        self.host = host
        self.where = where

    def deployment(self) -> Deployment:
        chosen = inventories.load(self.where).host(self.host.name)
        return from_variables(chosen.name, chosen.variables, ROOT)

    def verify(self, folder: Path) -> runs.Result:
        """Without what takes long; one test of the notebook does all of it."""
        given = {"inventory": str(self.where), "host": self.host.name}
        brief = {"long_context": 0, "bad_requests": False}
        return notebooks.execute("verify", {**given, **brief}, folder)

    def failed(self, folder: Path) -> dict[str, str]:
        """Each failed check and why."""
        return {check.id: check.why for check in self.verify(folder).failed}


@pytest.fixture(scope="module")
def deployed(
    shared_lab: SharedLab, artefacts: Artefacts, tmp_path_factory: pytest.TempPathFactory
) -> Deployed:
    host = shared_lab.host("cpu", image=f"{engine.REPOSITORY}@{artefacts.image_digest}")
    lab = shared_lab.lab
    where = inventory(
        tmp_path_factory.mktemp("site"),
        lab,
        [host],
        roost_hardware="cpu",
        roost_recipe="smollm2-135m",
        roost_lock_file=str(lab.lock_file),
        roost_hub_client=False,  # the lab's hub needs none
    )
    play = deploy(where)
    assert play.code == 0, play.output
    return Deployed(host, where)

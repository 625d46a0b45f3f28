"""What several tests of playbooks begin with: a release that serves, and small repositories.

Those stand for a recipe that is too large for any lab, with a few bytes each.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from tests.playbooks.standins import Site, ask, standin_site
from tests.unit.plan_checkpoints import write_checkpoint
from tests.unit.plan_configs import dflash, qwen35_35b
from tests.unit.source_000 import DRAFTER
from tests.unit.source_000 import MODEL as TARGET

from roost import lock
from roost.lab import hubstore, paths
from roost.lab.build import Artefacts
from roost.lab.fixtures import SharedLab
from roost.lab.lab import Lab


def publish_standins(lab: Lab, folder: Path) -> dict[str, str]:
    """Publish the stand-ins; their commits by repository."""
    commits = {}
    # What a plan reads of them is real: the config, and a header that a file of weights may have.
    for repo, config in ((TARGET, qwen35_35b()), (DRAFTER, dflash(8, 4096))):
        source = write_checkpoint(
            folder / repo, config, {"norm.weight": ("BF16", [8])}, shards=1, index=False
        )
        (source / "README.md").write_text(f"A stand-in for {repo}: one tensor of a few bytes.\n")
        commits[repo] = hubstore.publish(paths.hub_store(lab.cache), repo, "main", source)
    return commits


@pytest.fixture
def standins(lab: SharedLab, tmp_path: Path) -> dict[str, str]:
    """Commits of the stand-ins, by repository."""
    return publish_standins(lab.lab, tmp_path / "standins")


@pytest.fixture
def standin_lock(standins: dict[str, str], tmp_path: Path) -> str:
    """A lock that pins the recipe to the stand-ins."""
    entries = {
        repo: {
            "main": lock.LockedModel(
                commit=commit, bytes=1000, files=2, resolved=dt.date(2026, 11, 29)
            )
        }
        for repo, commit in standins.items()
    }
    path = tmp_path / "standins.lock.yml"
    lock.write(path, lock.Lock(models=entries))
    return str(path)


@pytest.fixture(scope="module")
def deployed(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Site:
    """A host of the module's own on which a stand-in for an engine serves."""
    folder = tmp_path_factory.mktemp("standin")
    site = standin_site(shared_lab, folder / "inventory", llm_server_start_attempts=2)
    play = site.begin(tags="all").end()
    assert play.code == 0, play.output
    return site


@pytest.fixture
def site(deployed: Site) -> Site:
    """That host with a good release serving, whatever the test before did."""
    if "Paris" not in ask(deployed.host):
        assert deployed.deploy().code == 0
    return deployed

"""The README's own lines, run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml
from tests.playbooks.playbook import ROOT


def line(notebook: str) -> str:
    """The README's line that runs a notebook by papermill; of two, the first."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^papermill notebooks/{notebook}\.ipynb .*$", text, re.MULTILINE)
    assert found
    return found[0]


class Checkout:
    """A checkout whose ``spark-01`` in ``inventory/spark`` is a host of the lab.

    Args:
        folder: Where it is made.
        where: The inventory that the host was deployed with.
        host: Its name there.
    """

    def __init__(self, folder: Path, where: Path, host: str) -> None:
        self.root = folder / "roost"
        self.runs = self.root / "runs"
        self.inventory = self.root / "inventory" / "spark"
        self.inventory.mkdir(parents=True)
        for name in ("deploy.yml", "ansible.cfg", "playbooks", "plugins", "roles", "notebooks"):
            (self.root / name).symlink_to(ROOT / name)
        # Ansible looks there for what of the package runs on hosts.
        (self.root / "src").symlink_to(ROOT / "src")
        document = yaml.safe_load((where / "hosts.yml").read_text())
        document["all"]["hosts"] = {"spark-01": document["all"]["hosts"][host]}
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump(document))

    def run(self, notebook: str, **names: str) -> subprocess.CompletedProcess[str]:
        """Run the README's line in it, with other names where it has names of runs."""
        command = line(notebook)
        for name, other in names.items():
            assert name in command
            command = command.replace(name, other)
        beside = Path(sys.executable).parent
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.root,
            env={**os.environ, "PATH": f"{beside}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )

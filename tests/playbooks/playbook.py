"""Running the real playbook, as a user does, against hosts of a lab."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roost.lab.hosts import Host
from roost.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[2]

_RECAP = re.compile(
    r"^(?P<host>\S+)\s*: ok=\d+\s+changed=(?P<changed>\d+)\s+"
    r"unreachable=(?P<unreachable>\d+)\s+failed=(?P<failed>\d+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Play:
    """How a run of the playbook ended; the maps are by host."""

    code: int
    output: str
    changed: dict[str, int]
    failed: dict[str, int]
    unreachable: dict[str, int]

    def refusal(self, host: Host) -> str:
        """The one message with which a host was refused, on one line."""
        fatal = re.findall(
            rf"^fatal: \[{host.name}\]: .*?(?=^\S|^$)", self.output, re.MULTILINE | re.DOTALL
        )
        assert len(fatal) == 1, self.output
        assert "Traceback" not in self.output
        return " ".join(str(fatal[0]).split())


def inventory(folder: Path, lab: Lab, hosts: Sequence[Host], **variables: Any) -> Path:
    """An inventory of these hosts of a lab, with further variables for all of them."""
    written = lab.inventory()["all"]
    common = {**written["vars"], **variables}
    chosen = {host.name: written["hosts"][host.name] for host in hosts}
    folder.mkdir(parents=True, exist_ok=True)
    document = {"all": {"vars": common, "hosts": chosen}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


def deploy(where: Path, *options: str, **overrides: Any) -> Play:
    """``ansible-playbook deploy.yml -i WHERE`` from the repository root.

    Args:
        where: The inventory.
        options: Further options, such as ``--check``.
        overrides: Variables that win over the inventory's (``-e``).
    """
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "deploy.yml", "-i", str(where)]
    for name, value in overrides.items():
        argv += ["-e", yaml.safe_dump({name: value}, default_flow_style=True, width=10_000)]
    environment = {key: value for key, value in os.environ.items() if "ANSIBLE" not in key}
    done = subprocess.run(
        [*argv, *options],
        cwd=ROOT,
        env={**environment, "ANSIBLE_NOCOLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    recap = list(_RECAP.finditer(done.stdout))
    counts = [
        {found["host"]: int(found[key]) for found in recap}
        for key in ("changed", "failed", "unreachable")
    ]
    return Play(done.returncode, done.stdout + done.stderr, *counts)


def state(host: Host) -> str:
    """Everything on a host that a deploy may change: packages, files, images, containers."""
    script = """
        dpkg-query -W
        find /var/lib/roost /etc/systemd/system /etc/docker -printf '%p %s %T@ %l\\n' | sort
        command -v docker >/dev/null || exit 0
        docker images --digests --no-trunc --format '{{.Digest}} {{.ID}}' | sort
        docker ps -aq | xargs -r docker inspect --format '{{.Id}} {{.State.StartedAt}}'
    """
    done = host.exec(["sh", "-c", script])
    return done.stdout

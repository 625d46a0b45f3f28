"""Running the real playbook, as a user does, against hosts of a lab."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from roost.lab.hosts import Host
from roost.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
#: Callbacks of Ansible's for tests only.
CALLBACKS = Path(__file__).with_name("callbacks")
#: Seconds to wait for what comes soon on a machine that has little to do.
PATIENCE_S = 900.0

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
        # The engine's own may be at the end of its log, which is shown indented.
        log = r"^( *)the end of its log:\n(?:\1 +.*\n| *\n)*"
        assert "Traceback" not in re.sub(log, "", self.output, flags=re.MULTILINE)
        # A message of one line stands in quotes, and its own are doubled.
        return " ".join(str(fatal[0]).split()).replace("''", "'")


def inventory_document(lab: Lab, hosts: Mapping[str, Host], **variables: Any) -> dict[str, Any]:
    """An inventory of these hosts of a lab by the names given them, with further variables.

    A gateway among them is the gateway of the others; one of other tests is none of theirs.
    """
    written = lab.inventory()["all"]
    chosen = {name: dict(written["hosts"][host.name]) for name, host in hosts.items()}
    gates = {name: None for name, host in hosts.items() if host.spec.gateway}
    for name, own in chosen.items():
        if name not in gates and own.pop("roost_gateway", None):
            address = own.pop("roost_listen")
            for gate in gates:
                own.update({"roost_gateway": gate, "roost_listen": address})
    groups = {"gateways": {"hosts": gates}} if gates else {}
    return {"all": {"vars": {**written["vars"], **variables}, "hosts": chosen, "children": groups}}


def inventory(folder: Path, lab: Lab, hosts: Sequence[Host], **variables: Any) -> Path:
    """A folder with :func:`inventory_document` of these hosts, by their own names."""
    folder.mkdir(parents=True, exist_ok=True)
    document = inventory_document(lab, {host.name: host for host in hosts}, **variables)
    (folder / "hosts.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


class Running:
    """A run of a playbook that goes on, with what it has printed so far.

    Args:
        where: The inventory.
        options: Further options, such as ``--check``.
        playbook: From the repository root.
        killed_before: Beginning of the name of a task before which it is killed.
        overrides: Variables that win over the inventory's (``-e``).
    """

    def __init__(
        self,
        where: Path,
        *options: str,
        playbook: str = "deploy.yml",
        killed_before: str = "",
        **overrides: Any,
    ) -> None:
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        argv = [program, playbook, "-i", str(where)]
        for name, value in overrides.items():
            argv += ["-e", yaml.safe_dump({name: value}, default_flow_style=True, width=10_000)]
        environment = {key: value for key, value in os.environ.items() if "ANSIBLE" not in key}
        if killed_before:
            folders = (ROOT / "plugins" / "callback", CALLBACKS)
            environment["ANSIBLE_CALLBACK_PLUGINS"] = ":".join(map(str, folders))
            environment["ROOST_TEST_KILLED_BEFORE"] = killed_before
        # A file, for what outlives a kill would keep a pipe open.
        self._output = Path(tempfile.mkstemp(prefix="playbook-")[1])
        with self._output.open("w") as output:
            self._child = subprocess.Popen(
                [*argv, *options],
                cwd=ROOT,
                env={**environment, "ANSIBLE_NOCOLOR": "1", "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # So that a kill takes what it has started too.
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        # Read while it is written, so a letter of several bytes may be there in part.
        return self._output.read_text(encoding="utf-8", errors="replace")

    def reaches(self, task: str, seconds: float = PATIENCE_S) -> None:
        """Wait until a task has begun."""
        self.says(re.escape(f"TASK [{task}"), seconds)

    def says(self, pattern: str, seconds: float = PATIENCE_S) -> None:
        """Wait until something stands in its output."""
        deadline = time.monotonic() + seconds
        while True:
            # In this order: it may say so last of all.
            goes_on = self._child.poll() is None and time.monotonic() < deadline
            output = self.output
            if re.search(pattern, output, re.MULTILINE):
                return
            assert goes_on, output
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once, as the power cut of a controller would."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self.end()

    def end(self) -> Play:
        """Wait for its end; whoever cannot wait any longer leaves none behind."""
        try:
            code = self._child.wait()
        except BaseException:
            os.killpg(self._child.pid, signal.SIGKILL)
            raise
        text = self.output
        self._output.unlink()
        recap = list(_RECAP.finditer(text))
        counts = [
            {found["host"]: int(found[key]) for found in recap}
            for key in ("changed", "failed", "unreachable")
        ]
        return Play(code, text, *counts)


def deploy(where: Path, *options: str, **overrides: Any) -> Play:
    """``ansible-playbook deploy.yml -i WHERE`` from the repository root; see :class:`Running`."""
    return Running(where, *options, **overrides).end()


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

"""A lab host with the stand-in for an engine: releases that misbehave on command."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.playbooks.playbook import PATIENCE_S, Play, Running, inventory

from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.launch.container import CONTAINER

#: The task that has the host swap and judge.
TRIAL = "llm_server : Have it serve, or what served before"
RELEASES = "/var/lib/roost/releases"


@dataclass
class Site:
    """A host with a release of the stand-in on it."""

    host: Host
    inventory: Path
    image: str

    def begin(
        self,
        *standin: str,
        playbook: str = "deploy.yml",
        tags: str = "llm_server",
        killed_before: str = "",
        **overrides: Any,
    ) -> Running:
        """Begin to deploy a release whose engine does these things."""
        words = [f"--standin-{word}" for word in ("needs=/model/config.json", *standin)]
        settings = {"image": self.image, "extra_args": words}
        if playbook == "deploy.yml":
            overrides = {"roost_settings": settings, **overrides}
            # After the first time, Docker and the weights are there.
            options = ("--tags", tags)
            return Running(self.inventory, *options, killed_before=killed_before, **overrides)
        return Running(self.inventory, playbook=playbook, **overrides)

    def deploy(self, *standin: str, **overrides: Any) -> Play:
        return self.begin(*standin, **overrides).end()

    def sh(self, script: str) -> str:
        done = self.host.exec(["sh", "-c", script])
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def current(self) -> str:
        """Id of the release that is in place."""
        return self.sh(f"readlink {RELEASES}/current").strip()

    def serving(self) -> list[str]:
        """The command line of the engine that is in place and answers rightly."""
        assert "Paris" in ask(self.host)
        inspected = self.sh(f"docker inspect {CONTAINER}")
        command: list[str] = json.loads(inspected)[0]["Config"]["Cmd"]
        return command

    def begun(self) -> bool:
        """Whether a release is on trial, or being put in place."""
        return self.host.exec(["test", "-e", f"{RELEASES}/transaction.json"]).returncode == 0

    def on_trial(self) -> str:
        """Name of the container that is on trial and runs; empty while there is none."""
        return self.sh(
            f"docker ps --filter 'name=^/?{CONTAINER}-' --format '{{{{.Names}}}}'"
        ).strip()

    @contextmanager
    def unchanged(self) -> Iterator[str]:
        """The same release serves before and after, and nothing of another one is left."""
        before, command = self.current, self.serving()
        yield before
        assert (self.current, self.serving()) == (before, command)
        self.rests()

    def rests(self) -> None:
        """Nothing of a swap is left."""
        assert self.sh("docker ps --all --format '{{.Names}}'").split() == [CONTAINER]
        assert not self.begun()


def ask(host: Host) -> str:
    """What the endpoint answers, asked past Ansible; empty if nothing answers."""
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    script = (
        "import sys, urllib.request as u; print(u.urlopen(u.Request("
        "'http://127.0.0.1:8000/v1/chat/completions', sys.stdin.buffer.read())).read().decode())"
    )
    done = host.exec(["python3", "-c", script], text_in=json.dumps(body))
    if done.returncode != 0:
        return ""
    text: str = json.loads(done.stdout)["choices"][0]["message"]["content"]
    return text


def until(true: Any, seconds: float = PATIENCE_S) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def standin_site(shared_lab: SharedLab, folder: Path, **variables: Any) -> Site:
    """A fresh host and its inventory; nothing is deployed there yet."""
    lab = shared_lab.lab
    lab.registry.start()
    image = standin_image(lab.cache, print)
    host = shared_lab.host("cpu", fresh=True, image=image)
    where = inventory(
        folder,
        shared_lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=str(shared_lab.lab.lock_file),
        roost_ready_timeout=180,
        roost_hub_client=False,  # the lab's hub needs none
        **variables,
    )
    return Site(host, where, image)

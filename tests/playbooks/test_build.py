"""An image that nobody publishes: built on a real host from a commit, then deployed from there."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.playbooks.playbook import PATIENCE_S, Play, Running, inventory

from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.launch.container import CONTAINER
from roost.root import CATALOG_VARIABLE

pytestmark = pytest.mark.lab

URL = "https://forge.example.org/engine.git"
NAME = "localhost/engine"
SCRIPT = """
ARG BASE
FROM ${BASE} AS engine
ARG GREETING
RUN echo "$GREETING" > /greeting
RUN %s
"""


class Forge:
    """A repository with the recipe of an image.

    Args:
        folder: Where it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "engine.git"
        self.folder.mkdir(parents=True)
        self._git("init", "--quiet")

    def commit(self, last: str) -> str:
        """Commit a ``docker/Dockerfile`` with this as its third and last step; the commit."""
        path = self.folder / "docker" / "Dockerfile"
        path.parent.mkdir(exist_ok=True)
        path.write_text(SCRIPT % last)
        self._git("add", ".")
        self._git("-c", "user.name=me", "-c", "user.email=me@x", "commit", "--quiet", "-m", "x")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    @contextmanager
    def serve(self, address: str) -> Iterator[str]:
        """Serve it with git's own daemon; its URL."""
        port = 9418
        child = subprocess.Popen(
            [
                *("git", "daemon", "--export-all", f"--base-path={self.folder.parent}"),
                *(f"--listen={address}", f"--port={port}", "--reuseaddr"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        url = f"git://{address}:{port}/engine.git"
        try:
            deadline = time.monotonic() + PATIENCE_S
            while subprocess.run(
                ["git", "ls-remote", url], capture_output=True, check=False
            ).returncode:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield url
        finally:
            # It leaves the work to a child of its own.
            child.terminate()
            child.wait()


def recipe(folder: Path, commit: str, base: str) -> None:
    """The lab's recipe without its published image, in a user's own catalogue."""
    document: dict[str, Any] = {
        "id": "built",
        "title": "A stand-in for an engine that is built",
        "model": {"repo": "roost-lab/SmolLM2-135M-Instruct", "revision": {"branch": "main"}},
        "engine": "vllm",
        "served_name": "built",
        "default_speculation": "none",
        "speculation": {"none": {}},
        "settings": {"max_model_len": 2048},
        "hardware": {},
        "image": {
            "repository": NAME,
            "engine_version": "0.32.0",
            "build": {
                "git": URL,
                "revision": {"commit": commit},
                "directory": "docker",
                "args": {"BASE": base, "GREETING": "hello there"},
            },
        },
        "source": "here",
    }
    path = folder / "recipes" / "built.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))


class Builds:
    """A fresh host, and a forge that it builds from.

    Args:
        lab: Of the host.
        folder: For forge, inventory and recipes.
    """

    def __init__(self, lab: SharedLab, folder: Path) -> None:
        image = standin_image(lab.lab.cache, print)
        # This Docker's BuildKit asks every registry for TLS, and none for an image that is there.
        self.host = lab.host("cpu", fresh=True, image=image)
        self.gateway = str(lab.lab.spec.gateway.ip)
        self.base = f"{self.gateway}:5000/{image}"
        self.forge = Forge(folder / "forge")
        self._inventory = inventory(
            folder / "inventory",
            lab.lab,
            [self.host],
            roost_recipe="built",
            roost_lock_file=str(lab.lab.lock_file),
            roost_hub_client=False,  # the lab's hub needs none
            engine_image_free_gib=1,
            engine_image_progress_interval=0.5,
        )
        self._catalogues = folder / "catalogues"

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """The forge answers at the address that the recipe has for it."""
        with self.forge.serve(self.gateway) as url:
            self.sh(f"printf '[url \"{url}\"]\n insteadOf = {URL}\n' > /etc/gitconfig")
            yield

    def begin(self, commit: str, *options: str, playbook: str = "playbooks/build.yml") -> Running:
        """Begin to build this commit, or to run another playbook with it in the recipe."""
        own = self._catalogues / commit
        recipe(own, commit, self.base)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CATALOG_VARIABLE, str(own))
            return Running(self._inventory, *options, playbook=playbook)

    def deploy(self, commit: str, *options: str) -> Play:
        """Deploy it."""
        return self.begin(commit, *options, playbook="deploy.yml").end()

    def sh(self, script: str) -> str:
        """What a shell on the host prints."""
        done = self.host.exec(["sh", "-c", script])
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def builds(
    shared_lab: SharedLab,
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model
    tmp_path_factory: pytest.TempPathFactory,
) -> Builds:
    shared_lab.lab.hub.start()
    shared_lab.lab.registry.start()
    return Builds(shared_lab, tmp_path_factory.mktemp("builds"))


def test_two_at_once_that_cannot_be_built_each_say_why(builds: Builds) -> None:
    bad = builds.forge.commit("echo the last one; false")
    with builds.reachable():
        running = [
            builds.begin("0" * 40),
            builds.begin(bad),
            builds.begin(bad, "--tags", "preflight", playbook="deploy.yml"),
        ]
        refusals = [run.end().refusal(builds.host) for run in running]
    assert "does not have this commit" in refusals[0]
    assert "was not built at step 3 of 3" in refusals[1]
    assert "the last one" in refusals[1]
    assert "fix: `roost build -i INVENTORY` builds it" in refusals[2]
    assert "roost_allow_unlocked" not in refusals[2]
    assert NAME not in builds.sh("docker images")


def test_a_build_that_is_killed_on_the_host_ends_there_and_is_said(builds: Builds) -> None:
    stuck = builds.forge.commit("sleep 6000")
    with builds.reachable():
        run = builds.begin(stuck)
        run.says("step 3 of 3")
        # The module itself, and not Ansible's wrapper of it.
        builds.sh("pkill -KILL -f '^/usr/bin/python3 [^ ]*AnsiballZ_image_build.py$'")
        refusal = run.end().refusal(builds.host)
    assert "the build was killed" in refusal
    deadline = time.monotonic() + PATIENCE_S
    while builds.sh("pgrep -f 'docker [b]uild|[s]leep 6000' || true"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert NAME not in builds.sh("docker images")


def test_an_image_is_built_on_the_host_and_deployed_from_there(builds: Builds) -> None:
    host, sh = builds.host, builds.sh
    with builds.reachable(), closing(socket.socket()) as gate:
        # The last step takes until somebody listens there.
        gate.bind((builds.gateway, 0))
        knock = f"import socket; socket.create_connection({gate.getsockname()!r}, 5)"
        good = builds.forge.commit(f'until python3 -c "{knock}"; do sleep 0.2; done')
        step = f"{host.name}: {NAME}:{good[:12]} step 3 of 3"
        first = builds.begin(good)
        first.says(step)
        # A controller that is killed ends nothing, and who comes meanwhile waits for it.
        second = builds.begin(good)
        second.says(step)
        first.kill()
        gate.listen()
        play = second.end()
    assert play.code == 0, play.output
    assert play.changed == {host.name: 0}
    (record,) = json.loads(sh("cat /var/lib/roost/builds.json")).values()
    assert (record["commit"], record["image"]) == (good, f"{NAME}:{good[:12]}")
    assert record["id"] == sh(f"docker images --no-trunc -q {record['image']}").strip()
    assert sh("ls -A /var/lib/roost/build 2>/dev/null || true") == ""

    play = builds.deploy(good)
    assert play.code == 0, play.output
    assert sh(f"docker exec {CONTAINER} cat /greeting").strip() == "hello there"
    (inspected,) = json.loads(sh(f"docker inspect {CONTAINER}"))
    assert (inspected["Image"], inspected["Config"]["Image"]) == (record["id"], record["id"])
    released = json.loads(sh("cat /var/lib/roost/releases/current/release.json"))
    assert released["spec"]["image"] == record["id"]

    # The name on something else is not taken for the build; its label finds it again, and the forge
    # is not needed for what is there.
    sh(f"docker tag {builds.base} {record['image']}")
    assert "built from something else" in builds.deploy(good, "--tags", "preflight").refusal(host)
    assert builds.begin(good).end().changed == {host.name: 1}
    assert builds.deploy(good, "--tags", "llm_server").changed == {host.name: 0}

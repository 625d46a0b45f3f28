"""An image that nobody publishes: built on a real host from a commit, then deployed from there."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.playbooks.playbook import Play, Running, deploy, inventory

from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.launch import CONTAINER
from roost.root import CATALOG_VARIABLE

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

URL = "https://forge.example.org/engine.git"
NAME = "localhost/engine"
SCRIPT = """
ARG BASE
FROM ${BASE} AS engine
ARG GREETING
RUN echo "$GREETING" > /greeting
RUN sleep 2; echo the last one; test -e /greeting
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

    def commit(self, dockerfile: str) -> str:
        """Commit it as ``docker/Dockerfile``; the commit."""
        path = self.folder / "docker" / "Dockerfile"
        path.parent.mkdir(exist_ok=True)
        path.write_text(dockerfile)
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
            deadline = time.monotonic() + 10
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


def test_an_image_is_built_on_the_host_and_deployed_from_there(
    lab: SharedLab, artefacts: Artefacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del artefacts  # the hub has the model
    base = f"{lab.lab.spec.gateway.ip}:5000/{standin_image(lab.lab.cache, print)}"
    host = lab.host("cpu", fresh=True)
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [host],
        roost_recipe="built",
        roost_lock_file=str(lab.lab.lock_file),
        engine_image_free_gib=1,
        engine_image_progress_interval=0.5,
    )
    monkeypatch.setenv(CATALOG_VARIABLE, str(tmp_path / "own"))
    forge = Forge(tmp_path / "forge")
    good = forge.commit(SCRIPT)
    bad = forge.commit(SCRIPT.replace("test -e", "test ! -e"))

    def sh(script: str) -> str:
        done = host.exec(["sh", "-c", script])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def build(commit: str) -> Play:
        recipe(tmp_path / "own", commit, base)
        return Running(where, playbook="playbooks/build.yml").end()

    with forge.serve(str(lab.lab.spec.gateway.ip)) as url:
        sh(f"printf '[url \"{url}\"]\\n insteadOf = {URL}\\n' > /etc/gitconfig")
        # This Docker's BuildKit asks every registry for TLS, and none for an image that is there.
        sh(f"docker pull -q {base}")
        for failed, why in (
            (build("0" * 40), "does not have this commit"),
            (build(bad), "was not built at step 3 of 3"),
        ):
            refusal = failed.refusal(host)
            assert why in refusal
            assert NAME not in sh("docker images")
        assert "the last one" in refusal

        refusal = deploy(where, "--tags", "preflight").refusal(host)
        assert "fix: `roost build -i INVENTORY` builds it" in refusal
        assert "roost_allow_unlocked" not in refusal

        play = build(good)
        assert play.code == 0, play.output
        assert play.changed[host.name] > 0
        assert f"{host.name}: {NAME}:{good[:12]} step 3 of 3" in play.output
    # The forge is gone, and not needed for what is there.
    assert build(good).changed == {host.name: 0}
    (record,) = json.loads(sh("cat /var/lib/roost/builds.json")).values()
    assert (record["commit"], record["image"]) == (good, f"{NAME}:{good[:12]}")
    assert record["id"] == sh(f"docker images --no-trunc -q {record['image']}").strip()
    assert sh("ls -A /var/lib/roost/build 2>/dev/null || true") == ""

    play = deploy(where)
    assert play.code == 0, play.output
    assert sh(f"docker exec {CONTAINER} cat /greeting").strip() == "hello there"
    (inspected,) = json.loads(sh(f"docker inspect {CONTAINER}"))
    assert (inspected["Image"], inspected["Config"]["Image"]) == (record["id"], record["id"])
    released = json.loads(sh("cat /var/lib/roost/releases/current/release.json"))
    assert released["spec"]["image"] == record["id"]
    assert deploy(where, "--tags", "llm_server").changed == {host.name: 0}

    # The name on something else is not taken for the build; its label finds it again.
    sh(f"docker tag {base} {record['image']}")
    assert "built from something else" in deploy(where, "--tags", "preflight").refusal(host)
    assert build(good).changed[host.name] == 1
    assert deploy(where, "--tags", "llm_server").changed == {host.name: 0}

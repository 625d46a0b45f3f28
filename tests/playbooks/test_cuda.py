"""CUDA is tried in the image as soon as it is there, while weights come.

On a host that plays two cards Docker hands out GPUs, and the stand-in for NVIDIA's hook puts no
libcuda into the container: what a broken toolkit does too, and the real program meets it for real.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.playbooks.playbook import PATIENCE_S, Running, deploy, inventory
from tests.unit.deployments import ORNITH
from tests.unit.faulty import Faulty
from tests.unit.servers import serving

from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hubserver import application
from roost.lab.pacing import paced

pytestmark = pytest.mark.lab

REVISIONS = "find /var/lib/roost/models -mindepth 2 -maxdepth 2 -printf '%f\\n'"


def test_an_image_in_which_cuda_does_not_start_ends_the_weights_that_came_meanwhile(
    artefacts: Artefacts,
    lab: SharedLab,
    standins: dict[str, str],
    standin_lock: str,
    tmp_path: Path,
) -> None:
    host, gateway = lab.host("rtx5070ti-x2"), str(lab.lab.spec.gateway.ip)
    image = standin_image(lab.lab.cache, print)
    come = threading.Event()

    async def held(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        while not come.is_set():
            await asyncio.sleep(0.05)
        await app(scope, receive, send)

    def sh(script: str) -> str:
        return host.exec(["sh", "-c", script]).stdout

    hub = Faulty(application(artefacts.hub_store))
    hub.order(".safetensors", held)
    with (
        serving(hub, address=gateway) as endpoint,
        # So that the image takes longer than the weights can take to begin.
        paced(gateway, lab.lab.spec.registry_port, 5e6) as registry,
    ):
        where = inventory(
            tmp_path / "inventory",
            lab.lab,
            [host],
            roost_hardware="rtx5070ti-x2",
            roost_recipe=ORNITH,
            roost_lock_file=standin_lock,
            roost_hub_endpoint=endpoint,
            roost_hub_client=False,
            roost_registry_mirror=f"http://{gateway}:{registry}",
            roost_settings={"image": image},
            # What a plan says of an image that nobody knows.
            roost_accept_findings=[],
            llm_server_progress_interval=0.5,
        )
        run = Running(where)
        try:
            # Some bytes of the weights were there before all of the image was.
            target, drafter = standins
            run.says(rf"^{host.name}: image \d+ MB.*; {target} \d+ k?B.*; {drafter} waits")
            assert sh("pgrep -f 'hf_[s]napshot'")
            play = run.end()
        finally:
            come.set()
        message = play.refusal(host)
        assert "CUDA does not start in" in message
        assert "dlopen: libcuda.so.1: cannot open shared object file" in message
        assert "cause: the container has no libcuda" in message
        assert "nvidia-ctk runtime configure" in message
        assert "No more weights come, what arrived is kept" in message
        assert sh("docker ps --all --quiet") == ""

        # Nothing goes on, half of it is hidden, and Ansible's own watcher has tidied up.
        deadline = time.monotonic() + PATIENCE_S
        while sh("pgrep -f 'hf_[s]napshot'"):
            assert time.monotonic() < deadline, sh("ps -e -o pid,ppid,pgid,stat,etimes,args")
            time.sleep(0.2)
        assert sh(REVISIONS).split() == [f".{standins[target]}.partial"]
        assert sh("ls /root/.ansible_async; ls -d /root/.ansible/tmp/*") == ""

        again = deploy(where, "--tags", "model_store")
        assert again.code == 0, again.output
        asked = hub.of(f"{standins[target]}/config.json")
        # Others were the plan's, on the controller.
        assert len([one for one in asked if one.headers["user-agent"] == "roost"]) == 1
        assert sorted(sh(REVISIONS).split()) == sorted(standins.values())

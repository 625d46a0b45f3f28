"""One copy over the WAN: two hosts behind a mirror, then behind a bundle with nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.playbooks.playbook import Play, Running, inventory
from tests.playbooks.standins import ask, until
from tests.unit.faulty import Faulty
from tests.unit.servers import serving

from roost import bundle, registry_server
from roost.lab import hubstore
from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.lab.hubserver import application

pytestmark = pytest.mark.lab

KEY, HUB_TOKEN = "k3y-of-the-mirror", "t0ken-of-the-hub"
MODEL = "roost-lab/SmolLM2-135M-Instruct"
COPIES, BUNDLE = "/var/lib/roost-mirror", "/srv/bundle"
REGISTRY_PORT = 5555


@dataclass
class Upstream:
    """A hub and a registry far away, that say how much they gave."""

    hub_url: str
    registry: str
    hub: Faulty
    log: Path

    def image_bytes(self) -> int:
        """Bytes of layers that the registry sent."""
        lines = [line for line in self.log.read_text().splitlines() if "/blobs/sha256:" in line]
        return sum(
            int(found[1])
            for line in lines
            if "method=GET" in line and (found := re.search(r"response\.written=(\d+)", line))
        )


@contextmanager
def upstream(lab: SharedLab, artefacts: Artefacts, folder: Path) -> Iterator[Upstream]:
    address, log = str(lab.lab.spec.gateway.ip), folder / "registry.log"
    settings = json.loads(
        registry_server.configuration(lab.lab.cache / "registry", address, REGISTRY_PORT)
    )
    settings["log"]["level"] = "info"
    (folder / "registry.json").write_text(json.dumps(settings))
    hub = Faulty(application(artefacts.hub_store, token=HUB_TOKEN))
    with serving(hub, address=address) as url, log.open("w") as output:
        child = subprocess.Popen(
            registry_server.command(folder / "registry.json"),
            stdout=output,
            stderr=output,
            env=registry_server.environment(),
        )
        try:
            registry_server.wait(address, REGISTRY_PORT, log, child.poll)
            yield Upstream(url, f"http://{address}:{REGISTRY_PORT}", hub, log)
        finally:
            child.terminate()
            child.wait()


class Fleet:
    """Two hosts, of which the first is also the mirror."""

    def __init__(self, lab: SharedLab, folder: Path) -> None:
        self.image = standin_image(lab.lab.cache, print)
        self.hosts = [lab.host("cpu", fresh=True) for _ in range(2)]
        self.mirror, self.other = self.hosts
        self.lab = lab.lab
        at = self.mirror.address
        self.url, self.registry = f"http://{at}:8090", f"{at}:5000"
        common: dict[str, Any] = {
            "roost_recipe": "smollm2-135m",
            "roost_lock_file": str(lab.lab.lock_file),
            "roost_settings": {"image": self.image},
            "roost_ready_timeout": 180,
            "roost_hub_endpoint": self.url,
            "roost_hub_token": KEY,
            "roost_hub_client": False,
            "roost_registry_mirror": f"http://{self.registry}",
            "roost_registry_logins": [
                {"registry": self.registry, "username": "roost", "password": KEY}
            ],
            "mirror_allow": [str(lab.lab.spec.subnet)],
            "mirror_key": KEY,
            "mirror_min_free": "1g",
        }
        self.inventory = inventory(folder / "inventory", lab.lab, self.hosts, **common)
        (self.inventory / "mirror.yml").write_text(f"mirror: {{hosts: {{{self.mirror.name}: }}}}")

    def set_up(self, *options: str, **variables: Any) -> Play:
        return Running(self.inventory, *options, playbook="playbooks/mirror.yml", **variables).end()

    def deploy(self, *options: str) -> Play:
        play = Running(self.inventory, *options).end()
        assert play.code == 0, play.output
        return play

    def pull(self, host: Host) -> subprocess.Popen[bytes]:
        """Begin to pull the image from the mirror, as a deploy does."""
        login = self.lab.ssh_command(host.name)
        return subprocess.Popen([*login, f"docker pull -q {self.registry}/{self.image}"])

    def forget(self, host: Host) -> None:
        """Take weights, images and releases away, as if nothing had been deployed."""
        sh(
            host,
            "systemctl stop roost-llm; docker ps -aq | xargs -r docker rm -f; "
            "docker images -q | xargs -r docker rmi -f; rm -rf /var/lib/roost",
        )


def sh(host: Host, script: str) -> str:
    done = host.exec(["sh", "-c", script])
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(host: Host, url: str, *options: str) -> str:
    """What an address answers a host: HTTP status and X-Error-Code."""
    script = (
        "import sys, urllib.error, urllib.request as u\n"
        "headers = dict(one.split(': ', 1) for one in sys.argv[2:])\n"
        "try: print(u.urlopen(u.Request(sys.argv[1], headers=headers)).status)\n"
        "except urllib.error.HTTPError as e: print(e.code, e.headers.get('X-Error-Code'))"
    )
    return host.exec(["python3", "-c", script, url, *options]).stdout.strip()


def test_two_hosts_behind_a_mirror_and_behind_a_bundle(
    lab: SharedLab, artefacts: Artefacts, tmp_path: Path
) -> None:
    fleet = Fleet(lab, tmp_path)
    mirror, other = fleet.mirror, fleet.other
    store = artefacts.hub_store
    repository = hubstore.repository(store, MODEL)
    assert repository
    commit = repository.branches["main"]
    with upstream(lab, artefacts, tmp_path) as far:
        sources = {"mirror_hub": far.hub_url, "mirror_registries": [{"url": far.registry}]}
        refused = fleet.set_up(mirror_hub_token=HUB_TOKEN, mirror_key=None, **sources)
        assert "would get what is gated" in refused.refusal(mirror)
        dry = fleet.set_up("--check", "--diff", **sources)
        assert dry.code == 0, dry.output
        play = fleet.set_up(mirror_hub_token=HUB_TOKEN, **sources)
        assert play.code == 0, play.output
        assert KEY not in play.output
        assert HUB_TOKEN not in play.output
        assert fleet.set_up(mirror_hub_token=HUB_TOKEN, **sources).changed == {mirror.name: 0}
        # What a run wrote that was killed before it restarted anything is not left unread.
        running = sh(mirror, "cat /run/roost-mirror/nginx.pid")
        sh(mirror, "touch /etc/roost-mirror/registry-0.yml")
        assert fleet.set_up(mirror_hub_token=HUB_TOKEN, **sources).changed[mirror.name]
        assert sh(mirror, "cat /run/roost-mirror/nginx.pid") != running
        assert fleet.set_up(mirror_hub_token=HUB_TOKEN, **sources).changed == {mirror.name: 0}

        # Nobody without the key, and nobody from elsewhere.
        asked = f"{fleet.url}/api/models/{MODEL}/revision/{commit}?blobs=true"
        assert status(other, asked) == "401 MirrorKey"
        assert status(other, f"http://{fleet.registry}/v2/") == "401 MirrorKey"
        assert status(other, asked, f"Authorization: Bearer {KEY}") == "200"
        mine = f"Authorization: Bearer {KEY}"
        assert status(mirror, asked.replace(str(mirror.address), "127.0.0.1"), mine) == (
            "403 MirrorNetwork"
        )

        # One copy for two hosts that deploy at the same time.
        far.hub.behave()
        play = fleet.deploy("--tags", "container_host,model_store")
        assert KEY not in play.output
        pulling = [fleet.pull(host) for host in fleet.hosts]
        assert [one.wait() for one in pulling] == [0, 0]
        weights = int(sh(other, "cat /var/lib/roost/models/*/*/*.safetensors | wc -c"))
        assert weights <= far.hub.weight_bytes <= 1.02 * weights
        # The hub's token is the mirror's own; hosts have never seen it.
        tokens = {one.headers.get("authorization") for one in far.hub.requests}
        assert tokens == {f"Bearer {HUB_TOKEN}"}

        def once() -> bool:
            """What the registry far away sent is what the mirror's own one keeps."""
            layers = int(sh(mirror, f"du -sb {COPIES}/registries | cut -f1"))
            return 0.98 * layers <= far.image_bytes() <= 1.02 * layers

        # It keeps a layer after it has handed it out.
        until(once, 60)

        # A damaged copy is noticed by the host, and mended.
        big = f"find {COPIES}/hub -type f -size +10M | head -1"
        sh(mirror, f"printf x | dd of=$({big}) bs=1 seek=9000000 conv=notrunc")
        far.hub.behave()
        sh(other, "rm -rf /var/lib/roost/models")
        fleet.deploy("--limit", other.name, "--tags", "model_store")
        assert 0 < far.hub.weight_bytes < weights

        contents = bundle.of_inventory(fleet.inventory, hub=far.hub_url, registry=far.registry)
        bundle.pack(contents, tmp_path / "bundle", print)
    # Now the mirror has no internet; what it has, it gives.
    fleet.forget(other)
    sh(mirror, "systemctl restart roost-mirror roost-mirror-registry@0")
    fleet.deploy("--limit", other.name, "--tags", "model_store")
    assert fleet.pull(other).wait() == 0
    gone = asked.replace(commit, "0" * 40)
    assert status(other, gone, mine) == "502 MirrorUpstream"

    # A bundle, copied half, then whole, and nothing else far and wide.
    lab.lab.hub.stop()
    lab.lab.registry.stop()
    copy(tmp_path / "bundle", fleet)
    shard = sh(mirror, f"find {BUNDLE}/hub -name '*.safetensors' | head -1").strip()
    sh(mirror, f"truncate -s 1000 {shard}")
    refused = fleet.set_up(mirror_bundle=BUNDLE)
    assert Path(shard).name in refused.refusal(mirror)
    assert "Copy it again" in refused.refusal(mirror)
    copy(tmp_path / "bundle", fleet)
    play = fleet.set_up(mirror_bundle=BUNDLE)
    assert play.code == 0, play.output
    sh(mirror, f"rm -rf {COPIES}/hub {COPIES}/registries {COPIES}/layers")
    for host in fleet.hosts:
        fleet.forget(host)
    fleet.deploy()
    assert all("Paris" in ask(host) for host in fleet.hosts)
    assert status(other, gone, mine) == "404 MirrorRevision"


def copy(folder: Path, fleet: Fleet) -> None:
    """Copy a bundle to the mirror, as `scp -r` does."""
    login = fleet.lab.ssh_command(fleet.mirror.name)
    with subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(
            [*login, f"mkdir -p {BUNDLE} && tar -C {BUNDLE} -x"],
            stdin=packed.stdout,
            stdout=sys.stderr,
            check=True,
        )

"""Gated weights and private registries on a real host: secrets open them, and are seen nowhere."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import threading
import time
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.playbooks.playbook import ROOT, Play, Running, deploy, inventory
from tests.unit import faulty
from tests.unit.faulty import Faulty
from tests.unit.servers import serving

from roost import notebooks
from roost.lab.build import Artefacts
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.lab.hubserver import application

pytestmark = pytest.mark.lab

TOKEN = "t0ken-of-tests"
PASSWORD = "p4ssword-of-tests"
KEY = "k3y-of-tests"
MODELS = "/var/lib/roost/gated"


#: Everything that shows of processes on a host. The engine's environment holds the key, as it has
#: to (docs/api-key.md), and no other process's may.
WATCH = """
rm -f /run/seen /run/stop
nohup sh -c 'while [ ! -e /run/stop ]; do for process in /proc/[0-9]*; do
  cat $process/cmdline
  grep -q "docker[-/][0-9a-f]" $process/cgroup || cat $process/environ
done; done >/run/seen 2>/dev/null' >/dev/null 2>&1 &
"""
#: Everything on a host that could hold a secret, less the two files that are there for it.
TRACES = """
docker ps --all --quiet | xargs docker inspect >/run/inspected
docker images --quiet | xargs docker inspect >>/run/inspected
docker ps --all --quiet | xargs -n 1 docker logs >/run/logs 2>&1
journalctl --no-pager --output=verbose >/run/journal 2>/dev/null
test -s /run/inspected && test -s /run/logs && test -s /run/journal && test -s /run/seen
grep -rlaF %s /run /var/lib/roost /var/log /etc /root /tmp /var/tmp |
  grep -vxF -e /var/lib/roost/secrets/api-key -e /root/.docker/config.json || true
"""


class Gated(Faulty):
    """A hub that gives nothing without the token."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        if scope["type"] == "http" and given != f"Bearer {TOKEN}":
            await faulty.refuse(401, "GatedRepo")(self.app, scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def prune(where: Path, *options: str) -> str:
    """The playbook that removes weights; what it said."""
    done = subprocess.run(
        ["ansible-playbook", "playbooks/prune.yml", "-i", where, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def there(host: Host) -> set[str]:
    """Revisions and partial downloads on a host."""
    return set(host.exec(["sh", "-c", f"cd {MODELS} && ls -d */* */.[0-9a-f]*"]).stdout.split())


def test_gated_weights(lab: SharedLab, artefacts: Artefacts, tmp_path: Path) -> None:
    host = lab.host()
    hub = Gated(application(artefacts.hub_store))
    with serving(hub, address=str(lab.lab.spec.gateway.ip)) as endpoint:
        common = {
            "roost_recipe": "smollm2-135m",
            "roost_lock_file": str(lab.lab.lock_file),
            "roost_hub_endpoint": endpoint,
            "roost_model_dir": MODELS,
        }
        play = deploy(
            inventory(tmp_path / "closed", lab.lab, [host], **common), "--tags", "model_store"
        )
        refusal = play.refusal(host)
        assert "gated: saw" in refusal
        assert "set roost_hub_token" in refusal

        opened = inventory(tmp_path / "open", lab.lab, [host], **common, roost_hub_token=TOKEN)
        # Everything that shows of processes on the host, all the while.
        host.exec(
            ["sh", "-c", "rm -f /run/seen /run/stop; nohup sh -c 'while [ ! -e /run/stop ]; do "
             "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; done >/run/seen 2>/dev/null' "
             ">/dev/null 2>&1 &"]
        )  # fmt: skip
        play = deploy(opened, "-vvv", "--diff", "--tags", "model_store")
        host.exec(["touch", "/run/stop"])
    assert play.code == 0, play.output
    fetched = there(host)
    assert len(fetched) == 2
    assert TOKEN not in play.output
    assert (
        host.exec(["grep", "-aqF", "/var/lib/roost/venv/bin/python", "/run/seen"]).returncode == 0
    )
    # Ansible's wrapper of a background job removes the module, with what it was given, within 5 s.
    deadline = time.monotonic() + 120
    searched = f"grep -rlF {TOKEN} /run/seen /var/lib/roost /var/log /root/.ansible /etc || true"
    while (found := host.exec(["sh", "-c", searched]).stdout) and time.monotonic() < deadline:
        time.sleep(1)
    assert found == ""

    # An old revision goes only by the verb for it, and not while a release names it.
    released, old = "1" * 40, "2" * 40
    record = json.dumps({"weights": [{"revision": released}]})
    host.exec(
        ["sh", "-c", f"mkdir -p /var/lib/roost/releases/x && echo '{record}' >"
         f"/var/lib/roost/releases/x/deployment.json; cd {MODELS} && mkdir -p "
         f"org--a/{released} org--a/{old} org--b/.{old}.partial && touch org--a/{old}/config.json"]
    )  # fmt: skip
    extra = {f"org--a/{released}", f"org--a/{old}", f"org--b/.{old}.partial"}
    assert "config.json" in prune(opened, "--check", "--diff")
    assert there(host) == fetched | extra
    prune(opened)
    assert there(host) == fetched | {f"org--a/{released}"}


def slowly(until: threading.Event) -> faulty.Behaviour:
    """The right answers, at half a megabyte a second each until then: minutes for a shard."""

    async def behave(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        async def through(message: Message) -> None:
            await send(message)
            if not until.is_set():
                await asyncio.sleep(len(message.get("body", b"")) / 5e5)

        await app(scope, receive, through)

    return behave


def test_a_download_is_watched_and_outlives_its_connection(
    lab: SharedLab, artefacts: Artefacts, tmp_path: Path
) -> None:
    host, models = lab.host(), "/var/lib/roost/watched"
    seen_enough = threading.Event()
    hub = Faulty(application(artefacts.hub_store))
    hub.order(".safetensors", slowly(seen_enough))
    with serving(hub, address=str(lab.lab.spec.gateway.ip)) as endpoint:
        where = inventory(
            tmp_path / "inventory",
            lab.lab,
            [host],
            roost_recipe="smollm2-135m",
            roost_lock_file=str(lab.lab.lock_file),
            roost_hub_endpoint=endpoint,
            roost_model_dir=models,
            model_store_progress_interval=0.5,
            # A line that is cut is noticed after ten seconds or so. Sooner it would be no sign of
            # that on a machine with much to do.
            ansible_ssh_args="-o ControlMaster=auto -o ControlPersist=60s "
            "-o ServerAliveInterval=4 -o ServerAliveCountMax=2",
            ansible_timeout=10,
            # Nor is it one that an earlier test keeps open, which notices later.
            ansible_control_path="%(directory)s/watched",
        )
        run = Running(where, "--tags", "model_store")
        line = rf"^{host.name}: \S+ \d+ MB of \d+ MB, \d+ %, \d+ [kM]B/s, [\d:]+ left; \S+ waits$"
        run.says(line)
        host.cut()
        try:
            run.says(rf"^{host.name}: out of reach; what it fetches goes on there$")
        finally:
            host.join()
        run.says(rf"(?s)out of reach; .*{line}")
        seen_enough.set()
        play = run.end()
    assert play.code == 0, play.output
    assert play.unreachable == {host.name: 0}
    found = host.exec(["sh", "-c", f"ls -d {models}/*/*; ls /root/.ansible_async"])
    assert len(found.stdout.split()) == 2


def test_a_worker_that_is_killed_is_said_and_gone_on_from(
    lab: SharedLab, artefacts: Artefacts, tmp_path: Path
) -> None:
    host, models = lab.host(), "/var/lib/roost/killed"
    seen_enough = threading.Event()

    def there() -> int:
        """Bytes of weights on the host."""
        counted = f"find {models} -name '*.safetensors' -printf '%s\\n'"
        return sum(map(int, host.exec(["sh", "-c", counted]).stdout.split()))

    hub = Faulty(application(artefacts.hub_store))
    hub.order(".safetensors", slowly(seen_enough))
    with serving(hub, address=str(lab.lab.spec.gateway.ip)) as endpoint:
        where = inventory(
            tmp_path / "inventory",
            lab.lab,
            [host],
            roost_recipe="smollm2-135m",
            roost_lock_file=str(lab.lab.lock_file),
            roost_hub_endpoint=endpoint,
            roost_model_dir=models,
            roost_hub_client=False,
            model_store_progress_interval=0.5,
        )
        run = Running(where, "--tags", "model_store")
        run.says(rf"^{host.name}: \S+ [1-9]\d* MB of")
        # The module itself, and not Ansible's wrapper of it; then the one that waits for its turn.
        host.exec(["pkill", "-KILL", "-f", "^/usr/bin/python3 [^ ]*AnsiballZ_hf_snapshot.py$"])
        refusal = run.end().refusal(host)
        assert "its process on the host is gone: killed, or the host was restarted" in refusal
        assert "What arrived is kept; deploy again" in refusal
        found = host.exec(["sh", "-c", f"ls -d {models}/*/*; ls /root/.ansible_async"])
        assert found.stdout == ""

        kept = there()
        assert kept > 0
        seen_enough.set()
        hub.behave()
        play = deploy(where, "--tags", "model_store")
        assert play.code == 0, play.output
        # Not a byte that was written comes again.
        came = [one.sent for one in hub.of(".safetensors") if one.headers["user-agent"] == "roost"]
        assert sum(came) == there() - kept


def test_accounts_at_registries(lab: SharedLab, tmp_path: Path) -> None:
    host, registry = lab.host(), f"{lab.lab.spec.gateway.ip}:5000"

    def logged_in(name: str, at: str) -> Play:
        login = {"registry": at, "username": "me", "password": PASSWORD}
        where = inventory(
            tmp_path / name,
            lab.lab,
            [host],
            roost_recipe="smollm2-135m",
            roost_lock_file=str(lab.lab.lock_file),
            roost_registry_logins=[login],
        )
        play = deploy(where, "-vvv", "--diff", "--tags", "container_host")
        assert PASSWORD not in play.output
        return play

    play = logged_in("right", registry)
    assert play.code == 0, play.output
    accounts = "/root/.docker/config.json"
    assert host.exec(["stat", "-c", "%a %U", accounts]).stdout.split() == ["600", "root"]
    assert registry in host.exec(["cat", accounts]).stdout
    assert logged_in("again", registry).changed == {host.name: 0}
    refusal = logged_in("wrong", "127.0.0.1:9").refusal(host)
    assert "127.0.0.1:9" in refusal
    assert "Check roost_registry_logins" in refusal


def test_a_whole_deploy_shows_no_secret(
    lab: SharedLab, artefacts: Artefacts, tmp_path: Path
) -> None:
    image = standin_image(lab.lab.cache, print)
    host, gateway = lab.host("cpu", fresh=True), str(lab.lab.spec.gateway.ip)
    account = {"registry": f"{gateway}:5000", "username": "me", "password": PASSWORD}
    with serving(Gated(application(artefacts.hub_store)), address=gateway) as endpoint:
        where = inventory(
            tmp_path / "inventory",
            lab.lab,
            [host],
            roost_recipe="smollm2-135m",
            roost_lock_file=str(lab.lab.lock_file),
            roost_hub_endpoint=endpoint,
            roost_settings={"image": image, "extra_args": ["--standin-needs=/model/config.json"]},
            roost_hub_token=TOKEN,
            roost_registry_logins=[account],
            roost_api_key=KEY,
        )
        host.exec(["sh", "-c", WATCH])
        play = deploy(where, "-vvv", "--diff")
        host.exec(["touch", "/run/stop"])
    assert play.code == 0, play.output
    given = {"inventory": str(where), "host": host.name, "long_context": 0, "bad_requests": False}
    notebooks.execute("verify", given, tmp_path / "run")
    # All three were there, and opened what they are for.
    assert KEY in host.exec(["cat", "/var/lib/roost/secrets/api-key"]).stdout
    assert account["registry"] in host.exec(["cat", "/root/.docker/config.json"]).stdout
    assert (tmp_path / "run" / "result.json").exists()
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]

    header = json.dumps({"username": "me", "password": PASSWORD}).encode()
    for secret in (
        TOKEN,
        PASSWORD,
        KEY,
        base64.b64encode(f"me:{PASSWORD}".encode()).decode(),
        base64.urlsafe_b64encode(header).decode(),
    ):
        assert secret not in play.output
        found = host.exec(["sh", "-ec", TRACES % secret])
        assert (found.returncode, found.stdout) == (0, ""), (secret, found)
        assert not [path for path in written if secret.encode() in path.read_bytes()]

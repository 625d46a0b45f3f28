"""``roost doctor`` and ``roost logs`` as whole processes, against hosts with faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from tests.playbooks.playbook import inventory_document
from tests.unit.deployments import write_lock
from tests.unit.logs import log

from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.launch.container import CONTAINER

pytestmark = pytest.mark.lab

KEY, TOKEN = "lab-endpoint-key-0815", "hf_PlantedTokenOfTheLab"
STALE = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  mounts:
  - hostPath: /usr/lib/aarch64-linux-gnu/libcuda.so.570.86.15
"""


def inventory(lab: SharedLab, tmp_path: Path, hosts: dict[str, Host], **variables: str) -> Path:
    document = inventory_document(lab.lab, hosts, **variables)
    gone = {"ansible_host": str(lab.lab.spec.gateway.ip), "ansible_port": 9}
    document["all"]["hosts"]["gone"] = gone
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def roost(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "roost.cli", *words], capture_output=True, text=True, check=False
    )


def test_every_broken_host_is_named_rightly(lab: SharedLab, tmp_path: Path) -> None:
    hosts = {
        "well": lab.host("gb10"),
        "starved": lab.host("gb10", gpu_fault="stuck-clock", gpu_runtime=False, disk_mb=8),
        "upgraded": lab.host("rtx5070ti-x2", gpu_fault="library-mismatch"),
        "unloaded": lab.host("rtx5070ti-x2", gpu_fault="driver-not-loaded"),
        "plain": lab.host("cpu"),
    }
    listing = str(inventory(lab, tmp_path, hosts))
    done = roost("doctor", "-i", listing, "--json")
    rows = {row["host"]: row for row in json.loads(done.stdout)["hosts"]}
    assert done.stderr == "roost: 1 of 6 not examined: gone\n"
    assert done.returncode == 1
    assert "Connection refused" in rows.pop("gone")["error"]

    def found(host: str, *severities: str) -> dict[str, str]:
        checks = rows[host]["checks"]
        return {each["id"]: each["saw"] for each in checks if each["severity"] in severities}

    # [N/A] is no fault, and neither are the clocks of an idle card.
    assert found("well", "fail") == {}
    assert found("plain", "fail") == {}
    assert "memory shared with the CPU" in found("well", "ok")["gpu"]
    # Hosts of a lab have our clock, so all that is seen is what the question took.
    clock = re.match(r"(\d+\.\d) s \w+ \(± (\d+\.\d) s\)", found("well", "ok")["clock"])
    assert clock
    assert float(clock[1]) <= float(clock[2])
    starved = found("starved", "fail")
    assert set(starved) == {"gpu_clocks", "gpu_runtime", "disk"}
    assert starved["gpu_clocks"] == (
        "GPU 0: 96 % busy, 513 of 3003 MHz, 14 W, 36 C, P0: stuck at low clocks under load"
    )
    assert starved["disk"].endswith("free on /var/lib/roost (models)")
    assert list(found("upgraded", "fail")) == ["gpu"]
    assert "driver and library versions differ, reboot" in found("upgraded", "fail")["gpu"]
    assert list(found("unloaded", "fail")) == ["gpu"]
    assert "the NVIDIA driver is not loaded" in found("unloaded", "fail")["gpu"]

    write = "mkdir -p /etc/cdi && cat >/etc/cdi/nvidia.yaml"
    hosts["starved"].exec(["sh", "-c", write], text_in=STALE)
    late = "/usr/local/bin/date"  # for this one question; the lab's hosts share one clock
    hosts["plain"].exec(
        ["sh", "-c", f"printf '#!/bin/sh\\necho 1000.5\\n' >{late}; chmod +x {late}"]
    )
    try:
        again = roost("doctor", "-i", listing, "--limit", "starved,plain")
    finally:
        hosts["plain"].exec(["rm", late])
    assert again.returncode == 1
    assert "  fail     clock: " in again.stdout
    assert "  fail     cdi: /etc/cdi/nvidia.yaml is of driver 570.86.15\n" in again.stdout


def test_an_archive_explains_and_holds_no_secret(lab: SharedLab, tmp_path: Path) -> None:
    host = lab.host("cpu", fresh=True)
    said = f"api_key={KEY} authorization {KEY}\n" + log("vllm-0.24.0-fails-kv-too-small")
    host.exec(["sh", "-c", "cat >/root/engine.log"], text_in=said)
    host.exec(["mkdir", "-p", "/var/lib/roost/releases"])
    host.exec(["sh", "-c", "echo recorded >/var/lib/roost/releases/one.json"])
    libraries = "$(ldd /usr/bin/cat | grep -o '/lib[^ ]*' | cut -c2-)"
    host.exec(["sh", "-c", f"tar -ch -C / usr/bin/cat {libraries} | docker import - cat:1"])
    run = ["docker", "run", "--name", CONTAINER, "-e", f"HF_TOKEN={TOKEN}", "-e", f"OTHER={KEY}"]
    ran = host.exec([*run, "-v", "/root/engine.log:/log:ro", "cat:1", "/usr/bin/cat", "/log"])
    assert ran.returncode == 0, ran.stderr

    write_lock(tmp_path / "roost.lock.yml")
    site = {
        "roost_api_key": KEY,
        "roost_recipe": "smollm2-135m",
        "roost_lock_file": str(tmp_path / "roost.lock.yml"),
        "roost_hub_endpoint": host.site.hub_url,
    }
    listing = inventory(lab, tmp_path, {"one": host}, **site)
    archive = tmp_path / "one.tar.gz"
    done = roost("logs", "-i", str(listing), "--host", "one", "-o", str(archive))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("error: one request of 262,144 tokens needs 5.08 GiB")
    with tarfile.open(archive) as opened:
        files = {
            Path(entry.name).name: opened.extractfile(entry).read()  # type: ignore[union-attr]
            for entry in opened.getmembers()
        }
    assert {f"{CONTAINER}.log", f"{CONTAINER}.inspect.json", "facts.json", "plan.json"} <= set(
        files
    )
    assert json.loads(files["plan.json"])["recipe"] == "smollm2-135m"
    assert b"one.json" in files["releases.txt"]
    assert b"recorded" in files["releases.txt"]
    assert CONTAINER.encode() in files["docker-events.txt"]
    for name, content in files.items():
        assert KEY.encode() not in content, name
        assert TOKEN.encode() not in content, name
    assert b"OTHER=<redacted>" in files[f"{CONTAINER}.inspect.json"]
    assert archive.stat().st_mode & 0o777 == 0o600
    assert roost("logs", "-i", str(listing), "--host", "one", "-o", str(archive)).returncode == 1

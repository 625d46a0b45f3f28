"""The archive of ``roost logs``: what is in it, what is not, and that no secret ever is."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import tarfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.deployments import deployment
from tests.unit.disks import full_disk
from tests.unit.logs import log
from tests.unit.probes import probe_output

from roost import collecting, logs_cli
from roost.deployment import Deployment
from roost.errors import RoostError
from roost.inventory import Connection, Host
from roost.onhost import logs
from roost.ssh import Completed, Tunnel

MOMENT = dt.datetime(2026, 11, 29, 20, 0, tzinfo=dt.UTC)
KEY, PASSWORD = 'p"lain-0815', "ssh-password-7"
PLANTED = {
    "hub token": "hf_AbCdEfGh0123456789",
    "openai": "sk-proj-0123456789abcdef",
    "bearer": "eyJhbGciOiJIUzI1NiJ9.payload42",
    "assigned": "s3cr3t-assigned",
    "in a URL": "url-passw0rd",
    "vLLM's own argument": "argued-k3y-value",
}
SAID = f"""\
INFO non-default args: {{'api_key': ['{PLANTED["vLLM's own argument"]}'], 'max_model_len': 262144}}
GET http://mirror:{PLANTED["in a URL"]}@hub/ Authorization: Bearer {PLANTED["bearer"]}
MY_API_KEY={PLANTED["assigned"]} key {KEY} and {PASSWORD} of {PLANTED["openai"]}
"""
INSPECT = json.dumps(
    [{"Config": {"Env": [f"HF_TOKEN={PLANTED['hub token']}", f"ODD={KEY}", "PATH=/bin"]}}], indent=1
)
KERNEL = (
    "2026-11-29T20:00:00 usb 1-1: new device\n"
    "2026-11-29T20:00:01 NVRM: Xid (PCI:000f:01:00): 79, pid=7, GPU has fallen off the bus.\n"
)


class Fake:
    """A host that answers what it is told to; everything else fails as there."""

    def __init__(self, answers: dict[str, Completed]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def run(
        self,
        argv: Sequence[str],
        input: str | None = None,  # noqa: A002, ARG002
        timeout: float = 60,  # noqa: ARG002
    ) -> Completed:
        words = " ".join(argv)
        self.asked.append(words)
        for beginning, answer in self.answers.items():
            if words.startswith(beginning):
                return answer
        return Completed(127, "", f"{argv[0]}: not found")

    def tunnel(self, port: int, address: str = "") -> AbstractContextManager[Tunnel]:
        raise NotImplementedError


def done(text: str) -> Completed:
    return Completed(0, text, "")


def answers(said: str = SAID) -> dict[str, Completed]:
    return {
        "sh -s": done(probe_output()),
        "id -u": done("0\n"),
        "docker ps": done("roost-llm\nroost-llm-0a1b2c\nmy-roost-llm\n"),
        "docker inspect": done(INSPECT),
        "sh -c docker logs": done(said),
        "sh -c docker events": done(f"container start (name=roost-llm, key={KEY})\n"),
        "dmesg": done(KERNEL),
        'sh -c cd "$1"': done(f"==> ./one.json\nMY_SECRET: {PLANTED['assigned']}\n"),
    }


def collected(
    replies: dict[str, Completed], wanted: Deployment | RoostError | None = None
) -> collecting.Collected:
    host = Host("spark-01", {}, Connection("192.0.2.10"))
    return collecting.collect(
        host, Fake(replies), wanted or RoostError("not pinned"), secrets=[KEY, PASSWORD, ""]
    )


def unpacked(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            opened = archive.extractfile(entry)
            assert opened is not None
            found[entry.name] = opened.read().decode()
        return found


def test_no_planted_secret_is_in_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    collecting.write(collected(answers()), path, MOMENT)
    files = unpacked(path)
    assert len(files) == 13
    for name, content in files.items():
        for what, secret in {**PLANTED, "key": KEY, "password": PASSWORD}.items():
            assert secret not in content, (name, what)
            assert json.dumps(secret)[1:-1] not in content, (name, what)
    # What is no secret stays.
    inspected = json.loads(files["roost-logs-spark-01/roost-llm.inspect.json"])
    assert inspected[0]["Config"]["Env"] == ["HF_TOKEN=<redacted>", "ODD=<redacted>", "PATH=/bin"]
    assert "'max_model_len': 262144" in files["roost-logs-spark-01/roost-llm.log"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_missing_is_said_and_stops_nothing(tmp_path: Path) -> None:
    replies = {"sh -s": done(probe_output()), "id -u": done("1000\n")}
    replies["sudo"] = Completed(1, "", "sudo: a password is required")
    replies["docker"] = Completed(1, "", f"permission denied for {KEY}")
    found = collected(replies)
    assert set(found.missing) == {
        "containers",
        "docker events",
        "kernel log",
        "records of releases",
        "what the watchdog kept",
        "deployment and plan",
    }
    assert found.missing["containers"] == "permission denied for <redacted>"
    assert "sudo: a password is required" in found.missing["kernel log"]
    assert {"probe.txt", "facts.json", "doctor.json"} <= set(found.files)
    path = tmp_path / "x.tar.gz"
    collecting.write(found, path, MOMENT)
    manifest = json.loads(unpacked(path)["roost-logs-spark-01/manifest.json"])
    assert manifest["missing"] == found.missing
    assert manifest["collected"] == "2026-11-29T20:00:00+00:00"


def test_a_probe_that_is_cut_off_is_kept_as_it_is() -> None:
    whole = probe_output()
    found = collected({**answers(), "sh -s": done(whole[: whole.index("==> python")])})
    assert "the host probe did not finish" in found.missing["host facts"]
    assert "==> meminfo" in found.files["probe.txt"]
    assert "doctor.json" not in found.files
    assert "roost-llm.log" in found.files


def test_who_is_not_root_asks_with_sudo_where_it_asks_nothing() -> None:
    replies = {**answers(), "id -u": done("1000\n"), "sudo -n true": done("")}
    fake = Fake(replies)
    collecting.collect(Host("a", {}, Connection("a")), fake, RoostError("no"))
    assert "sudo -n -- docker ps --all --format {{.Names}} --filter name=roost-llm" in fake.asked


def test_the_diagnosis_is_of_engine_and_kernel() -> None:
    found = collected(answers(log("vllm-0.24.0-fails-kv-too-small")))
    ids = [item.id for item in found.diagnosis]
    assert ids[0] == "kv-cache-too-small" or "5.08 GiB" in found.diagnosis[0].title
    assert "gpu-xid" in ids
    assert "usb" not in found.files["kernel.log"]
    assert json.loads(found.files["diagnosis.json"])[0]["id"] == ids[0]


def test_the_plan_is_what_the_controller_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RoostError("no hub answers")

    monkeypatch.setattr(collecting.gate, "plan", refuse)
    found = collected(answers(), deployment(tmp_path))
    assert json.loads(found.files["deployment.json"])["recipe"] == "smollm2-135m"
    assert found.missing == {"plan": "no hub answers"}


def test_the_last_failure_is_collected_and_explained() -> None:
    replies = {
        **answers("INFO healthy\n"),
        'sh -c cd "$1"': done("total 8\ndrwxr-xr-x 2 root root 4096 last-failed\n"),
        "sh -c cat": done(f"{KEY}\nvllm: error: unrecognized arguments: --x\n"),
    }
    found = collected(replies)
    assert found.files["last-failed.log"].splitlines()[0] == "<redacted>"
    told = [item for item in found.diagnosis if item.id == "unknown-flag"]
    assert [item.title for item in told] == ["the last failure: --x is no flag of this engine"]
    assert not found.missing.keys() & {"log of the last failure"}


@pytest.mark.parametrize("extra", [0, 1])
def test_a_huge_log_keeps_its_beginning_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: int
) -> None:
    """The pipe itself, behind a docker that prints a file."""
    size = logs.HEAD_BYTES + logs.TAIL_BYTES + extra
    lines = b"".join(b"%015d\n" % number for number in range(size // 16 + 1))[:size]
    (tmp_path / "log").write_bytes(lines)
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/log\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ran = subprocess.run(
        ["sh", "-c", collecting._LOG, "sh", "roost-llm"], capture_output=True, text=True, check=True
    )
    replies = {**answers(ran.stdout), "docker ps": done("roost-llm\n")}
    kept = collected(replies).files["roost-llm.log"]
    if extra == 0:
        assert kept == lines.decode()
    else:
        assert kept.startswith(lines[:100].decode())
        assert kept.endswith(lines[-100:].decode())
        assert kept.count("[roost: lines left out") == 1
        whole = [line for line in kept.splitlines()[:-1] if not line.startswith("[roost")]
        assert {len(line) for line in whole} == {15}


def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    path.write_text("mine")
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    refused = CliRunner().invoke(
        logs_cli.logs, ["-i", str(inventory), "--host", "here", "-o", str(path)]
    )
    assert isinstance(refused.exception, RoostError)
    assert "exists already" in str(refused.exception)
    with pytest.raises(RoostError, match="is there already"):
        collecting.write(collected({}), path, MOMENT)
    assert path.read_text() == "mine"


def test_no_half_of_an_archive_is_left(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with full_disk(100), pytest.raises(RoostError, match="cannot be written"):
        collecting.write(collected(answers()), path, MOMENT)
    assert list(tmp_path.iterdir()) == []
    collecting.write(collected(answers()), path, MOMENT)
    assert len(unpacked(path)) == 13

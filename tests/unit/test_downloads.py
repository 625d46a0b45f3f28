"""What is said of downloads that go on, and what is seen of them on a host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.plugins import load
from tests.unit.processes import job_name

from roost.downloads import Download, Watch, failures
from roost.onhost import jobs

facts = load("modules", "download_facts")
image_pull = load("modules", "image_pull")
GB = 1_000_000_000


def seen(done: int | None, stage: str = "fetching", result: Any = None) -> dict[str, Any]:
    return {"done": done, "stage": stage, "result": result}


def watch(*looks: tuple[float, int], total: int | None = None) -> str:
    """The line after such looks at one download: seconds, bytes."""
    watched = Watch([Download(name="org/m", job="/j", path="/p", bytes=total)])
    for at, done in looks:
        watched.saw([seen(done)], at)
    return watched.line()


@pytest.mark.parametrize(
    ("looks", "total", "line"),
    [
        ([(0, 0)], 20 * GB, "org/m 0 B of 20.0 GB, 0 %"),
        ([(0, 0), (10, 2 * GB)], 20 * GB, "org/m 2.0 GB of 20.0 GB, 10 %, 200 MB/s, 1:30 left"),
        ([(0, 0), (10, GB)], None, "org/m 1.0 GB, 100 MB/s"),
        # What came before the window is no measure of now.
        (
            [(0, 0), (10, 9 * GB), (50, 9 * GB)],
            20 * GB,
            "org/m 9.0 GB of 20.0 GB, 45 %, no byte for 30 s",
        ),
        ([(0, 0), (40, 100_000)], 40 * GB, "org/m 100 kB of 40.0 GB, 0 %, 2 kB/s, 185 days left"),
        # The lock may count less than what lies there, and a broken transfer may begin again.
        ([(0, GB), (10, 3 * GB)], 2 * GB, "org/m 3.0 GB of 2.0 GB, 100 %, 200 MB/s"),
        ([(0, 3 * GB), (5, GB)], 4 * GB, "org/m 1.0 GB of 4.0 GB, 25 %"),
    ],
)
def test_a_line(looks: list[tuple[float, int]], total: int | None, line: str) -> None:
    assert watch(*looks, total=total) == line


def test_all_downloads_of_a_host_are_one_line() -> None:
    names = ["image", "a/b", "c/d", "e/f"]
    watched = Watch([Download(name=name, job="/j", path="/p") for name in names])
    looked = [seen(5, "unpacking"), seen(None, "waits"), seen(7, "done", {"changed": True})]
    watched.saw([*looked, seen(0, "fetching", {"failed": True})], 0.0)
    assert watched.line() == "image unpacking; a/b waits; c/d done; e/f failed"


def test_why_weights_did_not_come() -> None:
    awaited = [{"name": name} for name in ("a/b", "c/d", "e/f")]
    gated = {"failed": True, "reason": "gated", "msg": "a/b@1 on x: gated. Accept its terms."}
    assert failures(awaited, [gated, None, {"changed": True}]) == gated["msg"]
    killed = {"failed": True, "msg": jobs.GONE}
    first, second = failures(awaited, [gated, killed, None]).splitlines()
    assert first == gated["msg"]
    assert second.startswith(f"c/d: {jobs.GONE}. What arrived is kept; deploy again")
    assert failures(awaited, [{"changed": True}, None, None]) == ""


# -- on the host


@pytest.fixture
def wrapper() -> Iterator[str]:
    """Id of a job that has a process, which was given the first part of it."""
    job = job_name()
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, job.partition(".")[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout
        child.stdout.readline()  # until it has begun, its arguments are not to be seen
        yield job


def test_a_job_that_works(tmp_path: Path, wrapper: str) -> None:
    job, place = tmp_path / wrapper, tmp_path / "0123"
    job.write_text(json.dumps({"started": True, "finished": False}))
    assert facts.look(job, place) == {"done": None, "stage": "waits", "result": None}
    partial = tmp_path / ".0123.partial"
    (partial / "parts").mkdir(parents=True)
    (partial / "config.json").write_bytes(b"x" * 10)
    (partial / "parts" / "model.safetensors").write_bytes(b"x" * 90)
    assert facts.look(job, place) == {"done": 100, "stage": "fetching", "result": None}
    partial.rename(place)
    assert facts.look(job, place) == {"done": 100, "stage": "done", "result": None}
    job.write_text("")  # it is just being written
    assert facts.look(job, place)["result"] is None


@pytest.mark.parametrize("text", [None, '{"started": true, "finished": false}', "half of a"])
def test_a_job_that_is_gone(tmp_path: Path, text: str | None) -> None:
    job = tmp_path / "gone.1"
    if text:
        job.write_text(text)
    result = facts.look(job, tmp_path / "x")["result"]
    assert result["failed"]
    assert "killed, or the host was restarted" in result["msg"]


def test_a_job_that_has_ended(tmp_path: Path) -> None:
    job = tmp_path / "ended.1"
    for result in ({"changed": True, "image": {}}, {"failed": True, "msg": "no"}):
        job.write_text(json.dumps(result))
        assert facts.look(job, tmp_path / "x")["result"] == result


def event(layer: str, status: str, current: int = 0, total: int = 0) -> dict[str, Any]:
    detail = {"current": current, "total": total} if current else {}
    return {"id": layer, "status": status, "progressDetail": detail}


def test_the_daemon_s_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_pull, "EVERY", 0.0)
    path = tmp_path / "pull.json"
    progress = image_pull.Progress(path)

    def after(*events: dict[str, Any]) -> dict[str, Any]:
        for one in events:
            progress.saw(one)
        told = facts.look(tmp_path / "none", path)
        return {"done": told["done"], "stage": told["stage"]}

    # As dockerd 20.10 sends them.
    begin = [event("latest", "Pulling from x"), {"status": "Digest: sha256:…"}]
    assert after(*begin, event("a", "Downloading", 10, 100))["done"] == 10
    both = after(event("b", "Downloading", 50, 60), event("a", "Downloading", 90, 100))
    assert both == {"done": 140, "stage": "fetching"}
    still = after(event("a", "Download complete"), event("a", "Extracting", 1, 100))
    assert still == {"done": 150, "stage": "fetching"}
    assert after(event("b", "Download complete"))["stage"] == "unpacking"
    assert after(event("a", "Pull complete"))["stage"] == "fetching"
    progress.end()
    assert list(tmp_path.iterdir()) == []
    assert facts.look(tmp_path / "none", path)["stage"] == "begins"

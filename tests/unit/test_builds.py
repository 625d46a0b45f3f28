"""Builds of images: what names one, how far one is, and why one fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.deployments import deployment
from tests.unit.plugins import load
from tests.unit.processes import alive, until

from roost import builds
from roost.pins import Build, Revision

image_build = load("modules", "image_build")

GIT = "https://example.org/engine.git"


def build(**changes: Any) -> Build:
    given = {"git": GIT, "revision": Revision(commit="c" * 40), "args": {"A": "1", "B": "2"}}
    return Build(**{**given, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"git": "https://example.org/other.git"},
        {"revision": Revision(commit="d" * 40)},
        {"directory": "docker"},
        {"dockerfile": "Dockerfile.gb10"},
        {"args": {"A": "1", "B": "3"}},
        {"args": {"A": "1"}},
    ],
)
def test_whatever_an_image_is_made_of_changes_its_label(changes: dict[str, Any]) -> None:
    assert build(**changes).digest != build().digest


def test_what_is_only_said_of_a_build_does_not() -> None:
    same = build(args={"B": "2", "A": "1"}, note="takes hours", licence="MIT")
    assert same.digest == build().digest
    assert f"roost.build={build().digest}" in build().argv("x:1")


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("#7 [2/3] RUN make", "step 2 of 3"),
        ("#12 [stage-1  3/17] RUN make", "step 3 of 17 (stage-1)"),
        ("#31 [base 12/17] COPY . .", "step 12 of 17 (base)"),
        (" > [engine 3/3] RUN test ! -e /x:", "step 3 of 3 (engine)"),
        ("Step 4/9 : RUN make", "step 4 of 9"),
        ("#5 [internal] load build definition from Dockerfile", None),
        ("#12 4.213 [12/34] Building CXX object a.o", None),
        ("[12/34] Building CXX object a.o", None),
    ],
)
def test_steps_are_read_from_the_output_of_both_builders(line: str, step: str | None) -> None:
    assert image_build.step_of(line) == step


@pytest.mark.parametrize(
    ("during", "said", "kind"),
    [
        ("room", "3.0 GiB free below /var/lib/docker, and 60.0 GiB are wanted", "room"),
        ("git", "fatal: remote error: upload-pack: not our ref " + "0" * 40, "git_commit"),
        ("git", f"fatal: repository '{GIT}/' not found", "git_repository"),
        ("git", f"fatal: could not read Username for '{GIT}': prompts disabled", "git_repository"),
        (
            "git",
            f"fatal: unable to access '{GIT}/': Could not resolve host: example.org",
            "git_unreachable",
        ),
        (
            "git",
            f"fatal: unable to access '{GIT}/': The requested URL returned error: 403",
            "git_repository",
        ),
        ("git", "error: RPC failed; curl 28 Operation too slow\nfetch-pack: unexpected "
         "disconnect\nfatal: early EOF", "git_unreachable"),
        ("git", "fatal: write error: No space left on device", "disk"),
        ("git", "fatal: something new", "git"),
        ("context", "no file docker/Dockerfile", "dockerfile"),
        ("buildkit", "there is none", "buildkit"),
        ("docker", "write /x: no space left on device", "disk"),
        ("docker", "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "daemon"),
        ("docker", 'process "/bin/sh -c make" did not complete successfully: exit code: 137',
         "memory"),
        ("docker", "c++: fatal error: Killed signal terminated program cc1plus\nexecutor failed "
         "running [/bin/sh -c make]: exit code: 1", "memory"),
        ("docker", "failed to solve: nvidia/cuda:0: failed to resolve source metadata for "
         "docker.io/nvidia/cuda:0: docker.io/nvidia/cuda:0: not found", "base"),
        ("docker", "manifest for nvidia/cuda:0 not found: manifest unknown", "base"),
        ("docker", "executor failed running [/bin/sh -c make]: exit code: 2", "step"),
    ],
)  # fmt: skip
def test_failures_are_told_apart(during: str, said: str, kind: str) -> None:
    assert builds.cause(during, said) == kind


def test_every_failure_is_explained(tmp_path: Path) -> None:
    wanted = deployment(tmp_path)
    result = {"during": "docker", "said": ["make: no", "exit code: 2"], "step": "step 3 of 4"}
    text = builds.failure({**result, "log": "/var/lib/roost/build.log"}, wanted)
    assert "was not built at step 3 of 4" in text.splitlines()[0]
    assert "the end of its output (all of it: /var/lib/roost/build.log on the host):" in text
    assert text.endswith("    make: no\n    exit code: 2")
    # The words of what Docker pulls are those of any pull.
    denied = {"during": "docker", "said": ["pull access denied for x, repository not found"]}
    assert "the registry wants a login" in builds.failure(denied, wanted)
    # A job that was killed says nothing of its own.
    gone = builds.failure({"failed": True, "msg": "its process on the host is gone"}, wanted)
    assert "the build was killed" in gone


def test_room_is_looked_for_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"directory_of_records": str(tmp_path), "progress": str(tmp_path / "progress.json")}
    builder = image_build.Builder({**given, "free_bytes": 2**60})
    monkeypatch.setattr(builder, "_docker", lambda *_: f"{tmp_path}\n")
    with pytest.raises(image_build.Failure, match=r"free below .*1073741824\.0 GiB are") as caught:
        builder.build()
    assert caught.value.during == "room"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dockerfile", "needs"),
    [
        ("FROM x\nRUN make\nCOPY . /x", False),
        ("FROM x\nRUN --mount=type=cache,target=/x make", True),
        ("FROM x\nCOPY --link . /x", True),
        ("FROM x\nRUN <<EOF\nmake\nEOF", True),
        ("FROM x\nCOPY --from=a /x /x", False),
        ("FROM x\nRUN echo --mount", False),
    ],
)
def test_dockerfiles_that_the_old_builder_does_not_understand(dockerfile: str, needs: bool) -> None:
    assert bool(image_build._FOR_BUILDKIT.search(dockerfile)) == needs


# -- builds that are killed, and several at once

#: Docker as far as a build asks it; a build takes until a file is there.
DOCKER = """#!/bin/sh
case "$1 $2" in
"version "*) echo 20.10.0 ;;
"info "*) echo / ;;
"inspect "*) echo 2026-11-30T01:02:03.456789Z ;;
"images "*) cat built 2>/dev/null || true ;;
"build "*)
    echo $$ >> begun
    echo "Step 1/1 : RUN make"
    while [ ! -e done ]; do sleep 0.02; done
    echo sha256:1 > built ;;
esac
"""
GIT_ALONE = """#!/bin/sh
case "$1" in checkout|-c) touch Dockerfile ;; init) mkdir .git ;; esac
"""
BUILD = """
import json, sys
from tests.unit.plugins import load
builder = load("modules", "image_build").Builder(json.loads(sys.argv[1]))
with builder.turn():
    print(json.dumps(builder.have()))
"""


class Host:
    """A host with those two programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {"docker": DOCKER, "git": GIT_ALONE}.items():
            program = folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        self._running: list[subprocess.Popen[str]] = []

    def build(self, digest: str) -> subprocess.Popen[str]:
        """Begin one."""
        given = {
            "name": "x:1",
            "digest": digest,
            "git": GIT,
            "commit": "c" * 40,
            "directory": None,
            "dockerfile": None,
            "args": {},
            "free_bytes": 0,
            "progress": str(self.folder / f"{digest}.json"),
            "directory_of_records": str(self.folder / "records"),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", BUILD, json.dumps(given)],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        return process

    def stage(self, digest: str) -> str:
        """How far it is."""
        try:
            return str(json.loads((self.folder / f"{digest}.json").read_text())["stage"])
        except FileNotFoundError:
            return ""

    @property
    def begun(self) -> list[int]:
        """Processes of Docker that were told to build."""
        path = self.folder / "begun"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def end(self) -> None:
        """End what still runs."""
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.end()


def test_a_build_that_is_killed_takes_docker_along_and_leaves_nothing_in_the_way(
    host: Host,
) -> None:
    process = host.build("a")
    until(lambda: host.stage("a") == "step 1 of 1")
    process.kill()
    (docker,) = host.begun
    until(lambda: not alive(docker))
    source = host.folder / "records" / "build"
    assert source.exists()

    (host.folder / "done").touch()
    said, _ = host.build("a").communicate(timeout=120)
    assert json.loads(said) == [True, "sha256:1"]
    assert not source.exists()
    assert host.stage("a") == ""
    records = host.folder / "records" / "builds.json"
    assert json.loads(records.read_text())["a"]["built"] == "2026-11-30T01:02:03Z"
    # Killed between Docker's last word and the record, a build is recorded by the next run.
    records.unlink()
    said, _ = host.build("a").communicate(timeout=120)
    assert json.loads(said) == [False, "sha256:1"]
    assert json.loads(records.read_text())["a"]["id"] == "sha256:1"


def test_builds_take_turns_and_the_same_one_is_made_once(host: Host) -> None:
    first = host.build("a")
    until(lambda: host.stage("a") == "step 1 of 1")
    again, other = host.build("a"), host.build("b")
    until(lambda: host.stage("b") == "waits for another build")
    assert host.stage("a") == "step 1 of 1"
    (host.folder / "done").touch()
    said = [json.loads(process.communicate(timeout=120)[0]) for process in (first, again, other)]
    assert said == [[True, "sha256:1"], [False, "sha256:1"], [False, "sha256:1"]]
    assert len(host.begun) == 1

#!/usr/bin/python
"""Ansible module: build an image from a commit, label it with what it is made of."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.roost.onhost import atomic

DOCUMENTATION = r"""
---
module: image_build
short_description: Build an image from a commit, unless it is there already
description:
  - Fetches one commit with git, builds the image with Docker's command, and gives it a label that
    names everything it is made of. An image with that label is not built again. Its name is given
    at the end, so half a build has none.
  - Builds on one host take turns. One that is killed ends what it has started, and the next one
    removes what it left.
options:
  name:
    description: The name that the image gets, C(repository:tag).
    type: str
    required: true
  digest:
    description: What the label C(roost.build) says; it names all of the options below.
    type: str
    required: true
  git:
    description: The repository.
    type: str
    required: true
  commit:
    description: The full commit.
    type: str
    required: true
  directory:
    description: The build's context in it.
    type: str
  dockerfile:
    description: Relative to the context.
    type: str
  args:
    description: The build's arguments.
    type: dict
    default: {}
  free_bytes:
    description: What Docker's disk must have free before it begins.
    type: int
    required: true
  progress:
    description: File that holds C({stage, done}) meanwhile, for M(download_facts).
    type: path
    required: true
  directory_of_records:
    description: Where C(builds.json) tells what was built, and C(build.log) holds the last output.
    type: path
    required: true
attributes:
  check_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Build it in the background
  image_build:
    name: localhost/engine:0123456789ab
    digest: "{{ build.digest }}"
    git: https://example.org/engine.git
    commit: "{{ build.commit }}"
    free_bytes: 50000000000
    progress: /run/roost-image-build.json
    directory_of_records: /var/lib/roost
  async: 28800
  poll: 0
"""

RETURN = r"""
id:
  description: The image's.
  returned: success
  type: str
during:
  description: What failed - V(room), V(git), V(context), V(buildkit) or V(docker).
  returned: failure
  type: str
step:
  description: Of the Dockerfile, where one failed.
  returned: failure
  type: str
said:
  description: The end of the output.
  returned: failure
  type: list
  elements: str
log:
  description: File with all of it.
  returned: failure
  type: str
"""

LABEL = "roost.build"
#: Lines of output that a failure ends with.
SHOWN = 25
#: Before a command: it ends when this process does, however that comes. Else a build that was
#: killed would go on unseen, beside the one that is begun after it.
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
#: The first client that needs the plug-in for BuildKit; older ones leave it to the daemon.
NEEDS_BUILDX = 23
# `#12 [stage-1  3/17] RUN …` is BuildKit's, `Step 3/17 : RUN …` the old builder's.
_STEP = re.compile(
    r"^(?:#\d+ \[\s*(?:(?P<stage>[\w.\-]+)\s+)?(?P<n>\d+)/(?P<m>\d+)\]"
    r"|Step (?P<old_n>\d+)/(?P<old_m>\d+) :)"
)
_FAILED_STEP = re.compile(r"^ > \[\s*(?:(?P<stage>[\w.\-]+)\s+)?(?P<n>\d+)/(?P<m>\d+)\]")
_FOR_BUILDKIT = re.compile(
    r"^\s*(RUN\s+(--\w+=\S+\s+)*--(mount|network|security)=|(COPY|ADD)\s+(--\S+\s+)*--(link|chmod)"
    r"|(RUN|COPY|ADD)\s.*<<-?[\"']?\w)",
    re.MULTILINE | re.IGNORECASE,
)


class Failure(Exception):  # noqa: N818  # of what is built, not of this program
    """It cannot be built."""

    def __init__(self, during: str, said: list[str], step: str | None = None) -> None:
        super().__init__("\n".join(said))
        self.during = during
        self.said = said
        self.step = step


def step_of(line: str) -> str | None:
    """The step that a line of a build's output tells of: ``step 3 of 17 (stage-1)``."""
    found = _STEP.match(line) or _FAILED_STEP.match(line)
    if found is None:
        return None
    words = found.groupdict()
    number, of = words["n"] or words["old_n"], words["m"] or words["old_m"]
    return f"step {number} of {of}" + (f" ({words['stage']})" if words["stage"] else "")


class Builder:
    """One build.

    Args:
        given: The module's options.
    """

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.records = Path(given["directory_of_records"])
        self.folder = self.records / "build"
        self.log = self.records / "build.log"
        self.progress = Path(given["progress"])

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One build at a time; the kernel takes the turn from one that was killed."""
        self.records.mkdir(parents=True, exist_ok=True)
        with (self.records / ".build.lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not self.progress.exists():  # else the other one makes the same image
                    self._say("waits for another build")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._tidy()
            yield

    def have(self) -> tuple[bool, str]:
        """Have the image with its name and its record; whether anything was done, and its id.

        Raises:
            Failure: It cannot be built.
        """
        image = self.there()
        changed = image is None
        if image is None:
            image = self.build()
        self._record(image)  # it may be missing of a build that was killed at its end
        return self.name_of(image) or changed, image

    def there(self) -> str | None:
        """Id of an image with the label; its name is given back to it if another has it."""
        label = f"label={LABEL}={self.given['digest']}"
        listed = self._docker("images", "--no-trunc", "--quiet", "--filter", label)
        ids = list(dict.fromkeys(listed.split()))
        return ids[0] if ids else None

    def name_of(self, image: str) -> bool:
        """Have the image its name; whether it had not."""
        named = self._docker("images", "--no-trunc", "--quiet", self.given["name"]).split()
        if image in named:
            return False
        self._docker("tag", image, self.given["name"])
        return True

    def build(self) -> str:
        """Fetch and build; the image's id.

        Raises:
            Failure: One of them did not come off.
        """
        try:
            self._say("looks for room")
            self._room()
            self._say("fetches the source")
            context = self._fetch()
            dockerfile = context / (self.given["dockerfile"] or "Dockerfile")
            if not dockerfile.is_file():
                inside = dockerfile.relative_to(self.folder)
                raise Failure("context", [f"no file {inside} at {self.given['commit']}"])
            self._build(context, dockerfile)
        finally:
            self._tidy()
        image = self.there()
        if image is None:
            raise Failure("docker", [f"it ended well, and left no image with the label {LABEL}"])
        return image

    def _tidy(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.progress.unlink()

    def _room(self) -> None:
        root = self._docker("info", "--format", "{{.DockerRootDir}}").strip()
        free = shutil.disk_usage(root).free
        if free < self.given["free_bytes"]:
            gib = 1024**3
            wanted = self.given["free_bytes"] / gib
            said = f"{free / gib:.1f} GiB free below {root}, and {wanted:.1f} GiB are wanted"
            raise Failure("room", [said])

    def _fetch(self) -> Path:
        """The commit on disk, as BuildKit would take it from the repository; its context."""
        self.folder.mkdir(parents=True)
        for words in (
            ["init", "--quiet"],
            ["remote", "add", "origin", self.given["git"]],
            ["fetch", "--quiet", "--depth=1", "origin", self.given["commit"]],
            ["-c", "advice.detachedHead=false", "checkout", "--quiet", self.given["commit"]],
            ["submodule", "--quiet", "update", "--init", "--recursive", "--depth=1"],
        ):
            done = subprocess.run(
                [*DIES_WITH_US, "git", *words],
                cwd=self.folder,
                env={
                    **os.environ,
                    "LC_ALL": "C",
                    "GIT_TERMINAL_PROMPT": "0",
                    # A minute with less than a kB/s is a connection that is gone.
                    "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
                    "GIT_HTTP_LOW_SPEED_TIME": "60",
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise Failure("git", (done.stderr or done.stdout).strip().splitlines()[-SHOWN:])
        if self.given["args"].get("BUILDKIT_CONTEXT_KEEP_GIT_DIR") != "1":
            shutil.rmtree(self.folder / ".git")
        return self.folder / (self.given["directory"] or "")

    def _build(self, context: Path, dockerfile: Path) -> None:
        buildkit = self._has_buildkit()
        if not buildkit and _FOR_BUILDKIT.search(dockerfile.read_text(encoding="utf-8")):
            raise Failure("buildkit", ["`docker buildx version` says that there is none"])
        words = ["docker", "build", "--tag", self.given["name"], "--file", str(dockerfile)]
        words += ["--label", f"{LABEL}={self.given['digest']}"]
        words += ["--progress=plain"] if buildkit else ["--force-rm"]
        for name, value in self.given["args"].items():
            words += ["--build-arg", f"{name}={value}"]
        last: collections.deque[str] = collections.deque(maxlen=SHOWN)
        step = None
        with self.log.open("w", encoding="utf-8") as log:
            child = subprocess.Popen(
                [*DIES_WITH_US, *words, str(context)],
                env={**os.environ, "DOCKER_BUILDKIT": "1" if buildkit else "0"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            )
            assert child.stdout is not None  # noqa: S101  # for the type checker
            for line in child.stdout:
                # A full disk is the build's to report; it goes on without its log.
                with contextlib.suppress(OSError):
                    log.write(line)
                if line.strip():
                    last.append(line.rstrip())
                if (begun := step_of(line)) is not None:
                    step = begun
                    self._say(begun)
        if child.wait() != 0:
            raise Failure("docker", list(last), step)

    def _has_buildkit(self) -> bool:
        version = self._docker("version", "--format", "{{.Client.Version}}")
        if int(version.split(".")[0]) < NEEDS_BUILDX:
            return True
        asked = ["docker", "buildx", "version"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def _record(self, image: str) -> None:
        path = self.records / "builds.json"
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            known = {}
        if known.get(self.given["digest"], {}).get("id") == image:
            return
        created = self._docker("inspect", "--format", "{{.Created}}", image)
        made_of = ("git", "commit", "directory", "dockerfile", "args")
        known[self.given["digest"]] = {
            "image": self.given["name"],
            "id": image,
            "built": re.split(r"[.Z]", created)[0] + "Z",
            **{name: self.given[name] for name in made_of},
        }
        atomic.write(path, json.dumps(known, indent=1) + "\n")

    def _say(self, stage: str) -> None:
        with contextlib.suppress(OSError):
            atomic.write(self.progress, json.dumps({"stage": stage, "done": 0}))

    def _docker(self, *words: str) -> str:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure("docker", done.stderr.strip().splitlines()[-SHOWN:])
        return done.stdout


def main() -> None:
    """Entry point of the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "git": {"type": "str", "required": True},
            "commit": {"type": "str", "required": True},
            "directory": {"type": "str"},
            "dockerfile": {"type": "str"},
            "args": {"type": "dict", "default": {}},
            "free_bytes": {"type": "int", "required": True},
            "progress": {"type": "path", "required": True},
            "directory_of_records": {"type": "path", "required": True},
        }
    )
    builder = Builder(module.params)
    try:
        with builder.turn():
            changed, image = builder.have()
    except Failure as failure:
        module.fail_json(
            msg=str(failure),
            during=failure.during,
            said=failure.said,
            step=failure.step,
            log=str(builder.log) if failure.during == "docker" else None,
        )
    module.exit_json(changed=changed, id=image)


if __name__ == "__main__":
    main()

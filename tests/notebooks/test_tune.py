"""Several deployments of a lab host in turn, measured, interrupted and taken back.

The engine is the stand-in, which starts in a second; all else is real: deploys, gate, planner, SSH
and the load in the container.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from tests.notebooks.conftest import Deployed
from tests.playbooks.playbook import PATIENCE_S, ROOT, deploy, inventory

from roost import runs
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.tuning import concluding

pytestmark = [pytest.mark.lab, pytest.mark.engine]

HELD = "/var/lib/roost/releases/held"
LEASE = "/var/lib/roost/releases/rollout.json"


@pytest.fixture(scope="module")
def standin(
    shared_lab: SharedLab, artefacts: object, tmp_path_factory: pytest.TempPathFactory
) -> Deployed:
    """A host that serves with the stand-in."""
    assert artefacts
    image = standin_image(shared_lab.lab.cache, print)
    host = shared_lab.host("cpu", fresh=True, image=image)
    lab = shared_lab.lab  # another one with each host
    where = inventory(
        tmp_path_factory.mktemp("site"),
        lab,
        [host],
        roost_hardware="cpu",
        roost_recipe="smollm2-135m",
        roost_lock_file=str(lab.lock_file),
        roost_hub_client=False,  # the lab's hub needs none
        # One seat of the stand-in serves four users one after the other, four serve them together.
        roost_settings={
            "image": image,
            # Slow enough for the machine not to be what sets the pace.
            "extra_args": ["--standin-tokens-per-second=300"],
            "max_num_seqs": 1,
        },
    )
    play = deploy(where)
    assert play.code == 0, play.output
    return Deployed(host, where)


class Command:
    """A verb of the command line that goes on, in a terminal of its own."""

    def __init__(self, standin: Deployed, folder: Path, *words: str | Path) -> None:
        program = Path(sys.executable).with_name("roost")
        where = ("-i", standin.where, "--host", standin.host.name, "--runs", folder / "runs")
        self._said = folder / "said"
        with self._said.open("w") as said:
            self.child = subprocess.Popen(
                [program, *words, *where],
                cwd=ROOT,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(encoding="utf-8", errors="replace")

    def says(self, pattern: str, seconds: float = PATIENCE_S) -> None:
        """Wait until it has said something."""
        eventually(lambda: re.search(pattern, self.said) or self.child.poll() is not None, seconds)
        assert re.search(pattern, self.said), self.said

    def end(self) -> int:
        code = self.child.wait(2 * PATIENCE_S)
        assert "Traceback" not in self.said, self.said
        return code


Begin = Callable[..., Command]


@pytest.fixture
def begin(standin: Deployed, tmp_path: Path) -> Iterator[Begin]:
    """Begin a verb for the host; what a test leaves running ends with it."""
    begun: list[Command] = []

    def one(*words: str | Path) -> Command:
        begun.append(Command(standin, tmp_path, *words))
        return begun[-1]

    yield one
    for command in begun:
        if command.child.poll() is None:
            command.child.terminate()
            command.child.wait()


def eventually(holds: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ask(standin: Deployed, *words: str) -> str:
    """What a command on the host prints."""
    return standin.host.exec(list(words)).stdout


def release(standin: Deployed) -> str:
    """Id of the release in place."""
    return ask(standin, "readlink", "/var/lib/roost/releases/current").strip()


def loaded(standin: Deployed) -> bool:
    """Whether a load generator runs in the container."""
    return "vllm bench" in ask(standin, "docker", "top", "roost-llm", "-eo", "pid,args")


def left(standin: Deployed) -> str:
    """Files of load generators in the container."""
    return ask(standin, "docker", "exec", "roost-llm", "sh", "-c", "ls -d /tmp/roost-bench*")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"Say {n}."}) for n in range(8)))
    return file


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Enough for more than a minute from one user."""
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"Say {n}."}) for n in range(200)))
    return file


def to_all(child: subprocess.Popen[bytes]) -> None:
    """Ctrl-C in a terminal."""
    os.killpg(child.pid, signal.SIGINT)


def to_it(child: subprocess.Popen[bytes]) -> None:
    child.send_signal(signal.SIGTERM)


def cut_off(child: subprocess.Popen[bytes]) -> None:
    child.kill()


@pytest.mark.parametrize("interrupt", [to_all, to_it, cut_off])
def test_an_interrupted_benchmark_ends_its_load(
    standin: Deployed,
    begin: Begin,
    tmp_path: Path,
    many: Path,
    interrupt: Callable[[subprocess.Popen[bytes]], None],
) -> None:
    command = begin("bench", "--suite", "matrix", "--prompts", many)
    command.says("mixed-c1 repetition 1")
    eventually(lambda: loaded(standin))
    interrupt(command.child)
    code = command.end()
    assert code == (-signal.SIGKILL if interrupt is cut_off else 130)
    eventually(lambda: not loaded(standin))
    eventually(lambda: not left(standin))
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / runs.RESULT).exists()


def test_a_search_is_interrupted_and_goes_on(
    standin: Deployed, begin: Begin, prompts: Path
) -> None:
    before = release(standin)
    options = ["--suite", "matrix", "--prompts", prompts, "--users", "4", "--json"]
    options += ["--vary", "max_num_seqs=4", "--vary", "max_model_len=2048,1000000"]
    command = begin("tune", *options)
    command.says(r"sequences 4: \[.* matrix: point 1 of 3, mixed-c1 repetition 1")
    assert release(standin) != before
    to_it(command.child)
    assert command.end() == 130
    assert f"interrupted\n{standin.host.name}: going back to {before}" in command.said
    assert release(standin) == before
    assert not ask(standin, "readlink", HELD)
    assert not loaded(standin)

    command = begin("tune", *options)
    assert command.end() == 0, command.said
    assert "present: deploy" not in command.said
    assert release(standin) == before
    (outcome,) = json.loads(command.said[command.said.index("[\n") :])
    checks = {check["id"]: check for check in outcome["result"]["checks"]}
    assert checks["points"]["observed"].startswith("2 measured, 0 failed, 2 refused")
    assert "context 1000000: context-beyond-model" in checks["points"]["why"]
    assert checks["chosen"]["observed"] == "sequences 4"
    snippet = Path(outcome["run"]) / concluding.SNIPPET
    given = yaml.safe_load((standin.where / "hosts.yml").read_text())["all"]["vars"]
    chosen = {"roost_settings": {**given["roost_settings"], "max_num_seqs": 4}}
    assert yaml.safe_load(snippet.read_text()) == chosen
    # As it is, for the very deploy that it is meant for.
    play = deploy(standin.where, "--check", "--tags", "preflight", "-e", f"@{snippet}")
    assert play.code == 0, play.output


def test_a_search_that_was_killed_goes_on_or_ends_with_the_next_deploy(
    standin: Deployed, begin: Begin, tmp_path: Path, prompts: Path
) -> None:
    before = release(standin)
    options = ["--suite", "smoke", "--prompts", prompts, "--vary", "max_num_seqs=4"]
    killed(begin, options)
    assert release(standin) != before
    assert ask(standin, "readlink", HELD).strip() == before
    # Whoever would take what is tried for what serves is told.
    rollout = roost("rollout", "-i", standin.where, "--runs", tmp_path / "runs", "--brief")
    assert rollout.returncode == 1
    assert "left to somebody else, and nothing was changed" in rollout.stderr
    assert f"tries deployments (tune) of {standin.where}" in rollout.stderr
    status = roost("status", "-i", standin.where).stdout
    assert f"is run again, goes back to {before}" in status
    by_hand = deploy(standin.where)
    assert by_hand.code != 0
    assert "which ends the experiment" in by_hand.refusal(standin.host)

    command = begin("tune", *options)
    assert command.end() == 0, command.said
    assert f"it will go back to {before}" in command.said
    assert release(standin) == before
    assert not ask(standin, "readlink", HELD)
    assert standin.host.exec(["test", "-e", LEASE]).returncode == 1

    killed(begin, [*options, "--anew"])
    tried = release(standin)
    settings = yaml.safe_load((standin.where / "hosts.yml").read_text())["all"]["vars"]
    chosen = {**settings["roost_settings"], "max_num_seqs": 4}
    play = deploy(standin.where, roost_settings=chosen, despite_lease=True)
    assert play.code == 0, play.output
    # Though it is the very release that was tried: it is meant now.
    assert release(standin) == tried
    assert not ask(standin, "readlink", HELD)
    command = begin("tune", *options)
    assert command.end() == 0, command.said
    assert release(standin) == tried
    play = deploy(standin.where)
    assert play.code == 0, play.output
    assert release(standin) == before


def killed(begin: Begin, options: list[str | Path]) -> None:
    """A search by kill -9, while it measures a point that is not what served."""
    command = begin("tune", *options)
    command.says(r"sequences 4: \[")
    cut_off(command.child)
    command.end()


def roost(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("roost")
    return subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_ctrl_c_in_a_deploy_brings_the_host_back(
    standin: Deployed, begin: Begin, tmp_path: Path, prompts: Path
) -> None:
    before = release(standin)
    options = ["--deploy", "none,dflash", "--suite", "smoke", "--prompts", prompts]
    command = begin("compare", *options)
    command.says("none: deploy")
    eventually(lambda: trial(standin))
    to_all(command.child)
    assert command.end() == 130
    assert f"{before} serves again" in command.said
    assert release(standin) == before
    assert not ask(standin, "readlink", HELD)
    assert not list((tmp_path / "runs").glob("*/result.json"))


def trial(standin: Deployed) -> bool:
    """Whether a deploy has made its container."""
    return len(ask(standin, "docker", "ps", "-aq").split()) > 1

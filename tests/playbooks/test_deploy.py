"""The main job on one host: deployed, deployed again, deployed wrongly, deployed back.

The tests of this file share a host with a real engine and run in their order: each leaves the
recipe serving, and what a test does to it is undone by a deploy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.playbooks.faults import BACK, fault
from tests.playbooks.playbook import Play, deploy, inventory, state

from roost.lab.build import Artefacts
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.lab.lab import WORSE_DRAFTER
from roost.launch.container import CONTAINER, KEY_SOURCE
from roost.rollout import run as rollouts

pytestmark = [pytest.mark.lab, pytest.mark.engine]


@dataclass(frozen=True)
class Server:
    """A host with the embedded default on it, and how it was deployed first."""

    host: Host
    inventory: Path
    lock_file: Path
    first: Play


@pytest.fixture(scope="module")
def server(
    artefacts: Artefacts,  # noqa: ARG001  # the hub has the model before the host's lab is locked
    shared_lab: SharedLab,
    tmp_path_factory: pytest.TempPathFactory,
) -> Server:
    folder = tmp_path_factory.mktemp("deploy")
    host = shared_lab.host("cpu", fresh=True)
    where = inventory(
        folder / "inventory",
        shared_lab.lab,
        [host],
        roost_recipe="smollm2-135m",
        roost_lock_file=str(shared_lab.lab.lock_file),
    )
    return Server(host, where, shared_lab.lab.lock_file, deploy(where))


def container(host: Host) -> dict[str, Any]:
    inspected = host.exec(["docker", "inspect", CONTAINER])
    found: dict[str, Any] = json.loads(inspected.stdout)[0]
    return found


def current(host: Host) -> dict[str, Any]:
    """What is recorded of the release that serves."""
    shown = host.exec(["cat", "/var/lib/roost/releases/current/release.json"])
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def status(host: Host, key: str | None) -> int:
    """HTTP status of the endpoint's list of models, asked with a key or without."""
    script = (
        "import sys, urllib.error as e, urllib.request as u\n"
        "key = sys.stdin.read()\n"
        "asked = u.Request('http://127.0.0.1:8000/v1/models')\n"
        "if key: asked.add_header('Authorization', 'Bearer ' + key)\n"
        "try: print(u.urlopen(asked).status)\n"
        "except e.HTTPError as error: print(error.code)"
    )
    return int(host.exec(["python3", "-c", script], text_in=key or "").stdout)


def answer(host: Host, question: str) -> str:
    """What the endpoint on the host's loopback answers, asked past Ansible."""
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 24,
    }
    script = (
        "import sys, urllib.request as u; print(u.urlopen(u.Request("
        "'http://127.0.0.1:8000/v1/chat/completions', sys.stdin.buffer.read(), "
        "{'Content-Type': 'application/json'})).read().decode())"
    )
    done = host.exec(["python3", "-c", script], text_in=json.dumps(body))
    assert done.returncode == 0, done.stderr
    text: str = json.loads(done.stdout)["choices"][0]["message"]["content"]
    return text


@contextmanager
def still_serving(host: Host) -> Iterator[None]:
    """Nothing on the host changes, and the same container answers before and after."""
    before = state(host)
    yield
    assert state(host) == before
    assert "Paris" in answer(host, "What is the capital of France?")


def test_a_first_deploy_ends_with_right_answers(server: Server) -> None:
    assert server.first.code == 0, server.first.output
    assert server.first.changed[server.host.name] > 0
    assert "What is the capital of France?" in server.first.output
    assert "Paris" in answer(server.host, "What is the capital of France?")


def test_the_container_is_the_launch_that_was_computed(server: Server) -> None:
    spec = current(server.host)["spec"]
    running = container(server.host)
    limits = running["HostConfig"]
    assert running["Config"]["Image"] == spec["image"]
    assert running["Config"]["Entrypoint"] == spec["entrypoint"]
    assert running["Config"]["Cmd"] == spec["command"]
    assert {f"{key}={value}" for key, value in spec["env"].items()} <= set(running["Config"]["Env"])
    assert spec["labels"].items() <= running["Config"]["Labels"].items()
    mounts = {(item["Source"], item["Destination"], not item["RW"]) for item in running["Mounts"]}
    assert mounts == {
        (item["source"], item["target"], item["read_only"]) for item in spec["mounts"]
    }
    assert limits["PortBindings"] == {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}]}
    assert limits["CapDrop"] == spec["security"]["cap_drop"]
    assert limits["SecurityOpt"] == ["no-new-privileges"]
    assert limits["Privileged"] is False
    assert limits["PidsLimit"] == spec["pids_limit"]
    assert limits["LogConfig"] == {"Type": "json-file", "Config": spec["log_options"]}
    # systemd starts it, at every boot.
    assert limits["RestartPolicy"] == {"Name": "no", "MaximumRetryCount": 0}
    unit = server.host.exec(["systemctl", "is-enabled", "--quiet", CONTAINER])
    assert unit.returncode == 0


def test_a_second_deploy_changes_nothing(server: Server) -> None:
    with still_serving(server.host):
        play = deploy(server.inventory)
    assert play.code == 0, play.output
    assert play.changed == {server.host.name: 0}


def test_check_mode_finds_nothing_to_change(server: Server) -> None:
    with still_serving(server.host):
        play = deploy(server.inventory, "--check", "--diff")
    assert play.code == 0, play.output
    assert play.changed == {server.host.name: 0}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"roost_recipe": "smollm2-136m"},
            "recipe 'smollm2-136m' is not in the catalogue",
        ),
        (
            {"roost_recipe": "ornith-1.0-35b-heretic-nvfp4-dflash"},
            "has never been run on cpu, so no image is known for it",
        ),
        (
            {"roost_settings": {"image": f"roost-lab/vllm-cpu@sha256:{'0' * 64}"}},
            "the registry does not have this digest",
        ),
        (
            {"roost_prot": 8001},
            "roost_prot is no variable of roost, did you mean roost_port?",
        ),
        # sshd's own port is taken on every host.
        ({"roost_port": 22}, "port 22 is taken"),
        (
            {"roost_settings": {"image": f"roost-lab/vllm-cpu:0.32.0@sha256:{'0' * 64}"}},
            "carries a tag or digest",
        ),
        ({"roost_listen": "localhost"}, "'localhost' does not appear to be an IPv4 or IPv6"),
    ],
    ids=[
        "unknown recipe",
        "recipe for other hardware",
        "digest not in the registry",
        "misspelt",
        "port taken",
        "image with tag and digest",
        "a name to listen on",
    ],
)
def test_a_wrong_wish_is_refused_while_the_server_serves(
    server: Server, overrides: dict[str, Any], message: str
) -> None:
    with still_serving(server.host):
        play = deploy(server.inventory, **overrides)
    assert play.code != 0
    assert play.changed == {server.host.name: 0}
    assert message in play.refusal(server.host)


@pytest.fixture
def other_lock(server: Server, tmp_path: Path) -> str:
    """A lock with a drafter revision that is neither on the host nor on the hub."""
    lock = yaml.safe_load(server.lock_file.read_text())
    lock["models"]["roost-lab/SmolLM2-135M-DFlash"]["main"]["commit"] = "0" * 40
    path = tmp_path / "roost.lock.yml"
    path.write_text(yaml.safe_dump(lock))
    return str(path)


def test_a_revision_that_is_not_on_the_hub(server: Server, other_lock: str) -> None:
    with still_serving(server.host):
        play = deploy(server.inventory, roost_lock_file=other_lock)
    assert play.code != 0
    assert play.changed == {server.host.name: 0}
    message = play.refusal(server.host)
    assert "the hub has the repository, but not this revision" in message
    assert f"roost-lab/SmolLM2-135M-DFlash@{'0' * 12}" in message


def test_weights_that_do_not_fit(server: Server) -> None:
    """The filesystem of the weights is small, and nothing of them is on it yet."""
    host = server.host
    host.exec(["mkdir", "-p", "/srv/small"])
    host.exec(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", "/srv/small"])
    try:
        with still_serving(host):
            play = deploy(server.inventory, roost_model_dir="/srv/small")
    finally:
        host.exec(["umount", "/srv/small"])
    assert play.code != 0
    assert play.changed == {host.name: 0}
    message = play.refusal(host)
    assert "disk: saw 20.0 MiB free on /srv/small" in message
    assert "set roost_model_dir" in message


def test_an_unreachable_address_leaves_the_server_alone(server: Server, lab: SharedLab) -> None:
    nobody = str(lab.lab.spec.subnet[250])
    with still_serving(server.host):
        play = deploy(server.inventory, ansible_host=nobody)
    assert play.code != 0
    assert play.unreachable == {server.host.name: 1}


def test_a_hub_that_is_down(server: Server, lab: SharedLab, other_lock: str) -> None:
    lab.lab.hub.stop()
    with still_serving(server.host):
        play = deploy(server.inventory, roost_lock_file=other_lock)
        assert play.code != 0
        assert play.changed == {server.host.name: 0}
        assert "the hub cannot be reached" in play.refusal(server.host)
        # What is deployed already needs no hub.
        assert deploy(server.inventory).code == 0


@fault("engine", "is healthy and answers wrongly (compiled, in bfloat16)", BACK)
def test_a_compiled_engine_is_healthy_and_refused_for_its_answers(server: Server) -> None:
    # The fault needs both: compiled, and in the type that the recipe turns away from.
    compiled = {"enforce_eager": False, "dtype": "bfloat16"}
    before = current(server.host)
    play = deploy(server.inventory, roost_settings=compiled)
    assert play.code != 0
    message = play.refusal(server.host)
    assert "is healthy, but answers wrongly" in message
    assert "answer_capital: asked 'What is the capital of France?', the answer was" in message
    assert "wants: an answer that names Paris" in message
    # Health alone would have let it pass. The release before is back.
    assert "again (healthy, with right answers)" in message
    assert "Paris" in answer(server.host, "What is the capital of France?")
    assert "--enforce-eager" in container(server.host)["Config"]["Cmd"]
    assert current(server.host) == before


@fault("engine", "refuses a flag and ends", BACK)
def test_an_engine_that_ends_is_reported_with_its_cause(server: Server) -> None:
    play = deploy(server.inventory, roost_settings={"extra_args": ["--no-such-flag"]})
    assert play.code != 0
    message = play.refusal(server.host)
    assert "the engine ended with exit code 2 before it was healthy" in message
    assert "cause: --no-such-flag is no flag of this engine" in message
    assert "again (healthy, with right answers)" in message
    assert "Paris" in answer(server.host, "What is the capital of France?")


@fault("engine", "is healthy, and dies at the first request (a mode for GPUs)", BACK)
def test_an_engine_that_is_healthy_until_it_is_asked(server: Server) -> None:
    asked = {
        "method": "dflash",
        "model": "/drafter",
        "num_speculative_tokens": "4",
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": "[0.8, 0.6, 0.4, 0.25]",
    }
    # Said in this way, it takes the place of the recipe's.
    words = [
        word for key, value in asked.items() for word in (f"--speculative-config.{key}", value)
    ]
    play = deploy(server.inventory, roost_settings={"extra_args": words})
    assert play.code != 0
    message = play.refusal(server.host)
    assert "the first request got" in message or "at the first request" in message
    assert "cause: synthetic acceptance needs a GPU (synthetic-acceptance-on-cpu)" in message
    assert "again (healthy, with right answers)" in message
    assert "Paris" in answer(server.host, "What is the capital of France?")


@fault("engine", "has a drafter that was trained too briefly", BACK)
def test_a_drafter_that_fits_worse_is_stopped_by_its_accept_length(
    server: Server,
    lab: SharedLab,  # with its hub running
    tmp_path: Path,
) -> None:
    before = current(server.host)
    # By a rollout, whose canary it is; the other way round is in `make bench-rollout`.
    where = inventory(
        tmp_path / "inventory",
        lab.lab,
        [server.host],
        roost_recipe="smollm2-135m",
        roost_lock_file=str(server.lock_file),
        roost_settings={"drafter_revision": WORSE_DRAFTER},
    )
    _, done = rollouts.run(where, suite="smoke", brief=True, runs_dir=tmp_path / "runs", say=print)
    assert (done.verdict, done.hosts[server.host.name].verdict) == ("stopped", "back")
    assert "it is healthy, but accepts too few drafts" in done.reason
    assert "the drafter fits this model worse than it did" in done.reason
    assert current(server.host) == before
    assert "Paris" in answer(server.host, "What is the capital of France?")


def test_a_key_is_asked_for_and_shown_nowhere(
    server: Server, shared_lab: SharedLab, tmp_path: Path
) -> None:
    first, second = "f1rst-k3y-of-tests", "s3cond-k3y-of-tests"
    host = server.host

    def keyed(key: str) -> Path:
        return inventory(
            tmp_path / str(len(list(tmp_path.iterdir()))),
            shared_lab.lab,
            [host],
            roost_recipe="smollm2-135m",
            roost_lock_file=str(server.lock_file),
            roost_api_key=key,
        )

    play = deploy(keyed(first), "-vvv", "--diff")
    assert play.code == 0, play.output
    assert (status(host, first), status(host, second), status(host, None)) == (200, 401, 401)
    assert host.exec(["stat", "-c", "%a %U", KEY_SOURCE]).stdout.split() == ["600", "root"]
    script = "cat /proc/[0-9]*/cmdline /var/lib/roost/releases/*/*; docker logs roost-llm 2>&1"
    shown = host.exec(["sh", "-c", script]).stdout
    assert "serve" in shown
    for text in (play.output, json.dumps(container(host)), shown):
        assert first not in text
    again = deploy(keyed(first))
    assert again.changed == {host.name: 0}, again.output
    # The container would be the same; the file that it read once has other contents.
    assert deploy(keyed(second)).code == 0
    assert (status(host, first), status(host, second)) == (401, 200)


def test_the_recipe_is_deployed_back(server: Server) -> None:
    play = deploy(server.inventory)
    assert play.code == 0, play.output
    assert play.changed[server.host.name] > 0
    assert "Paris" in answer(server.host, "What is the capital of France?")

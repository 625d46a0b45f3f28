"""The verify notebook on a deployed lab host: real sshd, real dockerd, the real engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.notebooks.conftest import Deployed
from tests.notebooks.readme import Checkout
from tests.playbooks.playbook import Running, deploy, inventory

from roost import inventory as inventories
from roost import runs, ssh
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.launch import shown
from roost.measure.client import Client, EngineError

pytestmark = [pytest.mark.lab, pytest.mark.engine]

INAPPLICABLE = {
    "log_attention",
    "log_drafter_attention",
    "log_moe",
    "log_kv_dtype",
    "log_graphs",
    "api_key",
    "api_key_hidden",
    "lossless",
    "thinking_off",
    "reasoning_parser",
    "tool_parser",
}
SEES_CONTAINER = {"container", "image_digest", "command", "mounts"}
SEES_WEIGHTS = {"model_revision", "drafter_revision"}


@contextmanager
def undone(host: Host, do: str, undo: str) -> Iterator[None]:
    """Break something on a host for a while."""
    host.exec(["sh", "-c", do])
    try:
        yield
    finally:
        host.exec(["sh", "-c", undo])


def test_a_deployed_host_passes_by_the_line_of_the_readme(
    deployed: Deployed, tmp_path: Path
) -> None:
    checkout = Checkout(tmp_path, deployed.where, deployed.host.name)
    done = checkout.run("verify")
    assert done.returncode == 0, done.stderr
    (folder,) = checkout.runs.iterdir()
    assert (checkout.root / "OUT.ipynb").is_file()
    result = runs.read(folder)
    assert result.ok
    assert (result.recipe, result.speculation) == ("smollm2-135m", "dflash")
    assert result.figures["accept_length"].value > 1
    observed = {check.id: check.observed for check in result.checks}
    assert "Paris" in observed["answer_capital"]
    # Nothing is left open: what is not passed does not apply to this recipe on a CPU.
    verdicts = {check.id: check.verdict for check in result.checks}
    assert {name for name, verdict in verdicts.items() if verdict != "pass"} == INAPPLICABLE
    assert set(verdicts.values()) == {"pass", "not applicable"}
    (pool,) = (check for check in result.checks if check.id == "pool_tokens")
    assert pool.expected.endswith("tokens (the plan it was deployed with)")
    assert "KV cache size: " in pool.observed
    # As near the claimed 2,048 as the answer leaves.
    assert int(observed["long_context"].partition(" ")[0].replace(",", "")) > 1880
    assert observed["refuses_unknown_model"].startswith("HTTP 404: ")
    assert observed["refuses_broken_json"].startswith("HTTP 400: ")
    assert "0 restarts" in observed["alive_after"]
    assert "Initializing a V1 LLM engine" in (folder / "engine-start.log").read_text()
    assert observed["image_digest"] == deployed.deployment().image_digest
    assert "spec_decode_num_drafts_total" in (folder / "metrics_after.txt").read_text()
    assert (
        "Uvicorn running" in (folder / "engine.log").read_text()
        or "Application startup" in (folder / "engine.log").read_text()
    )


def test_a_host_that_does_not_serve_fails_with_its_checks_and_alone(
    deployed: Deployed, lab: SharedLab, tmp_path: Path
) -> None:
    """By the playbook, over an inventory."""
    empty = lab.host("cpu", fresh=True)
    given = yaml.safe_load((deployed.where / "hosts.yml").read_text())["all"]["vars"]
    where = inventory(tmp_path / "site", lab.lab, [deployed.host, empty], **given)
    play = Running(
        where,
        playbook="playbooks/verify.yml",
        verify_runs=str(tmp_path / "runs"),
        verify_long_context=0,
        verify_bad_requests=False,
    ).end()
    good, bad = deployed.host.name, empty.name
    assert play.code == 2
    assert play.failed == {good: 0, bad: 1}
    assert play.changed == {good: 0, bad: 0}
    assert play.unreachable == {good: 0, bad: 0}
    results = {run.host: run for run in map(runs.read, (tmp_path / "runs").iterdir())}
    assert {host: result.ok for host, result in results.items()} == {good: True, bad: False}
    why = play.refusal(empty)
    assert f"{len(results[bad].failed)} of {len(results[bad].checks)} checks failed" in why
    for check in ("container", "image_digest", "model_revision"):
        assert check in why


def test_the_tunnel_reaches_what_only_loopback_serves(deployed: Deployed) -> None:
    chosen = inventories.load(deployed.where).host(deployed.host.name)
    with ssh.connect(chosen) as remote, remote.tunnel(9) as tunnel:
        with (
            Client(f"http://127.0.0.1:{tunnel.port}") as client,
            pytest.raises(EngineError),
        ):
            client.health()
        assert tunnel.refusals == ["nothing answers on 127.0.0.1:9"]
        assert remote.run(["hostname"]).out.strip() == deployed.host.name


def test_altered_weights_are_found(deployed: Deployed, tmp_path: Path) -> None:
    model, drafter = (weights.directory for weights in deployed.deployment().weights)
    moved = f"mv {drafter}/.roost.json /tmp/record"
    put_back = f"mv /tmp/record {drafter}/.roost.json"
    with undone(deployed.host, moved, put_back):
        assert "No such file" in deployed.failed(tmp_path / "a")["drafter_revision"]
    index = f"{model}/config.json"
    with undone(deployed.host, f"echo >> {index}", f"truncate -s -1 {index}"):
        why = deployed.failed(tmp_path / "b")
    assert set(why) == {"model_revision"}
    assert "config.json has" in why["model_revision"]


def test_a_dead_engine_and_another_container_under_its_name_are_found(
    deployed: Deployed, tmp_path: Path
) -> None:
    """The other one has the same image, but is not as pinned: no drafter, a writable directory."""
    spec = deployed.deployment().spec
    other = "docker rename roost-llm kept && docker run -d --name roost-llm "
    other += f"-v {spec.mounts[0].source}:/model --entrypoint sleep {spec.image} 6000"
    back = "docker rm -f roost-llm; docker rename kept roost-llm"
    # One start of the engine for both.
    with undone(deployed.host, "systemctl stop roost-llm", "systemctl start roost-llm"):
        dead = deployed.failed(tmp_path / "dead")
        with undone(deployed.host, other, back):
            changed = deployed.failed(tmp_path / "changed")
    assert "exit status" in dead["container"]
    assert dead["health"] == f"{deployed.host.name}: nothing answers on 127.0.0.1:8000"
    assert not {"image_digest", "command", "mounts", *SEES_WEIGHTS} & set(dead)
    assert {"command", "mounts", "health"} <= set(changed)
    assert not {"container", "image_digest", *SEES_WEIGHTS} & set(changed)
    wait_until_healthy(deployed)


def test_an_unreachable_host_is_one_reason_for_every_check(
    deployed: Deployed, tmp_path: Path
) -> None:
    deployed.host.cut()
    try:
        result = deployed.verify(tmp_path)
    finally:
        deployed.host.join()
    assert {check.verdict for check in result.checks} == {"fail", "not applicable"}
    assert {check.id for check in result.checks if check.ok} <= {*INAPPLICABLE, "long_context"} | {
        check.id for check in result.checks if check.id.startswith("refuses_")
    }
    assert f"{deployed.host.name} (" in result.failed[0].why
    assert "cannot connect" in result.failed[0].why
    assert (tmp_path / "report.html").is_file()


def test_an_engine_that_answers_wrongly_is_found(deployed: Deployed, tmp_path: Path) -> None:
    """Compiled, this engine answers wrongly while everything else looks right.

    No deploy would leave it there, so it is started by hand, with the deployment's own command.
    """
    garbled = again(deployed, tmp_path / "site", GARBLED)
    spec = garbled.deployment().spec
    stop = "systemctl stop roost-llm; docker rm -f roost-llm"
    assert deployed.host.exec(["sh", "-c", stop]).returncode == 0
    started = deployed.host.exec(shown.docker_argv(spec))
    assert started.returncode == 0, started.stderr
    wait_until_healthy(deployed)
    why = garbled.failed(tmp_path / "run")
    assert "answer_capital" in why
    assert not {"health", *SEES_CONTAINER, *SEES_WEIGHTS} & set(why)


def test_parsers_are_seen_to_work_on_the_real_engine(deployed: Deployed, tmp_path: Path) -> None:
    """Also the way back from what was started by hand."""
    parsing = again(deployed, tmp_path / "site", {"extra_args": PARSERS})
    back = deploy(parsing.where)
    assert back.code == 0, back.output
    result = parsing.verify(tmp_path / "run")
    assert result.failed == []
    observed = {check.id: check.observed for check in result.checks if check.verdict == "pass"}
    assert "get_weather" in observed["tool_parser"]
    assert "Paris" in observed["tool_parser"]
    assert observed["reasoning_parser"].startswith("beside the answer: 'All but 9 run away")
    assert "thought process" not in observed["reasoning_parser"]


class Unsafe(str):
    """Text that Ansible leaves as it is, though it looks like a template."""


class Dumper(yaml.SafeDumper):
    """Writes it."""


Dumper.add_representer(Unsafe, lambda dumper, text: dumper.represent_scalar("!unsafe", text))

#: The fault needs both: compiled, and in the type that the recipe turns away from.
GARBLED = {"enforce_eager": False, "dtype": "bfloat16"}
#: The model is too small to know of tools or thoughts: the template shows it how. It begins with a
#: line end, for a word that begins with a brace must be JSON.
PARSERS = [
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--reasoning-parser", "granite"),
    "--chat-template",
    Unsafe((Path(__file__).parent / "few_shot.jinja").read_text(encoding="utf-8")),
]


def again(deployed: Deployed, folder: Path, settings: dict[str, Any]) -> Deployed:
    """The host with other settings in its inventory."""
    document = yaml.safe_load((deployed.where / "hosts.yml").read_text())
    document["all"]["vars"]["roost_settings"] = settings
    folder.mkdir()
    (folder / "hosts.yml").write_text(yaml.dump(document, Dumper=Dumper))
    return Deployed(deployed.host, folder)


def wait_until_healthy(deployed: Deployed) -> None:
    """A container that was started again loads its model first."""
    script = (
        "import time, urllib.request as r\n"
        "for _ in range(1800):\n"
        "    try: r.urlopen('http://127.0.0.1:8000/health'); break\n"
        "    except OSError: time.sleep(1)\n"
        "else: raise SystemExit(1)\n"
    )
    assert deployed.host.exec(["python3", "-c", script], timeout=1900).returncode == 0

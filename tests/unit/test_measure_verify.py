"""Each check against each fault, on a host whose engine and container are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit import stand_in_engine
from tests.unit.deployments import write_lock
from tests.unit.stand_in_engine import Container, Engine

from roost.deployment import Deployment, from_variables
from roost.inventory import Connection, Host
from roost.measure import verify
from roost.measure.verify import Check, Evidence

IDS = [
    "container",
    "image_digest",
    "command",
    "mounts",
    "model_revision",
    "drafter_revision",
    "health",
    "served_name",
    "engine_version",
    "answer_capital",
    "answer_sum",
    "no_thinking",
    "streaming",
    "speculation",
]


@dataclass
class Site:
    """One host on this machine, its deployment and the stand-ins behind it."""

    host: Host
    deployment: Deployment
    engine: Engine
    container: Container
    bin: Path

    def verify(self) -> Evidence:
        self.container.install(self.bin)
        with verify.reach(self.host, self.deployment) as target:
            return verify.verify(target)

    def failed(self) -> dict[str, Check]:
        evidence = self.verify()
        assert [check.id for check in evidence.checks] == IDS
        assert evidence.ok == (not evidence.failed)
        return {check.id: check for check in evidence.failed}


@pytest.fixture
def make_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    write_lock(tmp_path / "roost.lock.yml")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    with stand_in_engine.serving() as engine:

        def make(**variables: object) -> Site:
            given = {
                "roost_hardware": "cpu",
                "roost_recipe": "smollm2-135m",
                "roost_port": engine.port,
                "roost_model_dir": str(tmp_path / "models"),
                **variables,
            }
            deployment = from_variables("lab-01", given, tmp_path)
            stand_in_engine.write_weights(deployment)
            host = Host("lab-01", given, Connection("127.0.0.1", local=True))
            return Site(host, deployment, engine, Container.of(deployment), tmp_path / "bin")

        yield make


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


def test_a_right_host_passes_with_figures_and_evidence(site: Site) -> None:
    evidence = site.verify()
    assert [check.id for check in evidence.checks] == IDS
    assert evidence.failed == []
    assert evidence.figures["accept_length"].value == pytest.approx(2.5)
    assert "75 of 200 draft tokens" in evidence.figures["accept_length"].source
    assert {"ttft_ms", "tokens_per_s", "accept_rate"} <= set(evidence.figures)
    assert evidence.artefacts["engine.log"] == "2026-01-01 50%\r100%\n2026-01-02 out\n"
    assert "num_drafts_total" in evidence.artefacts["metrics_before.txt"]
    assert evidence.artefacts["metrics_before.txt"] != evidence.artefacts["metrics_after.txt"]


def test_a_key_is_sent_and_strangers_are_turned_away(make_site: Callable[..., Site]) -> None:
    site = make_site(roost_api_key="a-key")
    site.engine.key = "a-key"
    evidence = site.verify()
    assert evidence.failed == []
    assert [check.id for check in evidence.checks if check.id not in IDS] == ["api_key"]
    site.engine.key = None
    (failed,) = site.verify().failed
    assert (failed.id, failed.observed) == ("api_key", "an answer without the API key")
    site.engine.key = "another"
    assert {"served_name", "answer_capital"} <= {check.id for check in site.verify().failed}


def test_garbled_answer_behind_green_health(site: Site) -> None:
    site.engine.answers["capital of France"] = "La la capitale de de"
    failed = site.failed()
    assert set(failed) == {"answer_capital"}
    assert failed["answer_capital"].observed == "La la capitale de de"
    assert "'What is the capital of France?' was answered wrongly" in failed["answer_capital"].why


def test_thinking_in_or_beside_the_answer(site: Site) -> None:
    site.engine.reasoning = "The user wants"
    assert set(site.failed()) == {"no_thinking"}
    site.engine.reasoning = ""
    site.engine.answers["2+2"] = "<think>easy</think> 4"
    assert set(site.failed()) == {"no_thinking", "answer_sum"}


def test_another_image(site: Site) -> None:
    site.container.image["RepoDigests"] = ["roost-lab/vllm-cpu@sha256:" + "9" * 64]
    check = site.failed()["image_digest"]
    assert check.expected == site.deployment.image_digest
    assert check.observed == "sha256:" + "9" * 64
    site.container.image["RepoDigests"] = []
    assert "without a digest" in site.failed()["image_digest"].observed


def test_the_same_digest_under_another_repository_is_the_same_image(site: Site) -> None:
    site.container.image["RepoDigests"] = [f"mirror:5000/x@{site.deployment.image_digest}"]
    assert site.failed() == {}


def test_another_command_environment_or_mount(site: Site) -> None:
    command = site.container.inspect["Config"]["Cmd"]
    command.remove("--enforce-eager")
    assert "instead of '--enforce-eager'" in site.failed()["command"].why
    site.container.inspect["Config"]["Cmd"] = [*site.deployment.spec.command, "--extra"]
    assert site.failed()["command"].why == "'--extra' was added at the end"
    site.container.inspect["Config"]["Cmd"] = site.deployment.spec.command
    site.container.inspect["Config"]["Env"] = []
    assert "VLLM_CPU_KVCACHE_SPACE=1" in site.failed()["command"].why
    site.container = Container.of(site.deployment)
    site.container.inspect["Mounts"][0]["RW"] = True
    assert set(site.failed()) == {"mounts"}


def test_another_revision_or_damaged_weights(site: Site) -> None:
    model, drafter = (Path(weights.directory) for weights in site.deployment.weights)
    record = json.loads((model / ".roost.json").read_text())
    (model / ".roost.json").write_text(json.dumps({**record, "revision": "f" * 40}))
    (drafter / "model.safetensors").write_bytes(b"short")
    failed = site.failed()
    assert failed["model_revision"].observed == f"{record['repo']}@{'f' * 40}"
    assert failed["drafter_revision"].why == "model.safetensors has 5 bytes instead of 100"
    (drafter / "model.safetensors").unlink()
    assert site.failed()["drafter_revision"].why == "model.safetensors is not there"
    (drafter / ".roost.json").unlink()
    assert "No such file" in site.failed()["drafter_revision"].why


def test_a_dead_core_behind_a_listening_port(site: Site) -> None:
    site.engine.health = 503
    site.engine.chat_status = 500
    failed = site.failed()
    assert set(failed) == {
        "health",
        "answer_capital",
        "answer_sum",
        "no_thinking",
        "streaming",
    }
    assert failed["answer_sum"].why.endswith("issue; engine.log has the reason")


def test_nothing_listens(make_site: Callable[..., Site]) -> None:
    site = make_site(roost_port=9)
    site.container.inspect["State"] = {"Status": "exited", "ExitCode": 1, "OOMKilled": False}
    failed = site.failed()
    assert set(failed) == {*IDS[6:], "container"}
    assert failed["container"].observed == "exited"
    assert failed["container"].why == "exit status 1; engine.log has its last words"
    assert "no connection" in failed["health"].why


def test_no_docker_at_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin-of-nothing")
    failed = site.failed()
    assert failed["container"].why == "docker: not found"
    assert failed["command"].why == "the container could not be inspected"


def test_host_out_of_reach_fails_every_check_with_the_reason(site: Site) -> None:
    site.host = Host("lab-01", site.host.variables, Connection("127.0.0.1", port=9))
    evidence = site.verify()
    assert [check.id for check in evidence.failed] == IDS
    whys = {check.why for check in evidence.failed if check.id not in [*IDS[1:4], "no_thinking"]}
    assert len(whys) == 1
    assert "lab-01 (127.0.0.1:9): cannot connect" in whys.pop()


def test_other_served_name_and_other_version(site: Site) -> None:
    site.engine.name = "other"
    site.engine.version = "0.31.0"
    evidence = site.verify()
    assert [check.id for check in evidence.failed] == ["served_name"]
    version = next(check for check in evidence.checks if check.id == "engine_version")
    assert (version.observed, bool(version.why)) == ("0.31.0", True)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (stand_in_engine.stream_of("Another answer than before."), "streamed: 'Another answer"),
        (
            b'data: {"choices": [{"delta": {"content": "%s"}}]}\n\ndata: [DONE]\n\n'
            % stand_in_engine.OTHER.encode(),
            "everything came at once",
        ),
        (b"", "the stream ended before"),
    ],
)
def test_streams_that_are_not_right(site: Site, stream: bytes, why: str) -> None:
    site.engine.stream = stream
    failed = site.failed()
    assert set(failed) == {"streaming"}
    assert failed["streaming"].why.startswith(why)


def test_a_near_tie_is_no_broken_stream(site: Site) -> None:
    site.engine.ties = 1
    checks = {check.id: check for check in site.verify().checks}
    assert checks["streaming"].ok
    assert checks["streaming"].why == "the texts agreed at attempt 2"
    site.engine.ties = verify.STREAM_ATTEMPTS
    assert set(site.failed()) == {"streaming"}


def test_speculation_that_accepts_nothing_or_is_off(site: Site) -> None:
    site.engine.accepted_per_draft = 0
    assert site.failed()["speculation"].observed.startswith("accept length 1.00 over")
    site.engine.speculates = False
    assert site.failed()["speculation"].why == "the engine runs without speculation"


def test_no_speculation_where_none_is_chosen(make_site: Callable[..., Site]) -> None:
    site = make_site(roost_speculation="none")
    checks = {check.id: check for check in site.verify().checks}
    assert "drafter_revision" not in checks
    assert checks["speculation"].why.startswith("the engine speculates although")
    site.engine.speculates = False
    assert site.verify().ok

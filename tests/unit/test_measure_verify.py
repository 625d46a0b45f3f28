"""Each check against each fault, on a host whose engine and container are stand-ins."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit import stand_in_engine
from tests.unit.deployments import write_lock
from tests.unit.stand_in_engine import Container, Engine

from roost import runs
from roost.builds import ImageBuild
from roost.deployment import Deployment, from_variables
from roost.errors import UsageError
from roost.inventory import Connection, Host
from roost.measure import demands, verify
from roost.measure.verify import Check, Evidence
from roost.plan import planner

IDS = [
    "container",
    "image_digest",
    "command",
    "mounts",
    "model_revision",
    "drafter_revision",
    "log_attention",
    "log_drafter_attention",
    "log_moe",
    "log_kv_dtype",
    "log_graphs",
    "pool_tokens",
    "pool_concurrency",
    "health",
    "served_name",
    "engine_version",
    "api_key",
    "answer_capital",
    "answer_sum",
    "no_thinking",
    "streaming",
    "speculation",
    "lossless",
    "thinking_off",
    "reasoning_parser",
    "tool_parser",
    "long_context",
    "refuses_long_prompt",
    "refuses_long_answer",
    "refuses_negative_max_tokens",
    "refuses_broken_json",
    "refuses_unknown_model",
    "refuses_bad_tool",
    "alive_after",
    "machine",
    "api_key_hidden",
]
#: Asked of the endpoint, of a host with the embedded default.
ASKED = {
    "health",
    "served_name",
    "engine_version",
    "answer_capital",
    "answer_sum",
    "no_thinking",
    "streaming",
    "speculation",
    "long_context",
    "alive_after",
    *(check for check in IDS if check.startswith("refuses_")),
}
POOL = {"pool_tokens", "pool_concurrency"}
NOW = dt.datetime(2026, 11, 29, 16, 0, 5, tzinfo=dt.UTC)


@dataclass
class Site:
    """One host on this machine, its deployment and the stand-ins behind it."""

    host: Host
    deployment: Deployment
    engine: Engine
    container: Container
    bin: Path

    def verify(self, **asked: object) -> Evidence:
        self.container.install(self.bin)
        with verify.reach(self.host, self.deployment) as target:
            return verify.verify(target, verify.options(self.deployment, **asked))

    def check(self, check_id: str, **asked: object) -> Check:
        """One check, with the rest as it should be."""
        evidence = self.verify(**asked)
        assert {check.id for check in evidence.failed} <= {check_id}
        return next(check for check in evidence.checks if check.id == check_id)

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
    verdicts = {check.id: check.verdict for check in evidence.checks}
    assert (verdicts["api_key"], verdicts["api_key_hidden"]) == ("pass", "pass")
    site.engine.trusting = True
    assert site.check("api_key").observed == "an answer with a wrong key"
    site.engine.trusting = False
    site.engine.key = None
    (failed,) = site.verify().failed
    assert failed.id == "api_key"
    assert failed.observed == "an answer without a key and with a wrong key"
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


def test_an_image_that_the_host_built_is_known_by_its_label(site: Site) -> None:
    made_of = ImageBuild(
        name="localhost/x:1",
        digest="a" * 64,
        git="https://example.org/x.git",
        commit="c" * 40,
        directory=None,
        dockerfile=None,
        args={},
    )
    site.deployment = site.deployment.model_copy(update={"build": made_of})
    image = {"Id": "sha256:" + "9" * 64, "RepoDigests": []}
    site.container.image.update({**image, "Config": {"Labels": {"roost.build": "a" * 64}}})
    assert "image_digest" not in site.failed()
    for labels in ({"roost.build": "b" * 64}, {}, None):
        site.container.image["Config"] = {"Labels": labels}
        assert "built from something else" in site.failed()["image_digest"].why


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
        "long_context",
        "alive_after",
    }
    assert failed["answer_sum"].why.endswith("issue; engine.log has the reason")


def test_nothing_listens(make_site: Callable[..., Site]) -> None:
    site = make_site(roost_port=9)
    site.container.inspect["State"] = {"Status": "exited", "ExitCode": 1, "OOMKilled": False}
    failed = site.failed()
    assert set(failed) == {*ASKED, "container", "pool_tokens", "pool_concurrency"}
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
    assert {check.id for check in evidence.failed} == {*IDS[:6], *ASKED, *POOL, "machine"}
    whys = {check.why for check in evidence.failed}
    assert len(whys) == 1
    assert "lab-01 (127.0.0.1:9): cannot connect" in whys.pop()


def test_where_nothing_was_read_no_key_is_said_to_be_hidden(
    make_site: Callable[..., Site],
) -> None:
    site = make_site(roost_api_key="a-key")
    site.host = Host("lab-01", site.host.variables, Connection("127.0.0.1", port=9))
    hidden = {check.id: check for check in site.verify().checks}["api_key_hidden"]
    assert (hidden.verdict, hidden.observed) == ("not seen", "")
    assert "cannot connect" in hidden.why


def test_other_served_name_and_other_version(site: Site) -> None:
    site.engine.name = "other"
    site.engine.version = "0.31.0"
    evidence = site.verify()
    # Of a name that it does not serve it does not say the context either.
    assert [check.id for check in evidence.failed] == ["served_name", "long_context"]
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


def test_a_model_that_only_thinks_is_blamed_for_that_alone(site: Site) -> None:
    """Content is null then, which is no broken reply, no broken stream and no lost context."""
    given = {"chat_template_kwargs": {"enable_thinking": True}}
    site.deployment = site.deployment.model_copy(update=given)
    site.engine.only_thinks = True
    failed = site.failed()
    assert set(failed) == {"answer_capital", "answer_sum"}
    assert {check.why for check in failed.values()} == {
        "only thinking came, and no answer after it"
    }


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


def test_a_key_that_was_printed_is_found_and_taken_out(make_site: Callable[..., Site]) -> None:
    site = make_site(roost_api_key="a-key")
    site.engine.key = "a-key"
    site.container.start = "2026-01-01 non-default args: {'api_key': ['a-key']}\n"
    evidence = site.verify()
    (failed,) = evidence.failed
    assert (failed.id, failed.observed) == ("api_key_hidden", "it stands in engine-start.log")
    assert "a-key" not in evidence.artefacts["engine-start.log"] + failed.model_dump_json()


def test_a_key_in_the_command_is_found_and_not_repeated(make_site: Callable[..., Site]) -> None:
    """Of a container that somebody started by hand."""
    site = make_site(roost_api_key="a-key")
    site.engine.key = "a-key"
    site.container.inspect["Config"]["Cmd"] += ["--api-key", "a-key"]
    evidence = site.verify()
    failed = {check.id: check for check in evidence.failed}
    assert failed["api_key_hidden"].observed == "it stands in docker inspect"
    assert failed["command"].observed.endswith("--api-key [the API key]")
    assert "a-key" not in "".join(check.model_dump_json() for check in evidence.checks)


def test_what_it_is_of_can_be_told(site: Site) -> None:
    told = site.check("machine").observed
    assert told.startswith("engine 0.32.0+cpu, ")
    assert f"kernel {os.uname().release}" in told
    site.engine.version = ""
    assert site.failed()["engine_version"]
    checks = {check.id: check for check in site.verify().checks}
    assert "engine" not in checks["machine"].observed
    assert checks["machine"].why


#: Answers that are no chat completions, and half a character.
ODD = [
    b'{"choices": ["text"]}',
    b'{"choices": [{"message": "text"}], "usage": 7}',
    b'{"choices": {}, "usage": {"prompt_tokens": 1e999}}',
    b'{"a": ' + b"[" * 100_000,
    b'{"choices": [{"message": {"content": "\\ud83d"}}], "usage": {"prompt_tokens": 9}}',
    b"\xff\xfe",
    b"null",
]


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
def test_answers_of_any_form_are_failed_checks(
    site: Site, body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check stands alone, and what was seen can be kept."""
    monkeypatch.setattr(site.engine, "whole", body)
    site.engine.stream = b"data: " + body + b"\n\ndata: [DONE]\n\n"
    site.engine.renders = False
    failed = site.failed()
    assert {"answer_capital", "answer_sum", "streaming", "long_context"} <= set(failed)
    kept = tmp_path / "kept"
    kept.mkdir()
    runs.Run("verify", kept, site.host, site.deployment, NOW).finish(site.verify())
    assert runs.read(kept).failed


def test_an_endpoint_that_counts_no_tokens(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.engine.renders = False
    monkeypatch.setattr(site.engine, "render", lambda _: [])
    assert site.failed()["long_context"].why == (
        "the endpoint counts 0 tokens for 8 sentences, 0 for 38"
    )


def test_a_context_that_is_no_number(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.engine, "context", "many")
    failed = site.failed()
    assert "/v1/models is not a list of models" in failed["long_context"].why


def test_figures_do_not_count_what_wears_on_the_engine(site: Site) -> None:
    usual = site.verify().figures["accept_length"].source
    assert site.verify(long_context=0, bad_requests=False).figures["accept_length"].source == usual


# --- long context ---------------------------------------------------------------------------------


def test_a_fact_far_back_is_found_near_the_claimed_length(site: Site) -> None:
    evidence = site.verify()
    check = next(check for check in evidence.checks if check.id == "long_context")
    assert check.verdict == "pass"
    read = int(check.observed.partition(" tokens")[0].replace(",", ""))
    # All of the context but what the answer and its drafts may take.
    assert 1900 < read <= 2048 - 128
    assert f"{read:,} tokens" in evidence.figures["long_context_s"].title
    asked = [body for body in site.engine.requests if "Zubrowka" in str(body)]
    facts = {str(body).partition("Lutz-")[2][:4] for body in asked}
    site.verify()
    more = [body for body in site.engine.requests if "Zubrowka" in str(body)]
    assert {str(body).partition("Lutz-")[2][:4] for body in more} > facts


def test_a_fact_that_is_lost(site: Site) -> None:
    site.engine.forgets = True
    check = site.check("long_context")
    assert check.verdict == "fail"
    assert "stood at 10% of the text and is not in the answer" in check.why
    assert "kv_cache_dtype=auto" in check.fix


def test_its_length_by_parameter_and_without_a_tokenizer(site: Site) -> None:
    def read() -> int:
        return int(site.check("long_context", long_context=600).observed.partition(" ")[0])

    assert 590 <= read() <= 600
    site.engine.renders = False
    assert 0.95 * 600 <= read() <= 600
    assert site.check("long_context", long_context=0).verdict == "not applicable"


def test_longer_than_the_context_or_without_one(site: Site) -> None:
    check = site.check("long_context", long_context=4000)
    assert check.why == "4,000 tokens and an answer do not fit a context of 2,048"
    assert check.fix == "long_context may be 1,920 at the most"
    site.engine.context = None
    assert "does not say how long" in site.check("long_context").why


def test_it_takes_too_long(site: Site) -> None:
    site.engine.seconds = 0.2
    check = site.check("long_context", long_context_seconds=0.1)
    assert "no answer within 0.1 s" in check.why


# --- bad requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check_id", [check for check in IDS if check.startswith("refuses_") and "json" not in check]
)
def test_a_bad_request_that_is_served(site: Site, check_id: str) -> None:
    site.engine.serves = {check_id}
    check = site.check(check_id)
    assert (check.verdict, check.why) == ("fail", "it was served")
    assert check.observed.startswith("HTTP 200")


def test_bad_requests_that_break_the_engine_or_say_nothing(site: Site) -> None:
    refuses = {check for check in IDS if check.startswith("refuses_")}
    site.engine.refusal = (500, "EngineCore encountered an issue")
    failed = site.failed()
    assert set(failed) == refuses
    assert failed["refuses_bad_tool"].why == "the engine failed over what it should have refused"
    site.engine.refusal = (400, " ")
    assert site.failed()["refuses_broken_json"].why == "the refusal does not say why"
    assert site.verify(bad_requests=False).ok


def test_an_engine_that_is_started_anew_by_a_bad_request(site: Site) -> None:
    site.engine.on_bad = (site.bin / stand_in_engine.RESTARTED).touch
    check = site.check("alive_after")
    assert check.why == "the container was started anew meanwhile (process changed)"


# --- parsers --------------------------------------------------------------------------------------


@pytest.fixture
def parsing(make_site: Callable[..., Site]) -> Site:
    """Its recipe has no parsers; the site sets them."""
    flags = [
        "--reasoning-parser",
        "qwen3",
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
    ]
    return make_site(roost_settings={"extra_args": flags})


def test_parsers_that_put_everything_in_its_field(parsing: Site) -> None:
    verdicts = {check.id: check.verdict for check in parsing.verify().checks}
    assert verdicts["reasoning_parser"] == verdicts["tool_parser"] == "pass"


def test_no_parsers_no_checks_of_them(site: Site) -> None:
    verdicts = {check.id: check.verdict for check in site.verify().checks}
    assert verdicts["reasoning_parser"] == verdicts["tool_parser"] == "not applicable"


@pytest.mark.parametrize(
    ("calls", "text", "why"),
    [
        ([], '<tool_call>{"name": "get_weather"}</tool_call>', "<tool_call stands in the text"),
        ([], "It is sunny.", "the model called nothing, or the parser lost it"),
        ([{"function": {"name": "x", "arguments": "{}"}}], "", "it called 'x'"),
        ([{"function": {"name": "get_weather", "arguments": "{"}}], "", "are no JSON"),
        ([{"function": {"name": "get_weather", "arguments": "{}"}}], "", "follow the schema"),
    ],
)
def test_tool_calls_that_are_not_right(
    parsing: Site, calls: list[dict[str, object]], text: str, why: str
) -> None:
    parsing.engine.tool_calls, parsing.engine.tool_text = calls, text
    assert why in parsing.check("tool_parser").why


def test_thoughts_that_are_not_beside_the_answer(parsing: Site) -> None:
    parsing.engine.thought = ""
    assert "nothing came beside the answer" in parsing.check("reasoning_parser").why
    parsing.engine.answers["17 sheep"] = "<think>17, but 9</think> 9"
    assert "<think> stands in the answer" in parsing.check("reasoning_parser").why


def test_a_template_that_does_not_listen(site: Site) -> None:
    assert site.check("thinking_off").verdict == "not applicable"
    given = {"chat_template_kwargs": {"enable_thinking": False}}
    site.deployment = site.deployment.model_copy(update=given)
    requests = [{**body, **given} for body in site.deployment.gate.requests]
    gate = site.deployment.gate.model_copy(update={"requests": requests})
    site.deployment = site.deployment.model_copy(update={"gate": gate})
    assert site.check("thinking_off").verdict == "pass"
    site.engine.obeys = False
    assert "ignores enable_thinking" in site.check("thinking_off").why
    site.engine.renders = False
    unseen = site.check("thinking_off")
    assert (unseen.verdict, unseen.ok) == ("not seen", True)
    assert [check.id for check in site.verify(require_seen=True).failed] == [
        "pool_tokens",
        "pool_concurrency",
        "thinking_off",
    ]


# --- parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("long_context", "much"),
        ("long_context", -1),
        ("long_context", 20),
        ("long_context", True),
        ("long_context_seconds", 0),
        ("long_context_seconds", "long"),
        ("long_context_seconds", math.inf),
        ("long_context_seconds", math.nan),
        ("bad_requests", "no"),
        ("require_seen", 1),
        ("reference", 7),
    ],
)
def test_parameters_that_make_no_sense(site: Site, name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"parameter {name} is"):
        verify.options(site.deployment, **{name: value})


# --- the plan and the start log -------------------------------------------------------------------

POOL_LINE = (
    "(EngineCore pid=1) INFO 11-29 18:51:28 [kv_cache_utils.py:2327] CPU KV cache size: {:,} "
    "tokens, Maximum concurrency for 2,048 tokens per request: {:.2f}x\n"
)


def test_the_pool_against_the_plan_that_the_host_keeps(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own plan comes first; what the catalogue would plan now is another question."""
    plan = planner.judge(demands.examine(site.deployment))
    site.container.start = POOL_LINE.format(plan.memory.kv_pool_tokens, plan.memory.max_concurrency)
    now = site.check("pool_tokens")
    assert now.expected == "22,528 tokens (a plan made now; the host keeps none)"

    monkeypatch.setattr(demands, "PLAN", tmp_path / "plan.json")
    memory = plan.memory.model_copy(update={"kv_pool_tokens": 1024})
    kept = plan.model_copy(update={"memory": memory})
    (tmp_path / "plan.json").write_text(kept.model_dump_json())
    failed = site.check("pool_tokens")
    assert failed.expected == "1,024 tokens (the plan it was deployed with)"
    assert failed.why == "the engine says 22,528"
    (tmp_path / "plan.json").write_text("{}")
    assert "is no plan that this roost can read" in site.failed()["pool_tokens"].why


def test_a_start_log_that_cannot_be_read_is_no_silent_pass(site: Site) -> None:
    del site.container.inspect["State"]["StartedAt"]
    failed = site.failed()
    assert set(failed) == POOL
    assert failed["pool_tokens"].why == "roost-llm was never started"

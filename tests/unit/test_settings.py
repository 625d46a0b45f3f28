"""Settings: layers, assignments, messages."""

from __future__ import annotations

import pytest
import yaml

from roost.errors import UsageError
from roost.settings import Settings, from_mapping, merge, parse_assignments


def test_later_layers_win_and_extra_args_add_up() -> None:
    merged = merge(
        [
            Settings(max_num_seqs=4, extra_args=["--a", "1"]),
            Settings(max_num_seqs=2, enforce_eager=True),
            Settings(extra_args=["--b", "1"]),
        ]
    )
    assert merged == Settings(
        max_num_seqs=2, enforce_eager=True, extra_args=["--a", "1", "--b", "1"]
    )


def test_false_is_said_but_none_is_not() -> None:
    assert merge([Settings(enforce_eager=True), Settings(enforce_eager=False)]).enforce_eager is (
        False
    )
    assert merge([Settings(enforce_eager=True), Settings()]).enforce_eager is True


def test_assignments() -> None:
    given = parse_assignments(
        [
            "max_model_len=4096",
            "gpu_memory_utilization=1",
            "extra_args=[--x, y]",
            "moe_backend=humming",
        ]
    )
    assert given == Settings(
        max_model_len=4096,
        gpu_memory_utilization=1.0,
        extra_args=["--x", "y"],
        moe_backend="humming",
    )


@pytest.mark.parametrize("text", ["31977", "0123456", "1e5", "2026-01-01", "null"])
def test_a_revision_on_the_command_line_stays_text(text: str) -> None:
    assert parse_assignments([f"drafter_revision={text}"]).drafter_revision == text


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("max_model_len", "--set max_model_len: must be key=value"),
        ("=1", "--set =1: must be key=value"),
        ("max_model_length=1", "no such setting, did you mean max_model_len?"),
        ("context=1", "context: no such setting\n  fix: settings are: max_model_len, "),
        ("max_model_len=lots", "max_model_len: Input should be a valid integer (it is 'lots')"),
        ("max_model_len=0", "max_model_len: Input should be greater than or equal to 1"),
        ("gpu_memory_utilization=1.2", "less than or equal to 1"),
        ("image=vllm/vllm-openai:nightly", "names no digest"),
        ("extra_args=[", "extra_args: Input should be a valid list"),
        ("attention_backend=A; rm -rf /", "attention_backend: String should match pattern"),
        pytest.param("max_model_len=" + "9" * 5000, "valid integer (it is '999", id="digits"),
        pytest.param("extra_args=" + "[" * 5000, f"(it is '{'[' * 199}…)", id="deep"),
        pytest.param('extra_args=[\'{"a":' + "[" * 50_000 + "']", "is no JSON", id="deep JSON"),
    ],
)
def test_refused_assignments(pair: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_assignments([pair])
    assert message in str(caught.value)


def test_a_revision_that_yaml_made_a_number_of_is_to_be_quoted() -> None:
    with pytest.raises(UsageError, match="drafter_revision: 42798 is a number; write it in quotes"):
        from_mapping(yaml.safe_load("drafter_revision: 0123456"), "host x")


@pytest.mark.parametrize(
    "said",
    [
        "{method: mtp, num_speculative_tokens: 1}",
        r"\{\"method\":\"mtp\"}",
        """'{"method":"mtp"}'""",
        '{{"a":1}}',
        '{"n":{num_speculative_tokens}}',
        "--speculative-config={'method': 'mtp'}",
    ],
)
def test_json_that_is_none_is_refused_before_an_engine_sees_it(said: str) -> None:
    with pytest.raises(UsageError, match="is no JSON"):
        from_mapping({"extra_args": ["--speculative-config", said]}, "host x")


def test_json_and_other_words_are_taken() -> None:
    words = ["--hf-overrides", '{"a": {"b": 1}}', '--compilation-config={"level":3}', "-O.level=3"]
    assert from_mapping({"extra_args": words}, "host x").extra_args == words


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--api-key", "sk-secret"], "--api-key would put a secret .* as roost_api_key"),
        (["--api-key=sk-secret"], "roost_api_key"),
        (["--x", "--api_key", "sk-secret"], "roost_api_key"),
        # Unambiguous for SGLang; vLLM has --api-server-count too.
        (["--api", "sk-secret"], "roost_api_key"),
        (["--api-k=sk-secret"], "roost_api_key"),
        (["--api-key sk-secret"], "roost_api_key"),
        ([{"--api-key": "sk-secret"}], "roost_api_key"),
        (["--api-key", "sk-secret", 1], "roost_api_key"),
        ("--x --api-key sk-secret", "roost_api_key"),
        (["--admin-api-key", "sk-secret"], "--admin-api-key would put .*leave it out"),
        (["--hf-token", "sk-secret"], "--hf-token would put .* with roost_hub_token"),
        (["--hf-t=sk-secret"], "roost_hub_token"),
        (["--ssl-keyfile-password", "sk-secret"], "end TLS in a gateway"),
    ],
)
def test_a_secret_in_extra_args_is_refused_and_not_repeated(given: object, message: str) -> None:
    with pytest.raises(UsageError, match=f"^host x: extra_args: .*{message}") as caught:
        from_mapping({"extra_args": given}, "host x")
    assert "sk-secret" not in str(caught.value)


def test_flags_that_only_look_like_a_secret_are_taken() -> None:
    words = ["--api-server-count", "2", "--hf-overrides", "{}", "--ssl-keyfile", "/k", "--a", "-"]
    assert from_mapping({"extra_args": words}, "host x").extra_args == words


def test_settings_must_be_a_mapping() -> None:
    with pytest.raises(UsageError, match="host x: must be a mapping of settings, not list"):
        from_mapping(["max_model_len"], "host x")

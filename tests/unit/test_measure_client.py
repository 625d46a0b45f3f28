"""The client: streams by the letter, errors in words."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from tests.unit import stand_in_engine
from tests.unit.stand_in_engine import Engine

from roost.measure.client import Client, EngineError, StreamedAnswer, sse_data

REAL = (Path(__file__).parent / "data" / "sse" / "dflash.txt").read_bytes()
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def stream(raw: bytes) -> StreamedAnswer:
    with (
        stand_in_engine.serving(Engine(stream=raw)) as engine,
        Client(f"http://127.0.0.1:{engine.port}") as client,
    ):
        answer = client.stream_chat(BODY)
    assert engine.requests[0]["stream_options"] == {"include_usage": True}
    return answer


def event(**chunk: object) -> bytes:
    return b"data: %s\n\n" % json.dumps(chunk, ensure_ascii=False).encode()


def text(content: str, **more: object) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content, **more}}])


DONE = b"data: [DONE]\n\n"


def test_a_real_stream_under_speculation() -> None:
    answer = stream(REAL)
    # The role chunk is no token, one chunk holds several, the last has only usage.
    assert [delta.content.count("w90063") for delta in answer.deltas] == [0, 3, 5, 5, 2]
    assert answer.completion_tokens == 48
    assert answer.finish_reason == "length"
    assert answer.ttft is not None
    assert 0 < answer.ttft <= answer.duration


def test_the_first_token_may_have_no_text_yet() -> None:
    role, half = text("", role="assistant"), text("")
    answer = stream(role + half + text("À") + DONE)
    assert answer.ttft is not None
    assert answer.ttft < answer.deltas[0].at
    # Neither the role alone nor an end without text is one.
    answer = stream(role + text("A") + DONE)
    assert answer.ttft == answer.deltas[0].at
    end = event(choices=[{"index": 0, "delta": {"content": ""}, "finish_reason": "stop"}])
    assert stream(role + end + DONE).ttft is None


def test_reasoning_under_both_names_and_tool_calls_count_as_first_token() -> None:
    answer = stream(
        text("", role="assistant")
        + text("", reasoning="think ")
        + text("", reasoning_content="hard")
        + text("", tool_calls=[{"index": 0}])
        + text("Paris")
        + DONE
    )
    assert (answer.text, answer.reasoning, len(answer.deltas)) == ("Paris", "think hard", 4)


def test_other_choices_are_not_mixed_in() -> None:
    other = event(choices=[{"index": 1, "delta": {"content": "B"}}])
    assert stream(text("A") + other + DONE).text == "A"


def test_separators_of_python_are_not_the_protocols() -> None:
    said = "line\u2028two\x0b\x85 ü"
    assert stream(text(said) + DONE).text == said


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_survive_any_cut_and_line_end(size: int, end: bytes) -> None:
    raw = ": hello\nevent: x\ndata: grüß\ndata:two\n\ndata: 3\n\ndata: cut".encode()
    raw = raw.replace(b"\n", end)
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert list(sse_data(pieces)) == ["grüß\ntwo", "3"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (text("half"), "ended before"),
        (b"", "ended before"),
        (text("half") + b"data: [DO", "ended before"),
        (b"data: {oops\n\n", "no JSON"),
        (b"data: 7\n\n", "no JSON"),
        (
            text("half") + event(error={"message": "EngineCore encountered an issue"}) + DONE,
            "failed within the stream\n  why: EngineCore encountered an issue",
        ),
    ],
)
def test_broken_streams(raw: bytes, message: str) -> None:
    with pytest.raises(EngineError, match=message.replace("(", r"\(")):
        stream(raw)


def test_error_bodies_and_no_connection() -> None:
    with (
        stand_in_engine.serving(Engine(chat_status=500)) as engine,
        Client(f"http://127.0.0.1:{engine.port}") as client,
    ):
        for ask in (client.chat, client.stream_chat):
            with pytest.raises(EngineError, match="HTTP 500\n  why: EngineCore") as caught:
                ask(BODY)
            assert caught.value.status == 500
    with (
        Client(f"http://127.0.0.1:{engine.port}") as client,
        pytest.raises(EngineError, match="no connection"),
    ):
        client.health()


def test_an_engine_that_hangs_is_waited_for_only_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("roost.measure.client._LESS_S", 0.1)
        with pytest.raises(EngineError, match=r"no answer within 0\.3 s"):
            client.health()
        with pytest.raises(EngineError, match=r"no answer within 0\.1 s"):
            client.models()


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with (
        stand_in_engine.serving() as engine,
        Client(f"http://127.0.0.1:{engine.port}") as client,
    ):
        assert client.models() == ["smollm2-135m"]
        assert client.version() == "0.32.0+cpu"


def test_sglang_says_its_version_elsewhere() -> None:
    with (
        stand_in_engine.serving(Engine(version="", server_info={"version": "0.5.23"})) as engine,
        Client(f"http://127.0.0.1:{engine.port}") as client,
    ):
        assert client.version() == "0.5.23"
        engine.server_info = {}
        with pytest.raises(EngineError, match="/server_info names no version"):
            client.version()


def test_the_context_limit_is_the_served_models() -> None:
    with (
        stand_in_engine.serving(Engine(context=2048)) as engine,
        Client(f"http://127.0.0.1:{engine.port}") as client,
    ):
        assert client.context_limit(engine.name) == 2048
        assert client.context_limit("another") is None
        engine.context = None
        assert client.context_limit(engine.name) is None

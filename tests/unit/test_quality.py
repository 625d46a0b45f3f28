"""Judging answers."""

from __future__ import annotations

from typing import Any

import pytest

from roost.quality import QUESTIONS, judge

CAPITAL, SUM = QUESTIONS


def reply(text: Any, **beside: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text, **beside}}]}


@pytest.mark.parametrize(
    ("question", "text"),
    [
        # What the CPU engine answers, eagerly, to these questions.
        (CAPITAL, "The capital of France is Paris."),
        (SUM, "The answer to this classic math problem is 4."),
        (SUM, "2+2 equals four!"),
    ],
)
def test_right(question: Any, text: str) -> None:
    verdict = judge(question, reply(text))
    assert verdict.ok
    assert verdict.observed == text


@pytest.mark.parametrize(
    ("question", "response", "why"),
    [
        (CAPITAL, reply("La capitale, laissez la la la"), "was answered wrongly"),
        (CAPITAL, reply("Parisian cafes are nice"), "was answered wrongly"),
        (SUM, reply("The answer is 42."), "was answered wrongly"),
        (SUM, reply(""), "was answered wrongly"),
        (CAPITAL, reply("<think>hm</think>Paris"), "contains thinking text (<think>)"),
        (CAPITAL, reply("ok</think>Paris"), "contains thinking text (</think>)"),
        # Null where only calls of tools came, or nothing at all.
        (CAPITAL, reply(None), "was answered wrongly"),
        (CAPITAL, reply(7), "not a chat completion"),
        (CAPITAL, reply(None, reasoning="Paris, I think"), "only thinking came"),
        (CAPITAL, reply("\n", reasoning_content="Paris, I think"), "only thinking came"),
        (CAPITAL, {"choices": [{"message": "Paris"}]}, "not a chat completion"),
        (CAPITAL, {"error": {"message": "EngineCore encountered an issue"}}, "not a chat"),
        (CAPITAL, {"choices": []}, "not a chat completion"),
        (CAPITAL, "<html>502</html>", "not a chat completion"),
        (CAPITAL, None, "not a chat completion"),
    ],
)
def test_wrong(question: Any, response: Any, why: str) -> None:
    verdict = judge(question, response)
    assert not verdict.ok
    assert why in verdict.why

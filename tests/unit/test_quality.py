"""Judging answers."""

from __future__ import annotations

from typing import Any

import pytest

from roost.quality import QUESTIONS, judge

CAPITAL, SUM = QUESTIONS


def reply(text: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


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
        (CAPITAL, reply(None), "not a chat completion"),
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

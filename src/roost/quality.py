"""Right answers to fixed questions: what a health check cannot see.

An engine can be healthy, fast and wrong (a compiled CPU engine answers in garbled French while
``/health`` stays 200). So a deploy and a verification both ask these questions at temperature 0
and read the answers with the same eyes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from roost.onhost import judging
from roost.onhost.judging import answer_text, leaked_thinking, reasoning_text

__all__ = [
    "MAX_TOKENS",
    "MEASURED_PROMPTS",
    "MEASURED_TOKENS",
    "QUESTIONS",
    "Question",
    "Verdict",
    "answer_text",
    "chat_request",
    "judge",
    "leaked_thinking",
    "leaves_thought_open",
    "reasoning_text",
]

#: Tokens a plain answer may take; enough for a full sentence of a small model.
MAX_TOKENS = 48

#: What accept length and speed are measured on. Short plain answers do not tell a good drafter
#: from one that was trained too briefly; explanations do.
MEASURED_PROMPTS = ("Explain what an LRU cache is.", "Explain what a hash table is.")
#: Tokens of each, at the most.
MEASURED_TOKENS = 128


class Question(BaseModel):
    """A question with one right answer."""

    model_config = ConfigDict(frozen=True)

    id: str
    prompt: str
    pattern: str
    expected: str


#: Every instruction-tuned model down to 135 M parameters knows these.
QUESTIONS = (
    Question(
        id="capital",
        prompt="What is the capital of France?",
        pattern=r"\bParis\b",
        expected="an answer that names Paris",
    ),
    Question(
        id="sum",
        prompt="What is 2+2?",
        pattern=r"\b(4|four)\b",
        expected="an answer that says 4",
    ),
)


class Verdict(BaseModel):
    """One answer, judged."""

    model_config = ConfigDict(frozen=True)

    id: str
    ok: bool
    expected: str
    observed: str
    why: str


def chat_request(
    prompt: str, model: str, chat_template_kwargs: Mapping[str, Any], *, max_tokens: int
) -> dict[str, Any]:
    """The body of a chat completion that answers ``prompt`` greedily."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    if chat_template_kwargs:
        body["chat_template_kwargs"] = dict(chat_template_kwargs)
    return body


def leaves_thought_open(prompt: str) -> bool:
    """Whether a rendered prompt (or its end) makes the model think before it answers."""
    return prompt.rfind("<think>") > prompt.rfind("</think>")


def judge(question: Question, response: Any) -> Verdict:
    """Judge one chat completion.

    Args:
        question: What was asked.
        response: The decoded JSON body, or whatever came instead of one.
    """
    return Verdict(**judging.judge(question.model_dump(), response))

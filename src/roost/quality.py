"""Right answers to fixed questions: what a health check cannot see.

An engine can be healthy, fast and wrong (a compiled CPU engine answers in garbled French while
``/health`` stays 200). So a deploy and a verification both ask these questions at temperature 0
and read the answers with the same eyes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

#: Tokens a plain answer may take; enough for a full sentence of a small model.
MAX_TOKENS = 48

_THINKING = re.compile(r"</?think(ing)?>|<\|channel\|>analysis", re.IGNORECASE)


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


def judge(question: Question, response: Any) -> Verdict:
    """Judge one chat completion.

    Args:
        question: What was asked.
        response: The decoded JSON body, or whatever came instead of one.
    """
    text = answer_text(response)
    if text is None:
        shown = str(response)[:300]
        return _verdict(question, False, shown, "the reply is not a chat completion")
    if thinking := leaked_thinking(text):
        return _verdict(question, False, text, f"the answer contains thinking text ({thinking})")
    if not re.search(question.pattern, text, re.IGNORECASE):
        return _verdict(question, False, text, f"{question.prompt!r} was answered wrongly")
    return _verdict(question, True, text, "")


def answer_text(response: Any) -> str | None:
    """The text of the first choice, or ``None`` where the body has no such thing."""
    try:
        content = response["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return None
    return content if isinstance(content, str) else None


def leaked_thinking(text: str) -> str | None:
    """The first marker of thinking in an answer that should have none."""
    match = _THINKING.search(text)
    return match[0] if match else None


def _verdict(question: Question, ok: bool, observed: str, why: str) -> Verdict:
    return Verdict(
        id=f"answer_{question.id}",
        ok=ok,
        expected=question.expected,
        observed=observed.strip(),
        why=why,
    )

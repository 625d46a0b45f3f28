"""Judging answers, with the same eyes on the host and on the controller."""

from __future__ import annotations

import re
from typing import Any, Mapping

_THINKING = re.compile(r"</?think(ing)?>|<\|channel\|>analysis", re.IGNORECASE)

#: Words of a check by which the controller tells failures apart (:mod:`roost.diagnose.symptoms`).
THINKS_ALOUD = "the answer contains thinking text"
ANSWERED_WRONGLY = "was answered wrongly"
ONLY_THOUGHT = "only thinking came, and no answer after it"
#: What is observed where an engine that speculates has verified no draft.
NO_DRAFTS = "no drafts"


def judge(question: Mapping[str, str], response: Any) -> dict[str, Any]:
    """Judge one chat completion.

    Args:
        question: ``{id, prompt, pattern, expected}``.
        response: The decoded JSON body, or whatever came instead of one.

    Returns:
        A check: ``{id, ok, expected, observed, why}``.
    """
    text = answer_text(response)
    if text is None:
        shown = str(response)[:300]
        return _answer(question, False, shown, "the reply is not a chat completion")
    if not text.strip() and reasoning_text(response):
        return _answer(question, False, reasoning_text(response)[:300], ONLY_THOUGHT)
    thinking = leaked_thinking(text)
    if thinking:
        return _answer(question, False, text, f"{THINKS_ALOUD} ({thinking})")
    if not re.search(question["pattern"], text, re.IGNORECASE):
        return _answer(question, False, text, f"{question['prompt']!r} {ANSWERED_WRONGLY}")
    return _answer(question, True, text, "")


def answer_text(response: Any) -> str | None:
    """The text of the first choice, or ``None`` where the body has no such thing.

    Engines write null where nothing but thinking or calls of tools came: that is no text.
    """
    try:
        content = response["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return None
    if content is None:
        return ""
    return content if isinstance(content, str) else None


def reasoning_text(response: Any) -> str:
    """The thinking beside the answer of a chat completion, empty where there is none."""
    try:
        message = response["choices"][0]["message"]
        return str(message.get("reasoning") or message.get("reasoning_content") or "")
    except (KeyError, IndexError, TypeError, AttributeError):
        return ""


def leaked_thinking(text: str) -> str | None:
    """The first marker of thinking in an answer that should have none."""
    match = _THINKING.search(text)
    return match.group(0) if match else None


#: What is observed of something that cannot be judged; such a check fails nobody, and says why.
NOT_JUDGED = "not judged"


def check(id_: str, ok: bool, expected: str, observed: str, why: str = "") -> dict[str, Any]:
    """One thing looked at, in the form that a verification's checks have too."""
    return {"id": id_, "ok": ok, "expected": expected, "observed": observed, "why": why}


def _answer(question: Mapping[str, str], ok: bool, observed: str, why: str) -> dict[str, Any]:
    return check(f"answer_{question['id']}", ok, question["expected"], observed.strip(), why)

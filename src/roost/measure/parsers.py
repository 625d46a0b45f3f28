"""Whether reasoning and tool calls come in the fields where clients look for them.

Only of what the launch configures: an engine without a parser leaves both in the text, which is
what its user asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from roost import quality
from roost.measure.checks import Check, Target, attempt, inapplicable, unseen

#: A thought may be long, and cut off it still shows where it goes.
REASONING_TOKENS = 512
TOOL_TOKENS = 256
_QUESTION = "A farmer has 17 sheep. All but 9 run away. How many are left?"
_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city."}},
            "required": ["city"],
        },
    },
}
#: Markup that a tool parser should have taken out of the text.
_MARKUP = ("<tool_call", "<function", "[TOOL_CALLS]", "<|tool_call")


def configured(command: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a command, written either way; the last one counts."""
    found = None
    for at, word in enumerate(command):
        if word == flag and at + 1 < len(command):
            found = command[at + 1]
        elif word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def checks(target: Target) -> list[Check]:
    """Reasoning, tool calls, and that thinking is off where the recipe says so."""
    return [_thinking_closed(target), _reasoning(target), _tools(target)]


def _ask(target: Target, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
    deployment = target.deployment
    body = quality.chat_request(
        prompt, deployment.served_name, deployment.chat_template_kwargs, max_tokens=tokens
    )
    return target.endpoint().chat({**body, **more})


def _thinking_closed(target: Target) -> Check:
    """The rendered prompt opens no thought, so that the model is not made to think.

    An answer that was cut off before its thought ended shows no marker at all: the template puts
    the opening one into the prompt.
    """
    check_id, deployment = "thinking_off", target.deployment
    expected = "the prompt that the template renders leaves no thought open"
    if deployment.chat_template_kwargs.get("enable_thinking") is not False:
        return inapplicable(check_id, "the recipe does not switch thinking off")

    def make() -> Check:
        client = target.endpoint()
        body = deployment.gate.requests[0]
        tokens = client.tokens(body)
        text = client.text_of(deployment.served_name, tokens) if tokens else None
        if not text:
            return unseen(check_id, expected, "the endpoint does not show how it renders a prompt")
        still_open = quality.leaves_thought_open(text)
        return Check(
            id=check_id,
            ok=not still_open,
            expected=expected,
            observed=f"…{text[-80:]}",
            why="the model is made to think: the template ignores enable_thinking"
            if still_open
            else "",
            fix="take another chat template, or another name for the argument in the recipe's "
            "chat_template_kwargs"
            if still_open
            else "",
        )

    return attempt(check_id, expected, make, target)


def _reasoning(target: Target) -> Check:
    def look() -> tuple[str, str]:
        thinking = {**target.deployment.chat_template_kwargs, "enable_thinking": True}
        reply = _ask(target, _QUESTION, REASONING_TOKENS, chat_template_kwargs=thinking)
        thought, text = quality.reasoning_text(reply).strip(), quality.answer_text(reply) or ""
        why = ""
        if leak := quality.leaked_thinking(text):
            why = f"{leak} stands in the answer: the parser does not know this model's markers"
        elif not thought:
            why = "thinking was asked for, and nothing came beside the answer"
        return f"beside the answer: {thought[:100]!r}; answer: {text.strip()[:100]!r}", why

    return _parsed(target, "reasoning", "thoughts beside the answer, none in it", look)


def _tools(target: Target) -> Check:
    def look() -> tuple[str, str]:
        prompt = "What is the weather in Paris? Use the tool."
        reply = _ask(target, prompt, TOOL_TOKENS, tools=[_TOOL], tool_choice="auto")
        message = reply["choices"][0]["message"]
        calls, text = message.get("tool_calls") or [], message.get("content") or ""
        observed = f"tool_calls: {json.dumps(calls)[:200]}; text: {text.strip()[:100]!r}"
        return observed, _defect(calls, text)

    return _parsed(target, "tool", "a call of get_weather with a city, in tool_calls", look)


def _parsed(target: Target, kind: str, expected: str, look: Callable[[], tuple[str, str]]) -> Check:
    """What a parser makes of an answer, where the recipe configures one.

    Args:
        target: Whose parser it is.
        kind: ``reasoning`` or ``tool``.
        expected: Of the answer.
        look: Ask; what was observed, and what is wrong with it (empty if nothing is).
    """
    check_id = f"{kind}_parser"
    flag = {"reasoning": "--reasoning-parser", "tool": "--tool-call-parser"}[kind]
    parser = configured(target.deployment.spec.command, flag)
    if parser is None:
        return inapplicable(check_id, f"the recipe configures no {kind} parser")
    expected = f"{parser}: {expected}"

    def make() -> Check:
        observed, why = look()
        return Check(
            id=check_id,
            ok=not why,
            expected=expected,
            observed=observed,
            why=why,
            fix=f"set {flag} to the one that the model's authors name" if why else "",
        )

    return attempt(check_id, expected, make, target)


def _defect(calls: list[Any], text: str) -> str:
    markup = next((mark for mark in _MARKUP if mark in text), None)
    if markup:
        return f"{markup} stands in the text: the parser does not know this model's markup"
    if not calls:
        return "the model called nothing, or the parser lost it"
    function = calls[0]["function"]
    if function["name"] != "get_weather":
        return f"it called {function['name']!r}, which was not offered"
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, TypeError):
        return "the arguments are no JSON"
    given = isinstance(arguments, dict) and isinstance(arguments.get("city"), str)
    return "" if given else "the arguments do not follow the schema"

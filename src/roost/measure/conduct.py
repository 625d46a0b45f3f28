"""How an engine behaves towards requests that it must refuse, and whether it lives on after them.

A gateway forwards whatever clients send. What is not to be served has to come back as a 4xx with
a reason; a 5xx or a dead engine takes everybody else's requests with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from roost import quality
from roost.errors import RoostError
from roost.measure.checks import Check, Target, attempt, inapplicable

_REFUSED = "HTTP 4xx that says why"


class Bad(NamedTuple):
    """A request that must be refused."""

    id: str
    content: bytes


def bad_requests(model: str, limit: int) -> list[Bad]:
    """Everything that clients get wrong.

    Args:
        model: The served name.
        limit: The context, tokens.
    """
    good = quality.chat_request("Hello.", model, {}, max_tokens=4)

    def changed(**parts: Any) -> bytes:
        return json.dumps({**good, **parts}).encode()

    # Every tokenizer makes at least one token of a letter with a space before it.
    endless = [{"role": "user", "content": "x " * (limit + 1)}]
    # A function without a name, and a schema that is none.
    tool = {"type": "function", "function": {"parameters": 5}}
    return [
        Bad("refuses_long_prompt", changed(messages=endless)),
        Bad("refuses_long_answer", changed(max_tokens=limit + 1)),
        Bad("refuses_negative_max_tokens", changed(max_tokens=-1)),
        Bad("refuses_broken_json", json.dumps(good).encode()[:-9]),
        Bad("refuses_unknown_model", changed(model=f"not-{model}")),
        Bad("refuses_bad_tool", changed(tools=[tool])),
    ]


def checks(target: Target, style: str, *, switched_off: bool = False) -> list[Check]:
    """Refusals, and that the engine answers as before after them.

    Args:
        target: The host.
        style: Of the engine.
        switched_off: Only ask whether it lives.
    """
    before = dict(target.container)
    made = []
    for bad in bad_requests(target.deployment.served_name, _limit(target)):
        if switched_off:
            made.append(inapplicable(bad.id, "switched off: bad_requests is false"))
        elif bad.id == "refuses_unknown_model" and style == "sglang":
            # Sources of SGLang 0.5.19 to 0.5.23: the name only chooses an adapter.
            made.append(inapplicable(bad.id, "SGLang serves whatever name it is asked for"))
        else:
            made.append(attempt(bad.id, _REFUSED, partial(_refuses, target, bad), target))
    return [*made, _lives(target, before)]


def _limit(target: Target) -> int:
    """The context; where the endpoint does not say, more than models have."""
    try:
        said = target.endpoint().context_limit(target.deployment.served_name)
    except RoostError:
        said = None
    return said or 2**18


def _refuses(target: Target, bad: Bad) -> Check:
    status, message = target.endpoint().chat_raw(bad.content)
    why = fix = ""
    if status >= 500:
        why = "the engine failed over what it should have refused"
        fix = "engine.log has the reason; keep such requests away at the gateway"
    elif status < 400:
        why = "it was served"
        fix = "keep such requests away at the gateway, and report it to the engine"
    elif not message.strip():
        why = "the refusal does not say why"
    return Check(
        id=bad.id,
        ok=not why,
        expected=_REFUSED,
        observed=f"HTTP {status}: {' '.join(message.split())[:200]}",
        why=why,
        fix=fix,
    )


def _lives(target: Target, before: Mapping[str, Any]) -> Check:
    """The same process as before, healthy, with a right answer."""
    expected = "the same engine answers after all of this, without a restart"

    def make() -> Check:
        client, gate = target.endpoint(), target.deployment.gate
        status = client.health(target.deployment.health_path)
        reply = client.chat(gate.requests[0])
        text = quality.answer_text(reply) or quality.reasoning_text(reply)
        now = _identity(target.inspect())
        why = ""
        if status != 200:
            why = f"{target.deployment.health_path} answers {status}"
        elif not text.strip():
            why = "the answer is empty"
        elif before and _identity(before) != now:
            was = _identity(before)
            changed = [name for name, value in now.items() if value != was[name]]
            why = f"the container was started anew meanwhile ({', '.join(changed)} changed)"
        observed = f"started {now['started']}, {now['restarts']} restarts: {text.strip()}"
        fix = "engine.log says what it died of" if why else ""
        return Check(
            id="alive_after", ok=not why, expected=expected, observed=observed, why=why, fix=fix
        )

    return attempt("alive_after", expected, make, target)


def _identity(inspected: Mapping[str, Any]) -> dict[str, Any]:
    """What changes when an engine is started anew, by Docker or by systemd."""
    state = inspected["State"]
    return {
        "started": state.get("StartedAt"),
        "process": state.get("Pid"),
        "restarts": inspected.get("RestartCount", 0),
        "container": inspected.get("Id"),
    }

"""One request near the claimed length, with a fact in it that has to be found.

That an engine starts with a context of so many tokens says that it has the memory, not that what
stands far back is still seen. The fact stands near the beginning, where a window that slides, a
position that is scaled wrongly or a damaged cache would lose it, and it is made up anew each time,
so that neither a cache nor the model's memory can answer.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from roost import quality
from roost.errors import RoostError
from roost.measure.checks import Check, Evidence, Figure, Target, attempt, inapplicable
from roost.measure.client import Client

#: What the answer may take; the prompt leaves it free.
ANSWER_TOKENS = 64
#: Left free besides: SGLang counts room for its drafts into a request (sources of 0.5.23).
SPARE_TOKENS = 64
#: The shortest request that is called long.
LEAST_TOKENS = 512
#: The share of the asked-for length that counts as near it.
NEAR = 0.95
#: Where the fact stands, as a share of the text.
_DEPTH = 0.1
#: Sentences in the two requests whose token counts say how long a sentence is on average. They are
#: thirty apart, a multiple of the lengths of most of the lists below.
_FEW, _MORE = 8, 38

_WHO = ("The ferry", "A gardener", "The old clock", "A courier", "The bakery", "The museum")
_DID = ("left", "opened", "repaired", "counted", "painted", "delivered", "measured")
_WHAT = ("the north gate", "twelve crates", "a wooden bench", "three letters", "a brass key")
_WHEN = ("before noon", "on Monday", "after the rain", "at dusk", "in early spring", "by the river")


@dataclass(frozen=True)
class Needle:
    """A made-up fact and how to ask for it."""

    number: int

    @property
    def fact(self) -> str:
        return f"Remember: the capital of Zubrowka is Lutz-{self.number}."

    question = "What is the capital of Zubrowka?"

    def in_text(self, sentences: int) -> str:
        """A prompt with so many sentences of other things around the fact."""
        text = [_sentence(at) for at in range(sentences)]
        text.insert(int(sentences * _DEPTH), self.fact)
        return f"Read this text.\n\n{' '.join(text)}\n\n{self.question}"


def _sentence(at: int) -> str:
    # Lists of different lengths, so that a long text does not soon repeat itself.
    words = (parts[at % len(parts)] for parts in (_WHO, _DID, _WHAT, _WHEN))
    return f"{' '.join(words)}."


def check(target: Target, evidence: Evidence, *, tokens: int | None, seconds: float) -> Check:
    """That a fact near the beginning of a long prompt is found.

    Args:
        target: The host.
        evidence: Gets the time it took as a figure.
        tokens: Length of the prompt; none: all that the answer leaves; 0: not asked.
        seconds: Time it may take.
    """
    check_id = "long_context"
    if tokens == 0:
        return inapplicable(check_id, "switched off: long_context is 0")
    wanted = f"{tokens:,} tokens" if tokens else "the whole context"
    expected = f"a fact near the beginning of {wanted} is found within {seconds:g} s"

    def make() -> Check:
        client, deployment = target.endpoint(), target.deployment
        limit = client.context_limit(deployment.served_name)
        longest = (limit or 0) - ANSWER_TOKENS - SPARE_TOKENS
        aim = tokens or longest
        if limit is None and tokens is None:
            raise RoostError(
                "the endpoint does not say how long a request may be",
                fix="say it: long_context, in tokens",
            )
        if limit is not None and aim > longest:
            raise RoostError(
                f"{aim:,} tokens and an answer do not fit a context of {limit:,}",
                fix=f"long_context may be {longest:,} at the most",
            )
        needle = Needle(1000 + secrets.randbelow(9000))

        def request(sentences: int, answer: int = ANSWER_TOKENS) -> dict[str, Any]:
            return quality.chat_request(
                needle.in_text(sentences),
                deployment.served_name,
                deployment.chat_template_kwargs,
                max_tokens=answer,
            )

        body = request(_sentences(client, request, aim))
        begun = time.monotonic()
        reply = client.chat(body, timeout=seconds)
        took = time.monotonic() - begun
        read = int(reply["usage"]["prompt_tokens"])
        # Where thinking is on, its tokens may be all that come; the fact is found there as well.
        answer = (quality.reasoning_text(reply) + (quality.answer_text(reply) or "")).strip()
        evidence.figures["long_context_s"] = Figure(
            title=f"Answer to a prompt of {read:,} tokens",
            value=took,
            unit="s",
            source="one request through the SSH tunnel, prefill included",
        )
        why = fix = ""
        if read < NEAR * aim:
            why = f"the prompt came out at {read:,} tokens, less than {NEAR:.0%} of {aim:,}"
        elif str(needle.number) not in answer:
            why = f"{needle.number} stood at {_DEPTH:.0%} of the text and is not in the answer"
            fix = "try kv_cache_dtype=auto, then a shorter max_model_len"
        return Check(
            id=check_id,
            ok=not why,
            expected=f"a fact near the beginning of {aim:,} tokens is found within {seconds:g} s",
            observed=f"{read:,} tokens, {took:.1f} s: {answer[:160]}",
            why=why,
            fix=fix,
        )

    return attempt(check_id, expected, make, target)


def _sentences(client: Client, request: Any, aim: int) -> int:
    """How many sentences make a prompt of at most ``aim`` tokens."""
    few, more = (_count(client, request(number, 1)) for number in (_FEW, _MORE))
    if more <= few:
        raise RoostError(
            f"the endpoint counts {few} tokens for {_FEW} sentences, {more} for {_MORE}",
            fix="ask the engine itself: something between counts otherwise",
        )
    each = (more - few) / (_MORE - _FEW)
    counts = client.tokens(request(0)) is not None
    # Where it is only estimated, some room is left: past the limit nothing would be answered.
    estimate = aim if counts else aim * (1 + NEAR) / 2
    number = max(0, int((estimate - few) / each + _FEW))
    while counts and number and (over := _count(client, request(number)) - aim) > 0:
        number = max(0, number - int(over / each) - 1)
    return number


def _count(client: Client, body: dict[str, Any]) -> int:
    """Tokens of a prompt, by the engine's own count."""
    tokens = client.tokens(body)
    return len(tokens) if tokens is not None else int(client.chat(body)["usage"]["prompt_tokens"])

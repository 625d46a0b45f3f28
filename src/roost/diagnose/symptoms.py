"""What failed checks of a healthy engine mean.

Such an engine logs nothing wrong, so there is no line to match: its answers are the evidence.
Checks are those of a gate or a verification, ``{id, ok, expected, observed, why}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from roost.diagnose.findings import Diagnosis, shown
from roost.onhost.judging import ANSWERED_WRONGLY, NO_DRAFTS, ONLY_THOUGHT, THINKS_ALOUD

Check: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class _Symptom:
    id: str
    title: str
    of: str  # how the ids of the checks begin that it is seen in
    why: str
    fix: str
    source: str
    seen: Callable[[Sequence[Check]], bool] = bool


def _says_nothing(checks: Sequence[Check]) -> bool:
    # An empty answer that was judged, or none within the time. Where nobody could ask, nothing
    # was observed either, and that says nothing of the engine.
    # "timed out" is how Python's sockets say it.
    return all(
        (ANSWERED_WRONGLY in check["why"] and not check["observed"].strip("'\" "))
        or "timed out" in check["observed"]
        for check in checks
    )


def _answers(checks: Sequence[Check]) -> bool:
    return any(check["observed"] for check in checks)


def _never_accepted(checks: Sequence[Check]) -> bool:
    return any(
        check["observed"] == NO_DRAFTS or re.fullmatch(r"1\.0[01]", check["observed"])
        for check in checks
    )


def _leaks(checks: Sequence[Check]) -> bool:
    return any(THINKS_ALOUD in check["why"] for check in checks)


def _only_thinks(checks: Sequence[Check]) -> bool:
    return any(ONLY_THOUGHT in check["why"] for check in checks)


#: Of several about the same checks, the first whose ``seen`` holds is reported.
_SYMPTOMS = (
    _Symptom(
        "no-tokens",
        "healthy, and generates no tokens: it is wedged",
        "answer_",
        "the server answers /health while the engine behind it does not move: a worker waits for "
        "another, a kernel never ends, or every request stays in the queue",
        "find out what it hangs on by leaving things out, one at a time: roost_speculation: none, "
        "then roost_settings: {enforce_eager: true}; nvidia-smi tells a busy kernel (high power) "
        "from a deadlock (idle power)",
        "the lab's stand-in engine",
        _says_nothing,
    ),
    _Symptom(
        "thinking-leaks",
        "the answer holds thinking text",
        "answer_",
        "the chat template was not told to leave it out, or the engine's reasoning parser is not "
        "this model's",
        "check the recipe's chat_template_kwargs and reasoning parser against the model's card",
        "the gate's own judgement",
        _leaks,
    ),
    _Symptom(
        "thinks-too-long",
        "thinks until its tokens are spent, and does not answer",
        "answer_",
        "thinking is on, by the recipe or because the chat template's default was left, and the "
        "questions of a deploy allow for short answers only",
        "chat_template_kwargs: {enable_thinking: false} in the recipe; clients that want thinking "
        "ask for it with their requests",
        "the gate's own judgement",
        _only_thinks,
    ),
    _Symptom(
        "wrong-answers",
        "healthy, and answers wrongly",
        "answer_",
        "what is computed is not the model: compiled kernels that miscompute, weights that were "
        "loaded in part or in another format, a wrong chat template, or a backend that does not "
        "suit this card",
        "leave things out, one at a time, until it answers rightly: roost_settings: "
        "{enforce_eager: true}, then roost_speculation: none, another attention_backend, another "
        "kv_cache_dtype; `roost plan` tells whether the checkpoint is whole",
        "vLLM 0.32.0, compiled, on a CPU; sglang#32279",
        _answers,
    ),
    _Symptom(
        "answers-changed",
        "answers otherwise than the same release did",
        "same_",
        "image, model and settings are those of before, so greedy answers should be too: damaged "
        "weights, another GPU or driver, or a nondeterministic kernel",
        "compare driver and GPU with those of the first deploy; if the weights are in doubt, "
        "remove their directory and deploy again; roost_same_answers: false where several answers "
        "are right",
        "the gate's baseline",
    ),
    _Symptom(
        "drafts-never-accepted",
        "no draft is ever accepted: speculation costs and gains nothing",
        "accept_length",
        "the drafter proposes what this model never says: its weights are missing (MTP layers that "
        "were left out of a quantised checkpoint), untrained, or made for another model",
        "`roost plan` looks for missing MTP weights; check that the drafter's card names this "
        "model; until then roost_speculation: none",
        "source 001, vllm#35548, sglang#35797",
        _never_accepted,
    ),
    _Symptom(
        "fewer-drafts-accepted",
        "fewer drafts are accepted than should be",
        "accept_length",
        "the drafter, its revision, its depth or its attention backend fits this model worse than "
        "what was there before",
        "go back to the drafter revision that was better (roost_settings: {drafter_revision: …}), "
        "or, where the new one is wanted all the same, lower roost_accept_length_floor",
        "the lab's two drafter revisions",
    ),
    _Symptom(
        "slower",
        "much slower than the release before",
        "speed",
        "clocks that are stuck low, something else on the GPU or the CPU, or settings that cost "
        "more than they seem to",
        "`roost doctor` names stuck clocks and busy GPUs; if the host is well, compare the two "
        "plans; roost_speed_floor says what still passes",
        "the gate's baseline",
    ),
    _Symptom(
        "key-not-asked-for",
        "asks nobody for its API key",
        "api_key",
        "the engine was started without the key that the site has, so whoever reaches it is served",
        "check that the image reads VLLM_API_KEY, or put a gateway that asks in front of it",
        "the gate's request without a key",
    ),
)


def of_checks(checks: Sequence[Check]) -> list[Diagnosis]:
    """What failed checks mean, in the order of :data:`_SYMPTOMS`.

    Args:
        checks: Passed ones too; these say nothing.
    """
    found: list[Diagnosis] = []
    explained: set[str] = set()
    for symptom in _SYMPTOMS:
        mine = [check for check in checks if check["id"].startswith(symptom.of) and not check["ok"]]
        if symptom.of in explained or not mine or not symptom.seen(mine):
            continue
        explained.add(symptom.of)
        said = mine[0]
        evidence = f"{said['id']}: {said['observed']!r}, wants {said['expected']}"
        found.append(
            Diagnosis(
                id=symptom.id,
                title=symptom.title,
                severity="error",
                evidence=shown(evidence),
                line=0,
                why=symptom.why,
                fix=symptom.fix,
                source=symptom.source,
            )
        )
    return found

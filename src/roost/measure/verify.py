"""Is what runs on a host what was pinned, and does it answer right?

Every check stands alone: what cannot be asked (no SSH, a dead engine) is a failed check with its
reason, and the others are still made. Nothing here raises for what it finds.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from roost import quality, runs, site, ssh
from roost.deployment import Deployment
from roost.errors import RoostError, UsageError
from roost.inventory import Host
from roost.measure import (
    conduct,
    demands,
    longcontext,
    lossless,
    metrics,
    parsers,
    running,
    startlog,
)
from roost.measure.checks import (
    Check,
    Evidence,
    Figure,
    Target,
    attempt,
    inapplicable,
    unseen,
)
from roost.measure.client import Client, StreamedAnswer
from roost.plan.subject import Subject

#: Long enough for several chunks even where one chunk carries a whole draft.
STREAM_PROMPT = "What is a hash table? Explain it in a few sentences."
MAX_TOKENS = 96
#: At temperature 0 two requests may still part at a near tie (a block of drafts and a single token
#: round differently in bfloat16). A stream that loses text differs every time.
STREAM_ATTEMPTS = 3
#: Repeats itself, so that every kind of drafter has something to propose; lookup in the prompt
#: (ngram) proposes nothing at all for short plain answers.
COPY_PROMPT = (
    "Copy this text exactly, twice:\n"
    "The quick brown fox jumps over the lazy dog. The five boxing wizards jump quickly."
)


#: A day: nobody waits longer for one answer, and a socket cannot wait for ever so long.
_LONGEST_S = 86_400


@contextmanager
def reach(host: Host, deployment: Deployment) -> Iterator[Target]:
    """Open SSH and the tunnel to the endpoint; trouble is kept in the target, not raised."""
    target = Target(host, deployment)
    with ExitStack() as stack:
        try:
            target.remote = stack.enter_context(ssh.connect(host))
            port = deployment.spec.ports[0]
            target.tunnel = stack.enter_context(target.remote.tunnel(port.host, port.connect))
            url = f"http://{target.tunnel.address}:{target.tunnel.port}"
            key = site.api_key(host.variables)
            target.client = stack.enter_context(Client(url, api_key=key))
        except RoostError as error:
            target.no_remote = str(error)
        yield target


@dataclass(frozen=True)
class Options:
    """What a verification is to do beyond what costs nothing; see :func:`options`."""

    subject: Subject
    identity: Mapping[str, Any]
    long_context: int | None = None
    long_context_seconds: float = 900.0
    bad_requests: bool = True
    reference: lossless.Reference | None = None
    require_seen: bool = False


def options(
    deployment: Deployment,
    *,
    long_context: Any = None,
    long_context_seconds: Any = 900,
    bad_requests: Any = True,
    reference: Any = None,
    require_seen: Any = False,
    runs_dir: Any = "runs",
) -> Options:
    """Check a notebook's parameters before anything is asked of the host.

    Args:
        deployment: What is to be verified.
        long_context: Tokens of the long prompt; none: all that fits; 0: no such request.
        long_context_seconds: Time that it may take.
        bad_requests: Whether to send requests that must be refused.
        reference: A kept run without speculation whose greedy answers must come again.
        require_seen: Whether a demand of which the log says nothing is a failure.
        runs_dir: Where runs are kept; relative to the repository root.

    Raises:
        UsageError: A parameter makes no sense, or the reference is of something else.
    """
    least = longcontext.LEAST_TOKENS
    if long_context is not None and (not _whole(long_context) or 0 < long_context < least):
        raise UsageError(
            f"parameter long_context is {long_context!r}",
            fix=f"tokens ({least} or more), 0 for none, or leave it out for all that fits",
        )
    if not _number(long_context_seconds) or not 0 < long_context_seconds <= _LONGEST_S:
        raise UsageError(
            f"parameter long_context_seconds is {long_context_seconds!r}",
            fix=f"seconds above 0, {_LONGEST_S:,} at the most",
        )
    subject = demands.examine(deployment)
    identity = lossless.identity(deployment, subject.resolved)
    if reference is not None and not deployment.speculates:
        raise UsageError(
            "parameter reference is given, and nothing speculates here",
            why="there is nothing to compare: this host's answers are a reference themselves",
        )
    home = runs.kept_in(runs_dir)
    return Options(
        subject=subject,
        identity=identity,
        long_context=long_context,
        long_context_seconds=float(long_context_seconds),
        bad_requests=runs.switch("bad_requests", bad_requests),
        reference=None if reference is None else lossless.read(reference, home, identity),
        require_seen=runs.switch("require_seen", require_seen),
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def verify(target: Target, asked: Options | None = None) -> Evidence:
    """Make every check, in the order a person would.

    What strains the engine comes last, so that the counters are read around plain requests alone.
    """
    asked = asked or options(target.deployment)
    evidence = Evidence()
    checks = evidence.checks
    before = _reading(target, "metrics_before.txt", evidence)

    checks += running.container_checks(target)
    checks += [running.weights_check("model_revision", target, target.deployment.weights[0])]
    checks += [
        running.weights_check("drafter_revision", target, drafter)
        for drafter in target.deployment.weights[1:]
    ]
    checks += started_as_demanded(target, asked.subject, evidence)
    checks += [health(target), served_name(target), engine_version(target), asks_for_key(target)]
    checks += answers(target)
    checks += [streaming(target, evidence)]

    if target.deployment.speculates:
        _copy(target)
    after = _reading(target, "metrics_after.txt", evidence)
    checks += [speculation(target.deployment, before, after, evidence)]

    checks += [lossless.check(target, evidence, dict(asked.identity), asked.reference)]
    checks += parsers.checks(target)
    checks += [
        longcontext.check(
            target, evidence, tokens=asked.long_context, seconds=asked.long_context_seconds
        )
    ]
    style = asked.subject.resolved.engine.style
    checks += conduct.checks(target, style, switched_off=not asked.bad_requests)
    running.keep_log(target, evidence)
    checks += [running.keep_host(target, evidence)]
    checks += [key_hidden(target, evidence)]
    evidence.checks = [_with_fix(check) for check in checks]
    if asked.require_seen:
        evidence.checks = [
            check.model_copy(update={"ok": False}) if check.verdict == "not seen" else check
            for check in evidence.checks
        ]
    return evidence


#: Fixes by the beginning of a check's id, where there is one for all its failures.
_MEND = {
    "answer_": "an engine that is healthy and wrong: compare dtype, quantization and backends with "
    "the recipe's, then deploy again without what differs",
    "no_thinking": "switch it off in the recipe's chat_template_kwargs, or configure "
    "--reasoning-parser",
    "streaming": "something between client and engine buffers, or loses: ask the engine on its own "
    "host, then look at the gateway",
    "speculation": "`roost plan` says whether drafter and model belong together, and engine.log "
    "whether the drafter was loaded",
    "health": "`roost diagnose` on engine.log, or wait where it is still loading",
    "served_name": "tell clients the name that is served, or set roost_served_name and deploy",
    "model_revision": running.DEPLOY,
    "drafter_revision": running.DEPLOY,
}


def _with_fix(check: Check) -> Check:
    # Where nothing could be asked the reason is told already, and nothing is known to be wrong.
    if check.ok or check.fix or not check.observed:
        return check
    fix = next((text for start, text in _MEND.items() if check.id.startswith(start)), "")
    return check.model_copy(update={"fix": fix})


def started_as_demanded(target: Target, subject: Subject, evidence: Evidence) -> list[Check]:
    """What the log of the newest start says, against the recipe and the plan."""
    why = ""
    try:
        text = running.start_log(target)
        evidence.artefacts["engine-start.log"] = text
    except RoostError as error:
        text, why = "", str(error)
    log = startlog.parse(text, subject.resolved.engine.style)
    made = demands.checks(subject, log)
    try:
        memory, where = demands.planned(target, subject)
        made += demands.pool_checks(subject, log, memory, where)
    except RoostError as error:
        made += [
            Check(id=name, ok=False, expected="the pool that was planned", why=str(error))
            for name in ("pool_tokens", "pool_concurrency")
        ]
    if not why:
        return made
    # Nothing could be looked at, which is worse than a log that says nothing.
    return [
        check.model_copy(update={"ok": False, "verdict": "fail", "why": why, "fix": ""})
        if check.verdict == "not seen"
        else check
        for check in made
    ]


# --- the endpoint ---------------------------------------------------------------------------------


def health(target: Target) -> Check:
    """The health path is green."""
    path = target.deployment.health_path
    expected = f"{path} answers 200"

    def make() -> Check:
        status = target.endpoint().health(path)
        return Check(
            id="health",
            ok=status == 200,
            expected=expected,
            observed=f"{path} answers {status}",
            why="" if status == 200 else "the engine is starting, or its core has died",
        )

    return attempt("health", expected, make, target)


def served_name(target: Target) -> Check:
    """The endpoint serves under the expected name."""
    wanted = target.deployment.served_name

    def make() -> Check:
        names = target.endpoint().models()
        return Check(
            id="served_name",
            ok=wanted in names,
            expected=wanted,
            observed=", ".join(names) or "no model at all",
            why="" if wanted in names else "clients that ask for the name get a 404",
        )

    return attempt("served_name", wanted, make, target)


def asks_for_key(target: Target) -> Check:
    """Who has no key, or a wrong one, is turned away; an engine that lost its key serves all."""
    if not _has_key(target):
        return inapplicable("api_key", "the site has no key")
    expected = "HTTP 401 without the API key, and with a wrong one"

    def make() -> Check:
        client = target.endpoint()
        served = [
            who
            for who, key in (("without a key", None), ("with a wrong key", secrets.token_hex(16)))
            if not client.turns_away(key)
        ]
        return Check(
            id="api_key",
            ok=not served,
            expected=expected,
            observed=f"an answer {' and '.join(served)}" if served else expected,
            why="the engine did not take the key" if served else "",
            fix=running.DEPLOY if served else "",
        )

    return attempt("api_key", expected, make, target)


def key_hidden(target: Target, evidence: Evidence) -> Check:
    """The key stands in nothing that was read; where it did, it is taken out of the evidence."""
    check_id = "api_key_hidden"
    key = site.api_key(target.host.variables)
    if not _has_key(target) or key is None:
        return inapplicable(check_id, "the site has no key")
    expected = "the API key in no log, no metric and not in docker inspect"
    if target.remote is None:
        return unseen(check_id, expected, target.no_remote)
    shown = evidence.hide(lambda said: site.hide_key(said, target.host.variables))
    if key in json.dumps(dict(target.container)):
        shown.append("docker inspect")
    return Check(
        id=check_id,
        ok=not shown,
        expected=expected,
        observed=f"it stands in {', '.join(shown)}" if shown else "it was not seen anywhere",
        why="whoever may read that has the key" if shown else "",
        fix="take another key, and hand it over as docs/api-key.md says" if shown else "",
    )


def _has_key(target: Target) -> bool:
    return any(secret.name == "api_key" for secret in target.deployment.spec.secrets)


def engine_version(target: Target) -> Check:
    """The engine says which version it is.

    The image digest decides what runs; a version that differs from the catalogue's is a remark on
    the catalogue, not a fault of the host.
    """
    wanted = target.deployment.engine_version

    def make() -> Check:
        version = target.endpoint().version()
        return Check(
            id="engine_version",
            ok=True,
            expected=f"an answer; the catalogue says {wanted}",
            observed=version,
            why="" if version == wanted else "the catalogue names another version for this digest",
        )

    return attempt("engine_version", f"an answer; the catalogue says {wanted}", make, target)


def answers(target: Target) -> list[Check]:
    """Right answers to the fixed questions, and none with thinking in it."""
    gate = target.deployment.gate
    made: list[Check] = []
    seen: list[tuple[str, str]] = []
    for question, body in zip(gate.questions, gate.requests, strict=True):

        def make(question: quality.Question = question, body: dict[str, Any] = body) -> Check:
            response = target.endpoint().chat(body)
            text = quality.answer_text(response) or ""
            seen.append((text, quality.reasoning_text(response)))
            return Check(**quality.judge(question, response).model_dump())

        made.append(attempt(f"answer_{question.id}", question.expected, make, target))
    made.append(attempt("no_thinking", _NO_THINKING, lambda: _no_thinking(target, seen), target))
    return made


_NO_THINKING = "answers without thinking text"


def _no_thinking(target: Target, seen: Sequence[tuple[str, str]]) -> Check:
    if not seen:
        target.endpoint()
        raise RoostError("there is no answer to look at")
    wanted = target.deployment.chat_template_kwargs.get("enable_thinking") is True
    leaks = [leak for text, _ in seen if (leak := quality.leaked_thinking(text))]
    beside = [reasoning for _, reasoning in seen if reasoning and not wanted]
    if leaks:
        why = "the engine's reasoning parser or the chat template leaves it in the answer"
        return Check(id="no_thinking", ok=False, expected=_NO_THINKING, observed=leaks[0], why=why)
    if beside:
        why = "the model thinks although the recipe switches it off"
        return Check(
            id="no_thinking", ok=False, expected=_NO_THINKING, observed=beside[0][:200], why=why
        )
    remark = "thinking is on in this recipe; it stands beside the answers" if wanted else ""
    observed = f"none in {len(seen)} answers"
    return Check(id="no_thinking", ok=True, expected=_NO_THINKING, observed=observed, why=remark)


def streaming(target: Target, evidence: Evidence) -> Check:
    """A streamed greedy answer is the same text as a whole one, in several chunks, with usage."""
    deployment = target.deployment
    expected = "the same text as unstreamed, in two chunks or more, with the engine's token counts"
    body = _request(deployment, STREAM_PROMPT)

    def make() -> Check:
        attempt = 0
        whole, answer = None, StreamedAnswer(())
        while answer.text + answer.reasoning != whole and attempt < STREAM_ATTEMPTS:
            attempt += 1
            reply = target.endpoint().chat(body)
            text = quality.answer_text(reply)
            whole = None if text is None else text + quality.reasoning_text(reply)
            answer = target.endpoint().stream_chat(body)
        _stream_figures(answer, evidence)
        why = ""
        remark = f"the texts agreed at attempt {attempt}" if attempt > 1 else ""
        came = answer.text + answer.reasoning
        if came != whole:
            why = f"streamed: {came[:120]!r}, whole: {(whole or '')[:120]!r}"
        elif len(answer.deltas) < 2:
            why = "everything came at once: something between buffers the stream"
        elif answer.completion_tokens is None:
            why = "no usage chunk came although it was asked for"
        return Check(
            id="streaming",
            ok=not why,
            expected=expected,
            observed=f"{len(answer.deltas)} chunks, {answer.completion_tokens} tokens: "
            f"{came[:120].strip()}",
            why=why or remark,
        )

    return attempt("streaming", expected, make, target)


def _request(deployment: Deployment, prompt: str) -> dict[str, Any]:
    return quality.chat_request(
        prompt, deployment.served_name, deployment.chat_template_kwargs, max_tokens=MAX_TOKENS
    )


def _stream_figures(answer: StreamedAnswer, evidence: Evidence) -> None:
    how = "one streamed request through the SSH tunnel, a first look, no benchmark"
    if answer.ttft is not None:
        evidence.figures["ttft_ms"] = Figure(
            title="Time to first token", value=answer.ttft * 1000, unit="ms", source=how
        )
    tokens = answer.completion_tokens
    if tokens and tokens > 1 and answer.ttft is not None and answer.duration > answer.ttft:
        evidence.figures["tokens_per_s"] = Figure(
            title="Decode speed of one user",
            value=(tokens - 1) / (answer.duration - answer.ttft),
            unit="tokens/s",
            source=how,
        )


# --- speculation ----------------------------------------------------------------------------------

Reading = metrics.Reading | RoostError


def _copy(target: Target) -> None:
    """Give the drafter its best case. What matters is in the counters, not in the answer."""
    with suppress(RoostError):
        target.endpoint().chat(_request(target.deployment, COPY_PROMPT))


def speculation(
    deployment: Deployment, before: Reading, after: Reading, evidence: Evidence
) -> Check:
    """Drafts were made and accepted during this verification; or none, where none should be."""
    expected = (
        "drafts are made and the accept length is above 1"
        if deployment.speculates
        else "no speculation counters"
    )

    def make() -> Check:
        if isinstance(before, RoostError):
            raise before
        if isinstance(after, RoostError):
            raise after
        spec = metrics.delta(before, after).speculation
        if spec is None:
            return Check(
                id="speculation",
                ok=not deployment.speculates,
                expected=expected,
                observed="the engine has no speculation counters",
                why="the engine runs without speculation" if deployment.speculates else "",
            )
        if not deployment.speculates:
            return Check(
                id="speculation",
                ok=False,
                expected=expected,
                observed=f"{spec.drafts:.0f} drafts",
                why="the engine speculates although the recipe's choice says it does not",
            )
        _spec_figures(spec, evidence)
        return _judge_speculation(spec, expected)

    return attempt("speculation", expected, make)


def _judge_speculation(spec: metrics.SpecCounters, expected: str) -> Check:
    length = spec.accept_length
    if length is None:
        return Check(
            id="speculation",
            ok=False,
            expected=expected,
            observed="0 drafts",
            why="the counters are there but did not move",
        )
    return Check(
        id="speculation",
        ok=length > 1,
        expected=expected,
        observed=f"accept length {length:.2f} over {spec.drafts:.0f} drafts",
        why=""
        if length > 1
        else "no draft was ever accepted: the drafter does not belong to this model, or its "
        "weights were not loaded",
    )


def _spec_figures(spec: metrics.SpecCounters, evidence: Evidence) -> None:
    how = (
        f"/metrics before and after the requests of this verification: {spec.accepted:.0f} of "
        f"{spec.draft_tokens:.0f} draft tokens accepted in {spec.drafts:.0f} drafts"
    )
    if spec.accept_length is not None:
        evidence.figures["accept_length"] = Figure(
            title="Accept length", value=spec.accept_length, unit="tokens/step", source=how
        )
    if spec.accept_rate is not None:
        evidence.figures["accept_rate"] = Figure(
            title="Accept rate", value=spec.accept_rate * 100, unit="%", source=how
        )
    for at, rate in enumerate(spec.per_position_rates, 1):
        evidence.figures[f"accept_rate_position_{at}"] = Figure(
            title=f"Accepted at draft position {at}", value=rate * 100, unit="%", source=how
        )


def _reading(target: Target, name: str, evidence: Evidence) -> Reading:
    try:
        text = target.endpoint().metrics(target.deployment.metrics_path)
        evidence.artefacts[name] = text
        return metrics.parse(text)
    except RoostError as error:
        refusals = target.tunnel.refusals if target.tunnel else []
        return RoostError(f"{target.host.name}: {refusals[-1]}") if refusals else error

"""Is what runs on a host what was pinned, and does it answer right?

Every check stands alone: what cannot be asked (no SSH, a dead engine) is a failed check with its
reason, and the others are still made. Nothing here raises for what it finds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict

from roost import quality, site, ssh
from roost.deployment import Deployment
from roost.errors import RoostError
from roost.inventory import Host
from roost.launch import Weights
from roost.measure import metrics
from roost.measure.client import Client, EngineError, StreamedAnswer, reasoning_text

#: What the role that fetches weights leaves in each revision's directory.
RECORD = ".roost.json"
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
#: Last lines of the engine's log that are kept as evidence.
LOG_LINES = 20_000


class Check(BaseModel):
    """One thing looked at.

    ``observed`` is empty where nothing could be observed; ``why`` then says why not. On a check
    that passed, ``why`` is a remark.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    ok: bool
    expected: str
    observed: str = ""
    why: str = ""


class Figure(BaseModel):
    """One number and where it comes from; ``low`` and ``high`` are its 95 % interval, if any."""

    model_config = ConfigDict(frozen=True)

    title: str
    value: float
    unit: str
    source: str
    low: float | None = None
    high: float | None = None


@dataclass
class Evidence:
    """Everything one verification found out."""

    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)
    #: Raw texts by file name, for the run's folder.
    artefacts: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.ok]


@dataclass
class Target:
    """A host with its deployment, and the ways to it that could be opened.

    Attributes:
        remote: The SSH connection, or none with the reason in ``no_remote``.
        client: A client for the endpoint through the tunnel; none without ``remote``.
        tunnel: The tunnel, which remembers why the far side refused.
    """

    host: Host
    deployment: Deployment
    remote: ssh.Remote | None = None
    no_remote: str = ""
    client: Client | None = None
    tunnel: ssh.Tunnel | None = None


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


def verify(target: Target) -> Evidence:
    """Make every check, in the order a person would."""
    evidence = Evidence()
    checks = evidence.checks
    before = _reading(target, "metrics_before.txt", evidence)

    checks += container_checks(target)
    checks += [weights_check("model_revision", target, target.deployment.weights[0])]
    checks += [
        weights_check("drafter_revision", target, drafter)
        for drafter in target.deployment.weights[1:]
    ]
    checks += [health(target), served_name(target), engine_version(target)]
    if any(secret.name == "api_key" for secret in target.deployment.spec.secrets):
        checks += [asks_for_key(target)]
    checks += answers(target)
    checks += [streaming(target, evidence)]

    if target.deployment.speculates:
        _copy(target)
    after = _reading(target, "metrics_after.txt", evidence)
    checks += [speculation(target.deployment, before, after, evidence)]
    keep_log(target, evidence)
    return evidence


# --- the container --------------------------------------------------------------------------------


def container_checks(target: Target) -> list[Check]:
    """Running, from the pinned image, with the pinned command and mounts."""
    spec = target.deployment.spec
    made: list[Check] = []
    state: dict[str, Any] = {}

    def running() -> Check:
        state.update(_inspect(target, ["container", "inspect", spec.name])[0])
        status = str(state["State"]["Status"])
        restarts = int(state.get("RestartCount", 0))
        return Check(
            id="container",
            ok=status == "running",
            expected=f"{spec.name} is running",
            observed=status + (f", restarted {restarts} times" if restarts else ""),
            why="" if status == "running" else _died(state),
        )

    def image() -> Check:
        digests = _inspect(target, ["image", "inspect", _of(state, "Image")])[0]["RepoDigests"]
        found = sorted({str(item).partition("@")[2] for item in digests or []})
        wanted = target.deployment.image_digest or ""
        return Check(
            id="image_digest",
            ok=bool(wanted) and wanted in found,
            expected=wanted or "a pinned digest",
            observed=", ".join(found) or "an image without a digest (built or loaded locally)",
            why="" if wanted in found else f"{spec.name} runs another image; deploy again",
        )

    def command() -> Check:
        config = _of(state, "Config")
        wanted = [*spec.entrypoint, *spec.command]
        found = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
        difference = _first_difference(wanted, found) or _missing_env(spec.env, config.get("Env"))
        return Check(
            id="command",
            ok=not difference,
            expected=" ".join(wanted),
            observed=" ".join(str(word) for word in found),
            why=difference,
        )

    def mounts() -> Check:
        wanted = {f"{m.source}:{m.target}:{'ro' if m.read_only else 'rw'}" for m in spec.mounts}
        found = {
            f"{m['Source']}:{m['Destination']}:{'rw' if m['RW'] else 'ro'}"
            for m in _of(state, "Mounts")
            if m.get("Type", "bind") == "bind"
        }
        return Check(
            id="mounts",
            ok=wanted == found,
            expected=" ".join(sorted(wanted)),
            observed=" ".join(sorted(found)),
            why=""
            if wanted == found
            else "the container was given other directories; deploy again",
        )

    for check_id, expected, make in (
        ("container", f"{spec.name} is running", running),
        ("image_digest", target.deployment.image_digest or "a pinned digest", image),
        ("command", "the pinned command", command),
        ("mounts", "the pinned directories", mounts),
    ):
        made.append(_attempt(check_id, expected, make))
    return made


def _inspect(target: Target, words: Sequence[str]) -> list[Any]:
    done = ssh.run_privileged(_remote(target), ["docker", *words])
    if done.rc != 0:
        raise RoostError(done.err.strip() or done.out.strip() or f"docker exited {done.rc}")
    found = json.loads(done.out)
    return list(found)


def _of(state: Mapping[str, Any], key: str) -> Any:
    if key not in state:
        raise RoostError("the container could not be inspected")
    return state[key]


def _died(state: Mapping[str, Any]) -> str:
    detail = state["State"]
    reason = f"exit status {detail.get('ExitCode')}"
    if detail.get("OOMKilled"):
        reason += ", killed for want of memory"
    return f"{reason} {detail.get('Error') or ''}".strip() + "; engine.log has its last words"


def _first_difference(wanted: Sequence[str], found: Sequence[Any]) -> str:
    for at, word in enumerate(wanted):
        if at >= len(found):
            return f"{word!r} is missing at the end"
        if str(found[at]) != word:
            return f"word {at + 1} is {found[at]!r} instead of {word!r}"
    return f"{found[len(wanted)]!r} was added at the end" if len(found) > len(wanted) else ""


def _missing_env(wanted: Mapping[str, str], found: Sequence[str] | None) -> str:
    missing = [f"{key}={value}" for key, value in wanted.items()]
    missing = [item for item in missing if item not in (found or [])]
    return f"environment lacks {', '.join(missing)}" if missing else ""


# --- the weights ----------------------------------------------------------------------------------


def weights_check(check_id: str, target: Target, weights: Weights) -> Check:
    """The directory on disk is the pinned revision, whole: record and file sizes agree."""
    expected = f"{weights.repo}@{weights.revision}"

    def make() -> Check:
        directory = PurePosixPath(weights.directory)
        done = ssh.run_privileged(_remote(target), ["cat", str(directory / RECORD)])
        if done.rc != 0:
            raise RoostError(done.err.strip() or f"no {RECORD} in {directory}")
        record = json.loads(done.out)
        listed = ssh.run_privileged(
            _remote(target), ["find", str(directory), "-type", "f", "-printf", "%s %P\\n"]
        )
        defect = _size_defect(record["files"], listed.out)
        found = f"{record['repo']}@{record['revision']}"
        why = f"{len(record['files'])} files, each as long as recorded"
        if found != expected:
            why = f"{directory} holds another revision"
        return Check(
            id=check_id,
            ok=found == expected and not defect,
            expected=expected,
            observed=found,
            why=defect or why,
        )

    return _attempt(check_id, expected, make)


def _size_defect(files: Mapping[str, Any], listing: str) -> str:
    """The first file that is not as long as its record says."""
    sizes = {}
    for line in listing.splitlines():
        size, _, path = line.partition(" ")
        sizes[path] = int(size)
    for path, known in files.items():
        if path not in sizes:
            return f"{path} is not there"
        if sizes[path] != known["size"]:
            return f"{path} has {sizes[path]} bytes instead of {known['size']}"
    return ""


# --- the endpoint ---------------------------------------------------------------------------------


def health(target: Target) -> Check:
    """The health path is green."""
    path = target.deployment.health_path
    expected = f"{path} answers 200"

    def make() -> Check:
        status = _client(target).health(path)
        return Check(
            id="health",
            ok=status == 200,
            expected=expected,
            observed=f"{path} answers {status}",
            why="" if status == 200 else "the engine is starting, or its core has died",
        )

    return _attempt("health", expected, make, target)


def served_name(target: Target) -> Check:
    """The endpoint serves under the expected name."""
    wanted = target.deployment.served_name

    def make() -> Check:
        names = _client(target).models()
        return Check(
            id="served_name",
            ok=wanted in names,
            expected=wanted,
            observed=", ".join(names) or "no model at all",
            why="" if wanted in names else "clients that ask for the name get a 404",
        )

    return _attempt("served_name", wanted, make, target)


def asks_for_key(target: Target) -> Check:
    """Who has no key is turned away; an engine that lost its key would serve everybody."""
    expected = "HTTP 401 without the API key"

    def make() -> Check:
        ok = _client(target).turns_strangers_away()
        return Check(
            id="api_key",
            ok=ok,
            expected=expected,
            observed=expected if ok else "an answer without the API key",
            why="" if ok else "the engine did not take the key; deploy again",
        )

    return _attempt("api_key", expected, make, target)


def engine_version(target: Target) -> Check:
    """The engine says which version it is.

    The image digest decides what runs; a version that differs from the catalogue's is a remark on
    the catalogue, not a fault of the host.
    """
    wanted = target.deployment.engine_version

    def make() -> Check:
        version = _client(target).version()
        return Check(
            id="engine_version",
            ok=True,
            expected=f"an answer; the catalogue says {wanted}",
            observed=version,
            why="" if version == wanted else "the catalogue names another version for this digest",
        )

    return _attempt("engine_version", f"an answer; the catalogue says {wanted}", make, target)


def answers(target: Target) -> list[Check]:
    """Right answers to the fixed questions, and none with thinking in it."""
    gate = target.deployment.gate
    made: list[Check] = []
    seen: list[tuple[str, str]] = []
    for question, body in zip(gate.questions, gate.requests, strict=True):

        def make(question: quality.Question = question, body: dict[str, Any] = body) -> Check:
            response = _client(target).chat(body)
            seen.append((quality.answer_text(response) or "", reasoning_text(response)))
            return Check(**quality.judge(question, response).model_dump())

        made.append(_attempt(f"answer_{question.id}", question.expected, make, target))
    made.append(_attempt("no_thinking", _NO_THINKING, lambda: _no_thinking(target, seen), target))
    return made


_NO_THINKING = "answers without thinking text"


def _no_thinking(target: Target, seen: Sequence[tuple[str, str]]) -> Check:
    if not seen:
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
        while answer.text != whole and attempt < STREAM_ATTEMPTS:
            attempt += 1
            whole = quality.answer_text(_client(target).chat(body))
            answer = _client(target).stream_chat(body)
        _stream_figures(answer, evidence)
        why = ""
        remark = f"the texts agreed at attempt {attempt}" if attempt > 1 else ""
        if answer.text != whole:
            why = f"streamed: {answer.text[:120]!r}, whole: {(whole or '')[:120]!r}"
        elif len(answer.deltas) < 2:
            why = "everything came at once: something between buffers the stream"
        elif answer.completion_tokens is None:
            why = "no usage chunk came although it was asked for"
        return Check(
            id="streaming",
            ok=not why,
            expected=expected,
            observed=f"{len(answer.deltas)} chunks, {answer.completion_tokens} tokens: "
            f"{answer.text[:120].strip()}",
            why=why or remark,
        )

    return _attempt("streaming", expected, make, target)


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
        _client(target).chat(_request(target.deployment, COPY_PROMPT))


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

    return _attempt("speculation", expected, make)


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
    for at, rate in enumerate(spec.per_position_rates):
        evidence.figures[f"accept_rate_position_{at}"] = Figure(
            title=f"Accepted at draft position {at + 1}", value=rate * 100, unit="%", source=how
        )


# --- shared ---------------------------------------------------------------------------------------


def _attempt(
    check_id: str, expected: str, make: Callable[[], Check], target: Target | None = None
) -> Check:
    """The check, or a failed one that says why it could not be made."""
    refused = len(target.tunnel.refusals) if target and target.tunnel else 0
    try:
        return make()
    except RoostError as error:
        why = str(error)
        if target and target.tunnel and len(target.tunnel.refusals) > refused:
            why = f"{target.host.name}: {target.tunnel.refusals[-1]}"
        elif isinstance(error, EngineError) and error.status and error.status >= 500:
            why += "; engine.log has the reason"
    except (ValueError, KeyError, TypeError, IndexError) as error:
        why = f"what came back could not be read: {type(error).__name__}: {error}"
    return Check(id=check_id, ok=False, expected=expected, why=why)


def _remote(target: Target) -> ssh.Remote:
    if target.remote is None:
        raise RoostError(target.no_remote)
    return target.remote


def _client(target: Target) -> Client:
    if target.client is None:
        raise RoostError(target.no_remote)
    return target.client


def _reading(target: Target, name: str, evidence: Evidence) -> Reading:
    try:
        text = _client(target).metrics(target.deployment.metrics_path)
        evidence.artefacts[name] = text
        return metrics.parse(text)
    except RoostError as error:
        refusals = target.tunnel.refusals if target.tunnel else []
        return RoostError(f"{target.host.name}: {refusals[-1]}") if refusals else error


def keep_log(target: Target, evidence: Evidence) -> None:
    """Keep the end of the engine's log; without it the reason takes its place."""
    name = target.deployment.spec.name
    words = ["docker", "logs", "--timestamps", "--tail", str(LOG_LINES), name]
    try:
        remote = _remote(target)
        done = ssh.run_privileged(remote, words)
        # An engine logs to both streams; the time stamps put them back in order. A progress bar's
        # carriage returns stay within their stamped line.
        lines = sorted(filter(None, f"{done.out}\n{done.err}".split("\n")))
        evidence.artefacts["engine.log"] = "\n".join(lines) + "\n"
    except RoostError as error:
        evidence.artefacts["engine.log"] = f"not read: {error}\n"

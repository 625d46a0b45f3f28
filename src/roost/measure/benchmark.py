"""How fast is a host, by its engine's own load generator, and may the numbers be believed?

Every call of the harness stands between two readings of the engine's counters and beside samples of
the GPU's clocks. A repetition in which something else happened (a restart, failed requests, another
client, a throttled GPU) is kept with its reason and counts for nothing; a cell without enough clean
ones is a failed check. What was measured before something broke stays in the run's folder.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from roost import atomic, catalog, quality, ssh
from roost.deployment import Deployment
from roost.errors import RoostError
from roost.launch import MODEL_PATH
from roost.measure import (
    harness,
    metrics,
    parsers,
    points,
    reconnecting,
    running,
    statistics,
    suites,
    throttling,
)
from roost.measure.checks import Check, Evidence, Figure, Target, inapplicable, unseen
from roost.measure.client import TIMEOUT_S, EngineError
from roost.measure.harness import HarnessResult, Load
from roost.measure.points import Benchmark, CellPoints, Repetition, RequestPoint, Speculation
from roost.measure.suites import Cell, Suite
from roost.runs import PROGRESS, text

#: The counters may differ from what the harness counted by so much: the engine still counts a
#: token or two of a request whose stream has ended.
UNEXPLAINED = 0.01
#: A call of the harness gets what it would take at this speed, and time to start.
_SLOWEST_TOKENS_PER_S = 0.5
_START_S = 600.0
_LIMIT_S = 4 * 3600.0
#: Characters of the bar.
_BAR = 20
#: Metrics whose origin differs between engines.
_OF_DRAFTS = {"accept_length", "accept_rate"}


@dataclass(frozen=True)
class Plan:
    """What is going to be asked."""

    name: str
    suite: Suite
    cells: list[Cell]
    prompts: str

    @property
    def question(self) -> str:
        """The suite and the text of the prompts; what a deployment adds to them is kept apart."""
        texts = [(cell.id, [prompt.text for prompt in cell.prompts]) for cell in self.cells]
        asked = f"{self.suite.model_dump_json()}{texts}"
        return f"{self.name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"

    def describe(self) -> dict[str, str]:
        """For the first output of a notebook."""
        repetitions = self.suite.repetitions
        return {
            "suite": f"{self.name}: {self.suite.protocol} ({self.suite.source})",
            "prompts": self.prompts,
            "points": ", ".join(cell.id for cell in self.cells),
            "repetitions": f"{repetitions.least} to {repetitions.most}, until half the interval of "
            f"the throughput is {repetitions.tight:.0%} of it",
        }


def plan(suite: Any, prompts: Any = None) -> Plan:
    """Check a notebook's parameters.

    Args:
        suite: The suite's name.
        prompts: The user's own file of prompts, or none.

    Raises:
        UsageError: No such suite or file of prompts, or a line in it is no prompt.
    """
    name = text("suite", suite)
    chosen = suites.suite(name)
    if prompts is None:
        return Plan(name, chosen, suites.cells(chosen), f"roost's own: {chosen.prompts}")
    file = Path(text("prompts", prompts)).expanduser()
    return Plan(name, chosen, suites.cells(chosen, suites.read_prompts(file)), str(file))


@dataclass
class Session:
    """A benchmark that is under way."""

    target: Target
    plan: Plan
    cells: list[Cell]
    folder: Path
    say: Callable[[str], None]
    evidence: Evidence = field(default_factory=Evidence)
    measured: list[CellPoints] = field(default_factory=list)
    watches: dict[tuple[str, int], throttling.Watch] = field(default_factory=dict)
    #: In the container, of the prompts that were prepared last; none: no way there was tried yet.
    directory: PurePosixPath | None = None
    #: SSH connections that were lost.
    breaks: int = 0
    started: float = field(default_factory=time.monotonic)
    share: float = 0.0

    @property
    def suite(self) -> Suite:
        return self.plan.suite

    @property
    def deployment(self) -> Deployment:
        return self.target.deployment

    @property
    def style(self) -> str:
        known = catalog.current()
        return known.engines[known.recipe(self.deployment.recipe).engine].style

    def progress(self, doing: str, share: float | None = None) -> None:
        """One line with a bar over the whole suite, for whoever waits.

        Args:
            doing: What begins now.
            share: How much of the suite is done; none: no more than the last time.
        """
        if share is not None:
            self.share = share
        at = min(len(self.measured) + 1, len(self.cells))
        done = round(self.share * _BAR)
        line = f"[{'#' * done}{'.' * (_BAR - done)}] {self.share:4.0%} {self.plan.name}: "
        line += f"point {at} of {len(self.cells)}, {doing}"
        line += f", {time.monotonic() - self.started:.0f} s"
        self.say(line)
        atomic.write(self.folder / PROGRESS, line + "\n")


def measure(
    target: Target,
    plan: Plan,
    *,
    folder: Path,
    say: Callable[[str], None] = print,
) -> Evidence:
    """Measure a suite on a host.

    Whatever breaks ends the suite and is a failed check; what was measured before stays.

    Args:
        target: The host, reached.
        plan: What to ask.
        folder: The run's; raw files are written there as they come.
        say: Takes one line of progress at a time.
    """
    session = Session(target=target, plan=plan, cells=plan.cells, folder=folder, say=say)
    broke = ""
    try:
        _require_pinned(session)
        _within_context(session)
        _measure_cells(session)
    except RoostError as error:
        broke = str(error)
    return _conclude(session, broke)


def _measure_cells(session: Session) -> None:
    """All of them; one whose SSH connection broke is measured anew, all of it, over another one."""
    while left := session.cells[len(session.measured) :]:
        measured = len(session.measured)
        try:
            with _prepared(session, left):
                for cell in left:
                    _measure_cell(session, cell)
                    measured += 1
        except ssh.BrokenConnectionError:
            session.breaks += 1
            if session.breaks > reconnecting.MOST:
                raise
            session.progress("the SSH connection broke, waiting for the host")
            reconnecting.wait_and_clear(_remote(session), _name(session), _directory(session))
            _require_the_same(session)
            _forget(session, measured)


def _forget(session: Session, measured: int) -> None:
    """Leave nothing of an abandoned attempt among the evidence."""
    del session.measured[measured:]
    whole = {cell.id for cell in session.measured}
    session.watches = {at: one for at, one in session.watches.items() if at[0] in whole}
    for cell in session.cells[measured:]:
        for number in range(1, session.suite.repetitions.most + 1):
            for kept in _kept(_file(cell, number)):
                (session.folder / kept).unlink(missing_ok=True)


# --- before the load ------------------------------------------------------------------------------


def _require_pinned(session: Session) -> None:
    """A figure is of what runs, and is filed under what is pinned: they must be the same.

    Raises:
        RoostError: There is no way to the host, or it runs something else.
    """
    _remote(session)
    made = running.container_checks(session.target)
    session.evidence.checks += made
    if wrong := [check for check in made if not check.ok]:
        raise RoostError(
            f"{_name(session)} is not what was to be measured",
            why=", ".join(check.id for check in wrong) + ": nothing was measured",
            fix=running.DEPLOY,
        )


def _require_the_same(session: Session) -> None:
    """Behind a broken connection somebody may have deployed, or the engine started anew.

    Raises:
        RoostError: What runs now is not what was measured so far.
    """
    before = session.target.container["State"].get("StartedAt")
    wrong = [check for check in running.container_checks(session.target) if not check.ok]
    session.evidence.checks += wrong
    why = ", ".join(check.id for check in wrong)
    started = session.target.container["State"].get("StartedAt")
    if not wrong and started != before:
        why = f"it was started at {started}, what was measured so far at {before}"
    if why:
        raise RoostError(
            f"{_name(session)} is not the container any more that was measured",
            why=f"{why}: behind the broken connection it was deployed or started anew",
            fix="see that the pinned deployment runs, then measure again",
        )


def _within_context(session: Session) -> None:
    """Leave out the lengths that the server does not take, and say so."""
    client, name = session.target.client, session.deployment.served_name
    if client is None:
        raise RoostError(session.target.no_remote)
    limit = client.context_limit(name)
    if limit is None or session.suite.lengths is None:
        return

    def fits(cell: Cell) -> bool:
        longest = max(prompt.tokens or 0 for prompt in cell.prompts)
        return longest + session.suite.output_tokens <= limit

    left = [cell for cell in session.cells if not fits(cell)]
    session.cells = [cell for cell in session.cells if fits(cell)]
    if left:
        _check(
            session,
            "context",
            ok=bool(session.cells),
            expected="lengths that the server takes",
            observed=f"left out: {', '.join(cell.category for cell in left)}",
            why=f"the server's context is {limit} tokens",
        )


@contextmanager
def _prepared(session: Session, cells: Sequence[Cell]) -> Iterator[None]:
    """The prompts of every repetition as files in the container, for the length of a ``with``."""
    session.progress("prompts")
    session.directory = PurePosixPath(f"/tmp/roost-bench-{secrets.token_hex(4)}")  # noqa: S108  # in the container, made with mode 0700
    folder = str(session.directory)
    script = resources.files("roost.measure").joinpath("render_prompts.py").read_text("utf-8")
    command = session.deployment.spec.command
    job = {
        "directory": folder,
        "tokenizer": MODEL_PATH,
        "trust_remote_code": "--trust-remote-code" in command,
        "chat_template_kwargs": session.deployment.chat_template_kwargs,
        "format": session.style,
        "files": {
            _file(cell, number): [_row(session, cell, at) for at in range(len(cell.prompts))]
            for cell in cells
            for number in range(1, session.suite.repetitions.most + 1)
        },
    }
    try:
        # By its folder a rendering is found whose connection broke.
        words = ["exec", "-i", _name(session), "python3", "-c", script, folder]
        done = _docker(session, words, json.dumps(job))
        if all(check.id != "thinking" for check in session.evidence.checks):
            _judge_tail(session, _tail(done))
        yield
    except ssh.BrokenConnectionError:
        # It is cleared when the host is reached again.
        raise
    except BaseException:
        with suppress(RoostError):
            _clear(session)
        raise
    _clear(session)


def _clear(session: Session) -> None:
    # The engine may be gone, and its container's files with it.
    ssh.run_privileged(
        _remote(session),
        ["docker", "exec", _name(session), "rm", "-rf", str(_directory(session))],
    )


def _tail(said: str) -> str:
    """What the prompts end in, from what rendering them said; libraries may say more around it."""
    for line in reversed(said.splitlines()):
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            return str(json.loads(line)["tail"])
    raise RoostError(
        "the prompts were not rendered in the container", why=said[-400:] or "it said nothing"
    )


def _row(session: Session, cell: Cell, at: int) -> dict[str, Any]:
    prompt = cell.prompts[at]
    nonce = f"[{secrets.token_hex(4)}] " if session.suite.fresh else ""
    return {"text": prompt.text, "tokens": prompt.tokens, "nonce": nonce}


def _judge_tail(session: Session, tail: str) -> None:
    """Is thinking off where the recipe says so? An open ``<think>`` at the end would show it."""
    off = session.deployment.chat_template_kwargs.get("enable_thinking") is False
    thinks = tail.rfind("<think>") > tail.rfind("</think>")
    _check(
        session,
        "thinking",
        ok=not (off and thinks),
        expected="no open thinking block" if off else "whatever the chat template does",
        observed=f"prompts end in {tail[-40:]!r}",
        why="the chat template did not take the recipe's arguments" if off and thinks else "",
    )


def _warm_up(session: Session, cell: Cell) -> None:
    """Requests that are not measured, one at least from each of the cell's users.

    Fewer would leave the batch of all of them to be met first in a repetition that counts.
    """
    client = session.target.client
    if client is None or not session.suite.warmups:
        return
    session.progress(f"{cell.id} warm-up", len(session.measured) / len(session.cells))
    deployment = session.deployment

    def ask(number: int) -> None:
        asked = cell.prompts[number % len(cell.prompts)].text or "Count from one to a hundred."
        body = quality.chat_request(
            f"[warm-up {secrets.token_hex(4)}] {asked}",
            deployment.served_name,
            deployment.chat_template_kwargs,
            max_tokens=session.suite.output_tokens,
        )
        # Said here, or one request without an answer would shorten the time of all later ones.
        client.chat(body, timeout=TIMEOUT_S)

    with _over_the_tunnel(session), ThreadPoolExecutor(cell.concurrency) as users:
        list(users.map(ask, range(max(session.suite.warmups, cell.concurrency))))


# --- the load -------------------------------------------------------------------------------------


def _measure_cell(session: Session, cell: Cell) -> None:
    """Repeat until the throughput's interval is tight, or the limit is reached."""
    _warm_up(session, cell)
    limits = session.suite.repetitions
    before = len(session.measured)
    found: list[Repetition] = []
    try:
        for number in range(1, limits.most + 1):
            doing = f"{cell.id} repetition {number} of at most {limits.most}"
            session.progress(doing, (before + (number - 1) / limits.most) / len(session.cells))
            found.append(_repeat(session, cell, number))
            if _tight([one for one in _marked(found) if not one.marks], session.suite):
                break
    finally:
        # Also what was measured before something broke.
        session.measured.append(_points(session, cell, found))


def _marked(found: Sequence[Repetition]) -> list[Repetition]:
    """With a mark on those whose clock fell behind another's."""
    slow = throttling.clock_marks([one.clock for one in found])
    return [
        one.model_copy(update={"marks": [*one.marks, mark]}) if mark else one
        for one, mark in zip(found, slow, strict=True)
    ]


def _tight(clean: Sequence[Repetition], suite: Suite) -> bool:
    if len(clean) < suite.repetitions.least:
        return False
    half = statistics.estimate([one.output_throughput for one in clean]).half_width
    return half is not None and half <= suite.repetitions.tight


def _repeat(session: Session, cell: Cell, number: int) -> Repetition:
    name = _file(cell, number)
    spec = session.deployment.spec
    load = Load(
        base_url=f"http://127.0.0.1:{spec.ports[0].container}",
        served_name=session.deployment.served_name,
        tokenizer=MODEL_PATH,
        prompts=_directory(session) / f"{name}.jsonl",
        count=len(cell.prompts),
        concurrency=cell.concurrency,
        output_tokens=session.suite.output_tokens,
        ignore_eos=session.suite.ignore_eos,
        result=_directory(session) / f"{name}.result.json",
    )
    sglang = session.style == "sglang"
    before_file, after_file, raw = _kept(name)
    before = _reading(session, before_file)
    with throttling.watching(_remote(session)) as watch:
        _run_harness(session, load, sglang=sglang)
    session.watches[cell.id, number] = watch
    after = _reading(session, after_file)
    written = _docker(session, ["exec", _name(session), "cat", str(load.result)])
    atomic.write(session.folder / raw, written)
    result = harness.parse_sglang(written, load.seed) if sglang else harness.parse_vllm(written)
    if len(result.requests) != load.count:
        raise RoostError(
            f"{session.target.host.name}: the engine's harness sent {len(result.requests)} of "
            f"{load.count} prompts",
            why="which of them it left out it does not say, so no time can be told to a prompt",
            fix="take out prompts that are too long for the server, or empty",
        )
    marks, spec_delta = judge(result, before, after)
    marks += watch.marks()
    return Repetition(
        duration=result.duration,
        output_throughput=result.output_throughput,
        requests=_requests(cell, result),
        speculation=spec_delta,
        accept_length=spec_delta.counters.accept_length if spec_delta else None,
        clock=watch.clock(result.duration),
        raw=raw,
        marks=marks,
    )


def _run_harness(session: Session, load: Load, *, sglang: bool) -> None:
    words = (harness.sglang_command if sglang else harness.vllm_command)(load)
    tokens = load.count * load.output_tokens / load.concurrency
    limit_s = min(_LIMIT_S, _START_S + tokens / _SLOWEST_TOKENS_PER_S)
    key = next((s.target for s in session.deployment.spec.secrets if s.name == "api_key"), None)
    argv = harness.in_container(
        _name(session), words, folder=_directory(session), limit_s=limit_s, key_file=key
    )
    done = _run(session, argv, timeout=limit_s + 60, attended=True)
    if done.rc != 0:
        said = [line for line in f"{done.out}\n{done.err}".splitlines() if line.strip()]
        late = done.rc in {124, 137}
        raise RoostError(
            f"{session.target.host.name}: the engine's harness failed",
            why=f"it took longer than {limit_s:.0f} s" if late else " ".join(said[-3:])[-400:],
            fix="engine.log in the run's folder is the engine's side of it",
        )


def judge(
    result: HarnessResult, before: metrics.Reading, after: metrics.Reading
) -> tuple[list[str], Speculation | None]:
    """Why a repetition does not count, and what its counters say of speculation."""
    marks = []
    if result.failed:
        reasons = [request.error for request in result.requests if request.error]
        why = f": {' '.join(reasons[0].split())[-120:]}" if reasons else ""
        marks.append(f"{result.failed} of {len(result.requests)} requests failed{why}")
    try:
        change = metrics.delta(before, after)
    except RoostError as error:
        return [*marks, f"{error.what} ({error.why})"], None
    if not result.failed and (mark := _unexplained(result, change)):
        marks.append(mark)
    found = change.speculation
    if found is None:
        return marks, None
    return marks, Speculation(
        drafts=found.drafts,
        draft_tokens=found.draft_tokens,
        accepted=found.accepted,
        per_position=list(found.per_position),
    )


def _unexplained(result: HarnessResult, change: metrics.Reading) -> str:
    """What the engine did besides the harness's requests, or less than they took; or nothing."""
    allowed = UNEXPLAINED * result.total_output_tokens
    counted = f"the engine generated {change.generated_tokens:.0f} tokens"
    more = change.generated_tokens - result.total_output_tokens
    if change.block is not None:
        # SGLang: its harness does not see the token that ends an answer and is no text.
        allowed = max(allowed, result.completed)
    # A long prompt that is answered with one token takes seconds, and hardly any tokens.
    if change.requests is not None and (others := change.requests - result.completed):
        counted = f"the engine finished {change.requests:.0f} requests"
        return f"{_who(others)}: {counted}, the harness sent {result.completed}"
    if abs(more) <= allowed:
        return ""
    return f"{_who(more)}: {counted}, the harness's requests took {result.total_output_tokens}"


def _who(more: float) -> str:
    return "another client was served" if more > 0 else "the counters are not its own"


def _requests(cell: Cell, result: HarnessResult) -> list[RequestPoint]:
    return [
        RequestPoint(
            prompt=prompt.id,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            ttft=request.ttft,
            latency=request.latency,
        )
        for prompt, request in zip(cell.prompts, result.requests, strict=True)
        if not request.error
    ]


# --- after the load -------------------------------------------------------------------------------


def _points(session: Session, cell: Cell, found: Sequence[Repetition]) -> CellPoints:
    """The cell with all that was measured of it, and what was published."""
    recipe, deployed = catalog.current().recipe(session.deployment.recipe), session.deployment
    own_depth = recipe.speculation[deployed.speculation].settings.num_speculative_tokens
    wanted = session.suite.published
    return CellPoints(
        id=cell.id,
        category=cell.category,
        concurrency=cell.concurrency,
        repetitions=_marked(found),
        published=points.published(
            recipe.published(),
            hardware=deployed.hardware,
            speculation=deployed.speculation,
            tables=wanted.tables if wanted else [],
            match=dict(cell.match),
            depth=_depth(deployed.spec.command) or own_depth,
            own_depth=own_depth,
        ),
    )


def _conclude(session: Session, broke: str) -> Evidence:
    for cell in session.measured:
        _judge_cell(session, cell)
        _figures(session, cell)
    _judge_host(session)
    suite = session.suite
    again = f"; SSH connections that broke: {session.breaks}" if session.breaks else ""
    _check(
        session,
        "suite",
        ok=not broke,
        expected=f"{len(session.cells)} points of {session.plan.name}: {suite.protocol} "
        f"({suite.source}); prompts: {session.plan.prompts}",
        observed=f"{sum(1 for cell in session.measured if cell.clean)} measured{again}",
        why=broke,
    )
    document = Benchmark(
        suite=session.plan.name,
        protocol=session.suite.protocol,
        prompts=session.plan.prompts,
        question=session.plan.question,
        chat_template_kwargs=session.deployment.chat_template_kwargs,
        complete=not broke,
        cells=session.measured,
    )
    session.evidence.artefacts[points.FILE] = points.document(document)
    session.evidence.tables |= points.tables(document)
    samples = throttling.table(session.watches)
    if samples.rows:
        session.evidence.tables[throttling.FILE] = samples
    running.keep_log(session.target, session.evidence)
    session.evidence.checks.append(running.keep_host(session.target, session.evidence))
    if broke:
        session.progress("stopped")
    else:
        session.progress("done", 1.0)
    return session.evidence


def _judge_cell(session: Session, cell: CellPoints) -> None:
    least = session.suite.repetitions.least
    reasons = list(dict.fromkeys(mark for one in cell.repetitions for mark in one.marks))
    left_out = len(cell.repetitions) - len(cell.clean)
    speed = points.metric("output_throughput").estimate(cell)
    observed = f"{len(cell.clean)} of {len(cell.repetitions)}"
    remarks = [f"{left_out} left out: {'; '.join(reasons)}"] if reasons else []
    served = _at_a_time(session.deployment.spec.command)
    if served is not None and served < cell.concurrency:
        remarks.append(
            f"{served} of {cell.concurrency} users are served at a time (max_num_seqs): the time "
            "to the first token of the others is time in the queue"
        )
    _check(
        session,
        cell.id,
        ok=len(cell.clean) >= least,
        expected=f"{least} repetitions that count",
        observed=observed + (f", {shown(speed)} tokens/s" if speed else ""),
        why="; ".join(remarks),
    )


def _at_a_time(command: Sequence[str]) -> int | None:
    """Requests that the engine takes at a time, where its command says so."""
    flags = ("--max-num-seqs", "--max-running-requests")
    said = next((one for flag in flags if (one := parsers.configured(command, flag))), "")
    return int(said) if said.isdecimal() else None


def _depth(command: Sequence[str]) -> int | None:
    """Tokens of a draft, where the engine's command says so."""
    if said := parsers.configured(command, "--speculative-config"):
        with suppress(ValueError, KeyError, TypeError):
            return int(json.loads(said)["num_speculative_tokens"])
    block = parsers.configured(command, "--speculative-num-draft-tokens") or ""
    # SGLang counts the token that a block of drafts starts from.
    return int(block) - 1 if block.isdecimal() else None


def _judge_host(session: Session) -> None:
    """What was looked at to know that the host ran at its own speed."""
    if not session.watches:
        return
    watches = list(session.watches.values())
    samples = [sample for watch in watches for sample in watch.samples]
    why_not = next((watch.why_not for watch in watches if watch.why_not), "")
    has_gpu = catalog.current().hardware[session.deployment.hardware].gpu is not None
    expected = "clock, power and temperature of the GPU, sampled beside the load"
    if samples:
        # One that broke off has samples of a part.
        why = f"not all the time: {why_not}" if why_not else ""
        observed = throttling.Watch(samples).told()
        made = Check(id="host", expected=expected, observed=observed, why=why)
    elif has_gpu:
        why = "whether the host was throttled is not known"
        made = unseen("host", expected, why, observed=f"not sampled: {why_not}")
    else:
        made = inapplicable("host", "no GPU here", observed=f"not sampled: {why_not}")
    session.evidence.checks.append(made)


def _figures(session: Session, cell: CellPoints) -> None:
    where = f"{cell.category}, {cell.concurrency} at a time"
    for metric in points.METRICS:
        found = metric.estimate(cell)
        if found is None:
            continue
        requests = sum(len(one.requests) for one in cell.clean)
        source = (
            f"suite {session.plan.name}: {len(cell.clean)} repetitions, {requests} requests; "
            f"{', '.join(one.raw for one in cell.clean)}"
        )
        if session.style == "sglang" and metric.key in _OF_DRAFTS:
            source += "; from counters of steps and tokens: SGLang counts no accepted drafts"
        source += "".join(
            f"; published {one.value:g} {metric.unit} ({one.source}, {one.table})"
            for one in cell.published
            if one.metric == metric.key
        )
        session.evidence.figures[f"{cell.id}.{metric.key}"] = Figure(
            title=f"{metric.title}, {where}",
            value=found.value,
            unit=metric.unit,
            source=source,
            low=found.low,
            high=found.high,
        )
    for at, rate in enumerate(cell.per_position, 1):
        session.evidence.figures[f"{cell.id}.accept_rate_position_{at}"] = Figure(
            title=f"Accepted at draft position {at}, {where}",
            value=rate * 100,
            unit="%",
            source=f"suite {session.plan.name}: counters of all repetitions that count",
        )


def shown(found: statistics.Estimate) -> str:
    """A median with its interval, or without one where there is none."""
    if found.low is None or found.high is None:
        return f"{found.value:.4g}"
    return f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})"


# --- the host -------------------------------------------------------------------------------------


def _check(
    session: Session, check_id: str, *, ok: bool, expected: str, observed: str, why: str
) -> None:
    session.evidence.checks.append(
        Check(id=check_id, ok=ok, expected=expected, observed=observed, why=why)
    )


def _file(cell: Cell, number: int) -> str:
    return f"{cell.id}_{number}"


def _kept(name: str) -> tuple[str, str, str]:
    """Files of a repetition in the run's folder: counters before and after, the harness's own."""
    return f"metrics_{name}_before.txt", f"metrics_{name}_after.txt", f"harness_{name}.json"


def _directory(session: Session) -> PurePosixPath:
    if session.directory is None:
        raise RoostError("no prompts were prepared in the container")
    return session.directory


def _name(session: Session) -> str:
    return session.deployment.spec.name


def _remote(session: Session) -> ssh.Remote:
    if session.target.remote is None:
        raise RoostError(session.target.no_remote)
    return session.target.remote


@contextmanager
def _over_the_tunnel(session: Session) -> Iterator[None]:
    """Requests to the engine; what the way there did to them is no failure of the engine.

    Raises:
        BrokenConnectionError: A request had no answer, and the SSH connection broke meanwhile.
    """
    tunnel = session.target.tunnel
    before = tunnel.broken if tunnel else 0
    try:
        yield
    except EngineError as error:
        # The host is asked first: meanwhile the tunnel notices what became of its connections.
        if error.status is not None or (
            _answers(session) and (tunnel is None or tunnel.broken == before)
        ):
            raise
        raise ssh.BrokenConnectionError(
            f"{session.target.host.name}: the SSH connection broke", why=str(error)
        ) from error


def _answers(session: Session) -> bool:
    try:
        _remote(session).run(["true"])
    except ssh.SshError:
        return False
    return True


def _reading(session: Session, name: str) -> metrics.Reading:
    """The counters now; the page is kept."""
    client = session.target.client
    if client is None:
        raise RoostError(session.target.no_remote)
    with _over_the_tunnel(session):
        page = client.metrics(session.deployment.metrics_path)
    atomic.write(session.folder / name, page)
    return metrics.parse(page)


def _docker(session: Session, words: Sequence[str], given: str | None = None) -> str:
    done = _run(session, ["docker", *words], given=given, timeout=_START_S)
    if done.rc != 0:
        said = (done.err.strip() or done.out.strip() or f"exit status {done.rc}").splitlines()
        raise RoostError(
            f"{session.target.host.name}: docker {' '.join(words[:3])} failed", why=said[-1][-400:]
        )
    return done.out


def _run(
    session: Session,
    argv: Sequence[str],
    *,
    given: str | None = None,
    timeout: float,
    attended: bool = False,
) -> ssh.Completed:
    """As :func:`roost.ssh.run_privileged`, for commands with input or without a quick end."""
    remote = _remote(session)
    done = remote.run(argv, given, timeout, attended=attended)
    if done.rc != 0 and "permission denied" in (done.err + done.out).lower():
        return remote.run(["sudo", "-n", "--", *argv], given, timeout, attended=attended)
    return done

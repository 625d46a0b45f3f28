"""A cell of a benchmark: warm-ups, then the load again and again until its interval is tight."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from roost import catalog, quality
from roost.errors import RoostError
from roost.launch.container import MODEL_PATH
from roost.measure import harness, points, statistics, throttling
from roost.measure.benchmark import accounting
from roost.measure.benchmark.session import Session, file_of, kept_files
from roost.measure.client import TIMEOUT_S
from roost.measure.harness import HarnessResult, Load
from roost.measure.points import CellPoints, Repetition, RequestPoint
from roost.measure.render_prompts import FILLER, QUESTION
from roost.measure.suites import Cell, Suite

#: A call of the harness may take as long as the load takes at this speed, and time to start.
_SLOWEST_TOKENS_PER_S = 0.5
_START_S = 600.0
#: A warm-up may take as long as its prompt takes at this speed and as its answer does at the
#: load's slowest (which is of each user, so the queue is in it), and a request's own time.
_SLOWEST_PROMPT_TOKENS_PER_S = 100.0
_LIMIT_S = 4 * 3600.0


def measure_cell(session: Session, cell: Cell) -> None:
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
        session.measured.append(_points(session, cell, _marked(found)))


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
    name = file_of(cell.id, number)
    spec = session.deployment.spec
    load = Load(
        base_url=f"http://127.0.0.1:{spec.ports[0].container}",
        served_name=session.deployment.served_name,
        tokenizer=MODEL_PATH,
        prompts=session.in_container / f"{name}.jsonl",
        count=len(cell.prompts),
        concurrency=cell.concurrency,
        output_tokens=session.suite.output_tokens,
        ignore_eos=session.suite.ignore_eos,
        result=session.in_container / f"{name}.result.json",
    )
    sglang = session.style == "sglang"
    before_file, after_file, raw = kept_files(name)
    before = session.reading(before_file)
    with throttling.watching(session.remote) as watch:
        _run_harness(session, load, sglang=sglang)
    session.watches[cell.id, number] = watch
    after = session.reading(after_file)
    written = session.docker(["exec", session.name, "cat", str(load.result)])
    session.keep(raw, written)
    result = harness.parse_sglang(written, load.seed) if sglang else harness.parse_vllm(written)
    if len(result.requests) != load.count:
        raise RoostError(
            f"{session.target.host.name}: the engine's harness sent {len(result.requests)} of "
            f"{load.count} prompts",
            why="which of them it left out it does not say, so no time can be told to a prompt",
            fix="take out prompts that are too long for the server, or empty",
        )
    marks, spec_delta = accounting.judge(result, before, after)
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


def _warm_up(session: Session, cell: Cell) -> None:
    """Send requests that are not measured, at least one from each of the cell's users.

    With fewer, the engine would first meet a batch of that size in a repetition that counts. So it
    would a prompt of that length: kernels are compiled and tuned for what they meet first.
    """
    client = session.target.client
    if client is None or not session.suite.warmups:
        return
    session.progress(f"{cell.id} warm-up", len(session.measured) / len(session.cells))
    deployment = session.deployment

    def ask(number: int) -> None:
        prompt = cell.prompts[number % len(cell.prompts)]
        body = quality.chat_request(
            # As long as what is measured, or it might not fit where that does.
            f"[{secrets.token_hex(4)}] {_filler(session, cell) or prompt.text}",
            deployment.served_name,
            deployment.chat_template_kwargs,
            max_tokens=session.suite.output_tokens,
        )
        limit_s = TIMEOUT_S + (prompt.tokens or 0) / _SLOWEST_PROMPT_TOKENS_PER_S
        limit_s += session.suite.output_tokens / _SLOWEST_TOKENS_PER_S
        # Given here, because the client's own gets shorter for good after a request without answer.
        client.chat(body, timeout=min(_LIMIT_S, limit_s))

    with session.over_the_tunnel(), ThreadPoolExecutor(cell.concurrency) as users:
        list(users.map(ask, range(max(session.suite.warmups, cell.concurrency))))


def _filler(session: Session, cell: Cell) -> str:
    """The text of a prompt that is made to length; empty where prompts are asked as they are."""
    wanted = session.filler.get(file_of(cell.id, 1))
    if wanted is None:
        return ""
    return (FILLER * (wanted // len(FILLER) + 1))[:wanted] + QUESTION


def _run_harness(session: Session, load: Load, *, sglang: bool) -> None:
    words = (harness.sglang_command if sglang else harness.vllm_command)(load)
    tokens = load.count * load.output_tokens / load.concurrency
    limit_s = min(_LIMIT_S, _START_S + tokens / _SLOWEST_TOKENS_PER_S)
    key = next((s.target for s in session.deployment.spec.secrets if s.name == "api_key"), None)
    argv = harness.in_container(
        session.name, words, folder=session.in_container, limit_s=limit_s, key_file=key
    )
    done = session.run(argv, timeout=limit_s + 60, attended=True)
    if done.rc != 0:
        said = [line for line in f"{done.out}\n{done.err}".splitlines() if line.strip()]
        late = done.rc in {124, 137}
        raise RoostError(
            f"{session.target.host.name}: the engine's harness failed",
            why=f"it took longer than {limit_s:.0f} s" if late else " ".join(said[-3:])[-400:],
            fix="engine.log in the run's folder is the engine's side of it",
        )


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


def _points(session: Session, cell: Cell, found: list[Repetition]) -> CellPoints:
    """The cell with all that was measured of it, and what was published."""
    recipe, deployed = catalog.current().recipe(session.deployment.recipe), session.deployment
    own_depth = recipe.speculation[deployed.speculation].settings.num_speculative_tokens
    wanted = session.suite.published
    return CellPoints(
        id=cell.id,
        category=cell.category,
        concurrency=cell.concurrency,
        repetitions=found,
        published=points.published(
            recipe.published(),
            hardware=deployed.hardware,
            speculation=deployed.speculation,
            tables=wanted.tables if wanted else [],
            match=dict(cell.match),
            depth=session.settings.num_speculative_tokens,
            own_depth=own_depth,
        ),
    )

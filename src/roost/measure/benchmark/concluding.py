"""What a benchmark comes to: checks, figures and files of what was measured."""

from __future__ import annotations

from roost import catalog, site
from roost.deployment import Deployment
from roost.measure import points, running, throttling
from roost.measure.benchmark.session import Session, file_of, kept_files
from roost.measure.checks import Check, Evidence, Figure, inapplicable, unseen
from roost.measure.points import Benchmark, CellPoints
from roost.measure.statistics import shown

#: Metrics that are from the engine's counters; what those are differs between engines.
_OF_DRAFTS = {"accept_length", "accept_rate"}


def conclude(session: Session, broke: str) -> Evidence:
    """Make checks, figures and files of what was measured.

    Args:
        session: The benchmark.
        broke: Why the suite ended early; empty: it was measured to its end.
    """
    slow = throttling.slow_points(_paces(session))
    for cell in session.measured:
        _judge_cell(session, cell, slow.get(cell.id, ""))
        _figures(session, cell)
    _judge_host(session)
    suite = session.suite
    again = f"; SSH connections that broke: {session.breaks}" if session.breaks else ""
    session.check(
        "suite",
        ok=not broke,
        expected=f"{len(session.cells)} points of {session.plan.name}: {suite.protocol} "
        f"({suite.source}); prompts: {session.plan.prompts}",
        observed=f"{sum(1 for cell in session.measured if cell.clean)} measured{again}",
        why=broke,
    )

    def hide(said: str) -> str:
        return site.hide_key(said, session.target.host.variables)

    for repetition in (one for cell in session.measured for one in cell.repetitions):
        # The only text in it that is not roost's own.
        repetition.marks[:] = map(hide, repetition.marks)
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
    session.evidence.own.add(points.FILE)
    session.evidence.tables |= points.tables(document)
    samples = throttling.table(session.watches)
    if samples.rows:
        session.evidence.tables[throttling.FILE] = samples
    running.keep_log(session.target, session.evidence)
    session.evidence.checks.append(running.keep_host(session.target, session.evidence))
    session.evidence.hide(hide)
    if broke:
        session.progress("stopped")
    else:
        session.progress("done", 1.0)
    return session.evidence


def _paces(session: Session) -> dict[str, throttling.Pace]:
    """Of each point the median repetition that counts, by its clock."""
    found = {}
    for cell in session.measured:
        paces = [
            pace
            for number, one in enumerate(cell.repetitions, 1)
            if not one.marks and (watch := session.watches.get((cell.id, number)))
            if (pace := watch.pace(one.duration))
        ]
        if paces:
            paces.sort(key=lambda pace: pace.clock)
            found[cell.id] = paces[len(paces) // 2]
    return found


def _judge_cell(session: Session, cell: CellPoints, slow: str = "") -> None:
    least = session.suite.repetitions.least
    reasons = list(dict.fromkeys(mark for one in cell.repetitions for mark in one.marks))
    left_out = len(cell.repetitions) - len(cell.clean)
    speed = points.metric("output_throughput").estimate(cell)
    observed = f"{len(cell.clean)} of {len(cell.repetitions)}"
    remarks = [f"{left_out} left out: {'; '.join(reasons)}"] if reasons else []
    remarks += [slow] if slow else []
    if vain := _drafts_in_vain(session.deployment, cell):
        remarks.append(vain)
    served = session.settings.max_num_seqs
    if served is not None and served < cell.concurrency:
        remarks.append(
            f"{served} of {cell.concurrency} users are served at a time (max_num_seqs): the time "
            "to the first token of the others is time in the queue"
        )
    session.check(
        cell.id,
        ok=len(cell.clean) >= least,
        expected=f"{least} repetitions that count",
        observed=observed + (f", {shown(speed)} tokens/s" if speed else ""),
        why="; ".join(remarks),
    )


def _drafts_in_vain(deployment: Deployment, cell: CellPoints) -> str:
    """That nothing is gained by speculation at a point; empty where something is, or may be.

    Whatever it costs is in the throughput, which alone would pass.
    """
    # Lookup in the prompt may rightly find nothing, and not every engine counts.
    if deployment.gate.min_accept_length is None or not cell.clean:
        return ""
    known = [one.speculation for one in cell.clean if one.speculation is not None]
    drafts = sum(one.drafts for one in known)
    if not drafts:
        said = (
            "the counters of drafts did not move"
            if known
            else "the engine has no counters of drafts"
        )
        return f"no drafts, although {deployment.speculation} speculates: {said}"
    length = 1 + sum(one.accepted for one in known) / drafts
    if f"{length:.2f}" != "1.00":
        return ""
    return (
        f"accept length {length:.2f} over {drafts:.0f} drafts: they cost time and are not "
        "accepted; the drafter does not belong to this model, or its weights were not loaded"
    )


def _judge_host(session: Session) -> None:
    """Say what was sampled to know that the host was not slowed down."""
    if not session.watches:
        return
    watches = list(session.watches.values())
    samples = [sample for watch in watches for sample in watch.samples]
    why_not = next((watch.why_not for watch in watches if watch.why_not), "")
    has_gpu = catalog.current().hardware[session.deployment.hardware].gpu is not None
    expected = "clock, power and temperature of the GPU, sampled beside the load"
    if samples:
        # A watch that broke off has samples of a part of its load.
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
        raw = _counters(cell) if metric.key in _OF_DRAFTS else [one.raw for one in cell.clean]
        source = (
            f"suite {session.plan.name}: {len(cell.clean)} repetitions, {requests} requests; "
            f"{', '.join(raw)}"
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
            source=f"suite {session.plan.name}: counters of all repetitions that count; "
            f"{', '.join(_counters(cell))}",
        )


def _counters(cell: CellPoints) -> list[str]:
    """Pages of counters around the repetitions of drafts that count."""
    return [
        page
        for number, one in enumerate(cell.repetitions, 1)
        if not one.marks and one.speculation is not None
        for page in kept_files(file_of(cell.id, number))[:2]
    ]

"""Releases: what is recorded of them, what became of one, and which to go back to.

The host does the work (:mod:`roost.onhost.transaction`); here its outcome becomes one message for
a person.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import indent
from typing import TYPE_CHECKING, Any

from roost.deployment import Deployment
from roost.launch.container import CONTAINER
from roost.onhost import RELEASES, lease
from roost.onhost.judging import NOT_JUDGED
from roost.onhost.logs import unpacked
from roost.onhost.store import BEFORE, LASTING

if TYPE_CHECKING:
    from roost.diagnose import Diagnosis

#: What runs and what it came from: the same record is the same release.
_HASHED = {
    "recipe",
    "hardware",
    "speculation",
    "served_name",
    "engine_version",
    "weights",
    "spec",
    "accept_findings",
}
#: Outcomes after which requests may come: what serves has proved itself, or was left as it was.
_SERVING = {"serves", "restored", "untouched", "held"}
_KEPT_OUT = "  its gateway sends it no requests until a deploy of it has passed"
#: Lines of the engine's log that a message ends with.
_SHOWN_LINES = 15
#: What a failed check says of a healthy engine, by the beginning of its id.
_FAILINGS = {
    "api_key": "asks nobody for its API key",
    "answer_": "answers wrongly",
    "same_": "answers otherwise than it did",
    "accept_length": "accepts too few drafts",
    "speed": "is too slow",
}


def release(deployment: Deployment, plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a host is told of a release, and keeps.

    Args:
        deployment: What is to run.
        plan: Verdict and findings that it is deployed with.

    Returns:
        ``{id, container, deployment, files}``. The id is the recipe and a hash of
        ``files["release.json"]``, which says nothing of when or how often it was deployed.
        ``container`` is its name while it is on trial.
    """
    record = deployment.model_dump(mode="json", include=_HASHED)
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:12]
    whole = deployment.model_dump(mode="json")
    files: dict[str, Any] = {"release.json": record, "deployment.json": whole}
    if plan is not None:
        files["plan.json"] = dict(plan)
    return {
        "id": f"{deployment.recipe}-{digest}",
        "container": f"{CONTAINER}-{digest}",
        "deployment": whole,
        "files": files,
    }


def outcome(
    result: Mapping[str, Any],
    host: str,
    deployment: Mapping[str, Any],
    *,
    drained: bool = False,
) -> dict[str, Any]:
    """What became of a release, for people.

    Args:
        result: Of the module ``engine_release``; or of a task that did not come that far.
        host: Inventory name.
        deployment: The release's.
        drained: Whether its gateway was told to send it no requests.

    Returns:
        ``{failed, message, lines, serves, record}``: one text where it failed; else a line for each
        answer, the figures, and what happened on the way; whether something serves that has proved
        itself, and requests may come again; and the diagnosis to be kept beside the failure on the
        host, or none.
    """
    serves = result.get("outcome") in _SERVING
    kept_out = [] if serves or not drained else [_KEPT_OUT]
    if "outcome" not in result:
        message = "\n".join([_no_outcome(result, host), *kept_out])
        told = {"failed": True, "message": message, "lines": []}
        return {**told, "serves": serves, "record": None}
    lines = list(_on_the_way(result))
    if result["outcome"] == "serves":
        prompts = {each["id"]: each["prompt"] for each in deployment["gate"]["questions"]}
        lines += [f"{prompts[name]} {text}" for name, text in result["answers"].items()]
        if result["figures"]:
            lines.append(_figures(result["figures"]))
            lines += _published(result, deployment)
        lines += [
            f"{found['id'].replace('_', ' ')} is not judged: {found['why']}"
            for found in result["checks"]
            if found["observed"] == NOT_JUDGED
        ]
        told = {"failed": False, "message": "", "lines": lines}
        return {**told, "serves": serves, "record": None}
    found = _explained(result["failure"], deployment)
    parts = [
        _headline(result, host),
        *_evidence(result, deployment, found),
        *lines,
        _now(result, host),
        *kept_out,
    ]
    record = None
    if result["kept"]:
        kept = {"at": result["kept"], "findings": [asdict(item) for item in found]}
        record = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
    told = {"failed": True, "message": "\n".join(parts), "lines": []}
    return {**told, "serves": serves, "record": record}


def to_go_back_to(
    facts: Mapping[str, Any], host: str, wanted: str | None, rollout: str | None = ""
) -> dict[str, Any]:
    """The release that a rollback is about.

    Args:
        facts: What the module ``release_facts`` found, with the release in question as ``chosen``.
        host: Inventory name.
        wanted: Id of a kept release; ``lasting``, the one that is there to stay: not what an
            experiment that was never ended has only tried; or ``before``, what served before: the
            lasting one, where what serves is only tried, else the previous one; none is that, too.
        rollout: Owner of the lease of the rollout or experiment that goes back; empty: it is done
            by hand; none: whatever the host takes part in.

    Returns:
        ``{release, refusal, note}``, one of the first two of which is none; the release as
        :func:`release` gives it. The note says what a user may not expect of it, or is none.
    """
    # The host asks again at the swap; by then its unit is written and a container made.
    others = facts["rollout"]
    if rollout is not None and others and others["owner"] != rollout:
        text = (
            f"{host}: takes part in {lease.part(others)} ({lease.said(others)}); nothing was "
            f"changed.\n  fix: {lease.fix(others)}"
        )
        return {"release": None, "refusal": text, "note": None}
    kept = [each["id"] for each in facts["releases"]]
    chosen = facts["chosen"]
    current, held = facts["current"], facts["held"]
    wanted = wanted or BEFORE
    only_tried = held not in {None, current}
    lasting = {LASTING: held or current, BEFORE: held if only_tried else facts["previous"]}
    named = lasting.get(wanted, wanted)
    refusal = None
    tried = only_tried and wanted in lasting
    keep = f"roost rollback -i INVENTORY --limit {host} --to {current}"
    if named is None:
        refusal = f"no {'previous release is kept' if wanted == BEFORE else 'release is in place'}"
    elif chosen is None:
        refusal = f"release {named} is not kept on this host"
    else:
        found = next(each for each in facts["releases"] if each["id"] == chosen["id"])
        if found["missing"]:
            refusal = f"release {chosen['id']} cannot serve again: " + ", ".join(found["missing"])
    if refusal:
        text = f"{host}: {refusal}; nothing was changed.\n  kept are: {', '.join(kept) or 'none'}"
        if tried:
            text += f"\n  fix: have {current} stay, which an experiment has only tried: {keep}"
        return {"release": None, "refusal": text, "note": None}
    digest = chosen["id"].rpartition("-")[2]
    return {
        "release": {
            "id": chosen["id"],
            "container": f"{CONTAINER}-{digest}",
            "deployment": chosen["files"]["deployment.json"],
            "files": chosen["files"],
        },
        "refusal": None,
        "note": f"{host}: {current} was only tried, by an experiment that was never ended; this "
        f"goes back to {held}, which served before it. To have {current} stay: {keep}"
        if tried
        else None,
    }


def status(facts: Mapping[str, Any]) -> list[str]:
    """What serves on a host and what it could go back to, in lines.

    Args:
        facts: What the module ``release_facts`` found.
    """
    lines = [f"{facts['current'] or 'no release'}: {serving(facts)}"]
    lines += [f"  {line}" for line in _lines(ailing(facts))]
    if swap := facts["transaction"]:
        at_work = f"by {facts['busy']}" if facts["busy"] else "by nobody any more: deploy again"
        lines.append(f"a swap to {swap['new']} has begun, and is being ended {at_work}")
    elif facts["busy"]:
        lines.append(f"at work: {facts['busy']}")
    if others := facts["rollout"]:
        lines.append(f"takes part in {lease.part(others)}: {lease.said(others)}")
    if facts["held"]:
        lines.append(
            f"what serves is only tried: an experiment, when it ends or is run again, goes back to "
            f"{facts['held']}, and so do roost rollback and roost start; any other deploy that "
            "passes stays"
        )
    if failed := facts["last_failed"]:
        lines.append(f"{failed['kind']}, {failed['at']}: {failed['release']}: {_what(failed)}")
        lines += [f"  {line}" for line in _lines(last_failure(facts))]
    lines += list(_watched(facts["watchdog"]))
    for each in facts["releases"]:
        if each["id"] == facts["current"]:
            continue
        mark = " (previous)" if each["id"] == facts["previous"] else ""
        gone = f"; {', '.join(each['missing'])}" if each["missing"] else ""
        lines.append(f"kept: {each['id']}{mark}, served last {each['times']['last_served']}{gone}")
    return lines


def serving(facts: Mapping[str, Any]) -> str:
    """How the engine of a host does, in a few words."""
    engine = facts["engine"]
    if not engine["exists"]:
        return "nothing serves"
    if engine["healthy"]:
        return "healthy" + (f", restarted {engine['restarts']} times" * bool(engine["restarts"]))
    if engine["running"]:
        return "runs, but is not healthy"
    state = facts["watchdog"]["state"]
    if state and (held := state["held"]):
        return f"was stopped by the watchdog ({held['said']}); the next deploy starts it"
    if engine["unit"] == "inactive" and not engine["at_boot"]:
        if facts["held"] not in {None, facts["current"]}:
            return f"was stopped, and stays so; roost start goes back to {facts['held']}"
        return "was stopped, and stays so; roost start, or a deploy, has it serve again"
    cause = next(iter(ailing(facts)), None)
    why = f"exit code {engine['exit_code']}" + (f": {cause.evidence}" if cause else "")
    states = {
        "failed": "was given up after several starts",
        "activating": "has ended, and is about to be started again",
    }
    return f"{states.get(engine['unit'], 'does not run')} ({why})"


def ailing(facts: Mapping[str, Any]) -> list[Diagnosis]:
    """Why the engine of a host is not healthy, root cause first; nothing if that is not known.

    Args:
        facts: What the module ``release_facts`` found.
    """
    found = _explained(facts["engine"]["failure"], facts["deployment"])
    # It may be loading still.
    return [item for item in found if item.id != "never-healthy"]


def last_failure(facts: Mapping[str, Any]) -> list[Diagnosis]:
    """What the last failure on a host came from, root cause first; nothing if none is kept.

    Args:
        facts: What the module ``release_facts`` found.
    """
    failed = facts["last_failed"]
    if failed and failed["diagnosis"]:
        from roost.diagnose import Diagnosis

        return [Diagnosis(**item) for item in failed["diagnosis"]]
    return _explained(failed, None)


#: What ``roost status --json`` tells of a host; docs/reliability.md says what each is.
TOLD = (
    "current",
    "previous",
    "releases",
    "engine",
    "deployment",
    "transaction",
    "busy",
    "rollout",
    "held",
    "last_failed",
    "watchdog",
)


def told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts for another program: causes in place of packed logs, and nothing of Ansible's.

    Args:
        facts: What the module ``release_facts`` found, as Ansible hands it on.
    """
    causes = {"engine": ailing(facts), "last_failed": last_failure(facts)}
    engine, failed = dict(facts["engine"]), facts["last_failed"]
    engine["failure"] = _without_log(engine["failure"], causes["engine"])
    said = {**facts, "engine": engine, "last_failed": _without_log(failed, causes["last_failed"])}
    return {name: said[name] for name in TOLD}


def _without_log(
    failure: Mapping[str, Any] | None, found: Sequence[Diagnosis]
) -> dict[str, Any] | None:
    if failure is None:
        return None
    kept = {name: value for name, value in failure.items() if name != "log"}
    return {**kept, "diagnosis": [asdict(item) for item in found]}


def _explained(
    failure: Mapping[str, Any] | None, deployment: Mapping[str, Any] | None
) -> list[Diagnosis]:
    if failure is None:
        return []
    # Reads a few hundred fingerprints, which a deploy that goes well has no use for.
    from roost import failures

    return failures.explain(failure, deployment)


def _lines(found: Sequence[Diagnosis]) -> Iterator[str]:
    """A root cause for a terminal."""
    if not found:
        return
    root, *others = found
    yield f"cause: {root.title} ({root.id})"
    if root.evidence:
        yield f"  saw: {f'line {root.line}: ' if root.line else ''}{root.evidence}"
    yield f"  why: {root.why}"
    yield f"  fix: {root.fix}"
    yield from (f"  also: {one.title} ({one.id})" for one in others if one.severity == "error")


#: Events of the watchdog that are shown, and what they say of the engine.
_SHOWN_EVENTS = 3
_EVENTS = {
    "restarted": "the watchdog ended the engine, which then started again",
    "cannot_end": "the watchdog could not end the engine",
    "left": "the watchdog found the engine dead",
    "stopped": "the watchdog stopped the engine",
    "none": "the watchdog found memory short",
    "ended": "the engine ended",
    "gave_up": "the engine was given up",
    "restless": "the engine is restless",
}


def _watched(watchdog: Mapping[str, Any]) -> Iterator[str]:
    """What the watchdog has seen last, and whether it sees anything."""
    state = watchdog["state"]
    if state is None:
        return
    if watchdog["unit"] != "active":
        yield f"the watchdog does not run ({watchdog['unit']}): systemctl status roost-watchdog"
    for event in state["events"][-_SHOWN_EVENTS:]:
        kept = f"; evidence: {event['evidence']}" if event["evidence"] else ""
        yield f"{event['at']}: {_EVENTS[event['what']]}: {event['said']}{kept}"


def _no_outcome(result: Mapping[str, Any], host: str) -> str:
    said = str(result.get("msg") or result.get("module_stderr") or "no reason given").strip()
    if not result.get("unreachable"):
        from roost import failures

        return f"{host}: the host could not judge the release\n  why: {failures.explained(said)}"
    return (
        f"{host}: the connection was lost while a release was judged, and did not come back\n"
        f"  why: {said}\n"
        "  The host goes on by itself: what passes is kept, else the release before serves again.\n"
        "  fix: when the host can be reached, see `roost status -i INVENTORY`, or deploy again"
    )


def _headline(result: Mapping[str, Any], host: str) -> str:
    if result["outcome"] == "busy":
        return f"{host}: another deploy is at work on this host ({result['waited_for']})"
    if result["outcome"] == "held" and (others := result["lease"]):
        return f"{host}: takes part in {lease.part(others)} ({lease.said(others)})"
    if result["outcome"] == "held":
        return f"{host}: somebody else has deployed meanwhile, or had the host taken over"
    if result["outcome"] == "unknown":
        return f"{host}: the connection was lost before anything was begun"
    verbs = {"fails": "does not pass", "untouched": "was not tried"}
    verb = verbs.get(result["outcome"], "was not kept")
    return f"{host}: release {result['release']} {verb}: {_what(result['failure'])}."


def _what(failure: Mapping[str, Any]) -> str:
    """What went wrong, in one sentence."""
    wrong = [found["id"] for found in failure["checks"] if not found["ok"]]
    says = [text for kind, text in _FAILINGS.items() if any(one.startswith(kind) for one in wrong)]
    return "it is healthy, but " + " and ".join(says) if says else str(failure["what"])


def _evidence(
    result: Mapping[str, Any], deployment: Mapping[str, Any], causes: Sequence[Diagnosis]
) -> Iterator[str]:
    failure = result["failure"]
    if not failure:
        return
    prompts = {each["id"]: each["prompt"] for each in deployment["gate"]["questions"]}
    for found in failure["checks"]:
        if found["ok"]:
            continue
        kind, _, about = found["id"].partition("_")
        observed = f"saw {found['observed']}"
        if kind in {"answer", "same"}:
            observed = f"asked {prompts[about]!r}, the answer was {found['observed']!r}"
        yield f"  {found['id']}: {observed}"
        yield f"    wants: {found['expected']}"
        if found["why"]:
            yield f"    why: {found['why']}"
    yield from (f"  {line}" for line in _lines(causes))
    log = unpacked(failure["log"]).splitlines()
    if log and failure["step"] != "gate":
        yield "  the end of its log:\n" + indent("\n".join(log[-_SHOWN_LINES:]), "    ")


def _now(result: Mapping[str, Any], host: str) -> str:
    """What serves after a failure."""
    previous = result.get("previous") or "the release before"
    kept = f"  why it was not kept: {RELEASES}/last-failed/ on {host}"
    texts = {
        "restored": f"  serves now: {previous} again ({result.get('restored')})\n{kept}",
        "unproved": f"  serves now: nothing that is known to be good. {previous} was started "
        f"again, but: {result.get('restored')}\n  fix: see `docker logs {CONTAINER}` on {host}, "
        f"then deploy what is known to work\n{kept}",
        "nothing": f"  serves now: nothing, as before\n{kept}",
        "fails": "  serves now: this release, as it was. The one before is a rollback away: "
        "`roost rollback -i INVENTORY`",
        "untouched": "  serves now: what served before; nothing was changed",
        "busy": "  fix: deploy again when that has ended; nothing was changed",
        "held": f"  fix: {_free(result.get('lease'))}; nothing was changed",
        "unknown": "  fix: deploy again; nothing was changed",
    }
    return texts[result["outcome"]]


def _free(others: Mapping[str, Any] | None) -> str:
    return lease.fix(others) if others else "see `roost status`, and run it again if need be"


def _on_the_way(result: Mapping[str, Any]) -> Iterator[str]:
    if result.get("waited_for") and result["outcome"] != "busy":
        yield f"  first waited for another deploy of this host: {result['waited_for']}"
    if died := result.get("died"):
        yield f"  first found that what served was dead: {died['what']}"
        yield from (f"    {line}" for line in _lines(_explained(died, None)))
    if swap := result.get("recovered"):
        way = "completed" if swap["way"] == "forwards" else "undone"
        yield (
            f"  first {way}: a swap to {swap['new']} that {swap['who'] or 'somebody'} had begun, "
            "and whose end was never reached (killed, or the host went down)"
        )


def _figures(figures: Mapping[str, float]) -> str:
    units = {
        "ready_seconds": "healthy after {:g} s",
        "warm_up_seconds": "first answer {:g} s",
        "accept_length": "accept length {:.2f}",
        "tokens_per_second": "{:.1f} tokens/s",
    }
    return ", ".join(text.format(figures[name]) for name, text in units.items() if name in figures)


#: Of one request at a time; with and without the time to its first token.
_SPEEDS = {"output_throughput", "decode_throughput"}


def _published(result: Mapping[str, Any], deployment: Mapping[str, Any]) -> Iterator[str]:
    """What others measured, where no kept release set a floor of speed.

    No floor itself: for one choice on one machine the published figures differ by prompt (29.5 to
    64 tokens/s, source 004) and by settings that a site may choose (38 without CUDA graphs, 217
    with them, source 000).
    """
    judged = any(found["id"] == "speed" for found in result["checks"])
    if judged or "tokens_per_second" not in result["figures"]:
        return
    # Reads the whole catalogue, which the outcome of most deploys has no use for.
    from roost import catalog

    recipe = catalog.current().recipes.get(deployment["recipe"])
    figures = [
        figure
        for figure in (recipe.published() if recipe else [])
        if figure.what in _SPEEDS
        and figure.kind == "measured"
        and figure.conditions.get("concurrency") == 1
        and "model" not in figure.conditions  # of another one, for comparison
        and figure.hardware == deployment["hardware"]
        and figure.speculation == deployment["speculation"]
    ]
    values = [figure.value for figure in figures if isinstance(figure.value, int | float)]
    if not values:
        return
    low, high = min(values), max(values)
    span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    sources = "; ".join(sorted({figure.source for figure in figures}))
    yield (
        f"published for one request at a time: {span} tokens/s ({sources}), "
        "with other prompts and settings; no earlier release sets a floor of speed here"
    )

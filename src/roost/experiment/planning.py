"""Which deployments of a host are tried, and which have been or cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from roost import asking, deployment, kept_files, releases, runs, site, ssh
from roost import inventory as inventories
from roost.deployment import Deployment
from roost.errors import RefusedError, UsageError
from roost.experiment.host import not_free, on_host, pointed
from roost.experiment.notes import FILE, Experiment, Notes, Tried, Variant, lock_path
from roost.hosts import HostFacts
from roost.inventory import Host
from roost.measure import questions
from roost.measure.benchmark import planning
from roost.plan import gate
from roost.preflight import of_a_rollout
from roost.rollout import record
from roost.root import first_place, repository_root


def begin(
    kind: str,
    inventory: str | Path,
    host: str,
    variants: Callable[[Host, Deployment], Sequence[Variant]],
    *,
    suite: Any,
    prompts: Any = None,
    runs_dir: Path,
    run_dir: Path | None = None,
    resume: Path | None = None,
    anew: bool = False,
    all_or_none: bool = False,
    become_password: str | None = None,
    say: Callable[[str], None] = print,
) -> Experiment:
    """Plan every variant for the host as it is; go on with what an earlier process has measured.

    Touches nothing on the host, unless all or none are asked for and one is refused: then a host
    that a killed experiment has left is brought back first.

    Args:
        kind: ``compare`` or ``tune``, for the folder's name.
        inventory: Its path.
        host: One of its hosts.
        variants: Given the host and its deployment by the inventory, what to try, in this order.
        suite: What is measured of each.
        prompts: The user's own file of prompts, or none.
        runs_dir: Where runs are kept.
        run_dir: The experiment's folder, where a caller has begun it; nothing is planned again.
        resume: The folder of one to go on with, finished or not.
        anew: Go on with no earlier one; else with the newest that was not finished.
        all_or_none: Refuse the experiment if the planner refuses one variant.
        become_password: For hosts where sudo asks.
        say: Takes one line of progress at a time.

    Raises:
        UsageError: No such inventory, host, suite or file of prompts, or a variable is wrong.
        RefusedError: A variant is refused, and all or none were asked for; or the host takes part
            in a rollout, or in somebody else's experiment.
        RoostError: The host cannot be reached, or not be brought back.
    """
    planned = planning.plan(suite, prompts)
    loaded = inventories.load(inventory)
    chosen = loaded.host(host)
    resolved = deployment.from_variables(host, chosen.variables, repository_root())
    wanted = variants(chosen, resolved)
    question = planned.question
    earlier = None if anew else _earlier(kind, host, question, runs_dir, run_dir or resume)
    if resume is not None and earlier is None:
        raise UsageError(
            f"{resume}: nothing to go on with",
            why=f"it is no {kind} of {host} with the suite {planned.name} and these prompts, or "
            "an earlier version of roost began it",
        )
    if run_dir is not None and earlier is None:
        # The notes of what it had tried would be lost.
        runs.refuse_used(run_dir, also=FILE)
    folder = run_dir or (earlier[0] if earlier else None)
    tried = earlier[1].tried if earlier else []
    names = [one.name for one in wanted]
    unended = False
    # In its own folder the caller has planned just this.
    if run_dir is None or [one.name for one in tried] != names:
        with ssh.connect(chosen) as remote:
            facts = asking.facts(remote, chosen)
            unended = pointed(remote, "held") is not None
        owner = record.owner(lock_path(runs_dir.absolute(), host))
        for lease in of_a_rollout(facts, owner=owner):
            raise not_free(host, lease.saw)
        tried = list(_planned(chosen, wanted, facts, {one.release: one for one in tried}))
    made = folder is None
    if folder is None:
        folder = runs.new_folder(runs_dir.absolute(), f"{host}-{kind}", resolved.recipe)
    found = Experiment(
        inventory=loaded.path,
        host=chosen,
        plan=planned,
        prompts=first_place(prompts).absolute() if prompts is not None else None,
        folder=folder,
        runs_dir=runs_dir.absolute(),
        variants={one.name: one for one in wanted},
        notes=Notes(kind=kind, host=host, question=question, tried=tried),
        become_password=become_password,
        say=say,
        unended=unended,
        made=made,
    )
    if found.refused and all_or_none:
        with or_nothing(found):
            raise RefusedError(
                f"{host}: not all of it can run; nothing was tried",
                why="\n".join(f"{one.name}: {one.refusal}" for one in found.refused),
                fix="see `roost plan`, or leave it out",
            )
    found.save()
    return found


def _earlier(
    kind: str, host: str, question: str, runs_dir: Path, folder: Path | None
) -> tuple[Path, Notes] | None:
    """The newest experiment of that kind that was not finished; or the one in a folder."""
    found = [folder / FILE] if folder else sorted(runs_dir.glob(f"*/{FILE}"), reverse=True)
    for path in found:
        if folder is None and (path.parent / runs.RESULT).is_file():
            continue
        try:
            notes = Notes.model_validate_json(kept_files.read(path))
        except (OSError, ValidationError):
            continue
        if (notes.kind, notes.host, questions.now(notes.question)) == (kind, host, question):
            return path.parent, notes
    return None


def _planned(
    host: Host,
    variants: Sequence[Variant],
    facts: HostFacts,
    known: Mapping[str | None, Tried],
) -> Iterator[Tried]:
    """Each variant with the planner's refusal, or with what is known of its release already."""
    resolved: dict[str, Deployment] = {}
    refusals: dict[str, str] = {}
    for variant in variants:
        try:
            resolved[variant.name] = resolve(host, variant)
        except RefusedError as error:
            refusals[variant.name] = " ".join(str(error).split())
    token = site.from_variables(host.name, host.variables).token()
    plans = gate.plans(resolved.values(), facts, token)
    for name, plan in zip(resolved, plans, strict=True):
        if plan.refused:
            refusals[name] = "; ".join(f"{one.id}: {one.summary}" for one in plan.refused)
    seen: dict[str, str] = {}
    for variant in variants:
        name = variant.name
        now = Tried(name=name, settings=dict(variant.settings))
        release = str(releases.release(resolved[name])["id"]) if name in resolved else None
        if name in refusals:
            yield now.model_copy(update={"refusal": refusals[name]})
        elif release in seen:
            yield now.model_copy(update={"refusal": f"the same as {seen[release]}"})
        else:
            assert release is not None  # noqa: S101 - else it was refused
            seen[release] = name
            before = known.get(release)
            if before is None or not (before.run is None or _finished(before.run)):
                before = now
            yield before.model_copy(
                update={"name": name, "settings": now.settings, "release": release}
            )


def _finished(run: str) -> bool:
    return Path(run, runs.RESULT).is_file()


def resolve(host: Host, variant: Variant) -> Deployment:
    """What a host runs for a variant.

    Raises:
        RefusedError: It does not run there, or something of it is not pinned.
        UsageError: A variable is wrong.
    """
    variables = {**host.variables, **variant.variables}
    return deployment.from_variables(host.name, variables, repository_root())


@contextmanager
def or_nothing(experiment: Experiment) -> Iterator[None]:
    """One that is refused before anything was tried leaves no folder behind.

    Nor a host that a killed one has left: that is brought back first.

    Raises:
        RoostError: The host could not be brought back.
    """
    try:
        yield
    except RefusedError:
        if experiment.made and not experiment.measured:
            with suppress(OSError):
                (experiment.folder / FILE).unlink(missing_ok=True)
                experiment.folder.rmdir()
        if experiment.unended:
            with on_host(experiment):
                raise
        raise

"""Where a rollout begins: what the inventory asks for, and whether one is to be gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from roost import deployment, releases, runs
from roost.deployment import Deployment
from roost.errors import RoostError, UsageError
from roost.inventory import Inventory
from roost.measure import points, suites
from roost.rollout import batches, record, report
from roost.rollout.conduct import Hosts, let_go, still_leased
from roost.rollout.record import Baseline, BatchRecord, HostRecord, Rollout
from roost.root import repository_root

#: What the benchmark of a rollout measures, unless told otherwise.
SUITE = "gate"


def resolve(inventory: Inventory) -> dict[str, Deployment]:
    """The deployment of every host.

    Raises:
        UsageError: Of some hosts there is none; the reasons of all of them.
    """
    root = repository_root()
    found, wrong = {}, []
    for name, host in inventory.hosts.items():
        try:
            found[name] = deployment.from_variables(name, host.variables, root)
        except RoostError as error:
            said = str(error)
            wrong.append(said if said.startswith(f"{name}:") else f"{name}: {said}")
    if wrong:
        raise UsageError(
            f"{inventory.path}: {len(wrong)} of {len(inventory.hosts)} hosts cannot be rolled out "
            "to; nothing was changed",
            why="\n".join(wrong),
        )
    return found


def interrupted_limit(runs_dir: Path, inventory: Path) -> str | None:
    """Which hosts the rollout that was interrupted is for, as it was given; none: all."""
    _, last = next(record.of_inventory(runs_dir, inventory), (None, None))
    return last.limit if last and last.verdict == "running" else None


def kind(of: Deployment) -> str:
    """What a host is and runs: canaries of one kind prove nothing for another."""
    return f"{of.hardware}, {of.recipe}, {of.speculation}"


def open_or_new(
    inventory: Path,
    wanted: Mapping[str, Deployment],
    *,
    limit: str | None,
    sizes: str | None,
    suite: str | None,
    runs_dir: Path,
    resume: bool,
    fleet: Callable[[Path], Hosts],
) -> tuple[Path, Rollout]:
    """The rollout that is to be gone on with, else a new one; with its folder.

    Args:
        inventory: Its absolute path.
        wanted: The deployment of every host that takes part.
        limit: Which hosts these are, as it was given.
        sizes: Of the batches; none: as before, or the default.
        suite: Of the benchmark; likewise.
        runs_dir: Where runs are kept.
        resume: Go on, or say why not.
        fleet: Given a rollout's folder, what does things with hosts on its behalf.

    Raises:
        UsageError: The sizes or the suite are none, or there is nothing to go on with.
    """
    new = _new(inventory, wanted, limit, sizes, suite)
    folder, last = next(record.of_inventory(runs_dir, inventory), (None, None))
    if folder and last and last.verdict == "running":
        if not last.same_wishes(new):
            if resume:
                raise UsageError(
                    f"{folder}: cannot be gone on with",
                    why="the inventory asks for other releases, or for other hosts, than it did",
                    fix="run it without --resume, which begins a new rollout in its place",
                )
            _give_up(folder, last, new, fleet(folder))
        elif sizes not in (None, last.sizes) or suite not in (None, last.suite):
            raise UsageError(
                f"{folder}: was begun with other batches or another suite",
                why=f"--batches {last.sizes} --suite {last.suite}",
                fix="leave both out to go on with it",
            )
        else:
            return folder, last
    elif resume:
        raise UsageError(f"{inventory}: no rollout of it was interrupted", fix="leave out --resume")
    _take_over(new, runs_dir, inventory)
    return runs.new_folder(runs_dir, "rollout", inventory.stem), new


def _give_up(folder: Path, last: Rollout, new: Rollout, hosts: Hosts) -> None:
    """End a rollout in whose place a new one begins; the hosts that this leaves out are let go."""
    left = [
        f"{name}: begun and not judged; the later rollout leaves it out: deploy it"
        for batch in last.batches
        for name in batch.hosts
        if batch.started
        and last.hosts[name].verdict not in {"passed", "back"}
        and name not in new.hosts
    ]
    if others := [name for name in last.hosts if name not in new.hosts]:
        # Ansible passes over those that the inventory has no more.
        left += map(still_leased, let_go(hosts, others))
    update = {"verdict": "superseded", "finished": record.now(), "reason": "\n".join(left)}
    ended = last.model_copy(update=update)
    record.write(folder, ended)
    report.write(folder, ended)


def _new(
    inventory: Path,
    wanted: Mapping[str, Deployment],
    limit: str | None,
    sizes: str | None,
    suite: str | None,
) -> Rollout:
    sizes, suite = sizes or batches.DEFAULT, suite or SUITE
    suites.suite(suite)
    kinds: dict[str, list[str]] = {}
    for name, one in wanted.items():
        kinds.setdefault(kind(one), []).append(name)
    divided = batches.divide(kinds, batches.parse(sizes))
    return Rollout(
        inventory=str(inventory),
        limit=limit,
        sizes=sizes,
        suite=suite,
        who=record.who(),
        started=record.now(),
        hosts={
            name: HostRecord(
                kind=kind(one),
                figures_key=one.gate.figures_key,
                wanted=releases.release(one)["id"],
            )
            for name, one in wanted.items()
        },
        batches=[BatchRecord(hosts=hosts) for hosts in divided],
    )


def _take_over(new: Rollout, runs_dir: Path, inventory: Path) -> None:
    """What earlier rollouts know of the hosts of a new one: the last that had them."""
    left = dict(new.hosts)
    for folder, earlier in record.of_inventory(runs_dir, inventory):
        begun = {name for batch in earlier.batches if batch.started for name in batch.hosts}
        for name in left.keys() & earlier.hosts.keys():
            host, then = left.pop(name), earlier.hosts[name]
            if then.verdict not in {"passed", "back"}:
                host.before = then.before
                host.unjudged = [*then.unjudged, *([then.wanted] if name in begun else [])]
            kept = folder / then.runs.get("benchmark", "-")
            same = (then.figures_key, earlier.suite) == (host.figures_key, new.suite)
            if then.verdict == "passed" and same and _is_whole(kept):
                host.baseline = Baseline(release=then.wanted, run=str(kept.absolute()))


def _is_whole(run: Path) -> bool:
    """Whether a benchmark can be compared with: old runs are cleared away, disks fill up."""
    try:
        points.load(run)
    except RoostError:
        return False
    return True

"""A whole rollout, from the command line's words to its end."""

from __future__ import annotations

from pathlib import Path

from roost import inventory as inventories
from roost.inventory import resolve_path
from roost.rollout import batches, beginning, record
from roost.rollout.conduct import Conductor, Say
from roost.rollout.fleet import Fleet
from roost.rollout.record import Rollout
from roost.root import repository_root


def run(
    inventory: Path,
    *,
    limit: str | None = None,
    sizes: str | None = None,
    suite: str | None = None,
    brief: bool = False,
    resume: bool = False,
    take_over: bool = False,
    runs_dir: Path | None = None,
    become_password: str | None = None,
    say: Say,
) -> tuple[Path, Rollout]:
    """Begin a rollout, or go on with the one that was interrupted; its folder and how it ended.

    Args:
        inventory: Its path, from here or from the repository root.
        limit: An Ansible host pattern.
        sizes: Of the batches; none: the default, or as it was begun.
        suite: Of the benchmark; likewise.
        brief: Verify without the long prompt and the bad requests.
        resume: Begin none.
        take_over: Also hosts that take part in somebody else's rollout, or in an experiment.
        runs_dir: Where runs are kept, by default ``runs`` in the repository.
        become_password: For hosts where sudo asks.
        say: Takes one line of progress at a time.

    Raises:
        UsageError: The inventory, its hosts, the sizes or the suite are wrong.
        RoostError: Another rollout of this inventory is running, or Ansible cannot run.
    """
    if sizes is not None:
        batches.parse(sizes)
    path = resolve_path(inventory)
    parent = (runs_dir or repository_root() / "runs").absolute()
    with record.turn(path):
        if resume and limit is None:
            limit = beginning.interrupted_limit(parent, path)
        loaded = inventories.load(path, limit)
        behind = [n for n, host in loaded.hosts.items() if host.variables.get("roost_gateway")]
        wanted = beginning.resolve(loaded)

        def fleet(folder: Path) -> Fleet:
            return Fleet(path, folder, behind, become_password)

        folder, rollout = beginning.open_or_new(
            path,
            wanted,
            limit=limit,
            sizes=sizes,
            suite=suite,
            runs_dir=parent,
            resume=resume,
            fleet=fleet,
        )
        # Brings papermill along; what is refused before need not wait for it.
        from roost.rollout.judging import Judge

        say(f"{'going on with' if rollout.prepared else 'rollout'} {folder}")
        conductor = Conductor(
            rollout,
            folder,
            fleet(folder),
            Judge(path, folder, rollout.suite, wanted, brief=brief),
            say,
            take_over=take_over,
        )
        return folder, conductor.run()

"""What a deploy that has nothing to do costs, by number of hosts.

The hosts are the lab's, with the stand-in engine, and all of them share this machine with the
controller: what is measured is the work of both sides, on however many cores there are. Beside the
time there is therefore the processor time of either side: on a fleet the hosts' is their own. A
second table shows that: there each host answers what it answered when it was deployed to alone, as
late as then, without working for it (``standin_ssh.sh``). Whole processes
(``ansible-playbook deploy.yml``), the sizes in turn within each round, medians.

``make bench-scale``, or ``python benchmarks/scale.py --help``; as root, as the lab is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from roost.lab import build, cgroups, controller, fixtures
from roost.lab.build.standin import standin_image
from roost.lab.hosts import HostSpec
from roost.lab.lab import Lab, LabSpec

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def fleet(hosts: int) -> Iterator[Lab]:
    """A lab of so many hosts, for as long as it is needed."""
    names = [f"s{number:02}" for number in range(1, hosts + 1)]
    spec = LabSpec.model_validate({"name": "scale", "subnet": "10.79.0.0/24", "hosts": ()})
    lab = Lab(spec.joined_by([HostSpec(name=name) for name in names]))
    with contextlib.ExitStack() as stack:
        for place in fixtures.PLACES:  # nobody else has a lab meanwhile
            stack.enter_context(
                controller.turn(_say, "a test session is using its lab", place.lock)
            )
        lab.down(_say)
        try:
            lab.up(_say)
            yield lab
        finally:
            lab.down(_say)


def write_inventory(folder: Path, lab: Lab, image: str) -> Path:
    """The lab's own inventory, with the stand-in for an engine."""
    written = lab.inventory()
    written["all"]["vars"].update(
        roost_recipe="smollm2-135m",
        roost_lock_file=str(lab.lock_file),
        roost_settings={"image": image},
        # All of them start at once, on one machine.
        roost_ready_timeout=600,
    )
    (folder / "hosts.yml").write_text(yaml.safe_dump(written, sort_keys=False))
    return folder


@dataclass(frozen=True)
class Cost:
    """What one run took, in seconds: its time, the controller's CPU, the hosts' CPU."""

    time: float
    controller: float
    hosts: float

    def __str__(self) -> str:
        return f"{self.time:.1f} s, CPU {self.controller:.1f} s here, {self.hosts:.1f} s on hosts"


def deploy(
    lab: Lab, where: Path, hosts: Sequence[str], replay: Path | None = None, record: bool = False
) -> tuple[Cost, int]:
    """One run over these hosts: its cost, and what it changed.

    Args:
        lab: Whose hosts they are.
        where: The inventory.
        hosts: Names.
        replay: Folder of what hosts have answered, to be written if ``record``, else repeated.
        record: See ``replay``.
    """
    playbook = [str(BIN / "ansible-playbook"), "deploy.yml", "-i", str(where)]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    if replay:
        for step in replay.glob("*/step"):
            step.unlink()
        playbook += ["-e", f"ansible_ssh_executable={ROOT / 'benchmarks/standin_ssh.sh'}"]
        environment |= {"REPLAY": str(replay), **({"RECORD": "yes"} if record else {})}
    with tempfile.TemporaryFile("w+") as output:
        before = cgroups.cpu_seconds(lab.spec.name)
        begun = time.monotonic()
        child = subprocess.Popen(
            [*playbook, "--limit", ",".join(hosts)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        on_hosts = cgroups.cpu_seconds(lab.spec.name) - before
        output.seek(0)
        said = output.read()
    if child.returncode != 0:
        sys.exit(f"{said}\ndeploy failed: exit code {child.returncode}")
    changed = sum(int(count) for count in re.findall(r" changed=(\d+) ", said))
    return Cost(seconds, used.ru_utime + used.ru_stime, on_hosts), changed


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default="1,2,4,8,16,32", help="numbers of hosts (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (%(default)s)")
    options = parser.parse_args()
    sizes = sorted({int(size) for size in options.sizes.split(",")})
    with fleet(sizes[-1]) as lab, tempfile.TemporaryDirectory() as folder:
        build.build_all(lab.cache, _say)
        where = write_inventory(Path(folder), lab, standin_image(lab.cache, _say))
        names = sorted(lab.hosts)
        first, _ = deploy(lab, where, names)
        _say(f"first deploy of {len(names)} hosts: {first}")
        print("Hosts and controller share the processors:\n")
        report(rounds(options.rounds, sizes, lambda size: deploy(lab, where, names[:size])))
        replay = Path(folder) / "replay"
        for name in names:
            deploy(lab, where, [name], replay, record=True)
        print("\nHosts have their own (stand-ins that wait as long as each took alone):\n")
        report(rounds(options.rounds, sizes, lambda size: deploy(lab, where, names[:size], replay)))


def rounds(
    number: int, sizes: Sequence[int], run: Callable[[int], tuple[Cost, int]]
) -> dict[int, list[Cost]]:
    """What runs of each size cost, the sizes in turn."""
    runs: dict[int, list[Cost]] = {size: [] for size in sizes}
    for turn in range(number):
        for size in sizes:
            cost, changed = run(size)
            if changed:
                sys.exit(f"the deploy of {size} hosts changed {changed} things; nothing was new")
            runs[size].append(cost)
            _say(f"round {turn + 1}: {size} hosts {cost}")
    return runs


def report(runs: dict[int, list[Cost]]) -> None:
    """The table for docs/performance.md."""
    print("| hosts | s | times one host | s a host more | CPU here, s | CPU on hosts, s |")
    print("|---|---|---|---|---|---|")
    one = None
    before: tuple[int, float] | None = None
    for size, found in runs.items():
        median = Cost(
            *(
                statistics.median(getattr(cost, field.name) for cost in found)
                for field in fields(Cost)
            )
        )
        one = one or median.time
        more = f"{(median.time - before[1]) / (size - before[0]):.2f}" if before else ""
        print(
            f"| {size} | {median.time:.1f} | {median.time / one:.2f} | {more} "
            f"| {median.controller:.1f} | {median.hosts:.1f} |"
        )
        before = size, median.time


if __name__ == "__main__":
    main()

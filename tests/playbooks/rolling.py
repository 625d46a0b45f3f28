"""A fleet of stand-in engines behind a gateway, for rollouts under load."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.playbooks.playbook import Running, inventory

from roost.lab import load
from roost.lab.build.standin import standin_image
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import Host
from roost.lab.load import Load
from roost.rollout import record, run
from roost.rollout.record import Rollout

MODEL = "smollm2-135m"
#: Tokens of each request, and how fast an engine makes them: a request takes 0.8 s.
TOKENS, SPEED = 48, 60


@dataclass
class Fleet:
    """Hosts with a release of the stand-in on them, and their gateway."""

    gate: Host
    hosts: Sequence[Host]
    inventory: Path
    image: str
    cache: Path
    said: list[str] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        return self.inventory.parent / "runs"

    def wants(self, *standin: str, **variables: Any) -> None:
        """Have the inventory ask for a release whose engine does these things."""
        path = self.inventory / "hosts.yml"
        document = yaml.safe_load(path.read_text())
        asked = [f"tokens-per-second={SPEED}", *standin]
        words = [f"--standin-{word}" for word in asked]
        settings = {"image": self.image, "extra_args": words}
        document["all"]["vars"].update(roost_settings=settings, **variables)
        path.write_text(yaml.safe_dump(document))

    def roll_out(self, **options: Any) -> Rollout:
        """A rollout with the short suite; the stand-in's own harness measures it."""
        given = {"suite": "smoke", "brief": True, "runs_dir": self.runs, **options}
        self.said.clear()
        folder, done = run.run(self.inventory, say=self.said.append, **given)
        assert record.read(folder) == done
        return done

    def serving(self) -> list[str]:
        """What each host's engine was told to log, which says which release it is of."""
        shown = [host.exec(["docker", "inspect", "roost-llm"]).stdout for host in self.hosts]
        return [re.findall(r"--standin-log=(\w+)", text)[0] for text in shown]

    @contextmanager
    def load(self, requests: int, rate: float) -> Iterator[tuple[Load, dict[str, float]]]:
        """Constant load through the gateway; the map is for the times of what is done under it."""
        folder = self.inventory.parent / f"load-{time.monotonic():.0f}"
        folder.mkdir()
        url = f"http://{self.gate.address}:8080"
        with load.constant(
            url, MODEL, folder, self.cache, requests=requests, rate=rate, tokens=TOKENS
        ) as found:
            times = {"begun": time.perf_counter()}
            yield found, times
            times["ended"] = time.perf_counter()


def fleet(shared_lab: SharedLab, folder: Path, count: int, *, ready_timeout: int = 180) -> Fleet:
    """Boot it, and have its first release serve.

    Args:
        shared_lab: Of its hosts.
        folder: For the inventory, the runs and the loads.
        count: Hosts behind the gateway.
        ready_timeout: Seconds that an engine may take to be healthy.
    """
    shared_lab.lab.registry.start()
    image = standin_image(shared_lab.lab.cache, print)
    gate = shared_lab.host("cpu", fresh=True, docker=False, gateway=True)
    hosts = [shared_lab.host("cpu", fresh=True, image=image) for _ in range(count)]
    where = inventory(
        folder / "inventory",
        shared_lab.lab,
        [gate, *hosts],
        roost_recipe=MODEL,
        roost_lock_file=str(shared_lab.lab.lock_file),
        roost_ready_timeout=ready_timeout,
        roost_hub_client=False,  # the lab's hub needs none
        roost_speed_floor=0.5,
    )
    made = Fleet(gate, hosts, where, image, shared_lab.lab.cache)
    made.wants("log=first")
    for playbook in ("deploy.yml", "playbooks/gateway.yml"):
        play = Running(where, playbook=playbook).end()
        assert play.code == 0, play.output
    return made

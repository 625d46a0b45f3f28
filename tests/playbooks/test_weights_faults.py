"""Every way in which weights can fail to come, made on a lab host and then taken away.

One host plays them all at the same time: each fault is an inventory host of its own there, with a
hub and a directory of its own. The role runs over SSH, as a deploy runs it, three times: once for
the revision that is good before, once with the faults, once more when they are gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from tests.playbooks.playbook import PATIENCE_S, Play, Running
from tests.unit import faulty
from tests.unit.faulty import Behaviour, Faulty
from tests.unit.servers import serving
from tests.unit.snapshots import FIRST, REPO, SECOND, shard

from roost.lab import hubstore
from roost.lab.fixtures import SharedLab
from roost.lab.hosts import SUDO_USER, Host, power_off
from roost.lab.hubserver import application
from roost.lab.lab import Lab

pytestmark = pytest.mark.lab

TOKEN = "t0ken-that-opens-nothing"
ROOT = "/var/lib/roost/faults"
#: Of the revision that the faults keep from coming.
SHARDS = (shard("first"), shard("second"))
SIZE, WHOLE = len(SHARDS[0]), sum(map(len, SHARDS))
HALF = SIZE // 2
NETWORK = "Check the network of this host and the hub's address (roost_hub_endpoint)"

#: Seconds without a byte, and without an answer, after which the hub is given up; all hubs are
#: threads of one process here, so one may well be late.
STALL, ANSWER = 15, 20

#: As playbooks/deploy.yml has it. Fewer and shorter tries, and no room kept on a small disk.
PLAY = f"""
- hosts: all
  gather_facts: false
  module_defaults:
    hf_snapshot: {{headroom: 0, retries: 1, stall_timeout: {STALL}, timeout: {ANSWER}}}
  tasks:
    - ansible.builtin.include_role: {{name: model_store, tasks_from: begin.yml, public: true}}
    - ansible.builtin.include_role: {{name: model_store}}
      when: __model_store_downloads | length > 0
"""


@dataclass
class Place:
    """Where one fault is made: a directory on the host, and the hub that it is filled from."""

    name: str
    host: Host
    hub: Faulty
    endpoint: str
    old: str
    new: str

    @property
    def paths(self) -> dict[str, str]:
        """For scripts on the host."""
        repo = f"{ROOT}/{self.name}/{REPO.replace('/', '--')}"
        address = urlsplit(self.endpoint)
        return {
            "MODELS": f"{ROOT}/{self.name}",
            "REPO": repo,
            "OLD": f"{repo}/{self.old}",
            "NEW": f"{repo}/{self.new}",
            "PARTIAL": f"{repo}/.{self.new}.partial",
            "PART": f"{repo}/.{self.new}.partial/.roost-parts/{FIRST}",
            "HUB": str(address.hostname),
            "PORT": str(address.port),
        }

    def sh(self, script: str) -> str:
        """Run a script on the host, past the network."""
        names = [f"{name}={value}" for name, value in self.paths.items()]
        done = self.host.exec(["env", *names, "sh", "-ec", script])
        assert done.returncode == 0, (self.name, done.stderr)
        return done.stdout

    def variables(self, revision: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the role is told, and what is this fault's alone."""
        weights = {
            "repo": REPO,
            "revision": revision,
            "directory": f"{self.paths['REPO']}/{revision}",
            "bytes": WHOLE,
        }
        return {
            "model_store_weights": [weights],
            "model_store_endpoint": self.endpoint,
            "model_store_client": False,
            **{name: str(value).format(**self.paths) for name, value in given.items()},
        }

    def good(self) -> str:
        """The revision that was good before: content, times, inodes."""
        return self.sh(
            'cd "$OLD"; find . -type f -printf "%P %s %T@ %i\\n" | sort; '
            "find . -type f | sort | xargs sha256sum"
        )

    def visible(self) -> set[str]:
        """Revisions that an engine could be given."""
        return set(self.sh('ls "$REPO"').split())

    def kept(self) -> int:
        """Bytes of weights in the partial download."""
        found = self.sh('find "$PARTIAL" -name "*.safetensors" -printf "%s " || true')
        return sum(map(int, found.split()))

    def whole(self) -> bool:
        """Whether the new revision has what the hub has."""
        sums = self.sh(f'cd "$NEW"; sha256sum {FIRST} {SECOND}').split()[::2]
        return sums == [hashlib.sha256(content).hexdigest() for content in SHARDS]


def nothing(_: Place) -> None:
    """The hub behaves."""


def answers(suffix: str, behaviour: Behaviour, times: int = 1_000_000) -> Callable[[Place], None]:
    """The hub treats requests like this; ``suffix`` may be ``commit``, for the first question."""

    def order(place: Place) -> None:
        place.hub.order(place.new if suffix == "commit" else suffix, behaviour, times)

    return order


def once_and_then(first: Behaviour, then: Behaviour) -> Callable[[Place], None]:
    """A transfer begins, and gets on no more."""

    def order(place: Place) -> None:
        place.hub.order(FIRST, first, 1)
        place.hub.order(FIRST, then)

    return order


def meanwhile(script: str) -> Callable[[Place], None]:
    """Half of a file is on the host when this happens there."""

    def order(place: Place) -> None:
        async def act() -> None:
            arrived = (
                f'while [ "$(stat -c %s "$PART" || echo 0)" -lt {HALF} ]; do sleep 0.1; done; '
            )
            await asyncio.to_thread(place.sh, arrived + script)

        place.hub.order(FIRST, faulty.at(HALF, act), 1)

    return order


def firewall(how: str) -> dict[str, str]:
    """A rule on the host against its hub, and its end."""
    rule = f'OUTPUT -p tcp -d "$HUB" --dport "$PORT" -j {how}'
    return {"spoil": f"iptables -I {rule}", "mend": f"iptables -D {rule}"}


@dataclass(frozen=True)
class Fault:
    """A fault, and what the user reads of it.

    Attributes:
        name: Its host in the inventory.
        says: What the one message has in it; nothing: the fault is survived without a word.
        order: What the hub does.
        spoil: What is done on the host before, as a script.
        mend: What ends it there.
        disk: Options of a small filesystem, where the fault needs one for itself.
        keeps: At least so many bytes of weights are there afterwards.
        given: Variables of this fault.
    """

    name: str
    says: tuple[str, ...] = ()
    order: Callable[[Place], None] = nothing
    spoil: str = "true"
    mend: str = "true"
    disk: str = ""
    keeps: int = 0
    given: Mapping[str, str] = field(default_factory=dict)


HTML = b"<!DOCTYPE html>\n<html>Please log in</html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
KILL = (
    'for process in /proc/[0-9]*; do ls -l $process/fd 2>/dev/null | grep -qF "$PART" && '
    "kill -KILL ${process#/proc/}; done; true"
)

FAULTS = [
    Fault(
        "refused",
        ("the hub cannot be reached", "Connection refused", NETWORK),
        **firewall("REJECT --reject-with tcp-reset"),
    ),
    Fault("no-network", (f"the hub did not answer within {ANSWER} s", NETWORK), **firewall("DROP")),
    Fault(
        "no-name",
        ("cannot be resolved", "name resolution", "Check this host's name server"),
        mend='echo "$HUB hub.invalid" >>/etc/hosts',
        given={"model_store_endpoint": "http://hub.invalid:{PORT}"},
    ),
    Fault(
        "hub-503",
        ("the hub answered 503", "Wait and try again"),
        answers("commit", faulty.answer(503)),
    ),
    Fault(
        "storage-500",
        (FIRST, "the hub answered 500", "Wait and try again"),
        answers(FIRST, faulty.answer(500)),
    ),
    Fault("limit-short", (), answers(FIRST, faulty.answer(429, {"Retry-After": "1"}), 1)),
    Fault(
        "limit-long",
        ("rate limit is reached and asks to wait 3600 s", "a token (roost_hub_token) or a mirror"),
        answers("commit", faulty.answer(429, {"Retry-After": "3600"})),
    ),
    Fault(
        "limit-unsaid",
        (FIRST, "the hub's rate limit is reached. Wait and deploy again", "roost_hub_token"),
        answers(FIRST, faulty.answer(429)),
    ),
    Fault(
        "not-admitted",
        ("gated, and the token does not open it", "Accept its terms on the hub with the account"),
        answers("commit", faulty.refuse(403, "GatedRepo")),
        given={"model_store_token": TOKEN},
    ),
    Fault(
        "no-repository",
        ("it is missing, private, or gated", "Check its name; for a private one set"),
        answers("commit", faulty.refuse(401, "RepoNotFound")),
    ),
    Fault(
        "no-revision",
        ("has the repository, but not this revision", "run `roost lock` and look at what changed"),
        answers("commit", faulty.refuse(404, "RevisionNotFound")),
    ),
    Fault(
        "stale",
        (),
        answers(FIRST, faulty.answer(416), 1),
        spoil=f'mkdir -p "${{PART%/*}}"; head -c {HALF} /dev/zero >"$PART"',
    ),
    Fault(
        "stalled",
        (
            FIRST,
            f"no byte came for {STALL} s at {HALF:,} of {SIZE:,}",
            "deploy again to go on",
            "mirror",
        ),
        once_and_then(faulty.stall(HALF, 2 * STALL), faulty.stall(0, 2 * STALL)),
        keeps=HALF,
    ),
    Fault(
        "truncated",
        (FIRST, f"the answer ended at {HALF:,} of {SIZE:,} bytes", "deploy again to go on"),
        once_and_then(faulty.unsized(faulty.shortened(HALF)), faulty.unsized(faulty.shortened(0))),
        keeps=HALF,
    ),
    Fault(
        "altered",
        (FIRST, "not what the hub records (another sha256)", "was removed", "Deploy again"),
        answers(FIRST, faulty.altered),
    ),
    Fault(
        "pointer",
        (FIRST, "is a Git LFS pointer of", "Check what answers at roost_hub_endpoint"),
        answers(FIRST, faulty.answer(200, {}, POINTER)),
    ),
    Fault(
        "page",
        (FIRST, "is an HTML page of", "Check what answers at roost_hub_endpoint"),
        answers(FIRST, faulty.answer(200, {}, HTML)),
    ),
    Fault(
        "disk-full",
        ("the disk of /var", "is full", "free space and deploy again to go on"),
        meanwhile('cat /dev/zero >"$MODELS/filler" 2>/dev/null || true'),
        mend='rm "$MODELS/filler"',
        disk="size=2400k",
        keeps=HALF,
    ),
    Fault(
        "read-only",
        ("is on a filesystem that is mounted read-only", "remount it, or set roost_model_dir"),
        spoil='mount -o remount,ro "$MODELS"',
        mend='mount -o remount,rw "$MODELS"',
        disk="size=4m",
    ),
    Fault(
        "not-ours",
        ("may not be written by uid 1", "Deploy with become"),
        mend=f'chown -R {SUDO_USER}: "$MODELS"',
        given={"ansible_user": SUDO_USER},
    ),
    Fault(
        "in-the-way",
        (".partial is in the way", "move it away, or set roost_model_dir to another"),
        spoil='touch "$PARTIAL"',
        mend='rm "$PARTIAL"',
    ),
    Fault(
        "killed",
        ("its process on the host is gone: killed", "What arrived is kept; deploy again to go on"),
        meanwhile(KILL),
        keeps=HALF,
    ),
]


@dataclass
class Bench:
    """One host with a good revision in it, and a role that fetches another one."""

    lab: Lab
    host: Host
    folder: Path
    store: Path
    old: str
    new: str

    def place(self, name: str, stack: ExitStack) -> Place:
        """A directory with the good revision in it, and a hub."""
        hub = Faulty(application(self.store))
        endpoint = stack.enter_context(serving(hub, address=str(self.lab.spec.gateway.ip)))
        return Place(name, self.host, hub, endpoint, self.old, self.new)

    def fetch(self, hosts: Mapping[str, Mapping[str, Any]]) -> Running:
        """Begin the role on these inventory hosts, which all are the one host."""
        written = self.lab.inventory()["all"]
        own = written["hosts"][self.host.name]
        document = {
            "vars": written["vars"],
            "hosts": {name: {**own, **given} for name, given in hosts.items()},
        }
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": document}))
        (self.folder / "play.yml").write_text(PLAY)
        return Running(
            self.folder / "hosts.yml", "--forks=10", playbook=str(self.folder / "play.yml")
        )


def publish(store: Path, source: Path, tensors: tuple[str, str]) -> str:
    """A revision of two shards; its commit."""
    source.mkdir()
    index = {"weight_map": dict(zip(tensors, (FIRST, SECOND), strict=True))}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    (source / "config.json").write_text("{}\n")
    for name, tensor in zip((FIRST, SECOND), tensors, strict=True):
        (source / name).write_bytes(shard(tensor))
    return hubstore.publish(store, REPO, "main", source)


@pytest.fixture(scope="module")
def bench(shared_lab: SharedLab, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    host = shared_lab.host("cpu", fresh=True, sudo_user=True)
    folder = tmp_path_factory.mktemp("faults")
    store = folder / "store"
    old = publish(store, folder / "old", ("older", "oldest"))
    new = publish(store, folder / "new", ("first", "second"))
    made = Bench(shared_lab.lab, host, folder, store, old, new)
    with ExitStack() as stack:
        place = made.place("before", stack)
        play = made.fetch({"before": place.variables(old, {})}).end()
    assert play.code == 0, play.output
    assert place.visible() == {old}
    return made


def furnish(place: Place, disk: str = "") -> str:
    """Give a place the good revision; what it is like."""
    mount = f'mount -t tmpfs -o {disk} tmpfs "$MODELS"; ' if disk else ""
    place.sh(f'mkdir -p "$MODELS"; {mount}cp -a {ROOT}/before/* "$MODELS"')
    return place.good()


@dataclass
class Seen:
    """What one fault was like."""

    place: Place
    good: tuple[str, str, str]
    visible: tuple[set[str], set[str]]
    kept: int
    again: int
    whole: bool


@dataclass
class Faults:
    """All of them: both runs of the role, and what each was like."""

    with_them: Play
    without: Play
    seen: dict[str, Seen]
    jobs: str


@pytest.fixture(scope="module")
def faults(bench: Bench) -> Iterator[Faults]:
    with ExitStack() as stack:
        places = {fault.name: bench.place(fault.name, stack) for fault in FAULTS}
        hosts, before = {}, {}
        for fault in FAULTS:
            place = places[fault.name]
            before[fault.name] = furnish(place, fault.disk)
            place.sh(fault.spoil)
            fault.order(place)
            hosts[fault.name] = place.variables(bench.new, fault.given)
        with_them = bench.fetch(hosts).end()
        visible = {name: place.visible() for name, place in places.items()}
        amid = {name: place.good() for name, place in places.items()}
        kept = {name: place.kept() for name, place in places.items()}
        for fault in FAULTS:
            places[fault.name].sh(fault.mend)
            places[fault.name].hub.behave()
        without = bench.fetch(hosts).end()
        seen = {
            name: Seen(
                place,
                (before[name], amid[name], place.good()),
                (visible[name], place.visible()),
                kept[name],
                place.hub.weight_bytes,
                bench.new in place.visible() and place.whole(),
            )
            for name, place in places.items()
        }
        yield Faults(with_them, without, seen, places["stale"].sh("ls /root/.ansible_async"))


def told(play: Play, name: str) -> str:
    """The one message of a fault, on one line; where the role looks first it is one of a loop's."""
    found = re.findall(
        rf"^(?:fatal|failed): \[{name}\].*?(?=^\S|^$)", play.output, re.MULTILINE | re.DOTALL
    )
    assert len(found) == 1, play.output
    assert "Traceback" not in found[0]
    return " ".join(found[0].replace("''", "'").split())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_told_and_survived(faults: Faults, bench: Bench, fault: Fault) -> None:
    seen = faults.seen[fault.name]
    if fault.says:
        assert faults.with_them.failed[fault.name] == 1
        message = told(faults.with_them, fault.name)
        # What, why and what to do; where it is the hub, which.
        assert [text for text in (REPO, *fault.says) if text not in message] == [], message
        assert seen.visible[0] == {bench.old}
    else:
        assert faults.with_them.failed[fault.name] == 0
        assert seen.visible[0] == {bench.old, bench.new}
    # What was good is as it was.
    assert seen.good[0] == seen.good[1] == seen.good[2]
    # One plain run, and not a byte that was kept comes again.
    assert (faults.without.failed[fault.name], faults.without.unreachable[fault.name]) == (0, 0)
    assert seen.visible[1] == {bench.old, bench.new}
    assert seen.whole
    assert seen.kept >= fault.keeps
    assert seen.again == (WHOLE - seen.kept if fault.says else 0)


def test_no_fault_leaves_a_job_or_shows_a_token(faults: Faults) -> None:
    assert faults.jobs == ""
    assert TOKEN not in faults.with_them.output + faults.without.output


def test_power_is_lost_in_the_middle(bench: Bench) -> None:
    """Last: the host is another one afterwards."""
    back = threading.Event()

    async def until_it_is_back() -> None:
        while not back.is_set():
            await asyncio.sleep(0.05)
        raise ConnectionError("nobody listens any more")

    with ExitStack() as stack:
        place = bench.place("power", stack)
        stack.callback(back.set)
        good = furnish(place)
        for name in (FIRST, SECOND):
            place.hub.order(name, faulty.at(HALF, until_it_is_back), 1)
        # A host that is gone is noticed after ten seconds or so.
        given = {
            "ansible_ssh_args": "-o ControlMaster=auto -o ControlPersist=60s "
            "-o ServerAliveInterval=4 -o ServerAliveCountMax=2",
            "ansible_timeout": "10",
            "ansible_control_path": "%(directory)s/power",
        }
        hosts = {"power": {**place.variables(bench.new, {}), **given}}
        run = bench.fetch(hosts)
        deadline = time.monotonic() + PATIENCE_S
        while place.kept() < 2 * HALF:
            assert time.monotonic() < deadline, run.output
            time.sleep(0.1)
        power_off(bench.lab.name, bench.lab.state, bench.host.name)
        bench.host.start()
        bench.host.wait()
        back.set()
        message = told(run.end(), "power")
        assert "its process on the host is gone: killed, or the host was restarted" in message
        assert "What arrived is kept; deploy again to go on from it" in message
        assert place.visible() == {bench.old}
        assert place.good() == good
        kept = place.kept()
        place.hub.behave()
        play = bench.fetch(hosts).end()
        assert play.code == 0, play.output
        assert place.visible() == {bench.old, bench.new}
        assert place.whole()
        assert place.good() == good
        assert kept >= 2 * HALF
        assert place.hub.weight_bytes == WHOLE - kept

"""How fast weights arrive, what verifying costs, what a kill costs, and what a mirror saves.

Whole processes in turn, in one run: this project's module ``hf_snapshot``, the same module with
its hashes switched off, ``hf download`` of the same huggingface_hub (alone, and with ``sha256sum``
after it), and ``curl``. The hub is the lab's; as a real one does, it redirects weights to a storage
server, which sends them from the page cache.

Loopback leaves only the processor to wait for. So verified and not are compared once more over
lines as a WAN and a LAN have them.

Then a fleet of 1, 2, 4 and 8 hosts fetches the same weights at the same time, over a line to the
storage that all share, without a mirror and with one (nginx, with the role's own settings; left out
where there is no nginx).

``make bench-weights``, or ``python benchmarks/weights.py --help``.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import jinja2
import uvicorn
import yaml
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from roost import modules
from roost.lab import hubstore
from roost.lab.hubserver import application
from roost.lab.pacing import Line

ROOT = Path(__file__).parents[1]
ROLE = ROOT / "roles" / "mirror"
BIN = Path(sys.executable).parent
REPO = "roost-lab/bench"
SHARDS = 8
PARTS = ("fetch", "lines", "fleet")
HOSTS = (1, 2, 4, 8)
#: Lines on which verification is measured, bytes a second.
LINES = {"1 Gbit/s": 125e6, "2.5 Gbit/s": 312.5e6, "10 Gbit/s": 1250e6}
#: Seconds that a fetch over such a line is to take, if there are enough bytes for that.
LONG = 5

#: Hashes that see nothing and are always right, for the module.
UNVERIFIED = """
import hashlib
from ansible.module_utils.roost.onhost.weights import revision
class Nothing:
    name = "nothing"
    def update(self, _): pass
hashlib.sha256 = lambda *_: Nothing()
revision.File.is_right = lambda *_: True
"""


# -- what serves


class Storage(BaseHTTPRequestHandler):
    """Files below ``root``, whole or in part, by ``sendfile``; ``/sent`` tells how much.

    All connections share the line; none: as fast as it goes.
    """

    protocol_version = "HTTP/1.1"
    root: Path
    line: Line | None = None
    sent = 0
    _lock = threading.Lock()

    def do_GET(self) -> None:
        """A file, or the count."""
        if self.path == "/sent":
            body = str(Storage.sent).encode()
            self._head(200, len(body))
            self.wfile.write(body)
            return
        with (self.root / self.path.lstrip("/")).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start = int(asked[1]) if asked else 0
            end = min(int(asked[2]) + 1, size) if asked and asked[2] else size
            self._head(206 if asked else 200, end - start, f"bytes {start}-{end - 1}/{size}")
            while start < end:
                most = min(1 << 20, end - start)
                try:
                    count = os.sendfile(self.connection.fileno(), file.fileno(), start, most)
                except OSError:
                    self.close_connection = True
                    return
                start += count
                with Storage._lock:
                    Storage.sent += count
                if self.line:
                    time.sleep(self.line.take(count))

    def _head(self, status: int, length: int, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if status == 206:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(store: Path, rate: float | None) -> None:
    """Hub and storage in one process, until it is ended; prints both addresses."""
    Storage.root, Storage.line = store / "models", Line(rate) if rate else None
    storage = ThreadingHTTPServer(("127.0.0.1", 0), Storage)
    threading.Thread(target=storage.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{storage.server_port}"
    hub = application(store)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.endswith(".safetensors"):
            await hub(scope, receive, send)
            return
        org, name, _, commit, file = path.strip("/").split("/", 4)
        repo = hubstore.repository(store, f"{org}/{name}")
        found = repo and hubstore.revision(repo, commit)
        assert found
        entry = found.files[file]
        response: Response = RedirectResponse(
            f"{address}/{org}/{name}/{commit}/{file}",
            302,
            {
                "X-Repo-Commit": commit,
                "X-Linked-Etag": f'"{entry.sha256}"',
                "X-Linked-Size": str(entry.size),
            },
        )
        await response(Request(scope).scope, receive, send)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", address, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])


@contextmanager
def serving(store: Path, rate: float | None = None) -> Iterator[tuple[str, str]]:
    """The addresses of hub and storage, in a process of their own."""
    argv = [sys.executable, __file__, "--serve", str(store)]
    argv += ["--rate", str(rate)] if rate else []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            hub, storage = process.stdout.readline().split()
            yield hub, storage
        finally:
            process.kill()


def free_port() -> int:
    """A port that nobody uses now."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def mirroring(nginx: str, hub: str, folder: Path) -> Iterator[str]:
    """The role's hub mirror with an empty cache; its address."""
    port = free_port()
    (folder / "temporary").mkdir(parents=True)
    settings = folder / "nginx.conf"
    text = (ROLE / "templates" / "nginx.conf.j2").read_text()
    template = jinja2.Environment(trim_blocks=True).from_string(text)  # noqa: S701  # no HTML
    settings.write_text(
        template.render(
            yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
            | {
                "ansible_managed": "benchmarks/weights.py",
                "mirror_listen": "127.0.0.1",
                "mirror_allow": ["127.0.0.1"],
                "mirror_hub": hub,
                "mirror_hub_port": port,
                "mirror_registry_port": free_port(),
                "mirror_registries": [],
                "mirror_directory": folder,
                "mirror_min_free": "100m",
                "__mirror_user": getpass.getuser(),
                "__mirror_run": folder,
                "__mirror_authorities": "/etc/ssl/certs/ca-certificates.crt",
                "__mirror_resolvers": [],
                "__mirror_upstreams": [],
            }
        )
    )
    with subprocess.Popen([nginx, "-c", settings, "-g", "daemon off;"]) as process:
        try:
            for _ in range(100):
                with closing(socket.socket()) as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


# -- what is fetched


def publish(folder: Path, store: Path, size: int) -> str:
    """A repository of shards that together have ``size`` bytes; its commit."""
    folder.mkdir()
    data = size // SHARDS
    index = {}
    for number in range(1, SHARDS + 1):
        name = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        tensor = {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}
        header = json.dumps({f"layer.{number}": tensor}).encode()
        with (folder / name).open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for done in range(0, data, 1 << 20):
                file.write(os.urandom(min(1 << 20, data - done)))
        index[f"layer.{number}"] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text("{}\n")
    commit = hubstore.publish(store, REPO, "main", folder)
    shutil.rmtree(folder)
    return commit


class Contender:
    """A command that fetches the repository into a folder, and what feeds it.

    Attributes:
        seconds: That each measured run took.
        processor: Seconds of processor time in each, which other work here hardly changes.
    """

    def __init__(self, name: str, make: Callable[[Path], tuple[Sequence[object], str]]) -> None:
        self.name = name
        self.make = make
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def start(self, target: Path) -> subprocess.Popen[str]:
        """Begin to fetch."""
        argv, given = self.make(target)
        process = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "HF_HOME": str(target.with_name("home")),
                "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
            },
        )
        assert process.stdin
        process.stdin.write(given)
        process.stdin.close()
        return process

    def measure(self, target: Path) -> None:
        """Fetch into an empty folder, and note what it took."""
        before = _processor_time()
        self.seconds.append(self.run(emptied(target)))
        self.processor.append(_processor_time() - before)

    def run(self, target: Path) -> float:
        """Fetch; seconds."""
        began = time.perf_counter()
        process = self.start(target)
        assert process.stdout
        with process.stdout:
            said = process.stdout.read()
        if process.wait():
            raise SystemExit(f"{self.name}: {said}")
        return time.perf_counter() - began


def _processor_time() -> float:
    """Of all children that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def job(hub: str, commit: str, target: Path) -> str:
    """What the module is told, on its standard input."""
    params = {"repo_id": REPO, "revision": commit, "endpoint": hub, "headroom": 0}
    dest = target / "models" / "roost-lab--bench" / commit
    return json.dumps({"ANSIBLE_MODULE_ARGS": {**params, "dest": str(dest)}})


def ours(hub: str, commit: str) -> Contender:
    """This project's module."""
    return Contender(
        "hf_snapshot", lambda target: (modules.command("hf_snapshot"), job(hub, commit, target))
    )


def contenders(hub: str, commit: str, names: Sequence[str]) -> list[Contender]:
    """All that are compared."""

    def hf(target: Path) -> tuple[Sequence[object], str]:
        command = [BIN / "hf", "download", REPO, "--revision", commit, "--local-dir", target]
        return ["env", f"HF_ENDPOINT={hub}", *command], ""

    def hashed(target: Path) -> tuple[Sequence[object], str]:
        argv, _ = hf(target)
        return ["sh", "-c", f'"$@" && sha256sum {target}/*.safetensors', "sh", *argv], ""

    def curl(target: Path) -> tuple[Sequence[object], str]:
        urls = [f"{hub}/{REPO}/resolve/{commit}/{name}" for name in names]
        parts = [part for url in urls for part in ("-O", url)]
        options = ["-sS", "-L", "--fail", "--create-dirs", "--output-dir", target]
        return ["curl", *options, "--parallel", "--parallel-max", "4", *parts], ""

    return [
        ours(hub, commit),
        Contender(
            "hf_snapshot, no hashes",
            lambda target: (
                modules.command("hf_snapshot", UNVERIFIED),
                job(hub, commit, target),
            ),
        ),
        Contender("hf download", hf),
        Contender("hf download, sha256sum", hashed),
        Contender("curl, 4 at a time", curl),
    ]


# -- measuring


def emptied(target: Path) -> Path:
    """A folder with nothing in it, and nothing beside it."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.mkdir(parents=True)
    return target


def on_disk(target: Path) -> int:
    """Bytes of weights, whole or not."""
    total = 0
    for path in target.rglob("*"):
        if path.suffix in {".safetensors", ".incomplete"}:
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # renamed meanwhile
    return total


def killed_at_half(one: Contender, target: Path, size: int, storage: str) -> tuple[int, int]:
    """Kill at half, run again: bytes that were there, and bytes that the second run fetched."""
    emptied(target)
    process = one.start(target)
    while on_disk(target) < size // 2:
        if process.poll() is not None:
            raise SystemExit(f"{one.name} was done before it could be killed: give more bytes")
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()
    there = on_disk(target)
    before = int(httpx2.get(f"{storage}/sent").text)
    one.run(target)
    return there, int(httpx2.get(f"{storage}/sent").text) - before


def at_once(endpoint: str, commit: str, targets: Sequence[Path], storage: str) -> tuple[int, float]:
    """Several hosts fetch at the same time: bytes that the storage sent, seconds until the last."""
    before = int(httpx2.get(f"{storage}/sent").text)
    began = time.perf_counter()
    running = [ours(endpoint, commit).start(target) for target in targets]
    for process in running:
        assert process.stdout
        with process.stdout:
            said = process.stdout.read()
        if process.wait():
            raise SystemExit(said)
    seconds = time.perf_counter() - began
    return int(httpx2.get(f"{storage}/sent").text) - before, seconds


def measure_lines(folder: Path, target: Path, size: int, repeats: int) -> None:
    """What verification costs where the line is what is waited for, printed."""
    rows = [
        ("line", "bytes", "verified, s", "no hashes, s", "verification", "of it processor, s/GB")
    ]
    for name, rate in LINES.items():
        count = min(size, round(LONG * rate))
        store = folder / "line"
        commit = publish(folder / "source", store, count)
        with serving(store, rate) as (hub, _):
            both = contenders(hub, commit, [])[:2]
            for _ in range(repeats):
                for one in both:
                    one.measure(target)
        verified, bare = (statistics.median(one.seconds) for one in both)
        cost = f"{verified / bare - 1:+.1%}"
        busy, idle = (statistics.median(one.processor) for one in both)
        hashing = f"{(busy - idle) / count * 1e9:.2f}"
        rows.append((name, f"{count:,}", f"{verified:.2f}", f"{bare:.2f}", cost, hashing))
        shutil.rmtree(store)
    print(f"\nover a line, medians of {repeats} rounds\n")
    print(table(rows))


def measure_fleets(folder: Path, target: Path, size: int, rate: float) -> None:
    """What a mirror saves on the line that all hosts share, printed."""
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    store = folder / "fleet"
    commit = publish(folder / "source", store, size)
    rows = [("hosts", "without: upstream", "s", "with a mirror: upstream", "s")]
    with serving(store, rate) as (hub, storage):
        for hosts in HOSTS:
            targets = [emptied(target.with_name(f"{host}") / "files") for host in range(hosts)]
            alone, slow = at_once(hub, commit, targets, storage)
            row = [str(hosts), f"{alone / size:.3f}", f"{slow:.1f}"]
            targets = [emptied(target) for target in targets]
            if nginx:
                with mirroring(nginx, hub, emptied(target.with_name("mirror") / "copies")) as url:
                    shared, quick = at_once(url, commit, targets, storage)
                row += [f"{shared / size:.3f}", f"{quick:.1f}"]
            else:
                row += ["no nginx here", ""]
            rows.append((row[0], row[1], row[2], row[3], row[4]))
    print(f"\n{size:,} bytes over a line of {rate:,.0f} bytes/s; upstream in copies of the model\n")
    print(table(rows))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns that line up, in Markdown."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines[1:]])


def measure(folder: Path, target: Path, size: int, repeats: int) -> None:
    """Everything, printed."""
    store = folder / "store"
    commit = publish(folder / "source", store, size)
    repo = hubstore.repository(store, REPO)
    found = repo and hubstore.revision(repo, commit)
    assert found
    weights = sum(file.size for name, file in found.files.items() if name.endswith(".safetensors"))
    with serving(store) as (hub, storage):
        compared = contenders(hub, commit, list(found.files))
        for one in compared:
            one.run(emptied(target))  # reads everything into the page cache
        for _ in range(repeats):
            for one in compared:
                one.measure(target)
        middle = {one.name: statistics.median(one.seconds) for one in compared}
        theirs = middle["hf download"]
        print(f"{weights:,} bytes in {SHARDS} shards, {repeats} rounds, target {target.parent}\n")
        rows = [("", "median s", "range s", "MB/s", "time against hf download")]
        rows += [
            (
                one.name,
                f"{middle[one.name]:.2f}",
                f"{min(one.seconds):.2f}-{max(one.seconds):.2f}",
                f"{weights / middle[one.name] / 1e6:.0f}",
                f"{middle[one.name] / theirs:.2f}",
            )
            for one in compared
        ]
        print(table(rows))
        cost = middle["hf_snapshot"] / middle["hf_snapshot, no hashes"] - 1
        print(f"\nverification: {cost:+.0%} of the time without it\n")
        rows = [
            ("killed at half", "there, bytes", "fetched after", "fetched again", "of the whole")
        ]
        for one in (compared[0], compared[2]):
            there, after = killed_at_half(one, target, weights, storage)
            again = after - (weights - there)
            rows.append(
                (one.name, f"{there:,}", f"{after:,}", f"{again:,}", f"{again / weights:.1%}")
            )
        print(table(rows))


def main() -> None:
    """Parse, measure, clean up."""
    parser = argparse.ArgumentParser(description="Measure how weights are fetched, on loopback.")
    parser.add_argument("--bytes", type=int, default=2 << 30, help="of weights (2 GiB)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--target",
        type=Path,
        default=Path("/dev/shm"),  # noqa: S108  # the point is that it is memory
        help="where to fetch to; the default leaves the disk out of it",
    )
    parser.add_argument("--rate", type=float, help="bytes/s of the line of the fleet (64 MiB/s)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="what to measure")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen.serve, chosen.rate)
        return
    with (
        tempfile.TemporaryDirectory(prefix="roost-bench-") as folder,
        tempfile.TemporaryDirectory(prefix="roost-bench-", dir=chosen.target) as target,
    ):
        where = Path(target, "run", "files")
        if "fetch" in chosen.only:
            measure(Path(folder), where, chosen.bytes, chosen.repeats)
        if "lines" in chosen.only:
            measure_lines(Path(folder), where, chosen.bytes, chosen.repeats)
        shutil.rmtree(where.parent, ignore_errors=True)
        if "fleet" in chosen.only:
            measure_fleets(
                Path(folder), Path(target, "fleet"), chosen.bytes // 8, chosen.rate or 64 << 20
            )


if __name__ == "__main__":
    main()

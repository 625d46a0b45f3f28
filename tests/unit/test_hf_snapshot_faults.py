"""What goes wrong between a hub and a disk: told apart, tried again where that helps, survived."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from tests.unit import faulty, snapshots
from tests.unit.faulty import Behaviour, Faulty
from tests.unit.servers import serving
from tests.unit.snapshots import FIRST, SECOND, TOKEN, Site, hf_snapshot, shard

from roost import modules
from roost.onhost import atomic
from roost.onhost.weights import patience, revision
from roost.onhost.weights.arrival import Arrival
from roost.onhost.weights.download import Download

SIZE = len(shard("first"))
HALF = SIZE // 2
#: The second is a byte longer: the name of its tensor is.
BOTH = SIZE + len(shard("second"))

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small filesystem: needs root")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Faulty]]:
    with snapshots.hub() as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, served: tuple[str, Faulty], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(patience, "PAUSE", 0.01)
    return snapshots.site(tmp_path, served)


def comes_again(site: Site) -> int:
    """The next run, with a hub that behaves, makes it whole; bytes of weights it asked for."""
    site.hub.behave()
    assert site.ensure()["changed"]
    assert site.is_whole()
    return site.hub.weight_bytes


# -- no hub


def test_no_network(site: Site) -> None:
    # Taken, so that nobody else gets it meanwhile, and nobody listens there.
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        failure = site.failure(endpoint=f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert (failure.reason, failure.outage) == ("network", True)
    assert "Connection refused" in str(failure)


@pytest.mark.parametrize("excepted", [False, True])
def test_a_proxy_of_the_environment_is_told_of(
    site: Site, monkeypatch: pytest.MonkeyPatch, excepted: bool
) -> None:
    monkeypatch.setenv("http_proxy", f"http://me:{TOKEN}@127.0.0.1:9/")
    monkeypatch.setenv("no_proxy", "10.9.8.7,127.0.0.1" if excepted else "10.9.8.7")
    if excepted:
        assert site.ensure()["changed"]
        return
    failure = site.failure(retries=0)
    assert (failure.reason, failure.outage) == ("network", True)
    assert f"{site.endpoint}, through the proxy 127.0.0.1:9 (http_proxy;" in str(failure)
    assert TOKEN not in str(failure)
    assert site.hub.requests == []


def test_a_name_that_cannot_be_resolved(site: Site) -> None:
    failure = site.failure(endpoint="http://hub.invalid", retries=0)
    assert (failure.reason, failure.outage) == ("dns", True)
    assert "name server" in str(failure)


def test_a_hub_that_does_not_answer(site: Site) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        failure = site.failure(endpoint=url, timeout=1, retries=0)
    assert (failure.reason, failure.outage) == ("timeout", True)
    assert "within 1 s" in str(failure)


def test_a_certificate_that_nobody_vouches_for(site: Site, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(  # noqa: S602  # nobody else's text in it
        f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} "
        f"-out {certificate}",
        shell=True,
        check=True,
        capture_output=True,
    )
    with serving(site.hub, certificate=certificate, key=key) as url:
        failure = site.failure(endpoint=url)
    assert (failure.reason, failure.outage) == ("tls", False)
    assert "certificates" in str(failure)


def test_a_mirror_without_tls_that_is_asked_with(site: Site) -> None:
    failure = site.failure(endpoint=site.endpoint.replace("http:", "https:"))
    assert (failure.reason, failure.outage) == ("tls", False)
    assert "Write http:// in roost_hub_endpoint" in str(failure)


def test_something_else_than_a_hub(site: Site) -> None:
    page = faulty.answer(200, {"content-type": "text/html"}, b"<html>Please log in</html>")
    site.hub.order(site.commit, page)
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("hub_error", False)
    assert "not a model hub" in str(failure)


# -- what a hub answers, to the question and to the first request for a file


@pytest.mark.parametrize("place", ["commit", FIRST])
@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_hub_in_trouble_is_asked_again_and_then_given_up(
    site: Site, status: int, place: str
) -> None:
    suffix = site.commit if place == "commit" else place
    site.hub.order(suffix, faulty.answer(status), times=3)
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("hub_error", True)
    assert str(status) in str(failure)
    assert len(site.hub.of(suffix)) == 3  # once and two retries
    site.hub.behave()
    site.hub.order(suffix, faulty.answer(status), times=2)
    assert site.ensure()["changed"]
    assert site.is_whole()


@pytest.mark.parametrize("place", ["commit", FIRST])
@pytest.mark.parametrize(
    "asks",
    [
        lambda: {"Retry-After": "1"},
        lambda: {"Retry-After": formatdate(time.time() + 2, usegmt=True)},  # in whole seconds
        # What huggingface.co says, and all that it says.
        lambda: {
            "RateLimit": '"resolvers";r=0;t=1',
            "RateLimit-Policy": '"fixed window";q=5;w=300',
        },
    ],
    ids=["seconds", "date", "window"],
)
def test_a_rate_limit_is_waited_out_as_long_as_the_hub_asks(
    site: Site, place: str, asks: Callable[[], dict[str, str]]
) -> None:
    suffix = site.commit if place == "commit" else place
    began = time.monotonic()  # before a date that is so long after it
    site.hub.order(suffix, faulty.answer(429, asks()), times=1)
    assert site.ensure()["changed"]
    assert time.monotonic() - began >= 1
    assert site.is_whole()


def test_a_mirror_without_its_hub_is_asked_again(site: Site) -> None:
    site.hub.order(FIRST, faulty.refuse(502, "MirrorUpstream"))
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("network", True)
    assert "cannot reach its hub" in str(failure)
    assert len(site.hub.of(FIRST)) == 3


@pytest.mark.parametrize("after", [None, "soon", "1.5", "-1"])
def test_a_rate_limit_without_a_time_is_tried_like_an_outage(site: Site, after: str | None) -> None:
    site.hub.order(
        site.commit, faulty.answer(429, {"Retry-After": after} if after else {}), times=2
    )
    assert site.ensure()["changed"]


def test_a_rate_limit_that_takes_too_long_fails_at_once(site: Site) -> None:
    site.hub.order(FIRST, faulty.answer(429, {"Retry-After": "3600"}))
    failure = site.failure()
    assert len(site.hub.of(FIRST)) == 1
    assert (failure.reason, failure.outage) == ("rate_limit", True)
    assert "asks to wait 3600 s" in str(failure)
    assert "roost_hub_token" in str(failure)


REFUSALS = [
    (401, "GatedRepo", "", None, "gated", "no token was given"),
    (403, "GatedRepo", "", "mine", "gated", "the token does not open it"),
    (401, "RepoNotFound", "", None, "repository", "missing, private, or gated"),
    (404, "RepoNotFound", "", "mine", "repository", "missing, private, or gated"),
    # As M5 has it: no code at all.
    (401, "", "", None, "repository", "missing, private, or gated"),
    (401, "", "Invalid credentials in Authorization header", "old", "token", "expired"),
    # No word of gates: a right that the token lacks, or something on the way.
    (403, "", "Forbidden: enable access", "mine", "forbidden", "127.0.0.1:"),
    (403, "", "", None, "forbidden", "a proxy or a firewall"),
    (404, "RevisionNotFound", "", None, "revision", "not this revision"),
    (404, "EntryNotFound", "", None, "incomplete", "does not have it"),
    # As our own mirror says it.
    (403, "MirrorNetwork", "", "mine", "gated", "mirror_allow"),
    (401, "MirrorKey", "", None, "token", "roost_hub_token to the mirror's key"),
    (404, "MirrorRevision", "", None, "revision", "Pack it (`roost bundle`)"),
]


@pytest.mark.parametrize("place", ["commit", FIRST])
@pytest.mark.parametrize(("status", "code", "said", "token", "reason", "message"), REFUSALS)
def test_a_refusal_is_final_and_says_what_to_do(
    site: Site,
    place: str,
    status: int,
    code: str,
    said: str,
    token: str | None,
    reason: str,
    message: str,
) -> None:
    suffix = site.commit if place == "commit" else place
    site.hub.order(suffix, faulty.refuse(status, code, said))
    failure = site.failure(token=token)
    assert (failure.reason, failure.outage) == (reason, False)
    assert message in str(failure)
    assert len(site.hub.of(suffix)) == 1
    assert not token or token not in str(failure)
    comes_again(site)


def test_a_file_with_no_hash_is_not_taken_on_trust(site: Site) -> None:
    entry = {"rfilename": FIRST, "size": SIZE, "lfs": {"size": SIZE}}
    body = json.dumps({"sha": site.commit, "siblings": [entry]}).encode()
    site.hub.order(site.commit, faulty.answer(200, {}, body))
    assert "no SHA-256" in str(site.failure())


def lists(site: Site, *paths: str) -> None:
    """Have the hub list files of one byte with these paths."""
    siblings = [{"rfilename": path, "size": 1} for path in paths]
    body = json.dumps({"sha": site.commit, "siblings": siblings}).encode()
    site.hub.order(site.commit, faulty.answer(200, {}, body))


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/x", ".roost.json", "./.roost.json", ".roost-parts/x", "a/../../x"),
        *("", ".", "a/", "a//b", "a\0b", "a\nb", "a\ud800"),
    ],
)
def test_a_file_outside_the_repository_is_refused(site: Site, path: str) -> None:
    lists(site, path)
    assert "cannot be one of a repository" in str(site.failure())


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b", "a/b/c/d")])
def test_files_that_are_in_each_others_way_are_refused(site: Site, paths: tuple[str, str]) -> None:
    lists(site, *paths)
    assert "lists a file twice" in str(site.failure())
    assert site.hub.of(paths[0]) == []


def test_an_answer_about_another_commit_is_refused(site: Site) -> None:
    body = json.dumps({"sha": "0" * 40, "siblings": []}).encode()
    site.hub.order(site.commit, faulty.answer(200, {}, body))
    assert "another commit" in str(site.failure())


# -- transfers


BREAKS = [
    (faulty.cut(HALF), "truncated"),
    (faulty.unsized(faulty.cut(HALF)), "broken_off"),
    (faulty.unsized(faulty.shortened(HALF)), "truncated"),
    (faulty.stall(HALF), "stalled"),
]
#: Seconds without a byte; long beside what the other answers take on a busy machine.
STALL = 4


@pytest.mark.parametrize("behaviour", [behaviour for behaviour, _ in BREAKS])
def test_a_transfer_that_breaks_goes_on_where_it_was(site: Site, behaviour: Behaviour) -> None:
    site.hub.order(FIRST, behaviour, times=1)
    assert site.ensure(stall_timeout=STALL)["bytes"] < site.bytes + SIZE // 4
    assert site.is_whole()
    assert [one.range for one in site.hub.of(FIRST)] == [None, site.hub.of(FIRST)[1].range]
    assert site.hub.of(FIRST)[1].range is not None


@pytest.mark.parametrize(("behaviour", "reason"), BREAKS)
def test_what_arrived_before_giving_up_is_kept(
    site: Site, behaviour: Behaviour, reason: str
) -> None:
    site.hub.order(FIRST, behaviour)
    failure = site.failure(stall_timeout=STALL, retries=0)
    assert (failure.reason, failure.outage) == (reason, True)
    assert "What arrived is kept" in str(failure)
    assert (site.parts / FIRST).stat().st_size > 0
    # Of the second there may be nothing, a part, or all, by how fast the first one broke.
    kept = sum(path.stat().st_size for path in site.parts.parent.rglob("*.safetensors"))
    assert comes_again(site) <= BOTH - kept


def test_a_transfer_that_gets_on_is_not_given_up(site: Site) -> None:
    # A tenth each time; with two retries it must not count them all together.
    site.hub.order(FIRST, faulty.cut(SIZE // 8))
    assert site.ensure(retries=1)["changed"]
    assert len(site.hub.of(FIRST)) >= 5
    assert site.is_whole()


def test_a_transfer_that_always_begins_anew_is_given_up(site: Site) -> None:
    # Now further, now less far: none of it is further than it had been.
    places = [HALF, HALF // 2] * 6

    async def whole_and_cut(app: Any, scope: Any, receive: Any, send: Any) -> None:
        headers = [pair for pair in scope["headers"] if pair[0] != b"range"]
        await faulty.cut(places.pop(0))(app, {**scope, "headers": headers}, receive, send)

    site.hub.order(FIRST, whole_and_cut)
    assert site.failure().reason == "truncated"
    assert len(site.hub.of(FIRST)) == 3


def test_a_server_that_ignores_ranges_sends_the_file_anew(site: Site) -> None:
    site.parts.mkdir(parents=True)
    (site.parts / FIRST).write_bytes(shard("first")[:HALF])
    site.hub.order(FIRST, faulty.whole)
    assert site.ensure()["changed"]
    assert site.is_whole()


@pytest.mark.parametrize("there", [SIZE + 100, HALF])
def test_a_stale_part_is_fetched_anew(site: Site, there: int) -> None:
    site.parts.mkdir(parents=True)
    (site.parts / FIRST).write_bytes((shard("first") + b"0" * 100)[:there])
    site.hub.order(FIRST, faulty.answer(416), times=1 if there == HALF else 0)
    assert site.ensure()["changed"]
    assert site.is_whole()


def test_a_part_with_other_content_is_fetched_anew(site: Site) -> None:
    # As a power cut leaves it: the length is there, the bytes are not.
    site.parts.mkdir(parents=True)
    (site.parts / FIRST).write_bytes(b"\0" * HALF)
    assert site.ensure()["changed"]
    assert site.is_whole()


def ends_with_one_whole(site: Site) -> Path:
    """The partial directory of a run that ends when the first shard is whole, of two."""
    partial = site.parts.parent

    async def refuses(*call: Any) -> None:
        while not (partial / FIRST).exists():
            await asyncio.sleep(0.01)
        await faulty.answer(503)(*call)

    site.hub.order(SECOND, refuses)
    site.failure(retries=0)
    site.hub.behave()
    return partial


@pytest.mark.parametrize("recorded", [True, False])
def test_what_was_whole_by_another_answer_of_the_hub_is_fetched_anew(
    site: Site, recorded: bool
) -> None:
    right, commit = (site.source / FIRST).read_bytes(), site.commit
    (site.source / FIRST).write_bytes(right[:-1] + b"x")
    site.commit = site.publish()
    other = ends_with_one_whole(site)
    # As if that had been the answer about this commit.
    site.commit = commit
    other.rename(site.parts.parent)
    if not recorded:  # by a version that wrote none
        (site.parts.parent / ".roost.json").unlink()
    (site.source / FIRST).write_bytes(right)
    site.ensure()
    assert site.is_whole()
    assert len(site.hub.of(FIRST)) == 1


def test_what_was_whole_is_not_read_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with_one_whole(site)
    read = []
    monkeypatch.setattr(revision.File, "is_in", lambda _, path: read.append(path.exists()))
    site.ensure()
    assert site.is_whole()
    assert site.hub.of(FIRST) == []
    assert not any(read)


def test_wrong_content_is_fetched_once_more_and_never_visible(site: Site) -> None:
    async def altered_after_the_other(*request: Any) -> None:
        while not (site.parts.parent / SECOND).exists():
            await asyncio.sleep(0.01)
        await faulty.altered(*request)

    site.hub.order(FIRST, altered_after_the_other)
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("hash", False)
    assert f"{FIRST}: what arrived is not what the hub records (another sha256)" in str(failure)
    # The second time past whatever keeps copies on the way.
    asked = [one.headers.get("cache-control") for one in site.hub.of(FIRST)]
    assert asked == [None, "no-cache"]
    # The other shard is not lost with it.
    assert comes_again(site) <= SIZE


def test_wrong_content_of_a_small_file_is_noticed_too(site: Site) -> None:
    site.hub.order("config.json", faulty.altered)
    failure = site.failure()
    assert "config.json: what arrived is not what the hub records (another sha1)" in str(failure)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<!DOCTYPE html>\n<html>Please log in</html>", "is an HTML page of 42 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
    ],
)
def test_something_else_in_place_of_weights(site: Site, body: bytes, message: str) -> None:
    site.hub.order(FIRST, faulty.answer(200, {}, body))
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("not_weights", False)
    assert message in str(failure)
    comes_again(site)


@pytest.mark.parametrize(("gone", "slow"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_a_final_failure_ends_the_other_transfers_and_is_what_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, gone: str, slow: str
) -> None:
    ended = threading.Event()

    def until_one_fails(download: Download, arrival: Arrival) -> None:
        try:
            fetch(download, arrival)
        finally:
            if arrival.file.path == gone:
                ended.set()

    async def while_the_other_waits(*call: Any) -> None:
        while part_bytes(site, slow) < HALF:
            await asyncio.sleep(0.01)
        await faulty.refuse(404, "EntryNotFound")(*call)

    async def break_then() -> None:
        while not ended.is_set():
            await asyncio.sleep(0.01)
        raise ConnectionError("cut by the test")

    fetch = Download._until_one_fails
    monkeypatch.setattr(Download, "_until_one_fails", until_one_fails)
    # It breaks off as well, and is no reason to go on.
    site.hub.order(slow, faulty.unsized(faulty.at(HALF, break_then)))
    site.hub.order(gone, while_the_other_waits)
    assert site.failure().reason == "incomplete"
    assert len(site.hub.of(slow)) == 1


# -- tokens


def test_the_token_goes_to_the_hub_and_not_to_its_storage(site: Site) -> None:
    elsewhere = faulty.Faulty(site.hub.app)
    with serving(elsewhere) as storage:
        url = f"{storage}/{snapshots.REPO}/resolve/{site.commit}/{FIRST}"
        site.hub.order(FIRST, faulty.answer(302, {"Location": url}))
        assert site.ensure(token=TOKEN)["changed"]
    assert site.is_whole()
    assert {one.headers["authorization"] for one in site.hub.requests} == {f"Bearer {TOKEN}"}
    assert len(elsewhere.requests) == 1
    assert "authorization" not in elsewhere.requests[0].headers


@pytest.mark.parametrize("token", [f"{TOKEN}\n", f"{TOKEN}\u2026"])
def test_a_token_that_is_none_is_refused_and_not_shown(site: Site, token: str) -> None:
    with running(site, token=token) as process:
        assert process.stdout
        said = json.loads(process.stdout.read())
    assert said["reason"] == "token"
    assert "Correct roost_hub_token" in said["msg"]
    assert TOKEN not in json.dumps(said)
    assert site.hub.requests == []


def test_a_renamed_repository_is_followed_with_the_token(site: Site) -> None:
    old = f"/api/models/roost-lab/old/revision/{site.commit}"
    site.hub.order(
        old,
        faulty.answer(307, {"Location": f"/api/models/{snapshots.REPO}/revision/{site.commit}"}),
    )
    with pytest.raises(hf_snapshot.SnapshotError):
        # Its files are asked for by the old name too, which this hub does not have.
        site.ensure(repo_id="roost-lab/old", token=TOKEN)
    assert {one.headers["authorization"] for one in site.hub.requests} == {f"Bearer {TOKEN}"}
    assert len(site.hub.of(f"/{snapshots.REPO}/revision/{site.commit}")) == 1


# -- disks


def test_a_disk_that_would_fill_up_is_refused_before_the_first_byte(site: Site) -> None:
    failure = site.failure(headroom=1 << 60)
    assert (failure.reason, failure.outage) == ("disk", False)
    assert "roost_model_dir" in str(failure)
    assert site.hub.weight_bytes == 0


@contextmanager
def filesystem(at: Path, options: str) -> Iterator[None]:
    """A filesystem of its own, in memory."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


@root_only
def test_what_is_there_is_not_counted_twice(site: Site) -> None:
    # Room for the whole once, and for its last quarter, but not for the whole and the quarter.
    with filesystem(site.models, "size=1100k"):
        site.parts.mkdir(parents=True)
        (site.parts / FIRST).write_bytes(shard("first"))
        (site.parts / SECOND).write_bytes(shard("second")[: SIZE // 2])
        assert site.ensure()["changed"]
        assert site.is_whole()


@root_only
def test_what_a_killed_client_left_is_not_in_the_way(site: Site) -> None:
    with filesystem(site.models, "size=1100k"):
        left = site.parts.parent / ".roost-xet" / ".cache" / "x.incomplete"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"0" * 500_000)
        site.ensure()
        assert site.is_whole()
        assert not (site.dest / ".roost-xet").exists()


@root_only
def test_a_disk_that_fills_up_in_the_middle(site: Site) -> None:
    filler = site.models / "filler"

    async def fill() -> None:
        # Not before what was sent is on the disk.
        while part_bytes(site, FIRST) < HALF:
            await asyncio.sleep(0.01)
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"0" * 4096):
                pass

    with filesystem(site.models, "size=2000k"):
        site.hub.order(FIRST, faulty.at(HALF, fill), times=1)
        failure = site.failure()
        assert (failure.reason, failure.outage) == ("disk", False)
        assert "is full" in str(failure)
        filler.unlink()
        assert comes_again(site) <= BOTH - HALF // 2


@root_only
def test_a_target_that_is_read_only(site: Site) -> None:
    with filesystem(site.models, "size=1m,ro"):
        failure = site.failure()
    assert (failure.reason, failure.outage) == ("target", False)
    assert "mounted read-only" in str(failure)


@root_only
def test_a_target_that_belongs_to_root(site: Site) -> None:
    site.models.mkdir()
    os.seteuid(65534)
    try:
        with pytest.raises(hf_snapshot.SnapshotError) as caught:
            site.ensure()
    finally:
        os.seteuid(0)
    assert caught.value.reason == "target"
    assert "may not be written by uid 65534" in str(caught.value)
    assert "become" in str(caught.value)


@pytest.mark.parametrize("place", ["models", "partial"])
@pytest.mark.parametrize("link", [False, True])
def test_something_else_where_a_directory_belongs(site: Site, place: str, link: bool) -> None:
    there = site.models if place == "models" else site.parts.parent
    there.parent.mkdir(parents=True, exist_ok=True)
    if link:
        there.symlink_to("/nowhere/at/all")  # as to a disk that is not mounted
    else:
        there.touch()
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("target", False)
    assert f"{there} is in the way" in str(failure)
    there.unlink()
    comes_again(site)


def test_a_disk_that_is_broken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(atomic, "flush", broken)
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("target", False)
    assert "cannot be written (Input/output error)" in str(failure)
    assert "dmesg" in str(failure)


def test_a_name_that_is_too_long_for_the_disk(site: Site) -> None:
    lists(site, "x" * 300)
    failure = site.failure()
    assert (failure.reason, failure.outage) == ("target", False)
    assert "File name too long" in str(failure)


# -- processes


@contextmanager
def running(site: Site, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The module as Ansible runs it: a process of its own."""
    with subprocess.Popen(
        modules.command("hf_snapshot"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdin
        process.stdin.write(json.dumps({"ANSIBLE_MODULE_ARGS": site.params(**options)}))
        process.stdin.close()
        try:
            yield process
        finally:
            process.kill()


def until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_lies_where_the_user_stands_is_not_imported(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with running(site) as process:
        assert process.stdout
        assert json.loads(process.stdout.read())["changed"]


def part_bytes(site: Site, *names: str) -> int:
    parts = [site.parts / name for name in names]
    return sum(part.stat().st_size for part in parts if part.exists())


def test_kill_at_half_and_go_on(site: Site) -> None:
    for name in (FIRST, SECOND):
        site.hub.order(name, faulty.stall(HALF), times=1)
    with running(site, token=TOKEN) as process:
        until(lambda: part_bytes(site, FIRST, SECOND) == 2 * HALF)
        # Meanwhile the token stands where nobody else looks.
        proc = Path(f"/proc/{process.pid}")
        shown = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
        assert TOKEN.encode() not in shown
    assert process.returncode == -signal.SIGKILL
    assert not site.dest.exists()
    # Not a byte that was written comes again.
    assert comes_again(site) == BOTH - 2 * HALF


def test_a_failure_is_told_to_ansible(site: Site) -> None:
    with running(site, revision="0" * 40, token=TOKEN) as process:
        assert process.stdout
        said = json.loads(process.stdout.read())
    assert said["failed"]
    assert (said["reason"], said["outage"]) == ("revision", False)
    assert TOKEN not in json.dumps(said)

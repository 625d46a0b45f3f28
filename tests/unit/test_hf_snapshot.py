"""The module that keeps weights, against the lab's own hub."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit import snapshots
from tests.unit.faulty import Faulty
from tests.unit.plugins import ROOT, task
from tests.unit.snapshots import FIRST, SECOND, TENSOR, TOKEN, Site, content, hf_snapshot, shard

from roost.onhost import DISK_HEADROOM_BYTES
from roost.onhost.weights import patience
from roost.plan.checkpoint import verify_directory


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Faulty]]:
    with snapshots.hub() as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, served: tuple[str, Faulty], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(patience, "PAUSE", 0.01)
    return snapshots.site(tmp_path, served)


def test_a_revision_arrives_whole_and_with_its_record(site: Site) -> None:
    outcome = site.ensure()
    assert outcome["changed"]
    assert outcome["files"] == 4
    assert outcome["bytes"] == site.bytes
    assert site.is_whole()
    record = json.loads((site.dest / ".roost.json").read_text())
    assert record["repo"] == snapshots.REPO
    assert record["revision"] == site.commit
    # Nothing else is left beside it.
    assert [path.name for path in site.dest.parent.iterdir()] == [site.commit]


def test_what_is_there_is_not_asked_for_again(site: Site) -> None:
    site.ensure()
    site.hub.behave()
    outcome = site.ensure()
    assert not outcome["changed"]
    assert outcome["present"]
    assert outcome["bytes"] == 0
    assert site.hub.requests == []


def test_check_mode_says_what_would_move_and_moves_nothing(site: Site) -> None:
    outcome = site.ensure(check_mode=True)
    assert outcome["changed"]
    assert outcome["bytes"] == site.bytes
    assert f"{len(shard('first')):,} {FIRST}\n" in outcome["diff"]["after"]
    assert f"{site.bytes:,} bytes to fetch" in outcome["diff"]["after_header"]
    assert not site.models.exists()


def test_check_mode_counts_only_what_is_not_there_yet(site: Site) -> None:
    site.parts.mkdir(parents=True)
    (site.parts / FIRST).write_bytes(shard("first")[:300_000])
    assert site.ensure(check_mode=True)["bytes"] == site.bytes - 300_000


def test_ansible_carries_all_of_it_to_a_host(site: Site) -> None:
    arguments = {name: value for name, value in site.params().items() if value is not None}
    assert task("hf_snapshot", arguments)["bytes"] == site.bytes
    assert site.is_whole()
    del arguments["headroom"]
    again = task("hf_snapshot", arguments)
    assert again["present"]
    assert again["invocation"]["module_args"]["headroom"] == DISK_HEADROOM_BYTES


def test_the_headroom_that_is_documented_is_the_one_that_is_kept() -> None:
    options = yaml.safe_load(hf_snapshot.DOCUMENTATION)["options"]
    assert options["headroom"]["default"] == DISK_HEADROOM_BYTES
    page = (ROOT / "docs" / "weights.md").read_text()
    assert f"{DISK_HEADROOM_BYTES // 2**30} GiB of headroom" in page


def test_names_that_mean_something_in_an_address(site: Site) -> None:
    for name in ("why?.txt", "a&b=c.txt", "#1.txt", "50%.txt", "a b;c.txt", "ü.txt", "back\\slash"):
        (site.source / name).write_text(name)
    (site.source / "empty").touch()
    site.commit = site.publish()
    assert site.ensure()["files"] == 12
    assert site.is_whole()


def test_patterns_choose_files(site: Site) -> None:
    (site.source / "original").mkdir()
    (site.source / "original" / "weights.bin").write_bytes(b"0" * 1000)
    site.commit = site.publish()
    assert site.ensure(ignore_patterns=["original/"])["files"] == 4
    # Less than is there is there; more is fetched, and only that.
    assert not site.ensure(ignore_patterns=["original/"])["changed"]
    site.hub.behave()
    outcome = site.ensure()
    assert outcome["bytes"] == 1000
    assert site.hub.weight_bytes == 0
    assert (site.dest / "original" / "weights.bin").stat().st_size == 1000
    assert not site.ensure(allow_patterns=["*.json"])["changed"]


def test_patterns_that_choose_nothing_are_refused(site: Site) -> None:
    assert site.failure(allow_patterns=["*.gguf"]).reason == "incomplete"


def test_an_earlier_runs_other_files_are_not_published(site: Site) -> None:
    site.parts.mkdir(parents=True)
    (site.parts / SECOND).write_bytes(shard("second")[:1000])
    (site.parts.parent / "README.md").write_text("of other patterns\n")
    assert site.ensure(allow_patterns=["config.json"])["files"] == 1
    assert set(content(site.dest)) == {"config.json", ".roost.json"}


def test_a_damaged_directory_is_mended_with_what_is_right_of_it(site: Site) -> None:
    site.ensure()
    (site.dest / SECOND).write_bytes(b"short")
    site.hub.behave()
    outcome = site.ensure()
    assert outcome["changed"]
    assert outcome["bytes"] == len(shard("second"))
    assert site.hub.of(FIRST) == []
    assert site.is_whole()
    assert [path.name for path in site.dest.parent.iterdir()] == [site.commit]


def test_a_damaged_directory_stays_visible_until_it_is_mended(site: Site) -> None:
    site.ensure()
    (site.dest / SECOND).unlink()
    (site.source / SECOND).unlink()
    with pytest.raises(hf_snapshot.SnapshotError):
        site.ensure(endpoint="http://127.0.0.1:9")
    assert (site.dest / FIRST).read_bytes() == shard("first")


def test_a_run_that_was_killed_while_it_replaced_a_directory_is_mended(site: Site) -> None:
    site.ensure()
    site.dest.rename(site.dest.with_name(f".{site.commit}.replaced"))
    site.hub.behave()
    assert not site.ensure()["changed"]
    assert site.hub.requests == []
    assert site.is_whole()


def test_a_revision_that_was_moved_and_linked(site: Site, tmp_path: Path) -> None:
    site.ensure()
    elsewhere = tmp_path / "elsewhere"
    shutil.move(site.dest, elsewhere)
    site.dest.symlink_to(elsewhere)
    assert not site.ensure()["changed"]
    for _ in range(2):
        (site.dest / SECOND).unlink()
        assert site.ensure()["changed"]
        assert site.is_whole()
    assert [path.name for path in site.dest.parent.iterdir()] == [site.commit]
    assert (elsewhere / FIRST).exists()  # whose that is, nobody here knows


def test_a_link_to_a_revision_is_removed_and_not_followed(site: Site, tmp_path: Path) -> None:
    site.ensure()
    elsewhere = tmp_path / "elsewhere"
    shutil.move(site.dest, elsewhere)
    site.dest.symlink_to(elsewhere)
    assert site.ensure(state="absent")["changed"]
    assert not site.dest.parent.exists()
    assert (elsewhere / FIRST).exists()


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", '"x"', '{"repo'])
def test_a_record_that_cannot_be_read_is_written_anew(site: Site, text: str) -> None:
    site.ensure()
    (site.dest / ".roost.json").write_text(text)
    outcome = site.ensure()
    assert (outcome["changed"], outcome["bytes"]) == (True, 0)
    assert site.is_whole()


def _lacks_a_shard(site: Site) -> None:
    (site.source / SECOND).unlink()


def _lacks_a_tensor(site: Site) -> None:
    (site.source / SECOND).write_bytes(shard("third"))


def _is_cut_off(site: Site) -> None:
    (site.source / SECOND).write_bytes(shard("second")[:-1])


def _goes_on(site: Site) -> None:
    (site.source / SECOND).write_bytes(shard("second") + b"0")


def _is_a_pointer(site: Site) -> None:
    (site.source / SECOND).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize {TENSOR}\n"
    )


def _is_html(site: Site) -> None:
    (site.source / SECOND).write_text("<!DOCTYPE html><html>Entry not found</html>")


def _is_empty(site: Site) -> None:
    (site.source / SECOND).write_bytes(b"")


def _has_no_header(site: Site) -> None:
    (site.source / SECOND).write_bytes(b"\xff" * 100_000)


def _has_a_broken_header(site: Site) -> None:
    (site.source / SECOND).write_bytes((9).to_bytes(8, "little") + b"{'not': 1}")


def _has_a_header_without_end(site: Site) -> None:
    text = b"[" * 200_000
    (site.source / SECOND).write_bytes(len(text).to_bytes(8, "little") + text)


def _tells(site: Site, *places: list[int]) -> None:
    """A header that ends where the file does, and has its tensors at these places."""
    tensors = {
        f"second{number or ''}": {
            "dtype": "U8",
            "shape": [end - begin],
            "data_offsets": [begin, end],
        }
        for number, (begin, end) in enumerate(places)
    }
    text = json.dumps(tensors).encode()
    (site.source / SECOND).write_bytes(len(text).to_bytes(8, "little") + text + bytes(TENSOR))


def _leaves_a_hole(site: Site) -> None:
    _tells(site, [0, 1000], [2000, TENSOR])


def _overlaps(site: Site) -> None:
    _tells(site, [0, TENSOR], [2000, TENSOR])


def _has_places_that_are_none(site: Site) -> None:
    text = b'{"second": {"dtype": "U8", "shape": [1], "data_offsets": ["0", "1"]}}'
    (site.source / SECOND).write_bytes(len(text).to_bytes(8, "little") + text + b"0")


def _names_a_shard_elsewhere(site: Site) -> None:
    index = {"weight_map": {"first": FIRST, "second": f"/etc/{SECOND}"}}
    (site.source / "model.safetensors.index.json").write_text(json.dumps(index))


def _has_a_broken_index(site: Site) -> None:
    (site.source / "model.safetensors.index.json").write_text("<html>")


def _has_an_index_without_end(site: Site) -> None:
    (site.source / "model.safetensors.index.json").write_text("[" * 100_000)


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        (_lacks_a_shard, "incomplete"),
        (_lacks_a_tensor, "incomplete"),
        (_is_cut_off, "incomplete"),
        (_goes_on, "incomplete"),
        (_is_a_pointer, "not_weights"),
        (_is_html, "not_weights"),
        (_is_empty, "incomplete"),
        (_has_no_header, "incomplete"),
        (_has_a_broken_header, "incomplete"),
        (_has_a_header_without_end, "incomplete"),
        (_leaves_a_hole, "incomplete"),
        (_overlaps, "incomplete"),
        (_has_places_that_are_none, "incomplete"),
        (_names_a_shard_elsewhere, "incomplete"),
        (_has_a_broken_index, "incomplete"),
        (_has_an_index_without_end, "incomplete"),
    ],
)
def test_a_repository_that_is_broken_on_the_hub_never_becomes_visible(
    site: Site, breaks: Any, reason: str
) -> None:
    breaks(site)
    # Both judges agree, the one on the host and the one of the planner.
    assert verify_directory(site.source)
    site.commit = site.publish()
    failure = site.failure()
    assert failure.reason == reason
    assert "pin another one" in str(failure)
    assert not failure.outage


@pytest.mark.parametrize("length", [ord("<") + 256, ord(" ") + 256 * ord("<")])
def test_weights_whose_header_has_a_length_that_reads_like_a_page_are_weights(
    site: Site, length: int
) -> None:
    (site.source / SECOND).write_bytes(padded(length))
    assert verify_directory(site.source) == []
    site.commit = site.publish()
    site.ensure()
    assert site.is_whole()


def padded(length: int) -> bytes:
    """The second shard with a header of so many bytes."""
    whole = shard("second")
    short = int.from_bytes(whole[:8], "little")
    return length.to_bytes(8, "little") + whole[8 : 8 + short].ljust(length) + whole[8 + short :]


def test_a_token_opens_a_gated_repository(site: Site) -> None:
    gated = site.publish("roost-lab/gated", gated=True)
    dest = site.models / "roost-lab--gated" / gated
    outcome = site.ensure(repo_id="roost-lab/gated", revision=gated, dest=str(dest), token=TOKEN)
    assert outcome["changed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"revision": "31977fbe13a8"}, "not a full commit"),
        ({"endpoint": "huggingface.co"}, "not an http"),
    ],
)
def test_what_cannot_be_meant_is_refused(site: Site, options: dict[str, Any], message: str) -> None:
    failure = site.failure(**options)
    assert failure.reason == "usage"
    assert message in str(failure)


def test_two_runs_take_turns(site: Site) -> None:
    outcomes: list[dict[str, Any]] = []

    def run() -> None:
        outcomes.append(site.ensure())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome["changed"] for outcome in outcomes) == [False, True]
    assert len(site.hub.of(FIRST)) == 1


# -- removing


def test_absent_removes_a_revision_and_what_is_left_of_its_download(site: Site) -> None:
    site.ensure()
    site.parts.mkdir(parents=True)
    (site.parts / FIRST).write_bytes(b"0")
    would = site.ensure(state="absent", check_mode=True)
    assert would["changed"]
    assert FIRST in would["diff"]["before"]
    assert site.dest.exists()
    assert site.ensure(state="absent")["changed"]
    assert not site.dest.parent.exists()
    assert not site.ensure(state="absent")["changed"]


def test_what_a_killed_removal_leaves_is_found_by_the_next(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.ensure()

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            site.ensure(state="absent")
    assert not site.dest.exists()
    assert site.ensure(state="absent")["changed"]
    assert not site.dest.parent.exists()


def test_absent_leaves_other_revisions(site: Site) -> None:
    site.ensure()
    other = site.dest.with_name("0" * 40)
    shutil.copytree(site.dest, other)
    site.ensure(state="absent")
    assert not site.dest.exists()
    assert other.exists()


@pytest.mark.parametrize("place", ["smollm-0123.json", "smollm-0123/deployment.json"])
@pytest.mark.parametrize("check_mode", [True, False])
def test_what_a_kept_release_names_is_not_removed(site: Site, place: str, check_mode: bool) -> None:
    site.ensure()
    release = site.models.with_name("releases") / place
    release.parent.mkdir(parents=True, exist_ok=True)
    release.write_text(json.dumps({"weights": [{"directory": str(site.dest)}]}))
    with pytest.raises(hf_snapshot.SnapshotError) as caught:
        site.ensure(state="absent", check_mode=check_mode)
    assert caught.value.reason == "released"
    assert str(release) in str(caught.value)
    assert site.is_whole()

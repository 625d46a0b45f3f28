"""Files that are whole or not there: permissions, links, power cuts, full disks, two writers."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roost import atomic as controller
from roost.errors import RoostError
from roost.onhost import atomic


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refuse(number: int) -> Callable[[int], None]:
    """As fsync does of which a disk thinks better."""

    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    return fsync


def test_text_and_bytes_in_folders_that_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    atomic.write(path, "ä\n")
    assert path.read_bytes() == b"\xc3\xa4\n"
    atomic.write(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert names(path.parent) == ["c"]


# -- permissions


def test_a_new_file_is_as_the_umask_has_it(tmp_path: Path, umask: Callable[[int], int]) -> None:
    for mask, wanted in ((0o022, 0o644), (0o027, 0o640), (0o002, 0o664)):
        umask(mask)
        atomic.write(tmp_path / f"{mask}", "")
        assert permissions(tmp_path / f"{mask}") == wanted


def test_permissions_that_a_file_was_given_stay(
    tmp_path: Path, umask: Callable[[int], int]
) -> None:
    umask(0o077)
    path = tmp_path / "x"
    for given in (0o600, 0o664):
        path.write_text("")
        path.chmod(given)
        atomic.write(path, "new")
        assert permissions(path) == given


def test_what_is_asked_for_wins_and_holds_before_the_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: Callable[[int], int]
) -> None:
    path, opened, seen = tmp_path / "x", os.open, []

    def look(name: Path, flags: int, mode: int = 0o777) -> int:
        handle = opened(name, flags, mode)
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return handle

    path.write_text("")
    path.chmod(0o666)
    monkeypatch.setattr(os, "open", look)
    atomic.write(path, "secret", 0o600)
    assert (permissions(path), seen[0]) == (0o600, 0o600)
    umask(0o077)
    atomic.write(path, "for everybody", 0o644)
    assert permissions(path) == 0o644


# -- what is in the place


def test_of_a_link_the_file_that_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "lock").write_text("old")
    for name, to in (("relative", "shared/lock"), ("absolute", tmp_path / "relative")):
        link = tmp_path / name
        link.symlink_to(to)
        atomic.write(link, name)
        assert link.is_symlink()
        assert (tmp_path / "shared" / "lock").read_text() == name
    (tmp_path / "dangling").symlink_to("later/lock")
    atomic.write(tmp_path / "dangling", "made")
    assert (tmp_path / "later" / "lock").read_text() == "made"


def test_what_is_no_file_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "folder", "link"):
        with pytest.raises(OSError, match="what is there is no file") as caught:
            atomic.write(tmp_path / name, "x")
        assert caught.value.filename == str(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert names(tmp_path) == ["folder", "link", "pipe"]


# -- power cuts


def test_content_comes_to_the_disk_before_its_name_and_the_name_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, told = tmp_path / "x", []
    path.write_text("old")

    def fsync(handle: int) -> None:
        what = Path(f"/proc/self/fd/{handle}").readlink()
        told.append((what.name if what == tmp_path else what.read_text(), path.read_text()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write(path, "new")
    assert told == [("new", "old"), (tmp_path.name, "new")]


def test_a_link_s_name_comes_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda _: told.append((tmp_path / "link").readlink().as_posix())
    )
    for to in ("one", "other"):
        atomic.point(tmp_path / "link", to)
    assert told == ["one", "other"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_flushes_no_folders_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "new"
    atomic.flush(tmp_path)


def test_a_disk_that_is_broken_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        atomic.flush(tmp_path)


# -- what cannot be written


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_of_a_full_disk_the_error_names_the_file_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", refuse(number))
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        atomic.write(path, "new")
    assert (caught.value.errno, caught.value.filename) == (number, str(path))
    assert (path.read_text(), names(tmp_path)) == ("old", ["x"])


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        atomic.write(tmp_path / "x", "new")
    assert names(tmp_path) == []


def test_text_that_is_none_leaves_everything(tmp_path: Path) -> None:
    atomic.write(tmp_path / "x", "old")
    with pytest.raises(UnicodeEncodeError):
        atomic.write(tmp_path / "x", "new\ud800")
    assert ((tmp_path / "x").read_text(), names(tmp_path)) == ("old", ["x"])


def test_a_link_that_cannot_be_made_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="Is a directory") as caught:
        atomic.point(tmp_path / "folder", "x")
    assert caught.value.filename == str(tmp_path / "folder")
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    ("number", "said", "todo"),
    [
        (errno.ENOSPC, "No space left on device", "make room on the disk of {folder}"),
        (errno.EDQUOT, "Disk quota exceeded", "make room on the disk of {folder}"),
        (errno.EROFS, "Read-only file system", "choose another place"),
    ],
)
def test_the_controller_has_one_message_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str, todo: str
) -> None:
    monkeypatch.setattr(os, "fsync", refuse(number))
    with pytest.raises(RoostError) as caught:
        controller.write(tmp_path / "x", "new")
    assert caught.value.what == f"{tmp_path}/x: cannot be written"
    assert caught.value.why == said
    todo = todo.format(folder=tmp_path)
    assert caught.value.fix == f"what was there before is unchanged; {todo}"


# -- several, and what a kill leaves

WRITER = """
import sys
from pathlib import Path
from roost.onhost import atomic
path, mark = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    atomic.write(path, mark * 50_000)
    content = path.read_text()
    assert len(content) == 50_000 and len(set(content)) == 1, content[:80]
"""


def test_several_may_write_one_file_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for mark in "ab"
    ]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [("", 0)] * 2
    assert names(tmp_path) == ["x"]


def test_what_a_kill_leaves_is_known_by_its_name(tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from roost.onhost import atomic\n"
    program += "os.fsync = lambda _: os._exit(9)\natomic.write(Path(sys.argv[1]), 'new')"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "x")], check=False)
    assert done.returncode == 9
    (left,) = names(tmp_path)
    assert atomic.is_draft(left)
    assert not any(map(atomic.is_draft, ("x", ".x", "x.new", ".roost.json")))
